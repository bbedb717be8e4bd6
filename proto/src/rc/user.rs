//! Send work requests as a program writes them into memory that it shares with the kernel: there
//! may be anything in them.

use super::wqe::{Op, Wqe, WqeFlags};
use super::MAX_MESSAGE;

/// Flags of a request; the values are those of `enum ibv_send_flags`.
pub mod user_flags {
    /// Wait for READs and atomics before.
    pub const FENCE: u16 = 1;
    /// A completion is wanted.
    pub const SIGNALED: u16 = 2;
    /// The receiver's completion is solicited.
    pub const SOLICITED: u16 = 4;
    /// The data follow in the request itself.
    pub const INLINE: u16 = 8;
}

impl Op {
    /// The operation of an `enum ibv_wr_opcode`, which has the numbers of `enum ib_wr_opcode`, or
    /// of one that only the latter has.
    /// `None`: not one of the send queue, or one that we do not have.
    pub const fn of_verbs(opcode: u32) -> Option<Self> {
        Some(match opcode {
            0 => Self::Write,
            1 => Self::WriteImm,
            2 => Self::Send,
            3 => Self::SendImm,
            4 => Self::Read,
            5 => Self::CmpSwap,
            6 => Self::FetchAdd,
            7 => Self::LocalInv,
            9 => Self::SendInv,
            0x20 => Self::RegMr,
            _ => return None,
        })
    }
}

/// A request as it was found, but for what the wire is not concerned with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSend {
    /// `enum ibv_wr_opcode`.
    pub opcode: u32,
    /// [`user_flags`].
    pub flags: u16,
    /// Elements that follow, unless inline.
    pub num_sge: u32,
    /// Bytes that follow, if inline.
    pub inline_len: u32,
    /// Immediate data, the key to invalidate, or the rights of a registration.
    pub imm: u32,
    /// Remote address, or that of a registration's first byte.
    pub raddr: u64,
    /// Remote key, or the key of a registration.
    pub rkey: u32,
    /// What to compare with, or to add.
    pub compare_add: u64,
    /// What to swap in.
    pub swap: u64,
}

/// A request that was understood as far as it goes.
#[derive(Clone, Copy, Debug)]
pub struct UserRequest {
    /// The data follow, not elements that name them. READs and atomics have none.
    pub inline: bool,
    /// Elements, or (`inline`) bytes, that follow: as many as the program says.
    pub count: u32,
    op: Option<Op>,
    flags: WqeFlags,
    raw: UserSend,
}

impl UserSend {
    /// Reads it. `signal_all`: every request is to be completed; `allowed`: the QP's type has this
    /// operation.
    pub fn read(self, signal_all: bool, allowed: impl Fn(Op) -> bool) -> UserRequest {
        let flag = |bit| self.flags & bit != 0;
        let op = Op::of_verbs(self.opcode).filter(|op| allowed(*op));
        let inline = flag(user_flags::INLINE) && !op.is_some_and(Op::is_answered);
        UserRequest {
            inline,
            count: if inline {
                self.inline_len
            } else {
                self.num_sge
            },
            op,
            flags: WqeFlags {
                signaled: signal_all || flag(user_flags::SIGNALED),
                solicited: flag(user_flags::SOLICITED),
                fence: flag(user_flags::FENCE),
            },
            raw: self,
        }
    }
}

impl UserRequest {
    /// The entry for a message of `len` bytes. `None`: the request makes no sense, and
    /// [`failing`](Self::failing) has to be posted for it.
    pub fn wqe(&self, len: u64) -> Option<Wqe> {
        let op = self.op?;
        let len = u32::try_from(len).ok().filter(|len| *len <= MAX_MESSAGE)?;
        let raw = &self.raw;
        let mut wqe = Wqe::new(op, self.flags, len, raw.raddr, raw.rkey, raw.imm);
        wqe.compare = raw.compare_add;
        wqe.swap_add = if matches!(op, Op::CmpSwap) {
            raw.swap
        } else {
            raw.compare_add
        };
        Some(wqe)
    }

    /// What stands for a request that makes no sense until it is its turn to fail. Every queue
    /// takes it.
    pub fn failing(&self) -> Wqe {
        Wqe::new(Op::Send, self.flags, 0, 0, 0, 0)
    }
}
