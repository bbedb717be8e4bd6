//! TCP over the kernel's network driver for the same cable: iperf3 for bandwidth, sockperf for latency. Both go by time.

use super::candidate::{Candidate, Job, Load, Place, Sample};
use super::figure::{Figure, Kind};
use anyhow::{Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;
use tbrdma_scenarios::{configure_thunderbolt_net, facts};

/// Address of host a on thunderbolt_net.
const ADDRESS: &str = "10.78.0.1";
/// Ports of iperf3 and of sockperf.
const STREAM_PORT: u16 = 5201;
const PING_PORT: u16 = 11111;
/// The greatest that iperf3 writes at once.
const GREATEST_WRITE: u64 = 1 << 20;
/// The smallest message of sockperf, which numbers them.
const SMALLEST_PING: u64 = 14;

/// TCP on thunderbolt_net.
pub(crate) struct Tcp;

impl Candidate for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn place(&self) -> Place {
        Place::Cable
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        configure_thunderbolt_net(lab)?;
        let (server, _) = self.place().hosts();
        let services = [
            (STREAM_PORT, format!("iperf3 --server --port {STREAM_PORT}")),
            (
                PING_PORT,
                format!("sockperf server --tcp -i {ADDRESS} -p {PING_PORT}"),
            ),
        ];
        for (port, service) in services {
            lab.run(
                server,
                &format!("systemd-run --quiet --unit bench-{port} --property Type=exec {service}"),
            )?;
            lab.until(
                server,
                &format!("ss -Hltn sport = :{port} | grep -q ."),
                Duration::from_secs(60),
            )
            .with_context(|| format!("{service} does not listen"))?;
        }
        Ok(())
    }

    fn tear_down(&self, lab: &Lab) -> Result<()> {
        let (server, _) = self.place().hosts();
        lab.run(
            server,
            &format!("systemctl stop bench-{STREAM_PORT} bench-{PING_PORT}"),
        )
        .map(drop)
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        let (kind, size) = figure.stream()?;
        let seconds = load.seconds;
        match kind {
            Kind::Latency if size >= SMALLEST_PING => Some(Job {
                server: None,
                client: format!(
                    "sockperf ping-pong --tcp -i {ADDRESS} -p {PING_PORT} -m {size} -t {seconds}"
                ),
                read: Box::new(move |printed| {
                    Ok(Sample::of_round_trips(facts::sockperf(printed)?, size))
                }),
            }),
            Kind::Bandwidth | Kind::BothWays => {
                let write = size.min(GREATEST_WRITE);
                let more = if kind == Kind::BothWays {
                    " --bidir"
                } else {
                    ""
                };
                Some(Job {
                    server: None,
                    client: format!(
                        "iperf3 --client {ADDRESS} --port {STREAM_PORT} --length {write} \
                         --time {seconds} --json{more}"
                    ),
                    read: Box::new(move |printed| {
                        Ok(Sample::of_stream(facts::iperf3(printed)?, write))
                    }),
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Operation;

    fn job(kind: Kind, size: u64) -> Option<Job> {
        let figure = Figure {
            kind,
            operation: Operation::Stream,
            size,
        };
        let load = Load {
            count: 1,
            seconds: 2,
        };
        Tcp.job(&figure, load)
    }

    #[test]
    fn command_lines() {
        let client = |kind, size| job(kind, size).unwrap().client;
        assert!(client(Kind::Bandwidth, 4 << 20).contains("--length 1048576 --time 2 --json"));
        assert!(client(Kind::BothWays, 4096).ends_with("--json --bidir"));
        assert!(client(Kind::Latency, 64).ends_with("-m 64 -t 2"));
        assert!(job(Kind::Latency, 2).is_none());
        assert!(job(Kind::LatencyEvents, 64).is_none());
    }
}
