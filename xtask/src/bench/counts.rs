//! What is counted around a run: it hardly depends on how fast the machine is.

use super::candidate::{Candidate, Place, Sample};
use super::figure::{Figure, Per};
use anyhow::{Context, Result};
use tbrdma_fabric::protocol::{Counters, RingCounters, RouterCounters};
use tbrdma_lab::Lab;

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Frames on the cable, both directions together.
    Frames,
    /// Those of them that carry no payload.
    ControlFrames,
    /// Bytes on the cable, both directions together.
    LinkBytes,
    /// Payload, of all bytes on the cable, %.
    PayloadShare,
    /// Interrupts of both hosts' routers.
    Interrupts,
    /// Doorbell writes of both hosts, as far as the emulated routers saw them one by one.
    Doorbells,
    /// System calls of the client.
    SystemCalls,
}

impl Count {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::ControlFrames => "control frames",
            Self::LinkBytes => "link bytes",
            Self::PayloadShare => "payload share",
            Self::Interrupts => "interrupts",
            Self::Doorbells => "doorbell writes",
            Self::SystemCalls => "system calls",
        }
    }

    /// Its unit.
    pub(crate) fn unit(self, per: Per) -> &'static str {
        match (self, per) {
            (Self::PayloadShare, _) => "%",
            (Self::LinkBytes, Per::Mib) => "bytes/MiB",
            (Self::LinkBytes, Per::Message) => "bytes/message",
            (_, Per::Mib) => "1/MiB",
            (_, Per::Message) => "1/message",
        }
    }
}

/// The control channel's ring.
const CONTROL_RING: usize = 0;

/// Everything that has been counted up to a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Look {
    /// Frames of the client, which sends the payload of one-way runs.
    forth: u64,
    /// Frames of the server.
    back: u64,
    bytes: u64,
    interrupts: u64,
    doorbells: u64,
    /// Control frames of the client, as its driver says.
    control: Option<u64>,
}

impl Look {
    /// Looks now.
    pub(crate) fn now(lab: &Lab, candidate: &dyn Candidate) -> Result<Self> {
        let counters = lab.fabric()?.counters()?;
        Self::of(&counters, candidate.place(), candidate.control_frames(lab)?)
    }

    fn of(counters: &Counters, place: Place, control: Option<u64>) -> Result<Self> {
        let router = |host: &str| -> Result<&RouterCounters> {
            counters
                .routers
                .get(host)
                .with_context(|| format!("the fabric counts nothing for host {host}"))
        };
        let (server, client) = place.hosts();
        let (server, client) = (router(server)?, router(client)?);
        let sum = |router: &RouterCounters, what: fn(&RingCounters) -> u64| -> u64 {
            let data = router.tx.iter().filter(|(&ring, _)| ring != CONTROL_RING);
            data.map(|(_, ring)| what(ring)).sum()
        };
        let doorbells = |router: &RouterCounters| -> u64 {
            let rings = router.tx.iter().chain(&router.rx);
            let data = rings.filter(|(&ring, _)| ring != CONTROL_RING);
            data.map(|(_, ring)| ring.doorbells).sum()
        };
        Ok(Self {
            forth: sum(client, |ring| ring.frames),
            back: sum(server, |ring| ring.frames),
            bytes: sum(client, |ring| ring.bytes) + sum(server, |ring| ring.bytes),
            interrupts: client.interrupts + server.interrupts,
            doorbells: doorbells(client) + doorbells(server),
            control,
        })
    }

