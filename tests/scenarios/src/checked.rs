//! Traffic of which every byte is compared.

use anyhow::Result;
use std::time::Duration;
use tbrdma_lab::{Lab, Running};

/// Against hanging only; the emulation is slow and its speed varies.
const LIMIT: Duration = Duration::from_secs(1500);

/// The program that sends it.
pub(crate) const CHECK: &str = "tbrdma-verbs-check --device tbrdma0 --gid-index 0";

/// Sends from b to a. Returns what b's program printed.
pub(crate) fn transfer(lab: &Lab, what: &str) -> Result<String> {
    let (server, client) = start(lab, what, LIMIT)?;
    let printed = client.finish()?;
    server.finish()?;
    Ok(printed)
}

/// Begins to send from b to a: both ends, the receiving one first.
pub(crate) fn start(lab: &Lab, what: &str, limit: Duration) -> Result<(Running, Running)> {
    let server = lab.start("a", &format!("{CHECK} {what} --server 10.77.0.1"), limit)?;
    let client = lab.start("b", &format!("{CHECK} {what} --client a"), limit)?;
    Ok((server, client))
}

/// Frames that have entered each cable so far.
pub(crate) fn frames(lab: &Lab) -> Result<Vec<u64>> {
    let counters = lab.fabric()?.counters()?;
    Ok(counters.cables.iter().map(|cable| cable.frames).collect())
}
