//! The requester: progress of a send queue.

use super::ack::{AckEntry, NakCode, Syndrome};
use super::wqe::{Completion, Op, Segment, Status, Wqe};
use super::{msn_before, rnr_timer_us};

/// Limits that the QP's attributes set.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// READs in flight at the most (`max_rd_atomic`).
    pub max_reads: u16,
    /// RNR retries, 0 to 7; 7 means without end (IBTA 1.7, 9.7.5.2.8).
    pub rnr_retry: u8,
    /// How long the peer's QP may stay unable to receive, microseconds; `None` means for ever.
    pub not_ready_limit_us: Option<u64>,
}

/// What the send queue wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this frame, then call [`Requester::sent`].
    Frame(Segment),
    /// Nothing until something is posted, acknowledged or read.
    Idle,
    /// Nothing before this time, microseconds.
    Until(u64),
}

/// First pause after NOT_READY; it doubles up to [`NOT_READY_MAX_US`].
const NOT_READY_MIN_US: u64 = 2_000;
const NOT_READY_MAX_US: u64 = 100_000;

/// Progress of one send queue.
///
/// The entries live in a ring of the caller's whose length is a power of two; every method that
/// looks at entries takes that ring.
#[derive(Debug)]
pub struct Requester {
    config: Config,
    /// Oldest entry that has not completed.
    head: u32,
    /// Entries before this one are acknowledged.
    acked: u32,
    /// Entry being sent, and how much of it has been.
    next: u32,
    offset: u32,
    /// End of what was ever sent, counting a message from its first frame.
    sent_end: u32,
    /// One past the newest entry.
    tail: u32,
    /// READs in [head, next) that are not done.
    reads: u16,
    wait_until: Option<u64>,
    rnr_left: u8,
    not_ready_since: Option<u64>,
    not_ready_pause_us: u64,
    failed: Option<(u32, Status)>,
    flushing: bool,
}

fn slot(ring: &[Wqe], msn: u32) -> usize {
    msn as usize & ring.len().wrapping_sub(1)
}