    /// What was counted since `before`, around a run that found `sample`.
    pub(crate) fn since(
        &self,
        before: &Self,
        figure: &Figure,
        sample: &Sample,
        per: Per,
    ) -> Vec<(Count, f64)> {
        let less = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let parts = match per {
            Per::Mib => sample.bytes / f64::from(1 << 20),
            Per::Message => sample.messages,
        };
        let forth = less(self.forth, before.forth);
        let back = less(self.back, before.back);
        let control = if figure.is_ping_pong() {
            // Each message fits a frame; what is more has no payload.
            (forth + back - sample.messages).max(0.0)
        } else {
            let ours = match (self.control, before.control) {
                (Some(now), Some(then)) => less(now, then),
                _ => 0.0,
            };
            back + ours
        };
        let bytes = less(self.bytes, before.bytes);
        let mut counts = vec![
            (Count::Frames, (forth + back) / parts),
            (Count::ControlFrames, control / parts),
            (Count::LinkBytes, bytes / parts),
        ];
        if bytes > 0.0 {
            counts.push((Count::PayloadShare, 100.0 * sample.bytes / bytes));
        }
        let interrupts = less(self.interrupts, before.interrupts);
        let doorbells = less(self.doorbells, before.doorbells);
        counts.push((Count::Interrupts, interrupts / parts));
        counts.push((Count::Doorbells, doorbells / parts));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{Kind, Operation};

    fn router(tx_frames: u64, bytes: u64) -> RouterCounters {
        let ring = |frames, bytes, doorbells| RingCounters {
            frames,
            bytes,
            doorbells,
            ..RingCounters::default()
        };
        RouterCounters {
            interrupts: 10,
            tx: [(0, ring(1000, 1000, 1000)), (2, ring(tx_frames, bytes, 3))].into(),
            rx: [(0, ring(1000, 1000, 1000)), (2, ring(77, 77, 4))].into(),
            ..RouterCounters::default()
        }
    }

    fn counters(a: (u64, u64), b: (u64, u64)) -> Counters {
        Counters {
            routers: [
                ("a".to_owned(), router(a.0, a.1)),
                ("b".to_owned(), router(b.0, b.1)),
            ]
            .into(),
            cables: Vec::new(),
        }
    }

    fn value(counts: &[(Count, f64)], wanted: Count) -> f64 {
        counts.iter().find(|(count, _)| *count == wanted).unwrap().1
    }

    #[test]
    fn one_way_runs() {
        let figure = Figure {
            kind: Kind::Bandwidth,
            operation: Operation::Write,
            size: 1 << 20,
        };
        let sample = Sample {
            value: 1.0,
            p99: None,
            bytes: 2_097_152.0,
            messages: 2.0,
        };
        let none = Look::of(&counters((0, 0), (0, 0)), Place::Cable, Some(5)).unwrap();
        assert_eq!(none.doorbells, 14, "the control channel does not count");
        let then = Look::of(&counters((6, 600), (516, 2_100_000)), Place::Cable, Some(7)).unwrap();
        let counts = then.since(&none, &figure, &sample, Per::Mib);
        assert_eq!(value(&counts, Count::Frames), 261.0);
        assert_eq!(value(&counts, Count::ControlFrames), 4.0);
        assert_eq!(value(&counts, Count::LinkBytes), 1_050_300.0);
        let share = value(&counts, Count::PayloadShare);
        assert!((99.8..99.9).contains(&share), "{share}");
        assert_eq!(value(&counts, Count::Interrupts), 0.0);
    }

    #[test]
    fn ping_pongs() {
        let figure = Figure {
            kind: Kind::Latency,
            operation: Operation::Send,
            size: 64,
        };
        let sample = Sample {
            value: 1.0,
            p99: None,
            bytes: 12_800.0,
            messages: 200.0,
        };
        let none = Look::of(&counters((0, 0), (0, 0)), Place::Cable, None).unwrap();
        let then = Look::of(&counters((120, 9600), (130, 9600)), Place::Cable, None).unwrap();
        let counts = then.since(&none, &figure, &sample, Per::Message);
        assert_eq!(value(&counts, Count::ControlFrames), 0.25);
        assert_eq!(value(&counts, Count::Frames), 1.25);
        assert!(Look::of(&Counters::default(), Place::Cable, None).is_err());
    }
}
