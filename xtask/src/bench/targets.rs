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

/// What is judged.
enum Subject {
    /// What the first candidate reached, by what the second did.
    Ratio(&'static str, &'static str, Figure),
    /// A count of ours; its name.
    Counted(&'static str, fn(&Results) -> Option<f64>),
}

/// Something that we want to reach.
pub(crate) struct Target {
    subject: Subject,
    pub(crate) limit: Limit,
}

impl Target {
    /// For people.
    pub(crate) fn what(&self) -> String {
        match &self.subject {
            Subject::Ratio(ours, theirs, figure) => format!("{figure}, {ours} / {theirs}"),
            Subject::Counted(name, _) => (*name).to_owned(),
        }
    }

    /// What was reached; `None` if that was not measured.
    pub(crate) fn find(&self, results: &Results) -> Option<f64> {
        match &self.subject {
            Subject::Ratio(ours, theirs, figure) => {
                results.ratio(ours, theirs, &What::figure(*figure))
            }
            Subject::Counted(_, find) => find(results),
        }
    }
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

const fn ratio(figure: Figure, ours: &'static str, theirs: &'static str, limit: Limit) -> Target {
    Target {
        subject: Subject::Ratio(ours, theirs, figure),
        limit,
    }
}

/// All of them.
pub(crate) const TARGETS: [Target; 8] = [
    ratio(STREAM, "tbrdma", "raw", Limit::AtLeast(0.7)),
    ratio(STREAM, "tbrdma", "tcp", Limit::AtLeast(2.5)),
    ratio(SHORT, "tbrdma", "raw", Limit::AtMost(1.3)),
    ratio(SHORT, "tbrdma", "rxe", Limit::AtMost(0.333)),
    Target {
        subject: Subject::Counted("payload of link bytes, write 1 MiB, %", |results| {
            counted(results, Count::PayloadShare)
        }),
        limit: Limit::AtLeast(98.5),
    },
    Target {
        subject: Subject::Counted(
            "data frames for each control frame, write 1 MiB",
            |results| {
                let control = counted(results, Count::ControlFrames)?;
                let data = counted(results, Count::Frames)? - control;
                // None at all would be one for infinitely many.
                Some(if control > 0.0 {
                    data / control
                } else {
                    f64::INFINITY
                })
            },
        ),
        limit: Limit::AtLeast(64.0),
    },
    ratio(MEDIUM, "tbrdma-loop", "rxe-loop", Limit::AtLeast(3.0)),
    ratio(SHORT, "tbrdma-loop", "rxe-loop", Limit::AtMost(0.5)),
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
        assert!(TARGETS.iter().all(|target| target.find(&results).is_none()));
        for (count, value) in [(Count::Frames, 264.0), (Count::ControlFrames, 4.0)] {
            let what = What {
                figure: STREAM,
                count: Some(count),
            };
            results.add("tbrdma", Place::Cable, what, value, None);
        }
        let found: Vec<f64> = TARGETS
            .iter()
            .filter_map(|target| target.find(&results))
            .collect();
        assert_eq!(found, [65.0]);
    }

    #[test]
    fn ratios_are_with_what_others_have_instead() {
        let mut results = Results::default();
        let what = What::figure(STREAM);
        let stream = what.as_stream().unwrap();
        results.add("tbrdma", Place::Cable, what, 30.0, None);
        results.add("raw", Place::Cable, stream, 60.0, None);
        let target = &TARGETS[0];
        assert_eq!(target.what(), "bandwidth write 1 MiB, tbrdma / raw");
        assert_eq!(target.find(&results), Some(0.5));
    }
}
