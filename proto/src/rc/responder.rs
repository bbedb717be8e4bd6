//! The responder: progress of the receive side of a QP.

use super::ack::{AckEntry, NakCode, Syndrome};
use super::atomic::{AtomicOp, ATOMIC_LEN};
use super::incoming::{Begin, Current};
use super::msn_before;
use super::pace::{Due, Pace};
use super::request::{Delivery, Kind, Placed, Step};
use super::response::{Response, Responses, Work, MAX_READS};
use super::unreliable::Drops;

/// Progress of one receive side.
#[derive(Debug)]
pub struct Responder {
    /// What was dropped, of an unreliable connection; `None` of a reliable one.
    pub(super) drops: Option<Drops>,
    /// READs and atomics that may be held; at most [`MAX_READS`].
    max_reads: u16,
    /// IBTA code of the time that a requester waits after RNR.
    rnr_timer: u8,
    /// The message expected or being received.
    pub(super) msn: u32,
    pub(super) current: Option<Current>,
    /// Frames are thrown away until the expected message begins.
    resync: bool,
    /// An acknowledgement is owed.
    owed: bool,
    refusal: Option<Syndrome>,
    /// A final refusal was told or is about to be: nothing is accepted any more.
    dead: bool,
    /// An atomic was given to the caller, who has not executed it yet.
    executing: bool,
    responses: Responses,
    pace: Pace,
}

impl Responder {
    /// A responder of a reliable connection (RC) that expects message 0.
    ///
    /// `max_reads` is `max_dest_rd_atomic`, `rnr_timer` is `min_rnr_timer` (0 to 31).
    pub fn new(max_reads: u16, rnr_timer: u8) -> Self {
        Self {
            drops: None,
            max_reads: max_reads.min(MAX_READS as u16),
            rnr_timer: rnr_timer & 31,
            msn: 0,
            current: None,
            resync: true,
            owed: false,
            refusal: None,
            dead: false,
            executing: false,
            responses: Responses::new(),
            pace: Pace::default(),
        }
    }

    /// Takes new limits.
    pub fn configure(&mut self, max_reads: u16, rnr_timer: u8) {
        self.max_reads = max_reads.min(MAX_READS as u16);
        self.rnr_timer = rnr_timer & 31;
    }

    /// Looks at a frame. `receive_posted`: there is a receive that a message may use.
    pub fn on_frame(&mut self, frame: &Delivery<'_>, receive_posted: bool) -> Step {
        if self.drops.is_some() {
            return self.on_unreliable(frame, receive_posted);
        }
        self.executing = false;
        if self.dead {
            return Step::Drop;
        }
        if msn_before(frame.msn, self.msn) {
            // Executed before: say so again, once the requester has finished repeating it.
            if frame.last {
                self.owed = true;
                self.pace.hurry();
                return Step::Answer;
            }
            return Step::Drop;
        }
        let begin = if frame.first {
            Begin::parse(frame)
        } else {
            None
        };
        if frame.msn != self.msn && !self.may_skip_to(frame.msn, begin.as_ref()) {
            return if self.resync {
                Step::Drop
            } else {
                self.refuse(NakCode::InvalidRequest)
            };
        }
        if frame.first {
            self.msn = frame.msn;
            self.current = None;
            return match begin {
                Some(begin) => self.begin(frame, &begin, receive_posted),
                None => self.refuse(NakCode::InvalidRequest),
            };
        }
        if self.resync {
            return Step::Drop;
        }
        let Some(current) = self.current else {
            return self.refuse(NakCode::InvalidRequest);
        };
        if !current.goes_on(frame) {
            return self.refuse(NakCode::InvalidRequest);
        }
        current.step(frame)
    }

    /// The numbers between the expected message and `msn` belong to local operations of the
    /// requester, so that nothing is missing.
    fn may_skip_to(&self, msn: u32, begin: Option<&Begin>) -> bool {
        self.current.is_none() && begin.is_some_and(|b| msn.wrapping_sub(self.msn) <= b.skip)
    }

