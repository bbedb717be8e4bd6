//! What is measured.

use super::candidate::Place;
use std::fmt::{Display, Formatter, Result};

/// A kibibyte and a mebibyte.
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sizes of messages whose latency is measured, bytes.
const LATENCY_SIZES: [u64; 3] = [2, 64, 4 * KIB];
/// Sizes of messages whose bandwidth is measured, bytes.
const BANDWIDTH_SIZES: [u64; 4] = [4 * KIB, 64 * KIB, MIB, 4 * MIB];

/// How bytes get to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Into a receive that was posted.
    Send,
    /// Into memory that the initiator names.
    Write,
    /// Out of memory that the initiator names.
    Read,
    /// Whatever a candidate without verbs has: a stream of bytes.
    Stream,
}

/// Which property is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Microseconds until a message is there (half of a round trip; READ: the whole), both ends polling.
    Latency,
    /// The same, both ends sleeping until they are woken.
    LatencyEvents,
    /// MiB/s from the client to the server (READ: to the client).
    Bandwidth,
    /// MiB/s of both directions together, at once.
    BothWays,
    /// Messages a second, posted in lists of [`LIST`].
    Rate,
}

/// Entries that are posted at once where the message rate is measured.
pub(crate) const LIST: u64 = 64;

/// Something that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) kind: Kind,
    pub(crate) operation: Operation,
    /// Of a message, bytes.
    pub(crate) size: u64,
}

/// What counts are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Per {
    /// Payload, MiB.
    Mib,
    /// A message in one direction.
    Message,
}

impl Figure {
    /// In what unit it is.
    pub(crate) fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Latency | Kind::LatencyEvents => "µs",
            Kind::Bandwidth | Kind::BothWays => "MiB/s",
            Kind::Rate => "messages/s",
        }
    }

    /// What is counted around it, if anything: frames, interrupts and the like.
    pub(crate) fn counted(&self) -> Option<Per> {
        use Operation::{Send, Stream, Write};
        match (self.kind, self.operation, self.size) {
            (Kind::Bandwidth, Write | Stream, MIB) => Some(Per::Mib),
            (Kind::Rate, Write, _) | (Kind::Latency, Send | Stream, 64) => Some(Per::Message),
            _ => None,
        }
    }

    /// Messages go to and fro, and not one way.
    pub(crate) fn is_ping_pong(&self) -> bool {
        matches!(self.kind, Kind::Latency | Kind::LatencyEvents)
    }

    /// What is measured of a stream, and the size; `None`: something else is used.
    pub(crate) fn stream(&self) -> Option<(Kind, u64)> {
        (self.operation == Operation::Stream).then_some((self.kind, self.size))
    }

    /// What a candidate without verbs has instead. `None`: nothing that compares.
    pub(crate) fn as_stream(&self) -> Option<Self> {
        // READ's latency is that of a whole round trip.
        let compares = !(self.is_ping_pong() && self.operation == Operation::Read);
        compares.then_some(Self {
            operation: Operation::Stream,
            ..*self
        })
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (before, after) = match self.kind {
            Kind::Latency => ("latency", ""),
            Kind::LatencyEvents => ("latency", ", events"),
            Kind::Bandwidth => ("bandwidth", ""),
            Kind::BothWays => ("bandwidth", ", both ways"),
            Kind::Rate => ("message rate", ""),
        };
        let operation = match self.operation {
            Operation::Send => "send",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Stream => "stream",
        };
        write!(f, "{before} {operation} {}{after}", Size(self.size))
    }
}

/// Bytes, for people.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            bytes if bytes >= MIB && bytes % MIB == 0 => write!(f, "{} MiB", bytes / MIB),
            bytes if bytes >= KIB && bytes % KIB == 0 => write!(f, "{} KiB", bytes / KIB),
            bytes => write!(f, "{bytes} B"),
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Everything.
    Full,
    /// What is enough to see where one stands.
    Usual,
    /// What is enough to see that measuring works.
    Quick,
}

/// What is measured at a place, in an order in which figures that are compared are neighbours.
pub(crate) fn figures(extent: Extent, place: Place) -> Vec<Figure> {
    use Operation::{Read, Send, Stream, Write};
    const ALL: [Operation; 4] = [Send, Write, Read, Stream];
    // The cable is what it is all about.
    let few = extent == Extent::Usual && place == Place::Loopback;
    let mut figures = Vec::new();
    let mut add = |kind, size, operations: &[Operation]| {
        figures.extend(operations.iter().map(|&operation| Figure {
            kind,
            operation,
            size,
        }));
    };
    for size in LATENCY_SIZES {
        if size == 64 || !(few || extent == Extent::Quick) {
            add(Kind::Latency, size, &ALL);
        }
    }
    add(Kind::LatencyEvents, 64, &[Send, Read]);
    for size in BANDWIDTH_SIZES {
        match extent {
            Extent::Quick if size != MIB => add(Kind::Bandwidth, size, &[Write]),
            Extent::Usual if few && ![64 * KIB, MIB].contains(&size) => {}
            _ => add(Kind::Bandwidth, size, &ALL),
        }
    }
    for size in BANDWIDTH_SIZES {
        match extent {
            Extent::Full => add(Kind::BothWays, size, &ALL),
            Extent::Usual if !few => add(Kind::BothWays, size, &[Write, Stream]),
            _ if size == MIB => add(Kind::BothWays, size, &[Write, Stream]),
            _ => {}
        }
    }
    add(Kind::Rate, 64, &[Write]);
    // Nobody has streams without a cable.
    figures.retain(|figure| place == Place::Cable || figure.operation != Stream);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(kind: Kind, operation: Operation, size: u64) -> Figure {
        Figure {
            kind,
            operation,
            size,
        }
    }

    #[test]
    fn names_differ_and_say_the_size() {
        let mut names: Vec<String> = figures(Extent::Full, Place::Cable)
            .iter()
            .map(Figure::to_string)
            .collect();
        assert!(names.contains(&"latency write 2 B".to_owned()));
        assert!(names.contains(&"latency read 64 B, events".to_owned()));
        assert!(names.contains(&"bandwidth write 4 MiB, both ways".to_owned()));
        assert!(names.contains(&"message rate write 64 B".to_owned()));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn full_has_everything_at_both_places() {
        for place in Place::ALL {
            let full = figures(Extent::Full, place);
            for extent in [Extent::Usual, Extent::Quick] {
                let less = figures(extent, place);
                assert!(less.len() < full.len());
                assert!(less.iter().all(|figure| full.contains(figure)));
                let counted = less.iter().filter(|figure| figure.counted().is_some());
                let expected = if place == Place::Cable { 5 } else { 3 };
                assert_eq!(counted.count(), expected, "{extent:?}");
            }
        }
    }

    #[test]
    fn counts_are_of_streams_and_ping_pongs() {
        let stream = figure(Kind::Bandwidth, Operation::Write, MIB);
        assert_eq!(stream.counted(), Some(Per::Mib));
        assert!(!stream.is_ping_pong());
        assert_eq!(
            stream.as_stream().map(|figure| figure.operation),
            Some(Operation::Stream)
        );
        assert_eq!(figure(Kind::Latency, Operation::Read, 64).as_stream(), None);
        assert!(figure(Kind::Latency, Operation::Send, 64).is_ping_pong());
        assert_eq!(figure(Kind::Latency, Operation::Send, 2).counted(), None);
    }
}
