//! Checked traffic of every operation over cables that lose, damage, repeat and delay frames.

use crate::bench::wait_for_port;
use crate::{checked, stock, Bench};
use anyhow::{ensure, Context, Result};
use tbrdma_fabric::protocol::{CableCounters, Direction, Fault, FaultKind, When};
use tbrdma_lab::Lab;

/// What happens to frames, in both directions, and how likely it is for each.
const TROUBLES: [(FaultKind, f64); 6] = [
    (FaultKind::Drop, 0.001),
    (FaultKind::Drop, 0.01),
    (FaultKind::Drop, 0.05),
    (FaultKind::Corrupt, 0.01),
    (FaultKind::Duplicate, 0.01),
    (FaultKind::Delay, 0.01),
];

/// Messages of one frame and of many, in both roles of either host.
const OPERATIONS: [&str; 6] = [
    "--mode send --size 64 --count 5000 --depth 256",
    "--mode send --both --size 1048576 --count 12 --depth 8",
    "--mode write --size 300 --count 3000 --depth 64",
    "--mode write --both --size 1048576 --count 12 --depth 8",
    "--mode read --size 1048576 --count 12 --depth 8",
    "--mode atomic --count 2000 --depth 64",
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    TROUBLES
        .iter()
        .try_for_each(|(kind, probability)| trouble(lab, *kind, *probability))
}

/// Every operation under a trouble on all cables between a and b.
fn trouble(lab: &Lab, kind: FaultKind, probability: f64) -> Result<()> {
    operations(lab, kind, probability)
        .with_context(|| format!("{kind:?}, each frame with probability {probability}"))
}

fn operations(lab: &Lab, kind: FaultKind, probability: f64) -> Result<()> {
    let mut fabric = lab.fabric()?;
    let before = fabric.counters()?.cables;
    let repeated = || stock::counted(lab, "tx_retransmits");
    let repeated_before = repeated()?;
    for cable in 0..before.len() {
        let when = When::Chance {
            probability,
            seed: 77 + cable as u64,
        };
        fabric.set_fault(cable, Direction::Both, Fault { kind, when })?;
    }
    let outcome = OPERATIONS
        .iter()
        .try_for_each(|what| checked::transfer(lab, what).map(drop).context(*what));
    fabric.clear_faults()?;
    outcome?;
    let after = fabric.counters()?.cables;
    for (cable, (after, before)) in after.iter().zip(&before).enumerate() {
        let met = met(kind, after) - met(kind, before);
        ensure!(
            met >= 5,
            "only {met} frames on cable {cable} had that trouble, so nothing was shown"
        );
    }
    let repeated = repeated()? - repeated_before;
    let lost = matches!(kind, FaultKind::Drop | FaultKind::Corrupt);
    ensure!(
        repeated > 0 || !lost,
        "rdma statistic shows no repeated frame"
    );
    Ok(())
}

/// Frames that a fault of this kind has met.
fn met(kind: FaultKind, counters: &CableCounters) -> u64 {
    match kind {
        FaultKind::Drop => counters.dropped,
        FaultKind::Corrupt | FaultKind::CorruptSilently => counters.corrupted,
        FaultKind::Duplicate => counters.duplicated,
        FaultKind::Delay => counters.delayed,
    }
}
