//! Work queue entries, and the frames that become of them.

use super::super::frame::Header;
use super::atomic::{AtomicExt, AtomicOp, ATOMIC_EXT_LEN, ATOMIC_LEN};
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
    /// Atomic compare and swap of 64 bits.
    CmpSwap,
    /// Atomic fetch and add of 64 bits.
    FetchAdd,
    /// Invalidation of a local key (IBTA 1.7, 10.6). Has no frames, like the two that follow.
    LocalInv,
    /// Fast registration of memory (IBTA 1.7, 10.6).
    RegMr,
    /// Binding of a memory window (IBTA 1.7, 10.6).
    BindMw,
}

impl Op {
    /// The kind of request that goes over the wire; `None` for a local operation.
    pub const fn kind(self) -> Option<Kind> {
        match self {
            Self::Send | Self::SendImm | Self::SendInv => Some(Kind::Send),
            Self::Write | Self::WriteImm => Some(Kind::Write),
            Self::Read => Some(Kind::Read),
            Self::CmpSwap | Self::FetchAdd => Some(Kind::Atomic),
            Self::LocalInv | Self::RegMr | Self::BindMw => None,
        }
    }

    /// A local operation: the caller executes it, and it has no frames.
    pub const fn is_local(self) -> bool {
        self.kind().is_none()
    }

    /// A local operation that waits only until everything before it is sent: what it touches is in
    /// no use before, so that a message that has to be sent again does not need it to wait.
    pub const fn is_early(self) -> bool {
        matches!(self, Self::RegMr)
    }

    /// An atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd)
    }

    /// The responder answers with data. READs and atomics count against the same limit
    /// (`max_rd_atomic`).
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::CmpSwap | Self::FetchAdd)
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
    /// Start only when all earlier READs and atomics are done (IBTA 1.7, 10.8.3.3).
    pub fence: bool,
}

/// A work queue entry, as far as the wire is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wqe {
    /// Operation.
    pub op: Op,
    /// Flags.
    pub flags: WqeFlags,
    /// Message length, bytes; at most [`MAX_MESSAGE`](super::MAX_MESSAGE), of an atomic
    /// [`ATOMIC_LEN`].
    pub len: u32,
    /// Remote address (WRITE, READ, atomics); of [`Op::RegMr`] that of the first byte.
    pub raddr: u64,
    /// Remote key (WRITE, READ, atomics); of [`Op::RegMr`] the key to register with.
    pub rkey: u32,
    /// Immediate data, carried as it is; of [`Op::SendInv`] and [`Op::LocalInv`] the key to
    /// invalidate, of [`Op::RegMr`] the rights (`enum ib_access_flags`).
    pub imm: u32,
    /// CMP_SWAP: what has to be there.
    pub compare: u64,
    /// CMP_SWAP: what comes there; FETCH_ADD: what is added.
    pub swap_add: u64,
    /// Local operations right before this entry. Owned by [`Requester`](super::Requester).
    pub(super) skip: u32,
    /// Entries before this one that take a receive, modulo 2^32. Owned by
    /// [`Requester`](super::Requester).
    pub(super) takers: u32,
    /// READ and atomics: bytes placed so far. Owned by [`Requester`](super::Requester).
    pub(super) received: u32,
    /// READ and atomics: all bytes are placed; local operations: it was executed. Owned by
    /// [`Requester`](super::Requester).
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
            compare: 0,
            swap_add: 0,
            skip: 0,
            takers: 0,
            received: 0,
            done: false,
        }
    }

    /// An atomic that has not begun.
    pub fn atomic(op: AtomicOp, flags: WqeFlags, raddr: u64, rkey: u32) -> Self {
        let (op, compare, swap_add) = match op {
            AtomicOp::CmpSwap { compare, swap } => (Op::CmpSwap, compare, swap),
            AtomicOp::FetchAdd { add } => (Op::FetchAdd, 0, add),
        };
        Self {
            compare,
            swap_add,
            ..Self::new(op, flags, ATOMIC_LEN, raddr, rkey, 0)
        }
    }

    fn atomic_op(&self) -> AtomicOp {
        match self.op {
            Op::CmpSwap => AtomicOp::CmpSwap {
                compare: self.compare,
                swap: self.swap_add,
            },
            _ => AtomicOp::FetchAdd { add: self.swap_add },
        }
    }

    /// The header of one frame of this message to QP `dqpn`; the rail's fields are not set.
    /// `None`: a local operation has no frames.
    pub fn header(&self, segment: &Segment, dqpn: u32) -> Option<Header> {
        Some(Header {
            opcode: self.op.kind()?.opcode(),
            first: segment.first,
            last: segment.last,
            solicited: self.flags.solicited,
            imm: self.op.has_imm(),
            inv: matches!(self.op, Op::SendInv),
            dqpn,
            msn: segment.msn,
            offset: segment.offset,
            ..Header::default()
        })
    }

    /// The extension of one frame of this message from QP `sqpn`.
    pub fn extension(&self, segment: &Segment, sqpn: u32) -> Ext {
        if !segment.first {
            return Ext::NONE;
        }
        let (total, imm, skip) = (self.len, self.imm, self.skip);
        match self.op.kind() {
            None => Ext::NONE,
            Some(Kind::Send) => Ext::of(
                &SendExt {
                    total,
                    imm,
                    sqpn,
                    skip,
                }
                .emit(),
            ),
            Some(Kind::Write | Kind::Read) => Ext::of(
                &RethExt {
                    raddr: self.raddr,
                    rkey: self.rkey,
                    total,
                    imm,
                    sqpn,
                    skip,
                }
                .emit(),
            ),
            Some(Kind::Atomic) => Ext::of(
                &AtomicExt {
                    raddr: self.raddr,
                    rkey: self.rkey,
                    sqpn,
                    op: self.atomic_op(),
                    skip,
                }
                .emit(),
            ),
        }
    }

    /// Bytes of the extension of the first frame.
    pub(super) const fn extension_len(&self) -> usize {
        match self.op.kind() {
            None => 0,
            Some(Kind::Send) => SEND_EXT_LEN,
            Some(Kind::Write | Kind::Read) => RETH_EXT_LEN,
            Some(Kind::Atomic) => ATOMIC_EXT_LEN,
        }
    }
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The ring is full.
    Full,
    /// The entry is longer than [`MAX_MESSAGE`](super::MAX_MESSAGE), an atomic of other than [`ATOMIC_LEN`] bytes, or
    /// a READ or an atomic although [`Config`](super::Config) allows none.
    Invalid,
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
    /// A local operation failed (`IB_WC_LOC_QP_OP_ERR`).
    LocalOperation,
    /// A memory window could not be bound (`IB_WC_MW_BIND_ERR`).
    MwBind,
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
    /// Payload bytes in this frame; 0 for the request of a READ or an atomic.
    pub len: u32,
    /// First frame of the message: carries the extension.
    pub first: bool,
    /// Last frame of the message.
    pub last: bool,
}

impl Segment {
    /// The frame of a response with this header and payload.
    pub fn of(header: &Header, payload: &[u8]) -> Self {
        Self {
            msn: header.msn,
            offset: header.offset,
            // Longer than a frame may be, so it fits nowhere.
            len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            first: header.first,
            last: header.last,
        }
    }
}