    fn begin(&mut self, frame: &Delivery<'_>, begin: &Begin, receive_posted: bool) -> Step {
        if let Some(op) = begin.atomic {
            return self.begin_atomic(begin.addr, begin.rkey, op);
        }
        if frame.kind == Kind::Read {
            return self.begin_read(begin.addr, begin.rkey, begin.total);
        }
        if frame.takes_receive() && !receive_posted {
            self.refusal = Some(Syndrome::Rnr(self.rnr_timer));
            self.resync = true;
            return Step::Answer;
        }
        self.resync = false;
        let current = Current::new(frame, begin);
        self.current = Some(current);
        current.step(frame)
    }

    fn begin_read(&mut self, addr: u64, rkey: u32, total: u32) -> Step {
        let work = Work::Read {
            addr,
            rkey,
            total,
            sent: 0,
        };
        if self.responses.len() >= self.max_reads || !self.responses.push(self.msn, work) {
            return self.refuse(NakCode::InvalidRequest);
        }
        self.resync = false;
        // Its response is the acknowledgement, of all that came before, too.
        self.msn = self.msn.wrapping_add(1);
        Step::Read { addr, rkey, total }
    }

    fn begin_atomic(&mut self, addr: u64, rkey: u32, op: AtomicOp) -> Step {
        if self.responses.len() >= self.max_reads || addr % u64::from(ATOMIC_LEN) != 0 {
            return self.refuse(NakCode::InvalidRequest);
        }
        self.resync = false;
        self.executing = true;
        Step::Atomic { addr, rkey, op }
    }

    /// The atomic that [`on_frame`](Self::on_frame) gave was executed; `original` was there
    /// before. It is kept until the response is sent, and the atomic is never asked for again.
    pub fn executed(&mut self, original: u64) {
        if !self.executing {
            return;
        }
        self.executing = false;
        // There is room: that was looked at before.
        self.responses.push(self.msn, Work::Atomic { original });
        // Acknowledged by its response, as READs are.
        self.msn = self.msn.wrapping_add(1);
    }

    /// The key that the message under way asks to invalidate, told with its last frame: after the
    /// payload is in its place and before [`placed`](Self::placed), the caller invalidates it, and
    /// calls [`refuse`](Self::refuse) if that is not allowed.
    pub fn invalidates(&self, frame: &Delivery<'_>) -> Option<u32> {
        self.current.filter(|_| frame.last)?.inv
    }

    /// The payload of the frame that [`on_frame`](Self::on_frame) accepted is in its place.
    pub fn placed(&mut self, frame: &Delivery<'_>) -> Placed {
        let Some(current) = &mut self.current else {
            return Placed::More;
        };
        current.placed = current.placed.wrapping_add(frame.len);
        if !frame.last {
            return Placed::More;
        }
        let done = *current;
        self.current = None;
        self.msn = self.msn.wrapping_add(1);
        if self.drops.is_none() {
            self.owed = true;
            self.pace.on_message(done.total, frame.ack_req);
        }
        done.placed()
    }

    /// Refuses the current message, or the atomic that was not executed, for good. The caller puts
    /// the QP into the error state once [`take_ack`](Self::take_ack) has given the refusal away.
    ///
    /// Of an unreliable connection the message is dropped, and the QP goes on.
    pub fn refuse(&mut self, code: NakCode) -> Step {
        self.current = None;
        self.executing = false;
        if let Some(drops) = &mut self.drops {
            drops.count(self.msn);
            return Step::Drop;
        }
        self.refusal = Some(Syndrome::Nak(code));
        self.dead = true;
        Step::Answer
    }

    /// Refuses the READ that was just accepted for good: its key or range is bad.
    pub fn refuse_read(&mut self, code: NakCode) -> Step {
        if self.responses.pop_newest() {
            self.msn = self.msn.wrapping_sub(1);
        }
        self.refuse(code)
    }

