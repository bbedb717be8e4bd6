//! Candidates with verbs, measured by perftest.

use super::candidate::{Candidate, Job, Load, Place, Reader, Sample};
use super::figure::{Figure, Kind, Operation, LIST};
use anyhow::{Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;
use tbrdma_scenarios::{configure_thunderbolt_net, facts, wait_for_port};

/// Until something is usable. Generous: emulated computers are slow.
const READY: Duration = Duration::from_secs(120);

/// The local ACK timeout that every candidate gets, 4.096 µs << 18: perftest's own, 67 ms, is shorter than what an
/// emulated computer needs at times, and what is measured then is repetition.
const TIMEOUT: u32 = 18;
/// Entries of the send queue that bandwidth programs keep filled, of every candidate.
const DEPTH: u32 = 128;

/// Our device over the cable.
pub(crate) struct Tbrdma;

impl Candidate for Tbrdma {
    fn name(&self) -> &'static str {
        "tbrdma"
    }

    fn place(&self) -> Place {
        Place::Cable
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        wait_for_port(lab, "ACTIVE")
    }

    fn tear_down(&self, _lab: &Lab) -> Result<()> {
        Ok(())
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        perftest("tbrdma0", 0, self.place(), figure, load)
    }

    fn control_frames(&self, lab: &Lab) -> Result<Option<u64>> {
        let (_, sender) = self.place().hosts();
        let state = lab.run(
            sender,
            "cat /sys/kernel/debug/tbrdma/state 2>/dev/null || true",
        )?;
        Ok(facts::state_sum(&state, "rail", "control"))
    }
}

/// The kernel's RDMA in software over the kernel's network driver for the same cable.
pub(crate) struct SoftRoce;

impl Candidate for SoftRoce {
    fn name(&self) -> &'static str {
        "rxe"
    }

    fn place(&self) -> Place {
        Place::Cable
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        configure_thunderbolt_net(lab)?;
        for host in ["a", "b"] {
            soft_roce(lab, host, "thunderbolt0")?;
        }
        Ok(())
    }

    fn tear_down(&self, lab: &Lab) -> Result<()> {
        for host in ["a", "b"] {
            lab.run(host, "rdma link delete rxe0")?;
        }
        Ok(())
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        // GID 1 is that of the IPv4 address.
        perftest("rxe0", 1, self.place(), figure, load)
    }
}

/// Our device in one host.
pub(crate) struct TbrdmaLoopback;

impl Candidate for TbrdmaLoopback {
    fn name(&self) -> &'static str {
        "tbrdma-loop"
    }

    fn place(&self) -> Place {
        Place::Loopback
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        lab.run("a", "modprobe -r tbrdma && modprobe tbrdma loopback=1")?;
        wait_for_port(lab, "ACTIVE")
    }

    fn tear_down(&self, _lab: &Lab) -> Result<()> {
        Ok(())
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        perftest("tbrdma0", 0, self.place(), figure, load)
    }
}

/// The kernel's RDMA in software, in one host.
pub(crate) struct SoftRoceLoopback;

impl Candidate for SoftRoceLoopback {
    fn name(&self) -> &'static str {
        "rxe-loop"
    }

    fn place(&self) -> Place {
        Place::Loopback
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        lab.run(
            "a",
            "ip link show dummy0 > /dev/null 2>&1 || ip link add dummy0 type dummy; \
             ip link set dummy0 up mtu 4200 && ip addr replace 10.79.0.1/24 dev dummy0",
        )?;
        soft_roce(lab, "a", "dummy0")
    }

    fn tear_down(&self, lab: &Lab) -> Result<()> {
        lab.run("a", "rdma link delete rxe0 && ip link delete dummy0")
            .map(drop)
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        perftest("rxe0", 1, self.place(), figure, load)
    }
}

/// Makes rxe0 on top of a network interface that has an IPv4 address.
fn soft_roce(lab: &Lab, host: &str, interface: &str) -> Result<()> {
    lab.run(
        host,
        &format!("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {interface}"),
    )?;
    let gid = "grep :ffff: /sys/class/infiniband/rxe0/ports/1/gids/1";
    lab.until(host, gid, READY)
        .with_context(|| format!("rxe0 of {host} has no GID for its IPv4 address"))?;
    Ok(())
}

