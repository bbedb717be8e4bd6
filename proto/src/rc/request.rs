//! Requests as the responder sees them.

use super::super::frame::{Header, Opcode};
use super::atomic::AtomicOp;

/// A frame of a request, as it came from the wire.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// What the frame belongs to.
    pub kind: Kind,
    /// Message number.
    pub msn: u32,
    /// Offset of the payload in the message, bytes.
    pub offset: u32,
    /// Payload bytes.
    pub len: u32,
    /// First frame of the message.
    pub first: bool,
    /// Last frame of the message.
    pub last: bool,
    /// The message carries immediate data.
    pub imm: bool,
    /// The message invalidates a key.
    pub inv: bool,
    /// The message asks for a solicited event.
    pub solicited: bool,
    /// The requester waits for the acknowledgement.
    pub ack_req: bool,
    /// Extension of the frame, without a rider.
    pub ext: &'a [u8],
}

impl<'a> Delivery<'a> {
    /// The frame with this header, extension (without a rider) and payload; `None` if it belongs to no request.
    pub fn new(header: &Header, ext: &'a [u8], payload: &[u8]) -> Option<Self> {
        Some(Self {
            kind: Kind::of(header.opcode)?,
            msn: header.msn,
            offset: header.offset,
            len: u32::try_from(payload.len()).ok()?,
            first: header.first,
            last: header.last,
            imm: header.imm,
            inv: header.inv,
            solicited: header.solicited,
            ack_req: header.ack_req,
            ext,
        })
    }

    /// The message uses up a receive.
    pub const fn takes_receive(&self) -> bool {
        matches!(self.kind, Kind::Send) || matches!(self.kind, Kind::Write) && self.imm
    }
}

/// Kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND, with or without immediate data.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// RDMA READ request.
    Read,
    /// Atomic request.
    Atomic,
}

impl Kind {
    /// The kind of request that a frame belongs to; `None` if to none.
    pub const fn of(opcode: Opcode) -> Option<Self> {
        match opcode {
            Opcode::Send => Some(Self::Send),
            Opcode::Write => Some(Self::Write),
            Opcode::ReadReq => Some(Self::Read),
            Opcode::AtomicReq => Some(Self::Atomic),
            _ => None,
        }
    }

    /// The opcode of its frames.
    pub const fn opcode(self) -> Opcode {
        match self {
            Self::Send => Opcode::Send,
            Self::Write => Opcode::Write,
            Self::Read => Opcode::ReadReq,
            Self::Atomic => Opcode::AtomicReq,
        }
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: a duplicate, or part of a message that will come again; of an unreliable connection
    /// part of a message that is dropped, see
    /// [`Responder::take_dropped`](super::Responder::take_dropped).
    Drop,
    /// Something has to be told to the requester: see [`Responder::take_ack`](super::Responder::take_ack).
    Answer,
    /// Put the payload into the receive at the head of the queue, then call
    /// [`Responder::placed`](super::Responder::placed); on a bad receive call [`Responder::refuse`](super::Responder::refuse).
    Receive {
        /// Length of the whole message, bytes.
        total: u32,
        /// Where the payload goes in the message, bytes.
        offset: u32,
    },
    /// Put the payload at this remote address, then call [`Responder::placed`](super::Responder::placed); if the memory
    /// does not allow it call [`Responder::refuse`](super::Responder::refuse).
    Write {
        /// Address of the payload's first byte.
        addr: u64,
        /// Key given by the requester.
        rkey: u32,
        /// Range that the whole message covers; to be checked on the first frame.
        whole: Option<(u64, u32)>,
    },
    /// A READ was accepted; its responses come out of
    /// [`Responder::next_response`](super::Responder::next_response). The caller checks
    /// key and range now, and calls [`Responder::refuse_read`](super::Responder::refuse_read) if they do not allow it.
    Read {
        /// Address of the first byte.
        addr: u64,
        /// Key given by the requester.
        rkey: u32,
        /// Bytes.
        total: u32,
    },
    /// Execute this atomic on the 8 bytes at this remote address, and call
    /// [`Responder::executed`](super::Responder::executed) with what was there before. If key,
    /// range or permission do not allow it call [`Responder::refuse`](super::Responder::refuse).
    ///
    /// The address is a multiple of 8. No other atomic that comes through this device may come in
    /// between (IBTA 1.7, 9.4.5).
    Atomic {
        /// Address of the first byte.
        addr: u64,
        /// Key given by the requester.
        rkey: u32,
        /// The operation.
        op: AtomicOp,
    },
}

/// What the placing of a frame led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The message goes on.
    More,
    /// A message without a receive ended (RDMA WRITE).
    Silent,
    /// A message ended that consumes the receive at the head of the queue.
    Receive {
        /// Length of the message, bytes.
        total: u32,
        /// Immediate data, if it carries any.
        imm: Option<u32>,
        /// The key that the message asked to invalidate, if it did. See
        /// [`Responder::invalidates`](super::Responder::invalidates).
        inv: Option<u32>,
        /// It was an RDMA WRITE with immediate data, not a SEND.
        write: bool,
        /// A solicited event is asked for.
        solicited: bool,
    },
}
