//! What is said over the control socket: one JSON object a line, one answer a line.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the fabric is asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Put a cable in. Cables are numbered from 0, in the order of the command line.
    Plug {
        /// Number of the cable.
        cable: usize,
    },
    /// Pull a cable out.
    Unplug {
        /// Number of the cable.
        cable: usize,
    },
    /// What was counted so far.
    Counters,
    /// Disturb the data frames of a cable from now on. Replaces what was set for this direction.
    SetFault {
        /// Number of the cable.
        cable: usize,
        /// Which direction.
        direction: Direction,
        /// What to do.
        fault: Fault,
    },
    /// Disturb nothing any more.
    ClearFaults,
    /// Write the data frames of a cable to a file (pcap, link type USER0).
    StartPcap {
        /// Number of the cable.
        cable: usize,
        /// File to write.
        path: PathBuf,
    },
    /// Stop writing.
    StopPcap,
    /// End the fabric.
    Quit,
}

/// Directions of a cable, in the order of its ends on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the first end to the second.
    Forth,
    /// From the second end to the first.
    Back,
    /// Both.
    Both,
}

/// A disturbance of data frames.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What happens to a frame.
    pub kind: FaultKind,
    /// To which frames.
    pub when: When,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// It does not arrive.
    Drop,
    /// A bit flips, and the receiver's hardware notices: the descriptor's CRC flag is set.
    Corrupt,
    /// A bit flips and no hardware notices.
    CorruptSilently,
    /// It arrives twice.
    Duplicate,
    /// It arrives after the frame that follows it.
    Delay,
}

/// Which frames a fault meets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Each with this probability, 0 to 1, by a generator that starts from `seed`.
    Chance {
        /// Probability.
        probability: f64,
        /// Equal seeds give equal choices.
        seed: u64,
    },
    /// The frame of this number only, counted from 1 since the fault was set.
    Nth {
        /// Number of the frame.
        n: u64,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// Done.
    Done,
    /// What was counted.
    Counters(Counters),
    /// Not done, for this reason.
    Error(String),
}

/// All counters; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// By host.
    pub routers: BTreeMap<String, RouterCounters>,
    /// By cable.
    pub cables: Vec<CableCounters>,
}

/// Counters of a host router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterCounters {
    /// Interrupts raised.
    pub interrupts: u64,
    /// Register reads and writes that the guest made us handle.
    pub register_accesses: u64,
    /// Things that a guest should not have done.
    pub guest_errors: u64,
    /// By ring number; ring 0 is the control channel.
    pub tx: BTreeMap<usize, RingCounters>,
    /// By ring number.
    pub rx: BTreeMap<usize, RingCounters>,
}

/// Counters of a ring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RingCounters {
    /// Frames moved.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Descriptors completed.
    pub descriptors: u64,
    /// Doorbell writes seen.
    pub doorbells: u64,
    /// Frames lost: no path, or (RX) no descriptor without end-to-end flow control.
    pub drops: u64,
    /// Times that a frame had to wait for the receiver (end-to-end flow control).
    pub stalls: u64,
}

/// Counters of a cable, both directions together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CableCounters {
    /// Both ends are powered and it is plugged in.
    pub up: bool,
    /// Data frames that entered the cable.
    pub frames: u64,
    /// Frames that a fault dropped.
    pub dropped: u64,
    /// Frames that a fault corrupted.
    pub corrupted: u64,
    /// Frames that a fault repeated.
    pub duplicated: u64,
    /// Frames that a fault delayed.
    pub delayed: u64,
}
