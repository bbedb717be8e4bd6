// SPDX-License-Identifier: GPL-2.0-only
//! What the port has counted: its rails, and its QPs.

use super::Hca;
use crate::link::counters as rails;
use crate::proto::rc::{AckEntry, Syndrome};
use kernel::str::CStr;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Names of the counters of QPs, as `rdma statistic` shows them.
const OF_QPS: [&CStr; QPS] = [
    c"rnr_sent",
    c"rnr_received",
    c"refusals_sent",
    c"refusals_received",
    c"stray_frames",
];
const QPS: usize = 5;

/// How many counters there are in all.
pub(crate) const COUNT: usize = rails::COUNT + QPS;

/// Names of all counters.
pub(crate) const NAMES: [&CStr; COUNT] = {
    let mut names = [c""; COUNT];
    let mut at = 0;
    while at < COUNT {
        names[at] = if at < rails::COUNT {
            rails::NAMES[at]
        } else {
            OF_QPS[at - rails::COUNT]
        };
        at += 1;
    }
    names
};

/// Counters of QPs.
pub(super) struct Counters {
    rnr_sent: Atomic<u64>,
    rnr_received: Atomic<u64>,
    refusals_sent: Atomic<u64>,
    refusals_received: Atomic<u64>,
    /// Frames that no QP wanted, and acknowledgements that made no sense.
    stray_frames: Atomic<u64>,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            rnr_sent: Atomic::new(0),
            rnr_received: Atomic::new(0),
            refusals_sent: Atomic::new(0),
            refusals_received: Atomic::new(0),
            stray_frames: Atomic::new(0),
        }
    }

    /// An acknowledgement of a QP was sent.
    pub(super) fn ack_sent(&self, entry: &AckEntry) {
        match entry.syndrome {
            Syndrome::Rnr(_) => self.rnr_sent.fetch_add(1, Relaxed),
            Syndrome::Nak(_) => self.refusals_sent.fetch_add(1, Relaxed),
            Syndrome::Ack | Syndrome::NotReady => return,
        };
    }

    /// An acknowledgement for a QP came.
    pub(super) fn ack_received(&self, entry: &AckEntry) {
        match entry.syndrome {
            Syndrome::Rnr(_) => self.rnr_received.fetch_add(1, Relaxed),
            Syndrome::Nak(_) => self.refusals_received.fetch_add(1, Relaxed),
            Syndrome::Ack | Syndrome::NotReady => return,
        };
    }

    /// A frame that nobody wanted came.
    pub(super) fn stray(&self) {
        self.stray_frames.fetch_add(1, Relaxed);
    }

    fn counts(&self) -> [u64; QPS] {
        [
            self.rnr_sent.load(Relaxed),
            self.rnr_received.load(Relaxed),
            self.refusals_sent.load(Relaxed),
            self.refusals_received.load(Relaxed),
            self.stray_frames.load(Relaxed),
        ]
    }
}

impl Hca {
    /// A number for each of [`NAMES`].
    pub(crate) fn statistics(&self) -> [u64; COUNT] {
        let of_qps = self.counters.counts();
        let rails = self.links().map(|links| links.counts());
        let mut counts = [0; COUNT];
        let all = rails.iter().flatten().chain(&of_qps).copied();
        // Without links there is nothing before those of the QPs either.
        let skipped = if rails.is_some() { 0 } else { rails::COUNT };
        for (place, value) in counts.iter_mut().skip(skipped).zip(all) {
            *place = value;
        }
        counts
    }
}
