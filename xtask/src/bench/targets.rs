//! What we want to reach, of what the lab can measure.

use super::counts::Count;
use super::figure::{Figure, Kind, Operation};
use super::results::{median, Results, What};
use std::fmt::{Display, Formatter};

/// A limit for a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Limit {
    /// The number is within it.
    pub(crate) fn holds(self, found: f64) -> bool {
        match self {
            Self::AtLeast(limit) => found >= limit,
            Self::AtMost(limit) => found <= limit,
        }
    }
}

impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
            Self::AtMost(limit) => write!(f, "at most {limit}"),
        }
    }
}

/// Something that we want to reach.
pub(crate) struct Target {
    pub(crate) what: &'static str,
    pub(crate) limit: Limit,
    /// What was reached; `None` if that was not measured.
    pub(crate) find: fn(&Results) -> Option<f64>,
}

const fn write(kind: Kind, size: u64) -> Figure {
    Figure {
        kind,
        operation: Operation::Write,
        size,
    }
}

const STREAM: Figure = write(Kind::Bandwidth, 1 << 20);
const SHORT: Figure = write(Kind::Latency, 64);
const MEDIUM: Figure = write(Kind::Bandwidth, 64 << 10);

/// All of them.
pub(crate) const TARGETS: [Target; 6] = [
    Target {
        what: "bandwidth write 1 MiB, tbrdma / tcp",
        limit: Limit::AtLeast(2.5),
        find: |results| results.ratio("tbrdma", "tcp", &What::figure(STREAM)),
    },
    Target {
        what: "latency write 64 B, tbrdma / rxe",
        limit: Limit::AtMost(0.333),
        find: |results| results.ratio("tbrdma", "rxe", &What::figure(SHORT)),
    },
    Target {
        what: "payload of link bytes, write 1 MiB, %",
        limit: Limit::AtLeast(98.5),
        find: |results| counted(results, Count::PayloadShare),
    },
    Target {
        what: "data frames for each control frame, write 1 MiB",
        limit: Limit::AtLeast(64.0),
        find: |results| {
            let control = counted(results, Count::ControlFrames)?;
            let data = counted(results, Count::Frames)? - control;
            // None at all would be one for infinitely many.
            Some(if control > 0.0 {
                data / control
            } else {
                f64::INFINITY
            })
        },
    },
    Target {
        what: "bandwidth write 64 KiB, tbrdma-loop / rxe-loop",
        limit: Limit::AtLeast(3.0),
        find: |results| results.ratio("tbrdma-loop", "rxe-loop", &What::figure(MEDIUM)),
    },
    Target {
        what: "latency write 64 B, tbrdma-loop / rxe-loop",
        limit: Limit::AtMost(0.5),
        find: |results| results.ratio("tbrdma-loop", "rxe-loop", &What::figure(SHORT)),
    },
];

fn counted(results: &Results, count: Count) -> Option<f64> {
    let what = What {
        figure: STREAM,
        count: Some(count),
    };
    median(&results.of("tbrdma", &what)?.runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::candidate::Place;

    #[test]
    fn limits() {
        assert!(Limit::AtLeast(2.0).holds(2.0) && !Limit::AtLeast(2.0).holds(1.9));
        assert!(Limit::AtMost(2.0).holds(2.0) && !Limit::AtMost(2.0).holds(2.1));
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let mut results = Results::default();
        assert!(TARGETS
            .iter()
            .all(|target| (target.find)(&results).is_none()));
        for (count, value) in [(Count::Frames, 264.0), (Count::ControlFrames, 4.0)] {
            let what = What {
                figure: STREAM,
                count: Some(count),
            };
            results.add("tbrdma", Place::Cable, what, value, None);
        }
        let found: Vec<f64> = TARGETS
            .iter()
            .filter_map(|target| (target.find)(&results))
            .collect();
        assert_eq!(found, [65.0]);
    }
}
