//! The responder: progress of the receive side of a QP.

use super::ack::{AckEntry, NakCode, Syndrome};
use super::ext::{RethExt, SendExt};
use super::request::{Delivery, Kind, Placed, Step};
use super::{msn_before, MAX_MESSAGE};

/// READ requests that a responder holds at the most (`max_dest_rd_atomic`).
pub const MAX_READS: usize = 16;

/// One frame of a READ's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSegment {
    /// Message number of the READ.
    pub msn: u32,
    /// Address of the payload's first byte.
    pub addr: u64,
    /// Key given by the requester.
    pub rkey: u32,
    /// Offset in the READ, bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// Last frame of the response.
    pub last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Read {
    msn: u32,
    addr: u64,
    rkey: u32,
    total: u32,
    sent: u32,
}

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

/// Progress of one receive side.
#[derive(Debug)]
pub struct Responder {
    /// READs that may be held; at most [`MAX_READS`].
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
    reads: [Read; MAX_READS],
    read_head: u8,
    read_count: u8,
}

/// The flags make sense together: immediate data and a key to invalidate share one field, only a
/// SEND invalidates, and a READ carries neither.
const fn flags_fit(frame: &Delivery<'_>) -> bool {
    match frame.kind {
        Kind::Send => !(frame.imm && frame.inv),
        Kind::Write => !frame.inv,
        Kind::Read => !frame.imm && !frame.inv,
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
            reads: [Read::default(); MAX_READS],
            read_head: 0,
            read_count: 0,
        }
    }

    /// Takes new limits.
    pub fn configure(&mut self, max_reads: u16, rnr_timer: u8) {
        self.max_reads = max_reads.min(MAX_READS as u16);
        self.rnr_timer = rnr_timer & 31;
    }

    /// Looks at a frame. `receive_posted`: there is a receive that a message may use.
    pub fn on_frame(&mut self, frame: &Delivery<'_>, receive_posted: bool) -> Step {
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
        if frame.msn != self.msn {
            return if self.resync {
                Step::Drop
            } else {
                self.refuse(NakCode::InvalidRequest)
            };
        }
        if frame.first {
            return self.begin(frame, receive_posted);
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

    fn begin(&mut self, frame: &Delivery<'_>, receive_posted: bool) -> Step {
        self.current = None;
        let parsed = match frame.kind {
            Kind::Send => SendExt::parse(frame.ext).map(|e| (e.total, e.imm, 0, 0)),
            Kind::Write | Kind::Read => {
                RethExt::parse(frame.ext).map(|e| (e.total, e.imm, e.raddr, e.rkey))
            }
        };
        let Some((total, imm, addr, rkey)) = parsed else {
            return self.refuse(NakCode::InvalidRequest);
        };
        let whole_frame = frame.kind == Kind::Read || frame.len == total;
        let lengths_fit = total <= MAX_MESSAGE
            && frame.offset == 0
            && frame.len <= total
            && frame.last == whole_frame
            && (frame.len > 0 || whole_frame)
            && !(frame.kind == Kind::Read && frame.len > 0);
        if !lengths_fit || !flags_fit(frame) || addr.checked_add(u64::from(total)).is_none() {
            return self.refuse(NakCode::InvalidRequest);
        }
        if frame.kind == Kind::Read {
            return self.begin_read(frame.msn, addr, rkey, total);
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

    fn begin_read(&mut self, msn: u32, addr: u64, rkey: u32, total: u32) -> Step {
        if u16::from(self.read_count) >= self.max_reads {
            return self.refuse(NakCode::InvalidRequest);
        }
        let at = (usize::from(self.read_head) + usize::from(self.read_count)) % MAX_READS;
        let Some(read) = self.reads.get_mut(at) else {
            return self.refuse(NakCode::InvalidRequest);
        };
        *read = Read {
            msn,
            addr,
            rkey,
            total,
            sent: 0,
        };
        self.read_count += 1;
        self.resync = false;
        self.msn = self.msn.wrapping_add(1);
        self.owed = true;
        Step::Read { addr, rkey, total }
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
        self.owed = true;
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

    /// Refuses the current message for good. The caller puts the QP into the error state once
    /// [`take_ack`](Self::take_ack) has given the refusal away.
    pub fn refuse(&mut self, code: NakCode) -> Step {
        self.refusal = Some(Syndrome::Nak(code));
        self.current = None;
        self.dead = true;
        Step::Answer
    }

    /// Refuses the newest READ for good: its key or range is bad.
    pub fn refuse_read(&mut self, code: NakCode) -> Step {
        if self.read_count > 0 {
            self.read_count -= 1;
            self.msn = self.msn.wrapping_sub(1);
        }
        self.refuse(code)
    }

    /// Refuses the oldest READ for good: its memory went away while it was being answered.
    pub fn refuse_oldest_read(&mut self, code: NakCode) -> Step {
        if let Some(read) = self.reads.get(usize::from(self.read_head)) {
            self.msn = read.msn;
        }
        self.read_count = 0;
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

    /// The next frame of a READ's response, of at most `room` bytes.
    pub fn next_read(&self, room: u32) -> Option<ReadSegment> {
        if self.read_count == 0 {
            return None;
        }
        let read = self.reads.get(usize::from(self.read_head))?;
        let left = read.total.wrapping_sub(read.sent);
        let len = left.min(room);
        Some(ReadSegment {
            msn: read.msn,
            addr: read.addr.wrapping_add(u64::from(read.sent)),
            rkey: read.rkey,
            offset: read.sent,
            len,
            last: len == left,
        })
    }

    /// The frame that [`next_read`](Self::next_read) asked for is on its way.
    pub fn read_sent(&mut self, segment: &ReadSegment) {
        let at = usize::from(self.read_head);
        let Some(read) = self.reads.get_mut(at) else {
            return;
        };
        read.sent = read.sent.wrapping_add(segment.len);
        if segment.last {
            self.read_head = ((at + 1) % MAX_READS) as u8;
            self.read_count = self.read_count.saturating_sub(1);
        }
    }

    /// Whether [`take_ack`](Self::take_ack) would give anything.
    pub fn owes_ack(&self) -> bool {
        match self.refusal {
            // A refusal for good must not overtake the READs before it, which the requester
            // completes first.
            Some(Syndrome::Nak(_)) => self.read_count == 0,
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
