//! Traffic of which every byte is compared.

use anyhow::Result;
use std::time::Duration;
use tbrdma_lab::Lab;

/// Against hanging only; the emulation is slow and its speed varies.
const LIMIT: Duration = Duration::from_secs(1500);

/// The program that sends it.
pub(crate) const CHECK: &str = "tbrdma-verbs-check --device tbrdma0 --gid-index 0";

/// Sends from b to a. Returns what b's program printed.
pub(crate) fn transfer(lab: &Lab, what: &str) -> Result<String> {
    let server = lab.start("a", &format!("{CHECK} {what} --server 10.77.0.1"), LIMIT)?;
    let printed = lab.run_for("b", &format!("{CHECK} {what} --client a"), LIMIT)?;
    server.finish()?;
    Ok(printed)
}