/// The stock program for a figure, at both ends.
fn perftest(device: &str, gid: u32, place: Place, figure: &Figure, load: Load) -> Option<Job> {
    let operation = match figure.operation {
        Operation::Send => "send",
        Operation::Write => "write",
        Operation::Read => "read",
        Operation::Stream => return None,
    };
    let what = if figure.is_ping_pong() { "lat" } else { "bw" };
    let count = count(figure, load);
    let more = match figure.kind {
        Kind::Latency => String::new(),
        Kind::LatencyEvents => " -e".to_owned(),
        Kind::Bandwidth => format!(" -t {DEPTH}"),
        Kind::BothWays => format!(" -t {DEPTH} -b"),
        Kind::Rate => format!(" -t {DEPTH} -l {LIST}"),
    };
    let program = format!(
        "ib_{operation}_{what} -F -d {device} -x {gid} -u {TIMEOUT} -s {} -n {count}{more}",
        figure.size
    );
    let address = match place.hosts() {
        (server, client) if server == client => "127.0.0.1",
        (server, _) => server,
    };
    Some(Job {
        client: format!("{program} {address}"),
        server: Some(program),
        read: reader(*figure, count),
    })
}

/// Iterations: lists of entries have to be whole, and perftest wants five at least.
fn count(figure: &Figure, load: Load) -> u64 {
    match figure.kind {
        Kind::Rate => load.count.max(1).next_multiple_of(LIST),
        _ => load.count.max(5),
    }
}

fn reader(figure: Figure, count: u64) -> Reader {
    let directions = match figure.kind {
        Kind::BothWays => 2,
        // READ's request has no payload.
        Kind::Latency | Kind::LatencyEvents if figure.operation != Operation::Read => 2,
        _ => 1,
    };
    let messages = (count * directions) as f64;
    Box::new(move |printed| {
        let (value, p99) = match figure.kind {
            Kind::Latency | Kind::LatencyEvents => {
                let found = facts::perftest_latency(printed)?;
                (found.median_us, Some(found.p99_us))
            }
            Kind::Bandwidth | Kind::BothWays => {
                (facts::perftest_bandwidth(printed)?.mib_per_s, None)
            }
            Kind::Rate => (facts::perftest_bandwidth(printed)?.messages_per_s, None),
        };
        Ok(Sample {
            value,
            p99,
            bytes: messages * figure.size as f64,
            messages,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kind: Kind, operation: Operation, size: u64, count: u64) -> Option<Job> {
        let figure = Figure {
            kind,
            operation,
            size,
        };
        let load = Load { count, seconds: 1 };
        perftest("x0", 1, Place::Cable, &figure, load)
    }

    #[test]
    fn command_lines() {
        let rate = job(Kind::Rate, Operation::Write, 64, 100).unwrap();
        let program = "ib_write_bw -F -d x0 -x 1 -u 18 -s 64 -n 128 -t 128 -l 64";
        assert_eq!(rate.server.as_deref(), Some(program));
        assert_eq!(rate.client, format!("{program} a"));
        let events = job(Kind::LatencyEvents, Operation::Send, 2, 1).unwrap();
        assert_eq!(
            events.client,
            "ib_send_lat -F -d x0 -x 1 -u 18 -s 2 -n 5 -e a"
        );
        assert!(job(Kind::Latency, Operation::Stream, 2, 9).is_none());
    }

    #[test]
    fn samples_know_what_was_moved() {
        let both = job(Kind::BothWays, Operation::Write, 65536, 500).unwrap();
        let sample = (both.read)(" 65536 500 770.43 640.89 0.010254\n").unwrap();
        assert_eq!(sample.value, 640.89);
        assert_eq!(sample.messages, 1000.0);
        assert_eq!(sample.bytes, 65_536_000.0);
        let read = job(Kind::Latency, Operation::Read, 64, 200).unwrap();
        let line = " 64 200 601.5 2100.0 744.4 800.1 90.0 1500.0 2100.0\n";
        let sample = (read.read)(line).unwrap();
        assert_eq!((sample.value, sample.p99), (744.4, Some(1500.0)));
        assert_eq!(sample.messages, 200.0);
    }
}