    /// Refuses the oldest READ for good: its memory went away while it was being answered. What
    /// came after it is not answered any more.
    pub fn refuse_oldest_read(&mut self, code: NakCode) -> Step {
        if let Some(msn) = self.responses.clear() {
            self.msn = msn;
        }
        self.refuse(code)
    }

    /// The QP is refusing everything: it has to enter the error state.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// A message is being received, so the receive at the head of the queue is in use.
    pub fn mid_message(&self) -> bool {
        self.current.is_some()
    }

    /// The next frame that answers a READ or an atomic, with at most `room` bytes of payload.
    pub fn next_response(&self, room: u32) -> Option<Response> {
        self.responses.next(room)
    }

    /// The frame that [`next_response`](Self::next_response) asked for is on its way.
    pub fn response_sent(&mut self, response: &Response) {
        if self.responses.sent(response) == Some(self.msn.wrapping_sub(1)) {
            // Everything that was executed is acknowledged by it.
            self.acknowledged();
        }
    }

    fn acknowledged(&mut self) {
        self.owed = false;
        self.pace.acknowledged();
    }

    /// Receives were posted after the requester was told that there are none: it waits to hear of
    /// them, at once.
    pub fn receives_posted(&mut self) {
        if self.dead || self.drops.is_some() {
            return;
        }
        self.owed = true;
        self.pace.at_once();
    }

    /// Whether [`take_ack`](Self::take_ack) would give anything.
    pub fn owes_ack(&self) -> bool {
        match self.refusal {
            // A refusal for good must not overtake the answers before it: the requester completes
            // their entries first.
            Some(Syndrome::Nak(_)) => self.responses.len() == 0,
            Some(_) => true,
            None => self.owed,
        }
    }

    /// When what [`take_ack`](Self::take_ack) would give has to be sent. To be asked after every
    /// frame that came; what tells of a failure never waits.
    pub fn ack_due(&mut self, now_us: u64) -> Due {
        if !self.owes_ack() {
            return Due::No;
        }
        if self.refusal.is_some() {
            return Due::Now;
        }
        self.pace.due(now_us)
    }

    /// The acknowledgement that may ride on a frame of this QP's that is about to leave for the
    /// requester's host; for receives as with [`take_ack`](Self::take_ack). What tells of a failure
    /// goes by itself.
    pub fn rider(&self, qpn: u32) -> Option<AckEntry> {
        (self.owed && self.refusal.is_none()).then_some(AckEntry::new(qpn, self.msn, Syndrome::Ack))
    }

    /// A frame of this QP's, a request or a response, has left for the requester's host, and
    /// perhaps the [`rider`](Self::rider) with it.
    pub fn frame_sent(&mut self, rode: bool, now_us: u64) {
        self.pace.on_sent(now_us);
        if rode {
            self.acknowledged();
        }
    }

    /// The acknowledgement has waited for a frame to ride on, in vain: it is sent by itself.
    pub fn rides_not(&mut self) {
        self.pace.in_vain();
    }

    /// Takes back what [`take_ack`](Self::take_ack) gave and could not be sent.
    pub fn restore_ack(&mut self, entry: &AckEntry) {
        match entry.syndrome {
            Syndrome::Ack => {
                self.owed = true;
                self.pace.hurry();
            }
            other if self.refusal.is_none() => self.refusal = Some(other),
            _ => {}
        }
    }

    /// What has to be told to the requester's QP `qpn`, once. The caller adds how many receives there
    /// are, and counts the one that a message under way uses: that message is not done yet. If there
    /// are none, the caller sees to it that [`receives_posted`](Self::receives_posted) is called when
    /// the next one comes.
    pub fn take_ack(&mut self, qpn: u32) -> Option<AckEntry> {
        if !self.owes_ack() {
            return None;
        }
        self.acknowledged();
        let syndrome = self.refusal.take().unwrap_or(Syndrome::Ack);
        Some(AckEntry::new(qpn, self.msn, syndrome))
    }
}
