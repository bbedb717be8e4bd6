//! Transfers that share a cable: each gets its part, and together they get done what one does.

use crate::bench::wait_for_port;
use crate::{checked, Bench};
use anyhow::{ensure, Context, Result};
use tbrdma_lab::Lab;

/// The one that gets least has at least this part of what the one with most has. The scheduler of a busy guest of two
/// processors makes worse odds than the cable does.
const EVEN: f64 = 0.5;

/// Frames that a message may cost more, if others are under way: those that carry no data are few.
const DEARER: f64 = 1.25;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    for (what, count) in [
        ("--mode write --size 65536 --depth 16", 500),
        ("--mode read --size 65536 --depth 16", 500),
        ("--mode atomic --depth 64", 5000),
    ] {
        let alone = transfers(lab, what, count, 1).context(what)?.0;
        for number in [2, 4] {
            let frames = side_by_side(lab, what, count, number).context(what)?;
            let dearer = frames as f64 / (alone * number) as f64;
            ensure!(
                dearer <= DEARER,
                "{number} transfers took {frames} frames, and each alone {alone}: {what}"
            );
        }
    }
    // Who is slow to post receives has messages sent again, so that the number of frames tells nothing.
    for number in [2, 4] {
        let what = "--mode send --size 64 --depth 64";
        side_by_side(lab, what, 10_000, number).context(what)?;
    }
    Ok(())
}

/// So many transfers at once, which have to get like numbers of messages. Returns the frames that they took.
fn side_by_side(lab: &Lab, what: &str, count: u64, number: u64) -> Result<u64> {
    let (frames, shares) = transfers(lab, what, count, number)?;
    let (least, most) = (shares.iter().min(), shares.iter().max());
    let (least, most) = least.zip(most).context("nobody sent anything")?;
    ensure!(
        *least as f64 >= EVEN * *most as f64,
        "of {number} transfers one had more of the cable than another: {shares:?} messages"
    );
    Ok(frames)
}

/// Checked transfers from b to a, so many at once. Returns the frames that they took, and the messages
/// of each while all were under way.
fn transfers(lab: &Lab, what: &str, count: u64, number: u64) -> Result<(u64, Vec<u64>)> {
    let frames = || Ok::<u64, anyhow::Error>(checked::frames(lab)?.iter().sum());
    let before = frames()?;
    let what = format!("{what} --count {count} --together {number}");
    let printed = checked::transfer(lab, &what)?;
    let frames = frames()? - before;
    if number == 1 {
        return Ok((frames, Vec::new()));
    }
    let last = printed.lines().last().context("it printed nothing")?;
    let told: serde_json::Value = serde_json::from_str(last)?;
    let shares = serde_json::from_value(told["shares"].clone())
        .with_context(|| format!("one was done before the last had begun: {printed}"))?;
    Ok((frames, shares))
}
