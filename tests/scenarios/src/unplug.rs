//! The cable is pulled under load, and put back.

use crate::bench::wait_for_port;
use crate::{stock, Bench};
use anyhow::{ensure, Result};
use std::time::{Duration, Instant};
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    for pull in [|lab: &Lab| pull_under_load(lab, &[0]), pull_under_perftest] {
        pull(lab)?;
        wait_for_port(lab, "DOWN")?;
        lab.fabric()?.plug(0)?;
        wait_for_port(lab, "ACTIVE")?;
        crate::checked::transfer(lab, "--mode send --size 4096 --count 200")?;
    }
    Ok(())
}

/// Stock ib_write_bw, in both directions, so that either end waits for completions.
fn pull_under_perftest(lab: &Lab) -> Result<()> {
    let program = "ib_write_bw -b -s 65536 -D 100 -F -d tbrdma0 -x 0";
    let ends = stock::start(lab, program, "a", "b", LIMIT)?;
    wait_for_traffic(lab)?;
    lab.fabric()?.unplug(0)?;
    for (host, running) in [("a", ends.0), ("b", ends.1)] {
        let (status, printed) = running.outcome()?;
        ensure!(
            status.is_some_and(|status| status != 0 && status != stock::TIMED_OUT)
                && printed.contains("Completion with error"),
            "ib_write_bw on {host} was not told by a completion ({status:?}):\n{printed}"
        );
    }
    Ok(())
}

/// Both ends of a running transfer end with a completion error, soon, when all cables are pulled.
pub(crate) fn pull_under_load(lab: &Lab, cables: &[usize]) -> Result<()> {
    let what = "--mode write --both --size 65536 --count 100000000 --depth 32 --expect-error";
    let (server, client) = crate::checked::start(lab, what, LIMIT)?;
    wait_for_traffic(lab)?;
    for cable in cables {
        lab.fabric()?.unplug(*cable)?;
    }
    // The program gives up by itself if it sees no error within its own limit.
    for (host, running) in [("a", server), ("b", client)] {
        let (status, printed) = running.outcome()?;
        ensure!(
            status == Some(0),
            "{host} did not end with an error in time ({status:?}):\n{printed}"
        );
        // The device is still there, so it has to be a completion that tells.
        ensure!(
            printed.contains("a completion failed"),
            "{host} got something else than a completion error:\n{printed}"
        );
    }
    Ok(())
}

/// Waits until a transfer that was just started has moved some thousand frames over the cable.
pub(crate) fn wait_for_traffic(lab: &Lab) -> Result<()> {
    let mut fabric = lab.fabric()?;
    let frames = |counters: tbrdma_fabric::protocol::Counters| counters.cables[0].frames;
    let before = frames(fabric.counters()?);
    let start = Instant::now();
    while frames(fabric.counters()?) < before + 5000 {
        ensure!(start.elapsed() < LIMIT, "no traffic on the cable");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
