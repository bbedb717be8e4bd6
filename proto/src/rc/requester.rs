//! The requester: progress of a send queue.

use super::ack::{AckEntry, NakCode, Syndrome};
use super::atomic::ATOMIC_LEN;
use super::credit::Credit;
use super::wqe::{Completion, Op, PostError, Segment, Status, Wqe};
use super::{msn_before, rnr_timer_us, MAX_MESSAGE};

/// Limits that the QP's attributes set.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Messages are acknowledged (RC). Otherwise (UC) one is done when its last frame was handed
    /// over, there are no READs and atomics, and nothing is retried.
    pub reliable: bool,
    /// READs and atomics in flight at the most (`max_rd_atomic`).
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
    /// It is the turn of a local operation, and everything before it is sent (a registration) or
    /// done as far as it has to be (the others): execute it, then call [`Requester::local_done`].
    /// Told again until then.
    Local(u32),
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
    /// Local operations at the end of the queue.
    locals: u32,
    /// Entries so far that take a receive, modulo 2^32.
    takers: u32,
    credit: Credit,
    /// READs and atomics in [head, next) that are not done.
    reads: u16,
    wait_until: Option<u64>,
    rnr_left: u8,
    not_ready_since: Option<u64>,
    not_ready_pause_us: u64,
    /// The responder has executed something, so its QP is ready.
    heard: bool,
    /// The oldest entry that failed, and how. What comes before it goes on.
    failed: Option<(u32, Status)>,
    flushing: bool,
    /// An entry ended badly: from then on all do (IBTA 1.7, 10.3.1).
    broken: bool,
}

fn slot(ring: &[Wqe], msn: u32) -> usize {
    msn as usize & ring.len().wrapping_sub(1)
}

