//! What is measured against each other.

use super::figure::Figure;
use super::{raw, stream, tcp, verbs};
use anyhow::Result;
use tbrdma_lab::Lab;
use tbrdma_scenarios::facts::{Latency, Stream};

/// Where candidates are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Between two hosts, joined by a cable.
    Cable,
    /// In one host without a cable.
    Loopback,
}

impl Place {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Cable, Self::Loopback];

    /// The host where programs wait, and the one where they ask. Bytes go from the second to the first, except READ's.
    pub(crate) fn hosts(self) -> (&'static str, &'static str) {
        match self {
            Self::Cable => ("a", "b"),
            Self::Loopback => ("a", "a"),
        }
    }
}

/// How much a run does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Messages in each direction, for programs that count.
    pub(crate) count: u64,
    /// For programs that go by time.
    pub(crate) seconds: u32,
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// The figure, in its unit; of a latency the median.
    pub(crate) value: f64,
    /// 99th percentile, of a latency.
    pub(crate) p99: Option<f64>,
    /// Payload that was moved, both directions together.
    pub(crate) bytes: f64,
    /// Messages that were moved, both directions together.
    pub(crate) messages: f64,
}

impl Sample {
    /// Of round trips of messages of `size` bytes, each of which is answered by one like it.
    pub(crate) fn of_round_trips((latency, trips): (Latency, u64), size: u64) -> Self {
        let messages = 2.0 * trips as f64;
        Self {
            value: latency.median_us,
            p99: Some(latency.p99_us),
            bytes: messages * size as f64,
            messages,
        }
    }

    /// Of bytes that were handed over `size` at a time.
    pub(crate) fn of_stream(found: Stream, size: u64) -> Self {
        Self {
            value: found.mib_per_s,
            p99: None,
            bytes: found.bytes,
            messages: found.bytes / size as f64,
        }
    }
}

/// Makes a sample of what the client printed.
pub(crate) type Reader = Box<dyn Fn(&str) -> Result<Sample>>;

/// A run: programs at both ends.
pub(crate) struct Job {
    /// What waits at the server, on [`PORT`], for one client; `None` if a service does that runs all the time.
    pub(crate) server: Option<String>,
    /// What runs at the client.
    pub(crate) client: String,
    /// Reads what the client printed.
    pub(crate) read: Reader,
}

/// TCP port at which a job's server listens: perftest's default.
pub(crate) const PORT: u16 = 18515;

/// Something that moves bytes between two programs.
pub(crate) trait Candidate {
    /// Its name in tables and files.
    fn name(&self) -> &'static str;

    /// Where it is measured.
    fn place(&self) -> Place;

    /// Makes the lab ready for it. Others may be set up beside it.
    fn set_up(&self, lab: &Lab) -> Result<()>;

    /// Ends what [`Candidate::set_up`] began, as far as it would disturb others.
    fn tear_down(&self, lab: &Lab) -> Result<()>;

    /// How a figure is measured. `None`: it has no such thing.
    fn job(&self, figure: &Figure, load: Load) -> Option<Job>;

    /// Frames without payload that the sender's driver says it has sent so far, if it says so.
    fn control_frames(&self, _lab: &Lab) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// All of them. The first of each place is ours, which the others are compared with.
pub(crate) fn all() -> Vec<Box<dyn Candidate>> {
    vec![
        Box::new(verbs::Tbrdma),
        Box::new(verbs::SoftRoce),
        Box::new(tcp::Tcp),
        Box::new(stream::TbStream),
        Box::new(raw::Rings),
        Box::new(verbs::TbrdmaLoopback),
        Box::new(verbs::SoftRoceLoopback),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::{figures, Extent};

    #[test]
    fn names_differ_and_each_place_has_two() {
        let all = all();
        let mut names: Vec<&str> = all.iter().map(|candidate| candidate.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for place in Place::ALL {
            let here = all.iter().filter(|candidate| candidate.place() == place);
            assert!(here.count() >= 2);
        }
    }

    #[test]
    fn every_figure_has_somebody() {
        let load = Load {
            count: 64,
            seconds: 1,
        };
        for figure in figures(Extent::Full, Place::Cable) {
            let able = all()
                .iter()
                .filter(|candidate| candidate.job(&figure, load).is_some())
                .count();
            assert!(able >= 1, "{figure}");
        }
    }
}
