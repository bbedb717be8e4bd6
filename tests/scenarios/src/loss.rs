//! Checked traffic while one data frame in a hundred is lost.

use crate::bench::wait_for_port;
use crate::{facts, Bench};
use anyhow::{ensure, Result};
use std::time::Duration;
use tbrdma_fabric::protocol::{Direction, Fault, FaultKind, When};
use tbrdma_lab::Lab;

/// Against hanging only; the emulation is slow and its speed varies.
const LIMIT: Duration = Duration::from_secs(1500);

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    let mut fabric = lab.fabric()?;
    let loss = Fault {
        kind: FaultKind::Drop,
        when: When::Chance {
            probability: 0.01,
            seed: 77,
        },
    };
    fabric.set_fault(0, Direction::Both, loss)?;
    let outcome = traffic(lab);
    fabric.clear_faults()?;
    outcome?;
    let dropped: u64 = fabric
        .counters()?
        .cables
        .iter()
        .map(|cable| cable.dropped)
        .sum();
    ensure!(
        dropped > 1000,
        "only {dropped} frames were dropped, so nothing was shown"
    );
    let told = lab.run("b", "rdma statistic show link tbrdma0/1")?;
    let repeated = facts::statistic(&told, "tx_retransmits")?;
    ensure!(
        repeated > 0,
        "rdma statistic shows no repeated frame:\n{told}"
    );
    Ok(())
}

fn traffic(lab: &Lab) -> Result<()> {
    both(lab, "--mode send --size 64 --count 1000000 --depth 256")?;
    both(lab, "--mode send --size 1048576 --count 500 --depth 8")?;
    both(lab, "--mode write --size 1048576 --count 250 --depth 8")?;
    both(lab, "--mode read --size 1048576 --count 250 --depth 8")
}

/// Checked traffic from b to a.
pub(crate) fn both(lab: &Lab, what: &str) -> Result<()> {
    let check = format!("tbrdma-verbs-check --device tbrdma0 --gid-index 0 {what}");
    let server = lab.start("a", &format!("{check} --server 10.77.0.1"), LIMIT)?;
    lab.run_for("b", &format!("{check} --client a"), LIMIT)?;
    server.finish().map(drop)
}