/// The responder says that it has receives.
fn has_receives(entry: &AckEntry) -> bool {
    entry.receives.is_some_and(|receives| receives > 0)
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
            locals: 0,
            takers: 0,
            credit: Credit::new(),
            reads: 0,
            wait_until: None,
            rnr_left: config.rnr_retry,
            not_ready_since: None,
            not_ready_pause_us: NOT_READY_MIN_US,
            heard: false,
            failed: None,
            flushing: false,
            broken: false,
        }
    }

    /// Takes new limits; what was posted stays.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
        self.rnr_left = config.rnr_retry;
    }

    /// Puts an entry at the end of the queue and tells its slot.
    pub fn post(&mut self, ring: &mut [Wqe], wqe: Wqe) -> Result<usize, PostError> {
        // A queue that is being flushed takes everything, to flush it.
        let may_read = self.config.reliable && (self.config.max_reads > 0 || self.flushing);
        let valid = wqe.len <= MAX_MESSAGE
            && (!wqe.op.is_atomic() || wqe.len == ATOMIC_LEN)
            && (!wqe.op.is_answered() || may_read);
        if !valid {
            return Err(PostError::Invalid);
        }
        if self.outstanding() as usize >= ring.len() {
            return Err(PostError::Full);
        }
        let at = slot(ring, self.tail);
        *ring.get_mut(at).ok_or(PostError::Full)? = Wqe {
            skip: self.locals,
            takers: self.takers,
            ..wqe
        };
        if wqe.op.takes_receive() {
            self.takers = self.takers.wrapping_add(1);
        }
        self.locals = if wqe.op.is_local() {
            self.locals.wrapping_add(1)
        } else {
            0
        };
        self.tail = self.tail.wrapping_add(1);
        Ok(at)
    }

    /// The message number that the next entry will have.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Entries that have not completed.
    pub fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Nothing that was begun is under way: all of it has ended, with a completion if one is wanted.
    pub fn is_drained(&self) -> bool {
        !msn_before(self.head, self.sent_end)
    }

    /// The next frame belongs to a message that was begun before.
    pub fn is_resuming(&self) -> bool {
        msn_before(self.next, self.sent_end)
    }

    /// The next frame to send. `room` is what a frame without an extension can carry, bytes.
    pub fn next(&mut self, ring: &[Wqe], now_us: u64, room: u32) -> Next {
        self.pass_over(ring);
        if self.flushing || self.next == self.tail || self.is_failed(self.next) {
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
        let answered = wqe.op.is_answered();
        let waits =
            wqe.flags.fence && self.reads > 0 || answered && self.reads >= self.config.max_reads;
        if first && waits {
            return Next::Idle;
        }
        if wqe.op.is_local() {
            return if wqe.op.is_early() || self.acked == self.next {
                Next::Local(self.next)
            } else {
                Next::Idle
            };
        }
        let blocked = first && !self.credit.allows(wqe.takers, wqe.op.takes_receive());
        if blocked {
            if self.acked != self.next {
                // What is acknowledged last brings news, and was asked to.
                return Next::Idle;
            }
            let probe_at = self.credit.probe_at(now_us);
            if now_us < probe_at {
                return Next::Until(probe_at);
            }
        }
        let ext = if first { wqe.extension_len() } else { 0 };
        let room = room.saturating_sub(ext as u32);
        let left = if answered {
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

    /// The last frame of a message, which [`next`](Self::next) gave, is to ask for an
    /// acknowledgement: nothing will go out after it by itself (`more`: entries wait to be posted
    /// that are not in the ring yet), what follows lacks a receive, or a good part of the ring, or
    /// of the receives, waits for one. READs and atomics are answered anyway.
    pub fn asks(&self, ring: &[Wqe], segment: &Segment, more: bool) -> bool {
        let wqe = |msn| ring.get(slot(ring, msn));
        let Some(own) = wqe(segment.msn).filter(|wqe| segment.last && !wqe.op.is_answered()) else {
            return false;
        };
        let half = own.op.takes_receive() && self.credit.asks(own.takers);
        // Registrations wait for nothing, and nothing goes out for them.
        let mut next = segment.msn.wrapping_add(1);
        while next != self.tail && wqe(next).is_some_and(|wqe| wqe.op.is_early()) {
            next = next.wrapping_add(1);
        }
        let part = (ring.len() / 4).max(1) as u32;
        let follows = if next == self.tail {
            more && self.credit.allows(self.takers, true)
        } else {
            // Another local operation waits for what is before it.
            wqe(next).is_some_and(|wqe| {
                !wqe.op.is_local() && self.credit.allows(wqe.takers, wqe.op.takes_receive())
            })
        };
        let part_is_over = segment.msn / part != next / part;
        !follows || part_is_over || half
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
            .is_some_and(|w| w.op.is_answered() && !w.done)
        {
            self.reads = self.reads.saturating_add(1);
        }
        self.next = end;
        self.offset = 0;
        if !self.config.reliable {
            self.acked = end;
        }
    }

    /// The local operation that [`next`](Self::next) asked for was executed, and how it went: with
    /// success, [`Status::LocalOperation`], [`Status::MwBind`] or [`Status::LocalProtection`].
    pub fn local_done(&mut self, ring: &mut [Wqe], msn: u32, status: Status) {
        let done_before = self.acked == self.next;
        let at = slot(ring, msn);
        let Some(wqe) = ring.get_mut(at).filter(|wqe| wqe.op.is_local()) else {
            return;
        };
        let asked = msn == self.next
            && self.next != self.tail
            && !wqe.done
            && (done_before || wqe.op.is_early());
        if !asked || self.flushing {
            return;
        }
        if status != Status::Success {
            return self.fail(msn, status);
        }
        // It is never executed again, whatever has to be sent again.
        wqe.done = true;
        self.next = self.next.wrapping_add(1);
        if done_before {
            self.acked = self.next;
        }
        if msn_before(self.sent_end, self.next) {
            self.sent_end = self.next;
        }
    }

    /// Local operations that were executed are neither sent nor acknowledged.
    fn pass_over(&mut self, ring: &[Wqe]) {
        while msn_before(self.acked, self.sent_end) && self.is_done_local(ring, self.acked) {
            self.acked = self.acked.wrapping_add(1);
        }
        while msn_before(self.next, self.sent_end) && self.is_done_local(ring, self.next) {
            self.next = self.next.wrapping_add(1);
        }
    }

    fn is_done_local(&self, ring: &[Wqe], msn: u32) -> bool {
        ring.get(slot(ring, msn))
            .is_some_and(|wqe| wqe.op.is_local() && wqe.done)
    }

    /// News from the responder. `false`: it contradicts what was sent and was not acted on.
    pub fn on_ack(&mut self, ring: &[Wqe], entry: &AckEntry, now_us: u64) -> bool {
        if !self.config.reliable {
            return false;
        }
        if self.flushing {
            return true;
        }
        let msn = entry.msn;
        match entry.syndrome {
            Syndrome::Ack => {
                if msn_before(self.sent_end, msn) {
                    return false;
                }
                self.advance(ring, msn);
                let begun = self.takers_before(ring, self.next);
                let done = self.takers_done(ring, msn);
                self.credit.told(done, begun, entry.receives);
                if has_receives(entry) {
                    // What was refused for lack of one waits no longer.
                    self.wait_until = None;
                }
            }
            Syndrome::Rnr(timer) => {
                let sent = !msn_before(msn, self.acked) && msn_before(msn, self.sent_end);
                let possible = ring
                    .get(slot(ring, msn))
                    .is_some_and(|wqe| wqe.op.takes_receive());
                if !sent || !possible {
                    return false;
                }
                self.advance(ring, msn);
                if !self.is_failed(msn) {
                    let done = self.takers_done(ring, msn);
                    self.credit.refused(done, entry.receives, now_us);
                    // Receives that were posted meanwhile need no waiting for.
                    let pause_us = if has_receives(entry) {
                        0
                    } else {
                        rnr_timer_us(timer)
                    };
                    self.retry_rnr(ring, msn, pause_us, now_us);
                }
            }
            Syndrome::NotReady => self.retry_not_ready(ring, now_us),
            Syndrome::Nak(NakCode::Gone) => {
                let oldest = self.oldest_open(ring);
                if oldest == self.tail {
                    return false;
                }
                self.fail(oldest, Status::RetryExceeded);
            }
            Syndrome::Nak(code) => {
                // The responder does not know which of the numbers that it expects are skipped. What it
                // says may be far from anything that was sent.
                let mut msn = msn;
                while !msn_before(msn, self.head)
                    && msn_before(msn, self.sent_end)
                    && self.is_done_local(ring, msn)
                {
                    msn = msn.wrapping_add(1);
                }
                // A READ may be refused after it was acknowledged, while it is being answered.
                let sent = !msn_before(msn, self.head) && msn_before(msn, self.sent_end);
                if !sent || !self.is_open(ring, msn) {
                    return false;
                }
                self.advance(ring, msn);
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational | NakCode::Gone => Status::RemoteOperational,
                };
                self.fail(msn, status);
            }
        }
        true
    }

    /// Entries before `msn`, none of which has completed, that take a receive.
    fn takers_before(&self, ring: &[Wqe], msn: u32) -> u32 {
        match ring.get(slot(ring, msn)) {
            Some(wqe) if msn != self.tail => wqe.takers,
            _ => self.takers,
        }
    }

    /// Of the messages that the responder has done by its own account, those that take a receive.
    /// It does not count local operations that end what is done.
    fn takers_done(&self, ring: &[Wqe], msn: u32) -> u32 {
        let msn = if msn_before(msn, self.acked) {
            self.acked
        } else {
            msn
        };
        self.takers_before(ring, msn)
    }

    /// The responder had no receive for `msn`: from there on again, after a while.
    fn retry_rnr(&mut self, ring: &[Wqe], msn: u32, pause_us: u64, now_us: u64) {
        if self.config.rnr_retry != 7 {
            let Some(left) = self.rnr_left.checked_sub(1) else {
                return self.fail(msn, Status::RnrRetryExceeded);
            };
            self.rnr_left = left;
        }
        self.rewind(ring, msn);
        self.wait_until = Some(now_us.saturating_add(pause_us));
    }

    /// The responder's QP cannot receive yet: everything again, after a while.
    fn retry_not_ready(&mut self, ring: &[Wqe], now_us: u64) {
        // A QP that has executed something is ready: the news is late.
        if self.heard || self.wait_until.is_some() || self.acked == self.sent_end {
            return;
        }
        let since = *self.not_ready_since.get_or_insert(now_us);
        if let Some(limit) = self.config.not_ready_limit_us {
            if now_us.saturating_sub(since) > limit {
                let oldest = self.oldest_open(ring);
                return self.fail(oldest, Status::RetryExceeded);
            }
        }
        self.rewind(ring, self.acked);
        self.wait_until = Some(now_us.saturating_add(self.not_ready_pause_us));
        self.not_ready_pause_us = (self.not_ready_pause_us * 2).min(NOT_READY_MAX_US);
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

    /// Where the payload of an atomic's response goes: the slot of its entry. `None`: it answers
    /// no atomic in flight, and is to be dropped.
    pub fn atomic_slot(&self, ring: &[Wqe], response: &Segment) -> Option<usize> {
        let msn = response.msn;
        if self.flushing || msn_before(msn, self.head) || !msn_before(msn, self.sent_end) {
            return None;
        }
        let at = slot(ring, msn);
        let wqe = ring.get(at)?;
        let whole =
            response.first && response.last && response.offset == 0 && response.len == ATOMIC_LEN;
        (whole && wqe.op.is_atomic() && !wqe.done).then_some(at)
    }

    /// The payload of a response, that [`read_slot`](Self::read_slot) or
    /// [`atomic_slot`](Self::atomic_slot) gave a place for, is in its place.
    pub fn read_placed(&mut self, ring: &mut [Wqe], response: &Segment) {
        let at = slot(ring, response.msn);
        let Some(wqe) = ring.get_mut(at) else { return };
        self.heard = true;
        wqe.received = wqe.received.wrapping_add(response.len);
        if response.last && !wqe.done {
            wqe.done = true;
            if msn_before(response.msn, self.next) {
                self.reads = self.reads.saturating_sub(1);
            }
            // The responder executes in order: everything before is done, too.
            self.advance(ring, response.msn.wrapping_add(1));
        }
    }

    /// An entry cannot go on, for a local reason or another. Those before it do, those after it
    /// do not begin.
    pub fn fail(&mut self, msn: u32, status: Status) {
        let first = self.failed.is_none_or(|(other, _)| msn_before(msn, other));
        if first && !self.flushing {
            self.failed = Some((msn, status));
        }
    }

    /// This entry or an earlier one failed.
    fn is_failed(&self, msn: u32) -> bool {
        self.failed
            .is_some_and(|(failed, _)| !msn_before(msn, failed))
    }

    /// The entry has not ended well.
    fn is_open(&self, ring: &[Wqe], msn: u32) -> bool {
        match ring.get(slot(ring, msn)) {
            Some(wqe) if wqe.op.is_answered() => !(wqe.done && msn_before(msn, self.next)),
            _ => !msn_before(msn, self.acked),
        }
    }

    /// The oldest entry that has not ended well; the end of the queue if there is none.
    fn oldest_open(&self, ring: &[Wqe]) -> u32 {
        let mut msn = self.head;
        while msn != self.tail && !self.is_open(ring, msn) {
            msn = msn.wrapping_add(1);
        }
        msn
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
        let status = if !self.broken && !self.is_open(ring, msn) {
            Status::Success
        } else if let Some((_, status)) = self.failed.filter(|_| self.is_failed(msn)) {
            self.failed = None;
            self.flushing = true;
            status
        } else if self.flushing {
            Status::Flushed
        } else {
            return None;
        };
        self.broken |= status != Status::Success;
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
        self.heard = true;
        // An entry that failed here is not done, whatever became of its frames there.
        let msn = match self.failed {
            Some((failed, _)) if msn_before(failed, msn) => failed,
            _ => msn,
        };
        if !msn_before(self.acked, msn) {
            return;
        }
        self.acked = msn;
        self.credit.acknowledged(self.takers_before(ring, msn));
        self.rnr_left = self.config.rnr_retry;
        self.not_ready_since = None;
        if msn_before(self.next, msn) {
            // An answer to an earlier attempt: what is acknowledged need not be sent again.
            self.next = msn;
            self.offset = 0;
            self.wait_until = None;
            self.count_reads(ring);
        }
        self.pass_over(ring);
    }

    /// Goes back to the beginning of message `msn`. What READs have brought stays: the responder
    /// executes no READ and no atomic twice, so it goes on where it was.
    fn rewind(&mut self, ring: &[Wqe], msn: u32) {
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
                .is_some_and(|w| w.op.is_answered() && !w.done)
            {
                reads = reads.saturating_add(1);
            }
            at = at.wrapping_add(1);
        }
        self.reads = reads;
    }
}
