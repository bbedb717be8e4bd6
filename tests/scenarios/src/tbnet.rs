//! The emulated hardware itself: stock thunderbolt_net over it, beside our module.

use crate::bench::wait_for_port;
use crate::Bench;
use anyhow::{ensure, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    configure(lab)?;
    lab.run("a", "ping -c 5 -W 20 10.78.0.2")?;
    lab.run("b", "ping -c 5 -W 20 10.78.0.1")?;
    // 100 MB by TCP, compared by length and checksum.
    let describe = "wc -c < /tmp/all && sha256sum < /tmp/all && rm /tmp/all";
    let receiving = lab.start(
        "b",
        &format!("nc -l -p 7777 -N < /dev/null > /tmp/all && {describe}"),
        LIMIT,
    )?;
    lab.until("b", "ss -Hltn sport = 7777 | grep -q .", LIMIT)?;
    let sent = lab.run_for(
        "a",
        &format!(
            "set -e; head -c 1000000 /dev/urandom > /tmp/part; \
             for i in $(seq 100); do cat /tmp/part; done > /tmp/all; rm /tmp/part; \
             nc -N 10.78.0.2 7777 < /tmp/all; {describe}"
        ),
        LIMIT,
    )?;
    let received = receiving.finish()?;
    ensure!(
        sent.starts_with("100000000\n") && sent.trim() == received.trim(),
        "what was sent is not what arrived: {sent} {received}"
    );
    Ok(())
}

/// Loads thunderbolt_net on the hosts a and b and gives it the addresses 10.78.0.1 and 10.78.0.2, if that was not done
/// before.
pub fn configure(lab: &Lab) -> Result<()> {
    for (host, number) in [("a", 1), ("b", 2)] {
        lab.run(host, "modprobe thunderbolt_net")?;
        lab.until(
            host,
            &format!(
                "ip link set thunderbolt0 up && ip addr replace 10.78.0.{number}/24 dev thunderbolt0"
            ),
            Duration::from_secs(90),
        )?;
    }
    lab.until("a", "ping -c 1 -W 5 10.78.0.2", Duration::from_secs(120))
        .map(drop)
}
