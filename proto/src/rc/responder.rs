//! The responder: progress of the receive side of a QP.

use super::ack::{AckEntry, NakCode, Syndrome};
use super::atomic::{AtomicExt, AtomicOp, ATOMIC_LEN};
use super::ext::{RethExt, SendExt};
use super::request::{Delivery, Kind, Placed, Step};
use super::response::{Response, Responses, Work, MAX_READS};
use super::{msn_before, MAX_MESSAGE};

#[derive(Clone, Copy, Debug)]
struct Current {
    kind: Kind,
    total: u32,
    placed: u32,
    addr: u64,
    rkey: u32,
    imm: Option<u32>,
    inv: Option<u32>,
    solicited: bool,
}

/// What the first frame of a request says.
struct Begin {
    total: u32,
    imm: u32,
    addr: u64,
    rkey: u32,
    atomic: Option<AtomicOp>,
    skip: u32,
}

impl Begin {
    /// `None`: the frame is malformed, or too long, or its range does not fit the address space.
    fn parse(frame: &Delivery<'_>) -> Option<Self> {
        let begin = match frame.kind {
            Kind::Send => {
                let ext = SendExt::parse(frame.ext)?;
                Self {
                    total: ext.total,
                    imm: ext.imm,
                    addr: 0,
                    rkey: 0,
                    atomic: None,
                    skip: ext.skip,
                }
            }
            Kind::Write | Kind::Read => {
                let ext = RethExt::parse(frame.ext)?;
                Self {
                    total: ext.total,
                    imm: ext.imm,
                    addr: ext.raddr,
                    rkey: ext.rkey,
                    atomic: None,
                    skip: ext.skip,
                }
            }
            Kind::Atomic => {
                let ext = AtomicExt::parse(frame.ext)?;
                Self {
                    total: ATOMIC_LEN,
                    imm: 0,
                    addr: ext.raddr,
                    rkey: ext.rkey,
                    atomic: Some(ext.op),
                    skip: ext.skip,
                }
            }
        };
        // Bytes that the requester sends.
        let sends = match frame.kind {
            Kind::Send | Kind::Write => begin.total,
            Kind::Read | Kind::Atomic => 0,
        };
        let fits = begin.total <= MAX_MESSAGE
            && begin.addr.checked_add(u64::from(begin.total)).is_some()
            && frame.offset == 0
            && frame.len <= sends
            && frame.last == (frame.len == sends)
            && (frame.len > 0 || frame.last)
            && flags_fit(frame);
        fits.then_some(begin)
    }
}

/// Progress of one receive side.
#[derive(Debug)]
pub struct Responder {
    /// READs and atomics that may be held; at most [`MAX_READS`].
    max_reads: u16,
    /// IBTA code of the time that a requester waits after RNR.
    rnr_timer: u8,
    /// The message expected or being received.
    msn: u32,
    current: Option<Current>,
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
}

/// The flags make sense together: immediate data and a key to invalidate share one field, only a
/// SEND invalidates, and READs and atomics carry neither.
const fn flags_fit(frame: &Delivery<'_>) -> bool {
    match frame.kind {
        Kind::Send => !(frame.imm && frame.inv),
        Kind::Write => !frame.inv,
        Kind::Read | Kind::Atomic => !frame.imm && !frame.inv,
    }
}

impl Responder {
    /// A responder that expects message 0.
    ///
    /// `max_reads` is `max_dest_rd_atomic`, `rnr_timer` is `min_rnr_timer` (0 to 31).
    pub fn new(max_reads: u16, rnr_timer: u8) -> Self {
        Self {
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
        }
    }

    /// Takes new limits.
    pub fn configure(&mut self, max_reads: u16, rnr_timer: u8) {
        self.max_reads = max_reads.min(MAX_READS as u16);
        self.rnr_timer = rnr_timer & 31;
    }

