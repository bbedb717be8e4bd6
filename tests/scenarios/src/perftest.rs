//! Stock perftest over the cable.

use crate::bench::wait_for_port;
use crate::{facts, stock, Bench};
use anyhow::Result;
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(180);

/// Programs and their own arguments.
const PROGRAMS: [&str; 3] = [
    "ib_send_bw -s 65536 -n 500",
    "ib_write_bw -s 65536 -n 500",
    "ib_read_bw -s 65536 -n 500",
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    bandwidths(lab, "a", "b")?;
    bandwidths(lab, "b", "a")?;
    both(lab, "ib_send_lat -s 64 -n 500", "a", "b").map(drop)
}

/// All bandwidth programs in one direction.
pub(crate) fn bandwidths(lab: &Lab, server: &str, client: &str) -> Result<()> {
    for program in PROGRAMS {
        facts::until_measured(|| facts::bandwidth(&both(lab, program, server, client)?))?;
    }
    Ok(())
}

/// Runs a perftest program at both ends; returns what the client printed.
fn both(lab: &Lab, program: &str, server: &str, client: &str) -> Result<String> {
    let program = format!("{program} -F -d tbrdma0 -x 0");
    Ok(stock::both(lab, &program, server, client, LIMIT)?.client)
}
