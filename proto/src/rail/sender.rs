//! The sending half of a rail.

use super::bits::Bits;
use super::rtt::Rtt;
use super::{before, Stats, MAX_WINDOW};

/// A frame that was sent again is not sent once more for a NAK that comes within this time: the
/// NAK cannot know of it yet. It is bounded, so that the receiver's next NAK is not too early.
const AGAIN_MIN_US: u64 = 1_000;
const AGAIN_MAX_US: u64 = 4_000;

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
    /// Sent again lately; the second set is the older, and both change places with time.
    again: [Bits; 2],
    again_us: u64,
    rtt: Rtt,
    /// A sequence whose way is being timed.
    timing: Option<(u32, u64)>,
    deadline_us: Option<u64>,
    progress_us: u64,
    /// The other side has to say where it stands.
    probe: bool,
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
            again: [Bits::default(), Bits::default()],
            again_us: now_us,
            rtt: Rtt::default(),
            timing: None,
            deadline_us: None,
            progress_us: now_us,
            probe: false,
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

    pub(super) fn in_flight(&self) -> u32 {
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

    /// The other side takes nothing although everything was acknowledged. No honest receiver says
    /// so, because what it has acknowledged takes no room.
    fn is_shut_out(&self) -> bool {
        self.una == self.nxt && !before(self.nxt, self.limit)
    }

    fn is_waiting(&self) -> bool {
        self.una != self.nxt || self.is_shut_out()
    }

    fn restart_timer(&mut self, now_us: u64) {
        self.deadline_us = self
            .is_waiting()
            .then(|| now_us.saturating_add(self.rtt.rto_us()));
    }

    pub(super) fn on_ack(&mut self, ack: u32, credit: u32, now_us: u64) {
        let late = self.una.wrapping_sub(ack) <= MAX_WINDOW;
        let new = ack.wrapping_sub(self.una) <= self.in_flight();
        if !late && !new {
            // Nothing of that number is under way: neither field is to be believed.
            self.stats.absurd += 1;
            return;
        }
        if credit.wrapping_sub(ack) > MAX_WINDOW {
            // More than a window ahead is of no use, and could be a lie that wraps.
            self.stats.absurd += 1;
        } else if before(self.limit, credit) {
            self.limit = credit;
            self.progress_us = now_us;
        }
        if before(self.una, ack) {
            self.acknowledge(ack, now_us);
        } else if !self.is_waiting() {
            self.deadline_us = None;
        }
    }

    fn acknowledge(&mut self, ack: u32, now_us: u64) {
        let mut seq = self.una;
        while before(seq, ack) {
            self.resend.remove(seq);
            for set in &mut self.again {
                set.remove(seq);
            }
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
        self.restart_timer(now_us);
    }

    pub(super) fn on_nak(&mut self, payload: &[u8], now_us: u64) {
        self.stats.naks_received += 1;
        let pause = self.rtt.smoothed_us().clamp(AGAIN_MIN_US, AGAIN_MAX_US);
        if now_us.saturating_sub(self.again_us) >= pause {
            let [young, old] = &mut self.again;
            core::mem::swap(young, old);
            *young = Bits::default();
            self.again_us = now_us;
        }
        for range in payload.chunks_exact(8) {
            let (Some(from), Some(to)) = (
                range.first_chunk::<4>(),
                range.get(4..).and_then(|r| r.first_chunk::<4>()),
            ) else {
                return;
            };
            let (from, to) = (u32::from_le_bytes(*from), u32::from_le_bytes(*to));
            // What was acknowledged meanwhile is no lie, but what was never sent is.
            let sane =
                to.wrapping_sub(from) <= MAX_WINDOW && self.nxt.wrapping_sub(to) <= 2 * MAX_WINDOW;
            if !sane {
                self.stats.absurd += 1;
                continue;
            }
            if before(self.una, to) {
                let from = if before(from, self.una) {
                    self.una
                } else {
                    from
                };
                self.mark(from, to);
            }
        }
        self.restart_timer(now_us);
    }

    /// Marks frames that are under way, to be sent again unless that was done just now.
    fn mark(&mut self, from: u32, to: u32) {
        let mut seq = from;
        while before(seq, to) {
            if !self.again.iter().any(|set| set.contains(seq)) {
                self.resend.insert(seq);
            }
            seq = seq.wrapping_add(1);
        }
        // Karn: the way of a frame that was sent twice is not timed, nor of one whose
        // acknowledgement has to wait for such a frame.
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
        let [young, _] = &mut self.again;
        young.insert(seq);
        self.stats.retransmits += 1;
        self.restart_timer(now_us);
    }

    pub(super) fn defer(&mut self, seq: u32) {
        self.resend.remove(seq);
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.deadline_us
    }

    /// Asks where the other side stands. Its NAK names what is missing, so that nothing is repeated
    /// that has arrived and only waits for a processor there: a host that is busy, or stopped for a
    /// while by what it runs on, looks from here just like one that lost the frames.
    pub(super) fn on_timeout(&mut self, now_us: u64) {
        if self.deadline_us.is_none_or(|at| now_us < at) {
            return;
        }
        if self.is_waiting() {
            self.stats.timeouts += 1;
            self.rtt.timed_out();
            self.probe = true;
            self.again = [Bits::default(), Bits::default()];
            // How long a host was stopped is not how long the way is.
            self.timing = None;
        }
        self.restart_timer(now_us);
    }

    pub(super) fn probe_due(&self) -> bool {
        self.probe
    }

    pub(super) fn probed(&mut self) {
        self.probe = false;
    }

    pub(super) fn is_dead(&self, now_us: u64) -> bool {
        self.is_waiting() && now_us.saturating_sub(self.progress_us) >= self.dead_after_us
    }

    pub(super) fn stats(&self, stats: &mut Stats) {
        *stats = self.stats;
        stats.rtt_us = self.rtt.smoothed_us();
    }
}
