//! Stock programs that run as server at one end and as client at the other: ibv_rc_pingpong and
//! those of perftest.

use anyhow::Result;
use std::time::Duration;
use tbrdma_lab::Lab;

/// What both ends of a run printed.
pub struct Printed {
    /// By the server.
    pub server: String,
    /// By the client.
    pub client: String,
}

/// Runs `program`, with all its options, on `server` and on `client`, which may be the same host.
/// Each end may take as long as `limit`. An error has what the server said.
pub fn both(
    lab: &Lab,
    program: &str,
    server: &str,
    client: &str,
    limit: Duration,
) -> Result<Printed> {
    let address = if server == client {
        "127.0.0.1"
    } else {
        server
    };
    // Both agree on their QPs by TCP at this port.
    let listening = lab.start(server, program, limit)?;
    let ran = lab
        .until(server, "ss -Hltn sport = 18515 | grep -q .", limit)
        .and_then(|_| lab.run_for(client, &format!("{program} {address}"), limit));
    match ran {
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
