//! What a responder still has to answer: READs and atomics, in the order of their requests.

use super::super::frame::{Header, Opcode};
use super::atomic::ATOMIC_LEN;

/// READ and atomic requests that a responder holds at the most (`max_dest_rd_atomic`).
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

/// The next frame that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Bytes of the responder's memory.
    Read(ReadSegment),
    /// The result of an atomic.
    Atomic {
        /// Message number of the atomic.
        msn: u32,
        /// What was there before; the payload is its 8 bytes, little-endian.
        original: u64,
    },
}

impl Response {
    /// The header of the frame, to QP `dqpn`; the rail's fields are not set.
    pub fn header(&self, dqpn: u32) -> Header {
        let (opcode, msn, offset, last) = match *self {
            Self::Read(read) => (Opcode::ReadResp, read.msn, read.offset, read.last),
            Self::Atomic { msn, .. } => (Opcode::AtomicResp, msn, 0, true),
        };
        Header {
            opcode,
            first: offset == 0,
            last,
            dqpn,
            msn,
            offset,
            ..Header::default()
        }
    }

    /// Payload bytes of the frame.
    pub const fn payload_len(&self) -> u32 {
        match self {
            Self::Read(read) => read.len,
            Self::Atomic { .. } => ATOMIC_LEN,
        }
    }
}

/// What a request left to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Read {
        addr: u64,
        rkey: u32,
        total: u32,
        sent: u32,
    },
    Atomic {
        original: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    msn: u32,
    work: Work,
}

/// A queue of requests to be answered.
#[derive(Debug)]
pub(super) struct Responses {
    slots: [Slot; MAX_READS],
    head: u8,
    count: u8,
}

impl Responses {
    pub(super) const fn new() -> Self {
        const EMPTY: Slot = Slot {
            msn: 0,
            work: Work::Atomic { original: 0 },
        };
        Self {
            slots: [EMPTY; MAX_READS],
            head: 0,
            count: 0,
        }
    }

    pub(super) fn len(&self) -> u16 {
        u16::from(self.count)
    }

    /// Puts a request at the end; `false` if there is no room.
    pub(super) fn push(&mut self, msn: u32, work: Work) -> bool {
        let count = usize::from(self.count);
        if count >= MAX_READS {
            return false;
        }
        let at = (usize::from(self.head) + count) % MAX_READS;
        let Some(slot) = self.slots.get_mut(at) else {
            return false;
        };
        *slot = Slot { msn, work };
        self.count += 1;
        true
    }

    /// Forgets the newest request; `false` if there is none.
    pub(super) fn pop_newest(&mut self) -> bool {
        let some = self.count > 0;
        self.count = self.count.saturating_sub(1);
        some
    }

    /// Forgets all requests and tells the number of the oldest.
    pub(super) fn clear(&mut self) -> Option<u32> {
        let oldest = self.oldest().map(|slot| slot.msn);
        self.count = 0;
        oldest
    }

    fn oldest(&self) -> Option<Slot> {
        if self.count == 0 {
            return None;
        }
        self.slots.get(usize::from(self.head)).copied()
    }

    /// The next frame, with at most `room` bytes of payload.
    pub(super) fn next(&self, room: u32) -> Option<Response> {
        let Slot { msn, work } = self.oldest()?;
        Some(match work {
            Work::Atomic { original } => Response::Atomic { msn, original },
            Work::Read {
                addr,
                rkey,
                total,
                sent,
            } => {
                let left = total.wrapping_sub(sent);
                let len = left.min(room);
                Response::Read(ReadSegment {
                    msn,
                    addr: addr.wrapping_add(u64::from(sent)),
                    rkey,
                    offset: sent,
                    len,
                    last: len == left,
                })
            }
        })
    }

    /// The frame that [`next`](Self::next) gave is on its way. Tells the number of the request if
    /// that was the end of its answer.
    pub(super) fn sent(&mut self, response: &Response) -> Option<u32> {
        let (Response::Read(ReadSegment { msn, .. }) | Response::Atomic { msn, .. }) = *response;
        let at = usize::from(self.head);
        let oldest = self.slots.get_mut(at).filter(|_| self.count > 0);
        let slot = oldest.filter(|slot| slot.msn == msn)?;
        if let (Response::Read(part), Work::Read { sent, .. }) = (response, &mut slot.work) {
            *sent = sent.wrapping_add(part.len);
            if !part.last {
                return None;
            }
        }
        self.head = ((at + 1) % MAX_READS) as u8;
        self.count -= 1;
        Some(msn)
    }
}
