//! Stock programs that run as server at one end and as client at the other: ibv_rc_pingpong and
//! those of perftest.

use crate::facts;
use anyhow::{Context, Error, Result};
use std::time::Duration;
use tbrdma_lab::{Lab, Running};

/// Where [`addresses`] puts the first host.
pub const ADDRESS_OF_A: &str = "10.79.0.1";

/// Exit status of a program that ran longer than its limit.
pub const TIMED_OUT: i32 = 124;

/// Succeeds when a program listens for connections over the cable. The kernel says that it does a moment before it is
/// true (`rdma_listen` in drivers/infiniband/core/cma.c); who comes in that moment is rejected.
pub const LISTENS: &str = "rdma resource show cm_id | grep -q LISTEN && sleep 1";

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
    start_at(lab, program, server, client, address, limit)
}

/// The same, with the address at which the client finds the server. Over the cable that may be the
/// connection manager's business.
pub fn start_at(
    lab: &Lab,
    program: &str,
    server: &str,
    client: &str,
    address: &str,
    limit: Duration,
) -> Result<(Running, Running)> {
    let listening = lab.start(server, program, limit)?;
    // Both agree on their QPs by TCP at this port, or by the connection manager.
    let listens = format!("ss -Hltn sport = 18515 | grep -q . || {{ {LISTENS}; }}");
    match lab.until(server, &listens, limit) {
        Ok(_) => Ok((
            listening,
            lab.start(client, &format!("{program} {address}"), limit)?,
        )),
        Err(error) => Err(with_server(error, program, listening)),
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
    finish(program, start(lab, program, server, client, limit)?)
}

/// Runs `program` at both ends as [`start_at`] does, to the end of both.
pub fn both_at(
    lab: &Lab,
    program: &str,
    server: &str,
    client: &str,
    address: &str,
    limit: Duration,
) -> Result<Printed> {
    let ends = start_at(lab, program, server, client, address, limit)?;
    finish(program, ends)
}

fn finish(program: &str, ends: (Running, Running)) -> Result<Printed> {
    let (listening, asking) = ends;
    match asking.finish() {
        Ok(printed) => Ok(Printed {
            server: listening.finish()?,
            client: printed,
        }),
        Err(error) => Err(with_server(
            facts::client_failure(error),
            program,
            listening,
        )),
    }
}

/// The failure of `what`, which asked `server`, with what that said. It is ended: it may wait for ever for who has failed.
pub(crate) fn with_server(error: Error, what: &str, server: Running) -> Error {
    let host = server.host().to_owned();
    let said = match server.end() {
        Ok((_, said)) => said,
        Err(error) => format!("{error:#}"),
    };
    error.context(format!("{what}, whose server on {host} said:\n{said}"))
}

/// A counter of a and b together, as `rdma statistic` tells.
pub(crate) fn counted(lab: &Lab, name: &str) -> Result<u64> {
    let mut sum = 0;
    for host in ["a", "b"] {
        let told = lab.run(host, "rdma statistic show link tbrdma0/1")?;
        sum += facts::statistic(&told, name)?;
    }
    Ok(sum)
}

/// Gives the network devices of both hosts IPv4 addresses, and waits until they reach each other.
pub fn addresses(lab: &Lab) -> Result<()> {
    for (host, address) in [("a", ADDRESS_OF_A), ("b", "10.79.0.2")] {
        lab.run(
            host,
            &format!("modprobe rdma_ucm && ip addr replace {address}/24 dev tbrdma0"),
        )?;
    }
    let reach = format!("ping -c 1 -W 5 {ADDRESS_OF_A}");
    lab.until("b", &reach, Duration::from_secs(120))
        .context("the network device does not reach the other host")
        .map(drop)
}
