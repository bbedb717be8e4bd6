//! How many messages make a run long enough to mean something, and short enough for an emulated computer.

use super::candidate::{Candidate, Load, Sample};
use super::figure::{Figure, Kind, Operation};
use super::measure::sample;
use anyhow::{Context, Result};
use tbrdma_lab::Lab;
use tbrdma_scenarios::facts;

/// Of the two messages that calibrate bandwidth, bytes.
const SMALL: u64 = 4 << 10;
const LARGE: u64 = 1 << 20;

/// Round trips of a run: so many that the 99th percentile means something, and not for ever.
const ROUND_TRIPS: (f64, f64) = (100.0, 1000.0);
/// Messages of a one-way run.
const MESSAGES: (f64, f64) = (5.0, 5000.0);

/// What a candidate takes, in seconds, roughly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    round_trip: f64,
    /// A message of [`SMALL`] bytes in a stream.
    small: f64,
    /// A message of [`LARGE`] bytes in a stream.
    large: f64,
}

impl Pace {
    /// Finds it out. `None`: the candidate has no verbs, and its programs go by time.
    pub(crate) fn find(lab: &Lab, candidate: &dyn Candidate) -> Result<Option<Self>> {
        let once = |kind, operation, size, count| -> Result<Option<Sample>> {
            let figure = Figure {
                kind,
                operation,
                size,
            };
            let Some(job) = candidate.job(&figure, Load { count, seconds: 1 }) else {
                return Ok(None);
            };
            let sample = facts::until_measured(|| sample(lab, candidate.place(), &job))
                .with_context(|| {
                    let program = &job.client;
                    format!("{}: {figure}, to calibrate: {program}", candidate.name())
                })?;
            Ok(Some(sample))
        };
        let (Some(trip), Some(small), Some(large)) = (
            once(Kind::Latency, Operation::Send, 64, 20)?,
            once(Kind::Bandwidth, Operation::Write, SMALL, 200)?,
            once(Kind::Bandwidth, Operation::Write, LARGE, 5)?,
        ) else {
            return Ok(None);
        };
        let mib = f64::from(1 << 20);
        Ok(Some(Self {
            round_trip: 2.0 * trip.value * 1e-6,
            small: SMALL as f64 / mib / small.value,
            large: LARGE as f64 / mib / large.value,
        }))
    }

    /// A load that takes about `seconds`.
    pub(crate) fn load(&self, figure: &Figure, seconds: f64) -> u64 {
        let bounded = |count: f64, (least, most): (f64, f64)| count.clamp(least, most) as u64;
        let stream = |size: u64| {
            // Between the two sizes, and beyond, on a straight line; but never less than a small one.
            let slope = (self.large - self.small) / (LARGE - SMALL) as f64;
            let more = size.saturating_sub(SMALL) as f64;
            (self.small + slope * more).max(self.small)
        };
        match figure.kind {
            Kind::Latency | Kind::LatencyEvents => {
                let extra = if figure.size >= SMALL {
                    2.0 * self.small
                } else {
                    0.0
                };
                bounded(seconds / (self.round_trip + extra), ROUND_TRIPS)
            }
            Kind::Bandwidth | Kind::Rate => bounded(seconds / stream(figure.size), MESSAGES),
            Kind::BothWays => bounded(seconds / (2.0 * stream(figure.size)), MESSAGES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        round_trip: 2e-3,
        small: 1e-4,
        large: 1e-2,
    };

    fn load(kind: Kind, size: u64) -> u64 {
        let figure = Figure {
            kind,
            operation: Operation::Write,
            size,
        };
        PACE.load(&figure, 0.5)
    }

    #[test]
    fn slow_things_are_done_less_often() {
        assert_eq!(load(Kind::Latency, 64), 250);
        assert_eq!(load(Kind::Latency, 4096), 227);
        assert_eq!(load(Kind::Bandwidth, SMALL), 5000);
        assert_eq!(load(Kind::Bandwidth, LARGE), 50);
        assert_eq!(load(Kind::BothWays, LARGE), 25);
        assert_eq!(load(Kind::Bandwidth, 4 * LARGE), 12);
    }

    #[test]
    fn counts_are_bounded() {
        let fast = Pace {
            round_trip: 1e-9,
            small: 1e-9,
            large: 1e-9,
        };
        let slow = Pace {
            round_trip: 1.0,
            small: 1.0,
            large: 10.0,
        };
        let figure = |kind| Figure {
            kind,
            operation: Operation::Send,
            size: LARGE,
        };
        assert_eq!(fast.load(&figure(Kind::Latency), 1.0), 1000);
        assert_eq!(fast.load(&figure(Kind::Rate), 1.0), 5000);
        assert_eq!(slow.load(&figure(Kind::Latency), 1.0), 100);
        assert_eq!(slow.load(&figure(Kind::BothWays), 1.0), 5);
    }
}
