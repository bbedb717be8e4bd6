//! Work queue entries, and the frames that become of them.

use super::super::frame::Header;
use super::ext::{Ext, RethExt, SendExt, RETH_EXT_LEN, SEND_EXT_LEN};
use super::Kind;

/// What a work queue entry asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    #[default]
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND that invalidates a key of the responder's memory (IBTA 1.7, 9.4.1).
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
}

impl Op {
    /// The kind of request that goes over the wire.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Send | Self::SendImm | Self::SendInv => Kind::Send,
            Self::Write | Self::WriteImm => Kind::Write,
            Self::Read => Kind::Read,
        }
    }

    /// The message uses up a receive of the responder.
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImm | Self::SendInv | Self::WriteImm
        )
    }

    /// The message carries immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

/// Flags of a work queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqeFlags {
    /// A completion is wanted even on success.
    pub signaled: bool,
    /// The receiver's completion raises a solicited event.
    pub solicited: bool,
    /// Start only when all earlier READs are done (IBTA 1.7, 10.8.3.3).
    pub fence: bool,
}

/// A work queue entry, as far as the wire is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wqe {
    /// Operation.
    pub op: Op,
    /// Flags.
    pub flags: WqeFlags,
    /// Message length, bytes; at most [`MAX_MESSAGE`](super::MAX_MESSAGE).
    pub len: u32,
    /// Remote address (WRITE, READ).
    pub raddr: u64,
    /// Remote key (WRITE, READ).
    pub rkey: u32,
    /// Immediate data, carried as it is; of [`Op::SendInv`] the key to invalidate.
    pub imm: u32,
    /// READ: bytes placed so far. Owned by [`Requester`](super::Requester).
    pub(super) received: u32,
    /// READ: all bytes are placed. Owned by [`Requester`](super::Requester).
    pub(super) done: bool,
}

impl Wqe {
    /// An entry that has not begun.
    pub fn new(op: Op, flags: WqeFlags, len: u32, raddr: u64, rkey: u32, imm: u32) -> Self {
        Self {
            op,
            flags,
            len,
            raddr,
            rkey,
            imm,
            received: 0,
            done: false,
        }
    }

    /// The header of one frame of this message to QP `dqpn`; the rail's fields are not set.
    pub fn header(&self, segment: &Segment, dqpn: u32) -> Header {
        Header {
            opcode: self.op.kind().opcode(),
            first: segment.first,
            last: segment.last,
            solicited: self.flags.solicited,
            imm: self.op.has_imm(),
            inv: matches!(self.op, Op::SendInv),
            dqpn,
            msn: segment.msn,
            offset: segment.offset,
            ..Header::default()
        }
    }

    /// The extension of one frame of this message from QP `sqpn`.
    pub fn extension(&self, segment: &Segment, sqpn: u32) -> Ext {
        if !segment.first {
            return Ext::NONE;
        }
        let (total, imm) = (self.len, self.imm);
        match self.op.kind() {
            Kind::Send => Ext::of(&SendExt { total, imm, sqpn }.emit()),
            Kind::Write | Kind::Read => Ext::of(
                &RethExt {
                    raddr: self.raddr,
                    rkey: self.rkey,
                    total,
                    imm,
                    sqpn,
                }
                .emit(),
            ),
        }
    }

    /// Bytes of the extension of the first frame.
    pub(super) const fn extension_len(&self) -> usize {
        match self.op.kind() {
            Kind::Send => SEND_EXT_LEN,
            Kind::Write | Kind::Read => RETH_EXT_LEN,
        }
    }
}

/// How an entry ended; the names are those of `enum ib_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// A local key, range or permission does not allow the access.
    LocalProtection,
    /// The message does not fit the receive.
    LocalLength,
    /// The responder found the request malformed or not allowed.
    RemoteInvalidRequest,
    /// The responder's memory does not allow the access.
    RemoteAccess,
    /// The responder failed by itself.
    RemoteOperational,
    /// The peer, or its QP, does not answer.
    RetryExceeded,
    /// The responder had no receive posted, too many times.
    RnrRetryExceeded,
    /// The QP was in the error state.
    Flushed,
}

/// One entry that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Message number, which is the entry's index.
    pub msn: u32,
    /// How it ended.
    pub status: Status,
}

/// One frame of a message, to be filled by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Message number.
    pub msn: u32,
    /// Where the payload begins in the message, bytes.
    pub offset: u32,
    /// Payload bytes in this frame; 0 for a READ request.
    pub len: u32,
    /// First frame of the message: carries the extension.
    pub first: bool,
    /// Last frame of the message.
    pub last: bool,
}
