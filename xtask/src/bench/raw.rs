//! A pair of bare DMA rings: what nothing that runs on top of rings can beat. Goes by time.

use super::candidate::{Candidate, Job, Load, Place, Sample};
use super::figure::{Figure, Kind};
use crate::build;
use crate::package::install::Root;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tbrdma_lab::cache::{content_of, Cache, Key};
use tbrdma_lab::{roots, Lab};
use tbrdma_scenarios::facts;

/// Sources of the module.
const SOURCES: [&str; 2] = ["Kbuild", "tbraw.c"];
/// Where it is in a guest.
const MODULE: &str = "/run/tbraw.ko";
/// What steers it there.
const RUN: &str = "/sys/kernel/debug/tbraw/run";
/// The largest frame, bytes.
const FRAME: u64 = 4096;

/// The candidate.
pub(crate) struct Rings;

impl Candidate for Rings {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn place(&self) -> Place {
        Place::Cable
    }

    fn set_up(&self, lab: &Lab) -> Result<()> {
        let module = module(lab.kernel()).context("the module with bare rings")?;
        for host in ["a", "b"] {
            lab.access(host)?.push(&module, MODULE)?;
            lab.run(host, &format!("insmod {MODULE}"))?;
        }
        for host in ["a", "b"] {
            // A host may miss that the other has something new; announced again, it sees it.
            let again = format!(
                "n=0; until [ -e {RUN} ]; do n=$((n + 1)); [ $n -lt 100 ] || {{ rmmod tbraw; insmod {MODULE}; exit 1; }}; \
                 sleep 0.1; done"
            );
            lab.until(host, &again, Duration::from_secs(90))
                .with_context(|| format!("host {host} does not see the other's rings"))?;
        }
        // Frames are lost until both have joined their rings to the cable.
        let (_, client) = self.place().hosts();
        lab.until(client, &run("pingpong 64 1"), Duration::from_secs(60))
            .map(drop)
            .context("no frame comes back over bare rings")
    }

    fn tear_down(&self, lab: &Lab) -> Result<()> {
        for host in ["a", "b"] {
            lab.run(host, "rmmod tbraw")?;
        }
        Ok(())
    }

    fn job(&self, figure: &Figure, load: Load) -> Option<Job> {
        let (kind, size) = figure.stream()?;
        let ms = load.seconds * 1000;
        match kind {
            Kind::Latency if size <= FRAME => Some(Job {
                server: None,
                client: run(&format!("pingpong {size} {ms}")),
                read: Box::new(move |printed| pingpong(printed, size)),
            }),
            Kind::Bandwidth | Kind::BothWays => {
                let mode = if kind == Kind::BothWays {
                    "both"
                } else {
                    "blast"
                };
                Some(Job {
                    server: None,
                    client: run(&format!("{mode} {ms}")),
                    read: Box::new(move |printed| blast(printed, size)),
                })
            }
            _ => None,
        }
    }
}

/// A ping-pong's sample.
pub(super) fn pingpong(printed: &str, size: u64) -> Result<Sample> {
    Ok(Sample::of_round_trips(facts::pingpong(printed)?, size))
}

/// The sample of bytes that were sent as fast as could be.
pub(super) fn blast(printed: &str, size: u64) -> Result<Sample> {
    Ok(Sample::of_stream(facts::blast(printed)?, size))
}

/// Starts something, waits for its end, and prints the result; one program, so that it can be traced.
fn run(what: &str) -> String {
    format!("sh -ec 'echo {what} > {RUN}; cat {RUN}'")
}

/// The module for a kernel of the guests, from the cache or compiled now in their root.
fn module(kernel: &str) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let root = roots::GUEST.root(&cache)?;
    let sources = build::repository().join("tests/rawring");
    let mut key = Key::default()
        .with(content_of(&root))
        .with(kernel)
        .with(include_str!("raw.rs"));
    for source in SOURCES {
        key = key.with_file(&sources.join(source))?;
    }
    cache.entry("rawring", key, |fresh| {
        let work = tempfile::tempdir()?;
        for source in SOURCES {
            fs::copy(sources.join(source), work.path().join(source))?;
        }
        Root::new(&root, false)?.sharing(work.path()).run(&format!(
            "make -s -C /lib/modules/{kernel}/build M=/mnt modules && strip --strip-debug /mnt/tbraw.ko"
        ))?;
        fs::copy(work.path().join("tbraw.ko"), fresh)
            .map(drop)
            .context("the build made no module")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Operation;

    fn job(kind: Kind, operation: Operation, size: u64) -> Option<Job> {
        let figure = Figure {
            kind,
            operation,
            size,
        };
        let load = Load {
            count: 1,
            seconds: 2,
        };
        Rings.job(&figure, load)
    }

    #[test]
    fn command_lines() {
        let client = |kind, size| job(kind, Operation::Stream, size).unwrap().client;
        assert_eq!(
            client(Kind::Latency, 64),
            format!("sh -ec 'echo pingpong 64 2000 > {RUN}; cat {RUN}'")
        );
        assert!(client(Kind::BothWays, 1 << 20).contains("echo both 2000 >"));
        assert!(job(Kind::Latency, Operation::Send, 64).is_none());
        assert!(job(Kind::Latency, Operation::Stream, 4097).is_none());
        assert!(job(Kind::LatencyEvents, Operation::Stream, 64).is_none());
    }

    #[test]
    fn samples_know_what_was_moved() {
        let sample = pingpong("trips=100 median_ns=50000 p99_ns=90000\n", 64).unwrap();
        assert_eq!((sample.value, sample.p99), (50.0, Some(90.0)));
        assert_eq!((sample.messages, sample.bytes), (200.0, 12800.0));
        let sample = blast("bytes=8388608 ns=1000000000\n", 1 << 20).unwrap();
        assert_eq!((sample.value, sample.messages), (8.0, 8.0));
    }
}
