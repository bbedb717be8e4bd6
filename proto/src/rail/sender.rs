//! The sending half of a rail.

use super::bits::Bits;
use super::rtt::Rtt;
use super::{before, Stats};

/// Frames that a timeout repeats. A longer loss at the end of a burst takes more timeouts.
const TIMEOUT_BURST: u32 = 32;

#[derive(Debug)]
pub(super) struct Sender {
    window: u32,
    dead_after_us: u64,
    /// Oldest unacknowledged sequence, and the next to be given.
    una: u32,
    nxt: u32,
    /// Claims that are not committed.
    reserved: u32,
    /// The other side takes sequences before this one.
    limit: u32,
    resend: Bits,
    rtt: Rtt,
    /// A sequence whose way is being timed.
    timing: Option<(u32, u64)>,
    deadline_us: Option<u64>,
    progress_us: u64,
    /// Something waits for credit although nothing is under way.
    starved: bool,
    stats: Stats,
}

impl Sender {
    pub(super) fn new(window: u32, dead_after_us: u64, now_us: u64) -> Self {
        Self {
            window,
            dead_after_us,
            una: 0,
            nxt: 0,
            reserved: 0,
            // One frame may go before any credit arrived: every receiver has that much.
            limit: 1,
            resend: Bits::default(),
            rtt: Rtt::default(),
            timing: None,
            deadline_us: None,
            progress_us: now_us,
            starved: false,
            stats: Stats::default(),
        }
    }

    pub(super) fn set_sequence(&mut self, seq: u32) {
        self.una = seq;
        self.nxt = seq;
        self.limit = seq.wrapping_add(1);
    }

    pub(super) fn una(&self) -> u32 {
        self.una
    }

    pub(super) fn nxt(&self) -> u32 {
        self.nxt
    }

    fn in_flight(&self) -> u32 {
        self.nxt.wrapping_sub(self.una)
    }

    pub(super) fn room(&self) -> u32 {
        let used = self.in_flight() + self.reserved;
        let window = self.window.saturating_sub(used);
        let next = self.nxt.wrapping_add(self.reserved);
        let credit = if before(next, self.limit) {
            self.limit.wrapping_sub(next)
        } else {
            0
        };
        window.min(credit)
    }

    pub(super) fn reserve(&mut self) -> bool {
        if self.room() == 0 {
            self.stats.stalls += 1;
            self.starved = true;
            return false;
        }
        self.reserved += 1;
        true
    }

    pub(super) fn cancel(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    pub(super) fn commit(&mut self, now_us: u64) -> u32 {
        self.cancel();
        let seq = self.nxt;
        if self.una == self.nxt {
            self.progress_us = now_us;
            self.deadline_us = Some(now_us.saturating_add(self.rtt.rto_us()));
        }
        self.nxt = self.nxt.wrapping_add(1);
        self.timing.get_or_insert((seq, now_us));
        self.stats.tx += 1;
        seq
    }

    pub(super) fn on_ack(&mut self, ack: u32, credit: u32, now_us: u64) {
        if before(self.nxt, ack) {
            // Nothing of that number was ever sent: neither field is to be believed.
            self.stats.absurd += 1;
            return;
        }
        if before(self.limit, credit) {
            // More than a window ahead is of no use, and could be a lie that wraps.
            if credit.wrapping_sub(ack) > super::MAX_WINDOW {
                self.stats.absurd += 1;
            } else {
                self.limit = credit;
                self.starved = false;
            }
        }
        if !before(self.una, ack) {
            return;
        }
        let mut seq = self.una;
        while before(seq, ack) {
            self.resend.remove(seq);
            seq = seq.wrapping_add(1);
        }
        self.una = ack;
        self.progress_us = now_us;
        self.rtt.progress();
        if let Some((timed, sent_us)) = self.timing {
            if before(timed, ack) {
                self.rtt.sample(now_us.saturating_sub(sent_us));
                self.timing = None;
            }
        }
        self.deadline_us = (self.una != self.nxt).then(|| now_us.saturating_add(self.rtt.rto_us()));
    }

    pub(super) fn on_nak(&mut self, payload: &[u8], now_us: u64) {
        self.stats.naks_received += 1;
        for range in payload.chunks_exact(8) {
            let (Some(from), Some(to)) = (
                range.first_chunk::<4>(),
                range.get(4..).and_then(|r| r.first_chunk::<4>()),
            ) else {
                return;
            };
            let (from, to) = (u32::from_le_bytes(*from), u32::from_le_bytes(*to));
            let sane = !before(from, self.una)
                && before(from, to)
                && !before(self.nxt, to)
                && to.wrapping_sub(from) <= self.window;
            if !sane {
                // A range that was repaired meanwhile is no lie.
                if before(self.nxt, to) || before(to, from) {
                    self.stats.absurd += 1;
                }
                self.mark_overlap(from, to);
                continue;
            }
            self.mark(from, to);
        }
        self.deadline_us = (self.una != self.nxt).then(|| now_us.saturating_add(self.rtt.rto_us()));
    }

    /// Marks what of a range is still unacknowledged, if the range makes sense at all.
    fn mark_overlap(&mut self, from: u32, to: u32) {
        let straddles = before(from, self.una) && before(self.una, to) && !before(self.nxt, to);
        if straddles && to.wrapping_sub(self.una) <= self.window {
            self.mark(self.una, to);
        }
    }

    fn mark(&mut self, from: u32, to: u32) {
        let mut seq = from;
        while before(seq, to) {
            self.resend.insert(seq);
            seq = seq.wrapping_add(1);
        }
        // Karn: the way of a frame that was sent twice is not timed.
        if self.timing.is_some_and(|(timed, _)| !before(timed, from)) {
            self.timing = None;
        }
    }

    pub(super) fn next_retransmit(&self, from: u32) -> Option<u32> {
        if self.resend.is_empty() {
            return None;
        }
        let mut seq = if before(from, self.una) {
            self.una
        } else {
            from
        };
        while before(seq, self.nxt) {
            if self.resend.contains(seq) {
                return Some(seq);
            }
            seq = seq.wrapping_add(1);
        }
        None
    }

    pub(super) fn retransmitted(&mut self, seq: u32, now_us: u64) {
        self.resend.remove(seq);
        self.stats.retransmits += 1;
        self.deadline_us = Some(now_us.saturating_add(self.rtt.rto_us()));
    }

    pub(super) fn rto_us(&self) -> u64 {
        self.rtt.rto_us()
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.deadline_us
    }

    pub(super) fn on_timeout(&mut self, now_us: u64) {
        if self.deadline_us.is_none_or(|at| now_us < at) {
            return;
        }
        if self.una == self.nxt {
            self.deadline_us = None;
            return;
        }
        self.stats.timeouts += 1;
        self.rtt.timed_out();
        let burst = self.in_flight().min(TIMEOUT_BURST);
        self.mark(self.una, self.una.wrapping_add(burst));
        self.deadline_us = Some(now_us.saturating_add(self.rtt.rto_us()));
    }

    /// An acknowledgement of ours was lost and the other side waits, or ours and we do: a frame
    /// that says where we stand lets both go on.
    pub(super) fn probe_due(&self) -> bool {
        self.starved && self.una == self.nxt
    }

    pub(super) fn probed(&mut self) {
        self.starved = false;
    }

    pub(super) fn is_dead(&self, now_us: u64) -> bool {
        self.una != self.nxt && now_us.saturating_sub(self.progress_us) >= self.dead_after_us
    }

    pub(super) fn stats(&self, stats: &mut Stats) {
        *stats = self.stats;
        stats.rtt_us = self.rtt.smoothed_us();
    }
}
