//! Stock programs that run as server at one end and as client at the other: ibv_rc_pingpong and
//! those of perftest.

use anyhow::Result;
use std::time::Duration;
use tbrdma_lab::{Lab, Running};

/// Exit status of a program that ran longer than its limit.
pub const TIMED_OUT: i32 = 124;

/// What both ends of a run printed.
pub struct Printed {
    /// By the server.
    pub server: String,
    /// By the client.
    pub client: String,
}

/// Starts `program`, with all its options, on `server` and, once that listens, on `client`, which
/// may be the same host. Each end may take as long as `limit`. Returns both, the server first.
pub fn start(
    lab: &Lab,
    program: &str,
    server: &str,
    client: &str,
    limit: Duration,
) -> Result<(Running, Running)> {
    let address = if server == client {
        "127.0.0.1"
    } else {
        server
    };
    let listening = lab.start(server, program, limit)?;
    // Both agree on their QPs by TCP at this port.
    match lab.until(server, "ss -Hltn sport = 18515 | grep -q .", limit) {
        Ok(_) => Ok((
            listening,
            lab.start(client, &format!("{program} {address}"), limit)?,
        )),
        Err(error) => {
            let (_, said) = listening.outcome()?;
            Err(error.context(format!("{program}, whose server on {server} said:\n{said}")))
        }
    }
}

/// Runs `program` at both ends as [`start`] does, to the end of both.
pub fn both(
    lab: &Lab,
    program: &str,
    server: &str,
    client: &str,
    limit: Duration,
) -> Result<Printed> {
    let (listening, asking) = start(lab, program, server, client, limit)?;
    match asking.finish() {
        Ok(printed) => Ok(Printed {
            server: listening.finish()?,
            client: printed,
        }),
        Err(error) => {
            let (_, said) = listening.outcome()?;
            Err(error.context(format!("{program}, whose server on {server} said:\n{said}")))
        }
    }
}
