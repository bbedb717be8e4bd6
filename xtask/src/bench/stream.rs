//! The kernel's own stream device for Thunderbolt cables, `thunderbolt_stream`. Goes by time.
//!
//! It is set up through configfs: `stream/SERVICE/NAME` makes a device `/dev/tbstreamN`, which both hosts
//! give the same pair of HopIDs, the one's input being the other's output.

use super::candidate::{Candidate, Job, Load, Place};
use super::figure::{Figure, Kind};
use super::raw;
use crate::build;
use anyhow::{Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

/// The program that uses it, in a guest.
const PROGRAM: &str = "/run/tbrdma-stream /dev/tbstream0";
/// Where it is set up.
const CONFIG: &str = "/sys/kernel/config/thunderbolt/stream";

/// The candidate.
pub(crate) struct TbStream;

impl Candidate for TbStream {
    fn name(&self) -> &'static str {
        "tbstream"
    }

    fn place(&self) -> Place {
        Place::Cable
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        let program = build::program("tbrdma-stream", "tbrdma-stream")?;
        for host in ["a", "b"] {
            lab.access(host)?.push(&program, "/run/tbrdma-stream")?;
            lab.run(
                host,
                "modprobe thunderbolt_stream; mountpoint -q /sys/kernel/config || \
                 mount -t configfs none /sys/kernel/config",
            )?;
        }
        for (host, hops) in [("a", (20, 21)), ("b", (21, 20))] {
            lab.until(host, &configure(hops), Duration::from_secs(90))
                .with_context(|| format!("host {host} has no stream device"))?;
        }
        Ok(())
    }

    fn tear_down(&self, lab: &Lab) -> Result<()> {
        for host in ["a", "b"] {
            lab.run(
                host,
                &format!("rmdir {CONFIG}/*/bench {CONFIG}/*/ && modprobe -r thunderbolt_stream"),
            )?;
        }
        Ok(())
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        let (kind, size) = figure.stream()?;
        let mode = match kind {
            Kind::Latency => "pingpong",
            Kind::Bandwidth => "blast",
            Kind::BothWays => "both",
            Kind::LatencyEvents | Kind::Rate => return None,
        };
        let (server, _) = self.place().hosts();
        let ms = load.seconds * 1000;
        Some(Job {
            server: Some(PROGRAM.to_owned()),
            client: format!("{PROGRAM} {server} {mode} --size {size} --ms {ms}"),
            read: Box::new(move |printed| match kind {
                Kind::Latency => raw::pingpong(printed, size),
                _ => raw::blast(printed, size),
            }),
        })
    }
}

/// A script that makes the device with these HopIDs, input and output. They may be there already, from the other host's
/// settings; a HopID that is set once more is taken.
fn configure((input, output): (u32, u32)) -> String {
    format!(
        "set -e
key=$(grep -lx stream /sys/bus/thunderbolt/devices/*/key)
service=${{key%/key}}
mkdir -p {CONFIG}/${{service##*/}}/bench
cd {CONFIG}/${{service##*/}}/bench
[ \"$(cat in_hopid)\" = {input} ] || echo {input} > in_hopid
[ \"$(cat out_hopid)\" = {output} ] || echo {output} > out_hopid
echo 1024 > ring_size
[ ! -e busy_poll ] || echo 1 > busy_poll
[ \"$(cat index)\" = 0 ]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Operation;

    #[test]
    fn command_lines() {
        let job = |kind| {
            let figure = Figure {
                kind,
                operation: Operation::Stream,
                size: 4096,
            };
            let load = Load {
                count: 1,
                seconds: 2,
            };
            TbStream.job(&figure, load)
        };
        let both = job(Kind::BothWays).unwrap();
        assert_eq!(both.server.as_deref(), Some(PROGRAM));
        assert_eq!(
            both.client,
            format!("{PROGRAM} a both --size 4096 --ms 2000")
        );
        assert!(job(Kind::Rate).is_none());
    }

    #[test]
    fn hops_are_set_unless_they_are() {
        assert!(configure((20, 21)).contains("[ \"$(cat in_hopid)\" = 20 ] || echo 20 > in_hopid"));
    }
}
