//! The receiving half of a rail.

use super::bits::Bits;
use super::{before, Stats, CONTROL_MAX};

/// An acknowledgement goes out at once when this part of what the other side may send has come
/// since the last: it has three such parts left until it is on its way, so that it never waits.
const ACK_PART: u32 = 4;
/// Longest time that an acknowledgement waits for a frame to ride on. Nobody waits for it: the
/// other side needs it before its window is full, which [`ACK_PART`] sees to, and asks for it if it
/// has waited for longer than this.
pub(super) const ACK_DELAY_US: u64 = 8_000;
/// How long a gap that was told may take to be filled before it is told again; it doubles.
const NAK_PAUSE_US: u64 = 12_000;
const NAK_PAUSE_MAX_US: u64 = 500_000;
/// Ranges in one NAK.
const RANGES: usize = CONTROL_MAX / 8;

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rx {
    /// Hand it up now, then ask [`Rail::next_held`](super::Rail::next_held).
    Deliver,
    /// Keep it at `sequence % window` until `next_held` names its sequence.
    Hold,
    /// It was here before: forget it.
    Duplicate,
    /// It is beyond what the other side may send: forget it.
    Outside,
    /// It was for the rail itself.
    Control,
}

#[derive(Debug)]
pub(super) struct Receiver {
    /// Frames that may be under way to us.
    capacity: u32,
    /// The next sequence in order.
    expected: u32,
    /// One past the highest sequence known to have been sent.
    sent: u32,
    held: Bits,
    /// Frames since the last acknowledgement.
    unacknowledged: u32,
    ack_due_us: Option<u64>,
    ack_now: bool,
    /// When the present gaps were told, and after which time they are told again.
    told_us: Option<u64>,
    nak_pause_us: u64,
    /// Gaps before this sequence were told: what is missing beyond it is new.
    told_end: u32,
    stats: Stats,
}

impl Receiver {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            expected: 0,
            sent: 0,
            held: Bits::default(),
            unacknowledged: 0,
            ack_due_us: None,
            // The first frame tells the credit.
            ack_now: true,
            told_us: None,
            nak_pause_us: NAK_PAUSE_US,
            told_end: 0,
            stats: Stats::default(),
        }
    }

    pub(super) fn set_sequence(&mut self, seq: u32) {
        self.expected = seq;
        self.sent = seq;
        self.told_end = seq;
    }

    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    pub(super) fn credit(&self) -> u32 {
        self.expected.wrapping_add(self.capacity)
    }

    /// The acknowledgement goes out with a frame.
    pub(super) fn acknowledged(&mut self) {
        self.unacknowledged = 0;
        self.ack_due_us = None;
        self.ack_now = false;
    }

    /// What is owed is due now.
    pub(super) fn hasten_ack(&mut self) {
        self.ack_now |= self.unacknowledged > 0;
    }

    /// A frame of another agreement.
    pub(super) fn refuse(&mut self) {
        self.stats.outside += 1;
    }

    fn owes_many(&self) -> bool {
        self.unacknowledged >= self.capacity.div_ceil(ACK_PART)
    }

    fn owe_ack(&mut self, now_us: u64) {
        self.unacknowledged += 1;
        self.ack_now |= self.owes_many();
        self.ack_due_us
            .get_or_insert(now_us.saturating_add(ACK_DELAY_US));
    }

    pub(super) fn on_sequenced(&mut self, seq: u32, now_us: u64) -> Rx {
        if before(seq, self.expected) {
            // Our acknowledgement was lost, or is late.
            self.stats.duplicates += 1;
            self.ack_now = true;
            return Rx::Duplicate;
        }
        if seq.wrapping_sub(self.expected) >= self.capacity {
            // Nobody was told that there is room for it.
            self.stats.outside += 1;
            return Rx::Outside;
        }
        if self.held.contains(seq) {
            self.stats.duplicates += 1;
            return Rx::Duplicate;
        }
        let end = seq.wrapping_add(1);
        if before(self.sent, end) {
            self.sent = end;
        }
        if seq != self.expected {
            self.stats.held += 1;
            self.held.insert(seq);
            return Rx::Hold;
        }
        self.advance();
        self.owe_ack(now_us);
        Rx::Deliver
    }

    /// The other side says that it has sent everything before `seq`.
    pub(super) fn on_sent_before(&mut self, seq: u32) {
        if before(self.sent, seq) && seq.wrapping_sub(self.expected) <= self.capacity {
            self.sent = seq;
        }
    }

    /// The other side asks where we stand: it has heard nothing for a while, so that what is
    /// missing is told again, whatever was told before.
    pub(super) fn on_probe(&mut self) {
        self.ack_now = true;
        self.told_us = None;
    }

    fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        self.stats.rx += 1;
        self.nak_pause_us = NAK_PAUSE_US;
        if !before(self.expected, self.told_end) {
            self.told_us = None;
        }
    }

    pub(super) fn next_held(&mut self) -> Option<u32> {
        let seq = self.expected;
        if !self.held.contains(seq) {
            return None;
        }
        self.held.remove(seq);
        self.advance();
        self.unacknowledged += 1;
        self.ack_now |= self.owes_many();
        Some(seq)
    }

    fn has_gap(&self) -> bool {
        before(self.expected, self.sent)
    }

    /// Writes the missing ranges that have to be told now; returns the length. To be called until
    /// there are none.
    pub(super) fn poll_nak(
        &mut self,
        now_us: u64,
        payload: &mut [u8; CONTROL_MAX],
    ) -> Option<usize> {
        if !self.has_gap() {
            return None;
        }
        let repeat = self
            .told_us
            .is_none_or(|told| now_us.saturating_sub(told) >= self.nak_pause_us);
        if repeat {
            if self.told_us.is_some() {
                self.nak_pause_us = (self.nak_pause_us * 2).min(NAK_PAUSE_MAX_US);
            }
            self.told_end = self.expected;
            self.told_us = Some(now_us);
        } else if before(self.told_end, self.expected) {
            self.told_end = self.expected;
        }
        let len = self.ranges(payload);
        if len == 0 {
            return None;
        }
        self.stats.naks_sent += 1;
        Some(len)
    }

    /// Writes as many untold ranges as fit.
    fn ranges(&mut self, payload: &mut [u8; CONTROL_MAX]) -> usize {
        let mut len = 0;
        let mut seq = self.told_end;
        for place in payload.chunks_exact_mut(8).take(RANGES) {
            while before(seq, self.sent) && self.held.contains(seq) {
                seq = seq.wrapping_add(1);
            }
            if !before(seq, self.sent) {
                break;
            }
            let begin = seq;
            while before(seq, self.sent) && !self.held.contains(seq) {
                seq = seq.wrapping_add(1);
            }
            let (first, second) = place.split_at_mut(4);
            first.copy_from_slice(&begin.to_le_bytes());
            second.copy_from_slice(&seq.to_le_bytes());
            len += 8;
        }
        self.told_end = seq;
        len
    }

    pub(super) fn ack_due(&self, now_us: u64) -> bool {
        self.ack_now || self.ack_due_us.is_some_and(|at| now_us >= at)
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        let nak = self
            .told_us
            .filter(|_| self.has_gap())
            .map(|told| told.saturating_add(self.nak_pause_us));
        match (self.ack_due_us, nak) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn stats(&self, stats: &mut Stats) {
        stats.rx = self.stats.rx;
        stats.duplicates = self.stats.duplicates;
        stats.held = self.stats.held;
        stats.outside = self.stats.outside;
        stats.naks_sent = self.stats.naks_sent;
    }
}
