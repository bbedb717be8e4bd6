//! Two cables between two hosts carry the frames of every QP, and each of them suffices.

use crate::{checked, stock, unplug};
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};
use tbrdma_fabric::protocol::{Direction, Fault, FaultKind, When};
use tbrdma_lab::{Lab, Running};

/// Against hanging only; the emulation is slow and its speed varies.
const LIMIT: Duration = Duration::from_secs(900);

/// Frames on a cable that mean that it is used: more than a cable has that was just plugged in.
const USED: u64 = 300;

const BOTH: [usize; 2] = [0, 1];

pub(crate) fn run(lab: &Lab) -> Result<()> {
    joined(lab, 2)?;
    for what in [
        "--mode send --size 65536 --depth 8 --count 100",
        "--mode send --size 300 --depth 256 --count 10000",
        "--mode write --size 65536 --depth 8 --count 200",
        "--mode read --size 65536 --depth 8 --count 200",
        "--mode atomic --depth 64 --count 5000",
    ] {
        shared(lab, what, |lab| checked::transfer(lab, what).map(drop))?;
    }
    for program in ["ib_write_bw -s 65536 -n 300", "ib_read_bw -s 65536 -n 200"] {
        let program = format!("{program} -F -d tbrdma0 -x 0");
        shared(lab, &program, |lab| {
            stock::both(lab, &program, "a", "b", LIMIT).map(drop)
        })?;
    }
    for (what, count) in [
        ("--mode write --both --size 262144 --depth 8", 150),
        ("--mode send --size 65536 --depth 8", 500),
        ("--mode read --size 262144 --depth 8", 150),
        ("--mode atomic --depth 64", 20_000),
    ] {
        during(lab, what, count, pulled_in_turn).context(what)?;
    }
    during(lab, "--mode write --both --size 65536 --depth 32", 600, cut)
        .context("a cable lost everything")?;
    unplug::pull_under_load(lab, &BOTH)?;
    for cable in BOTH {
        lab.fabric()?.plug(cable)?;
    }
    joined(lab, 2)?;
    checked::transfer(lab, "--mode send --size 4096 --count 200").map(drop)
}

/// Waits until each host has so many rails to the other.
fn joined(lab: &Lab, rails: usize) -> Result<()> {
    for host in ["a", "b"] {
        let script = format!("grep -q '^peer .* rails={rails} ' /sys/kernel/debug/tbrdma/state");
        lab.until(host, &script, LIMIT)?;
    }
    Ok(())
}

/// Each cable has carried a good part of the frames of what `go` did.
fn shared(lab: &Lab, what: &str, go: impl FnOnce(&Lab) -> Result<()>) -> Result<()> {
    let before = checked::frames(lab)?;
    go(lab)?;
    let after = checked::frames(lab)?;
    let shares: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let all: u64 = shares.iter().sum();
    ensure!(
        shares.iter().all(|share| share * 5 > all),
        "the cables do not share the frames of {what}: {shares:?}"
    );
    Ok(())
}

/// Has `disturb` do something during checked traffic from b to a, which has to come to its end
/// without an error. If `disturb` says that the traffic was over too soon, more is sent.
fn during(
    lab: &Lab,
    what: &str,
    mut count: u64,
    disturb: fn(&Lab, &mut Running) -> Result<bool>,
) -> Result<()> {
    let most = count * 64;
    loop {
        let what = format!("{what} --count {count}");
        let (server, mut client) = checked::start(lab, &what, LIMIT)?;
        let disturbed = disturb(lab, &mut client);
        // What the programs say tells more than that nothing was on a cable.
        for (host, running) in [("b", client), ("a", server)] {
            let (status, printed) = running.outcome()?;
            ensure!(
                status == Some(0),
                "the transfer failed on {host} ({status:?}):\n{printed}"
            );
        }
        let done = disturbed?;
        joined(lab, 2)?;
        if done {
            return Ok(());
        }
        ensure!(
            count < most,
            "{count} messages are over before both cables were used and put back"
        );
        count *= 4;
    }
}

/// Waits until each of these cables has carried frames from now on. `false`: the transfer has come
/// to its end before.
fn used(lab: &Lab, transfer: &mut Running, cables: &[usize]) -> Result<bool> {
    let before = checked::frames(lab)?;
    let start = Instant::now();
    loop {
        let now = checked::frames(lab)?;
        if cables.iter().all(|at| now[*at] >= before[*at] + USED) {
            return Ok(true);
        }
        if !transfer.is_running()? {
            return Ok(false);
        }
        ensure!(
            start.elapsed() < LIMIT,
            "of the cables {cables:?} not all are used: {before:?} frames before, {now:?} now"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Each cable is pulled while both are in use, and put back when the other has carried on. Busy
/// hosts notice late what happened to a cable, and are given the time: else both would be without.
fn pulled_in_turn(lab: &Lab, transfer: &mut Running) -> Result<bool> {
    for cable in BOTH {
        if !used(lab, transfer, &BOTH)? {
            return Ok(false);
        }
        lab.fabric()?.unplug(cable)?;
        let went_on = joined(lab, 1).and_then(|()| used(lab, transfer, &[1 - cable]));
        lab.fabric()?.plug(cable)?;
        if !went_on? {
            return Ok(false);
        }
        joined(lab, 2)?;
    }
    used(lab, transfer, &BOTH)
}

/// One cable loses everything, which nobody is told of, and then works again.
fn cut(lab: &Lab, transfer: &mut Running) -> Result<bool> {
    if !used(lab, transfer, &BOTH)? {
        return Ok(false);
    }
    let moved = || stock::counted(lab, "tx_moved_frames");
    let before = moved()?;
    let everything = Fault {
        kind: FaultKind::Drop,
        when: When::Chance {
            probability: 1.0,
            seed: 1,
        },
    };
    lab.fabric()?.set_fault(0, Direction::Both, everything)?;
    let went_on = joined(lab, 1).and_then(|()| used(lab, transfer, &[1]));
    lab.fabric()?.clear_faults()?;
    if !went_on? {
        return Ok(false);
    }
    joined(lab, 2)?;
    if !used(lab, transfer, &BOTH)? {
        return Ok(false);
    }
    let moved = moved()? - before;
    ensure!(
        moved > 0,
        "no frame was moved from the cable that lost them"
    );
    Ok(true)
}
