// SPDX-License-Identifier: GPL-2.0-only
//! What the port has counted: its rails, and its QPs.

use super::cq::WcStatus;
use super::Hca;
use crate::link::counters as rails;
use crate::proto::rc::{AckEntry, Syndrome};
use kernel::str::CStr;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Names of the counters of QPs, as `rdma statistic` shows them.
const OF_QPS: [&CStr; QPS] = [
    c"acks_sent",
    c"acks_piggybacked",
    c"rnr_sent",
    c"rnr_received",
    c"refusals_sent",
    c"refusals_received",
    c"stray_frames",
    c"completions_local_length",
    c"completions_local_operation",
    c"completions_mw_bind",
    c"completions_local_protection",
    c"completions_remote_invalid_request",
    c"completions_remote_access",
    c"completions_remote_operational",
    c"completions_retry_exceeded",
    c"completions_rnr_retry_exceeded",
    c"completions_flushed",
];
const QPS: usize = 7 + FAILURES.len();

/// Ways in which a completion fails, in the order of their counters.
const FAILURES: [WcStatus; 10] = [
    WcStatus::LocalLength,
    WcStatus::LocalOperation,
    WcStatus::MwBind,
    WcStatus::LocalProtection,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperational,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
    WcStatus::Flushed,
];

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
    /// Acknowledgements of QPs that did not go along with a frame of a message, and that did.
    acks_sent: Atomic<u64>,
    acks_piggybacked: Atomic<u64>,
    rnr_sent: Atomic<u64>,
    rnr_received: Atomic<u64>,
    refusals_sent: Atomic<u64>,
    refusals_received: Atomic<u64>,
    /// Frames that no QP wanted, and acknowledgements that made no sense.
    stray_frames: Atomic<u64>,
    /// By the place in [`FAILURES`].
    failures: [Atomic<u64>; FAILURES.len()],
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            acks_sent: Atomic::new(0),
            acks_piggybacked: Atomic::new(0),
            rnr_sent: Atomic::new(0),
            rnr_received: Atomic::new(0),
            refusals_sent: Atomic::new(0),
            refusals_received: Atomic::new(0),
            stray_frames: Atomic::new(0),
            failures: [const { Atomic::new(0) }; FAILURES.len()],
        }
    }

    /// An acknowledgement of a QP was sent.
    pub(super) fn ack_sent(&self, entry: &AckEntry) {
        match entry.syndrome {
            Syndrome::Rnr(_) => self.rnr_sent.fetch_add(1, Relaxed),
            Syndrome::Nak(_) => self.refusals_sent.fetch_add(1, Relaxed),
            Syndrome::Ack => self.acks_sent.fetch_add(1, Relaxed),
            Syndrome::NotReady => return,
        };
    }

    /// An acknowledgement went along with a frame of a message.
    pub(super) fn rider_sent(&self) {
        self.acks_piggybacked.fetch_add(1, Relaxed);
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

    /// A completion that failed was given.
    pub(super) fn completion_failed(&self, status: WcStatus) {
        let at = FAILURES.iter().position(|failure| *failure == status);
        if let Some(count) = at.and_then(|at| self.failures.get(at)) {
            count.fetch_add(1, Relaxed);
        }
    }

    fn counts(&self) -> [u64; QPS] {
        let single = [
            &self.acks_sent,
            &self.acks_piggybacked,
            &self.rnr_sent,
            &self.rnr_received,
            &self.refusals_sent,
            &self.refusals_received,
            &self.stray_frames,
        ];
        let mut counts = [0; QPS];
        let all = single.into_iter().chain(&self.failures);
        for (place, count) in counts.iter_mut().zip(all) {
            *place = count.load(Relaxed);
        }
        counts
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