    /// Looks at a frame. `receive_posted`: there is a receive that a message may use.
    pub fn on_frame(&mut self, frame: &Delivery<'_>, receive_posted: bool) -> Step {
        self.executing = false;
        if self.dead {
            return Step::Drop;
        }
        if msn_before(frame.msn, self.msn) {
            // Executed before: say so again, once the requester has finished repeating it.
            if frame.last {
                self.owed = true;
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
                Some(begin) => self.begin(frame, begin, receive_posted),
                None => self.refuse(NakCode::InvalidRequest),
            };
        }
        if self.resync {
            return Step::Drop;
        }
        let Some(current) = self.current else {
            return self.refuse(NakCode::InvalidRequest);
        };
        let end = frame.offset.checked_add(frame.len);
        let fits = current.kind == frame.kind
            && frame.offset == current.placed
            && frame.len > 0
            && frame.ext.is_empty()
            && flags_fit(frame)
            && end.is_some_and(|end| end <= current.total && frame.last == (end == current.total));
        if !fits {
            return self.refuse(NakCode::InvalidRequest);
        }
        match current.kind {
            Kind::Send => Step::Receive {
                total: current.total,
                offset: frame.offset,
            },
            _ => Step::Write {
                addr: current.addr.wrapping_add(u64::from(frame.offset)),
                rkey: current.rkey,
                whole: None,
            },
        }
    }

    /// The numbers between the expected message and `msn` belong to local operations of the
    /// requester, so that nothing is missing.
    fn may_skip_to(&self, msn: u32, begin: Option<&Begin>) -> bool {
        self.current.is_none() && begin.is_some_and(|b| msn.wrapping_sub(self.msn) <= b.skip)
    }

    fn begin(&mut self, frame: &Delivery<'_>, begin: Begin, receive_posted: bool) -> Step {
        let Begin {
            total,
            imm,
            addr,
            rkey,
            atomic,
            skip: _,
        } = begin;
        if let Some(op) = atomic {
            return self.begin_atomic(addr, rkey, op);
        }
        if frame.kind == Kind::Read {
            return self.begin_read(addr, rkey, total);
        }
        let needs_receive = frame.kind == Kind::Send || frame.imm;
        if needs_receive && !receive_posted {
            self.refusal = Some(Syndrome::Rnr(self.rnr_timer));
            self.resync = true;
            return Step::Answer;
        }
        self.resync = false;
        self.current = Some(Current {
            kind: frame.kind,
            total,
            placed: 0,
            addr,
            rkey,
            imm: frame.imm.then_some(imm),
            inv: frame.inv.then_some(imm),
            solicited: frame.solicited,
        });
        match frame.kind {
            Kind::Send => Step::Receive { total, offset: 0 },
            _ => Step::Write {
                addr,
                rkey,
                whole: Some((addr, total)),
            },
        }
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
        self.finish();
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
        self.finish();
    }

    /// The message under way is done.
    fn finish(&mut self) {
        self.msn = self.msn.wrapping_add(1);
        self.owed = true;
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
        self.finish();
        if done.kind == Kind::Write && done.imm.is_none() {
            return Placed::Silent;
        }
        Placed::Receive {
            total: done.total,
            imm: done.imm,
            inv: done.inv,
            write: done.kind == Kind::Write,
            solicited: done.solicited,
        }
    }

    /// Refuses the current message, or the atomic that was not executed, for good. The caller puts the QP into the error state once
    /// [`take_ack`](Self::take_ack) has given the refusal away.
    pub fn refuse(&mut self, code: NakCode) -> Step {
        self.refusal = Some(Syndrome::Nak(code));
        self.current = None;
        self.executing = false;
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
        self.responses.sent(response);
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

    /// Takes back what [`take_ack`](Self::take_ack) gave and could not be sent.
    pub fn restore_ack(&mut self, entry: &AckEntry) {
        match entry.syndrome {
            Syndrome::Ack => self.owed = true,
            other if self.refusal.is_none() => self.refusal = Some(other),
            _ => {}
        }
    }

    /// What has to be told to the requester's QP `qpn`, once.
    pub fn take_ack(&mut self, qpn: u32) -> Option<AckEntry> {
        if !self.owes_ack() {
            return None;
        }
        self.owed = false;
        let syndrome = self.refusal.take().unwrap_or(Syndrome::Ack);
        Some(AckEntry {
            qpn,
            msn: self.msn,
            syndrome,
        })
    }
}