impl Requester {
    /// A requester with an empty queue.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            head: 0,
            acked: 0,
            next: 0,
            offset: 0,
            sent_end: 0,
            tail: 0,
            reads: 0,
            wait_until: None,
            rnr_left: config.rnr_retry,
            not_ready_since: None,
            not_ready_pause_us: NOT_READY_MIN_US,
            failed: None,
            flushing: false,
        }
    }

    /// Takes new limits; what was posted stays.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
        self.rnr_left = config.rnr_retry;
    }

    /// Puts an entry at the end of the queue and tells its slot; `None` if the ring is full.
    pub fn post(&mut self, ring: &mut [Wqe], wqe: Wqe) -> Option<usize> {
        if self.tail.wrapping_sub(self.head) as usize >= ring.len() {
            return None;
        }
        let at = slot(ring, self.tail);
        *ring.get_mut(at)? = wqe;
        self.tail = self.tail.wrapping_add(1);
        Some(at)
    }

    /// Entries that have not completed.
    pub fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// The next frame to send. `room` is what a frame without an extension can carry, bytes.
    pub fn next(&mut self, ring: &[Wqe], now_us: u64, room: u32) -> Next {
        if self.failed.is_some() || self.flushing || self.next == self.tail {
            return Next::Idle;
        }
        if let Some(until) = self.wait_until {
            if now_us < until {
                return Next::Until(until);
            }
            self.wait_until = None;
        }
        let Some(wqe) = ring.get(slot(ring, self.next)) else {
            return Next::Idle;
        };
        let first = self.offset == 0;
        let read = wqe.op == Op::Read;
        if first
            && (wqe.flags.fence && self.reads > 0 || read && self.reads >= self.config.max_reads)
        {
            return Next::Idle;
        }
        let ext = if first { wqe.extension_len() } else { 0 };
        let room = room.saturating_sub(ext as u32);
        let left = if read {
            0
        } else {
            wqe.len.saturating_sub(self.offset)
        };
        let len = left.min(room);
        if len == 0 && left > 0 {
            return Next::Idle;
        }
        Next::Frame(Segment {
            msn: self.next,
            offset: self.offset,
            len,
            first,
            last: len == left,
        })
    }

    /// The frame that [`next`](Self::next) asked for is on its way.
    pub fn sent(&mut self, ring: &[Wqe], segment: &Segment) {
        if segment.msn != self.next {
            return;
        }
        let end = self.next.wrapping_add(1);
        if msn_before(self.sent_end, end) {
            self.sent_end = end;
        }
        if !segment.last {
            self.offset = self.offset.wrapping_add(segment.len);
            return;
        }
        if ring
            .get(slot(ring, self.next))
            .is_some_and(|w| w.op == Op::Read && !w.done)
        {
            self.reads = self.reads.saturating_add(1);
        }
        self.next = end;
        self.offset = 0;
    }

    /// News from the responder. `false`: it contradicts what was sent and was not acted on.
    pub fn on_ack(&mut self, ring: &mut [Wqe], entry: &AckEntry, now_us: u64) -> bool {
        if self.flushing || self.failed.is_some() {
            return true;
        }
        let msn = entry.msn;
        let in_flight = |end: u32| !msn_before(msn, self.acked) && msn_before(msn, end);
        match entry.syndrome {
            Syndrome::Ack => {
                if msn_before(msn, self.acked) {
                    return true;
                }
                if msn_before(self.sent_end, msn) {
                    return false;
                }
                self.advance(ring, msn);
            }
            Syndrome::Rnr(timer) => {
                if !in_flight(self.sent_end) {
                    return false;
                }
                self.advance(ring, msn);
                if self.config.rnr_retry != 7 {
                    if self.rnr_left == 0 {
                        self.failed = Some((msn, Status::RnrRetryExceeded));
                        return true;
                    }
                    self.rnr_left -= 1;
                }
                self.rewind(ring, msn);
                self.wait_until = Some(now_us.saturating_add(rnr_timer_us(timer)));
            }
            Syndrome::NotReady => {
                // Before the first acknowledgement only: a QP that has executed something is ready.
                if self.acked != 0 || self.wait_until.is_some() {
                    return true;
                }
                let since = *self.not_ready_since.get_or_insert(now_us);
                if let Some(limit) = self.config.not_ready_limit_us {
                    if now_us.saturating_sub(since) > limit {
                        self.failed = Some((self.head, Status::RetryExceeded));
                        return true;
                    }
                }
                let head = self.head;
                self.rewind(ring, head);
                self.wait_until = Some(now_us.saturating_add(self.not_ready_pause_us));
                self.not_ready_pause_us = (self.not_ready_pause_us * 2).min(NOT_READY_MAX_US);
            }
            Syndrome::Nak(NakCode::Gone) => {
                self.failed = Some((self.head, Status::RetryExceeded));
            }
            Syndrome::Nak(code) => {
                if !in_flight(self.sent_end) {
                    return false;
                }
                self.advance(ring, msn);
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational | NakCode::Gone => Status::RemoteOperational,
                };
                self.failed = Some((msn, status));
            }
        }
        true
    }

    /// Where the payload of a READ response goes: the slot of its entry. `None`: it does not
    /// continue any READ in flight (a late answer to an earlier attempt, or a peer that errs), and
    /// is to be dropped.
    pub fn read_slot(&self, ring: &[Wqe], response: &Segment) -> Option<usize> {
        let msn = response.msn;
        if self.flushing || msn_before(msn, self.head) || !msn_before(msn, self.sent_end) {
            return None;
        }
        let at = slot(ring, msn);
        let wqe = ring.get(at)?;
        let end = response.offset.checked_add(response.len)?;
        let fits = wqe.op == Op::Read
            && !wqe.done
            && wqe.received == response.offset
            && end <= wqe.len
            && response.last == (end == wqe.len)
            && (response.len > 0 || response.last);
        fits.then_some(at)
    }

    /// The payload of a READ response is in its place.
    pub fn read_placed(&mut self, ring: &mut [Wqe], response: &Segment) {
        let at = slot(ring, response.msn);
        let Some(wqe) = ring.get_mut(at) else { return };
        wqe.received = wqe.received.wrapping_add(response.len);
        if response.last && !wqe.done {
            wqe.done = true;
            if msn_before(response.msn, self.next) {
                self.reads = self.reads.saturating_sub(1);
            }
        }
    }

    /// An entry cannot go on for a local reason.
    pub fn fail(&mut self, msn: u32, status: Status) {
        if self.failed.is_none() && !self.flushing {
            self.failed = Some((msn, status));
        }
    }

    /// The QP enters the error state: everything that has not ended is flushed.
    pub fn flush(&mut self) {
        self.flushing = true;
    }

    /// An entry failed and the QP has to enter the error state.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The next entry that ended, in the order of posting.
    pub fn complete(&mut self, ring: &[Wqe]) -> Option<Completion> {
        if self.head == self.tail {
            return None;
        }
        let msn = self.head;
        let wqe = ring.get(slot(ring, msn))?;
        let sent = msn_before(msn, self.next);
        let done = if wqe.op == Op::Read {
            sent && wqe.done
        } else {
            msn_before(msn, self.acked)
        };
        let status = if done {
            Status::Success
        } else if let Some((_, status)) = self.failed.filter(|(failed, _)| *failed == msn) {
            self.failed = None;
            self.flushing = true;
            status
        } else if self.flushing {
            Status::Flushed
        } else {
            return None;
        };
        self.head = self.head.wrapping_add(1);
        if msn_before(self.acked, self.head) {
            self.acked = self.head;
        }
        if msn_before(self.next, self.head) {
            self.next = self.head;
            self.offset = 0;
        }
        if msn_before(self.sent_end, self.head) {
            self.sent_end = self.head;
        }
        Some(Completion { msn, status })
    }

    /// Messages before `msn` are done.
    fn advance(&mut self, ring: &[Wqe], msn: u32) {
        if !msn_before(self.acked, msn) {
            return;
        }
        self.acked = msn;
        self.rnr_left = self.config.rnr_retry;
        self.not_ready_since = None;
        if msn_before(self.next, msn) {
            // An answer to an earlier attempt: what is acknowledged need not be sent again.
            self.next = msn;
            self.offset = 0;
            self.wait_until = None;
            self.count_reads(ring);
        }
    }

    /// Goes back to the beginning of message `msn`.
    fn rewind(&mut self, ring: &mut [Wqe], msn: u32) {
        let mut at = msn;
        while msn_before(at, self.sent_end) {
            let index = slot(ring, at);
            if let Some(wqe) = ring.get_mut(index) {
                if !wqe.done {
                    wqe.received = 0;
                }
            }
            at = at.wrapping_add(1);
        }
        self.next = msn;
        self.offset = 0;
        self.count_reads(ring);
    }

    fn count_reads(&mut self, ring: &[Wqe]) {
        let mut reads = 0u16;
        let mut at = self.head;
        while msn_before(at, self.next) {
            if ring
                .get(slot(ring, at))
                .is_some_and(|w| w.op == Op::Read && !w.done)
            {
                reads = reads.saturating_add(1);
            }
            at = at.wrapping_add(1);
        }
        self.reads = reads;
    }
}
