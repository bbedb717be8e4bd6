// SPDX-License-Identifier: GPL-2.0-only
//! Work requests come in.

use super::queues::SendInfo;
use super::{Inner, Qp, QpState, Wakes, LOOK};
use crate::proto::rc::{user_flags, Op, PostError, Status, UserSend, MAX_MESSAGE};
use crate::rdma::Sge;
use crate::sys;
use crate::uapi::{send_flags, SendEntry};
use crate::verbs::cq::{WcOpcode, WcStatus};
use crate::verbs::{acks, LIMITS};
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

pub(super) fn wc_status(status: Status) -> WcStatus {
    match status {
        Status::Success => WcStatus::Success,
        Status::LocalProtection => WcStatus::LocalProtection,
        Status::LocalLength => WcStatus::LocalLength,
        Status::LocalOperation => WcStatus::LocalOperation,
        Status::MwBind => WcStatus::MwBind,
        Status::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        Status::RemoteAccess => WcStatus::RemoteAccess,
        Status::RemoteOperational => WcStatus::RemoteOperational,
        Status::RetryExceeded => WcStatus::RetryExceeded,
        Status::RnrRetryExceeded => WcStatus::RnrRetryExceeded,
        Status::Flushed => WcStatus::Flushed,
    }
}

pub(super) fn wc_opcode(op: Op) -> WcOpcode {
    match op {
        Op::Send | Op::SendImm | Op::SendInv => WcOpcode::Send,
        Op::Write | Op::WriteImm => WcOpcode::Write,
        Op::Read => WcOpcode::Read,
        Op::CmpSwap => WcOpcode::CmpSwap,
        Op::FetchAdd => WcOpcode::FetchAdd,
        Op::LocalInv => WcOpcode::LocalInv,
        Op::RegMr => WcOpcode::RegMr,
        Op::BindMw => WcOpcode::BindMw,
    }
}

/// Bytes of a message.
fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

impl Qp {
    /// The operation is for QPs of this type, and for this consumer: regions whose pages a work
    /// request puts in are the kernel's only.
    fn allows_op(&self, op: Op) -> bool {
        self.kind.allows(op) && !(self.user && op.is_local())
    }

    /// Takes a send of a consumer in the kernel; any context. `request` is as a user's process would
    /// write it, but for the counts of elements and of inline bytes, which are set here. `copy`
    /// fetches inline data: (address, destination).
    ///
    /// It is transmitted by a work item: the locks that this needs are not for any context.
    ///
    /// EINVAL: wrong state, not for QPs of this type, too many elements, too long, or the QP is a
    /// user's; ENOMEM: the queue is full.
    pub(crate) fn post_send(
        self: ArcBorrow<'_, Self>,
        request: &SendEntry,
        sges: &[Sge],
        copy: impl Fn(u64, &mut [u8]),
    ) -> Result {
        let _inside = self.gate.enter().ok_or(EINVAL)?;
        let op = Op::of_verbs(request.opcode.into()).ok_or(EINVAL)?;
        let len = total(sges);
        let inline = request.flags & send_flags::INLINE != 0 && !op.is_answered();
        if op.is_local() && !sges.is_empty() {
            return Err(EINVAL);
        }
        if !self.allows_op(op)
            || !self.state().can_post_send()
            || len > u64::from(MAX_MESSAGE)
            || inline && len > u64::from(self.caps.inline)
            || sges.len() > self.caps.send_sge as usize
        {
            return Err(EINVAL);
        }
        let mut entry = *request;
        let mut data = [0; LIMITS.inline as usize];
        if inline {
            entry.num_sge = 0;
            entry.inline_len = len as u32;
            let mut rest = &mut data[..];
            for sge in sges {
                let (piece, tail) = rest
                    .split_at_mut_checked(sge.length as usize)
                    .ok_or(EINVAL)?;
                copy(sge.addr, piece);
                rest = tail;
            }
        } else {
            entry.num_sge = sges.len() as u32;
            entry.inline_len = 0;
        }
        let data = data.get(..entry.inline_len as usize).ok_or(EINVAL)?;
        let call = self.sends_in.post(|queue, index| {
            let at = size_of::<SendEntry>();
            if inline {
                queue.write(index, at, data)?;
            } else {
                queue.write(index, at, sges)?;
            }
            queue.write(index, 0, &[entry])
        })?;
        if call {
            self.look_later();
        }
        Ok(())
    }

    /// Takes over a request that the consumer has put into its queue. `false`: there is none, or no
    /// room for it now.
    pub(super) fn take_sends(&self, inner: &mut Inner) -> bool {
        if inner.requester.outstanding() as usize >= inner.sends.wqes.len() {
            return false;
        }
        let Some(index) = inner.sends.peek() else {
            return false;
        };
        let entry = inner.sends.head(index);
        let request = UserSend {
            opcode: u32::from(entry.opcode),
            flags: entry.flags,
            num_sge: entry.num_sge,
            inline_len: entry.inline_len,
            imm: entry.imm,
            raddr: entry.raddr,
            rkey: entry.rkey,
            compare_add: entry.compare_add,
            swap: entry.swap,
        }
        .read(self.signal_all, |op| self.allows_op(op));
        let (inline, count) = (request.inline, request.count as usize);
        // Where the next message goes, as `post` will say.
        let slot = inner.sends.slot(inner.requester.tail());
        let fetched = inner.sends.fetch(index, slot, count, inline);
        let info = SendInfo {
            wr_id: entry.wr_id,
            sges: if inline || fetched.is_err() {
                0
            } else {
                entry.num_sge
            },
            inline,
            ah: entry.ah,
            dqpn: entry.dqpn,
            qkey: entry.qkey,
            bad: false,
        };
        if let Some(place) = inner.sends.info.get_mut(slot) {
            *place = info;
        }
        let len = if inline {
            u64::from(entry.inline_len)
        } else {
            total(inner.sends.sges(slot))
        };
        let mut posted = match request.wqe(len).filter(|_| fetched.is_ok()) {
            Some(wqe) => inner.requester.post(&mut inner.sends.wqes, wqe),
            None => Err(PostError::Invalid),
        };
        if posted == Err(PostError::Invalid) {
            // It has to fail in its turn, after those before it.
            if let Some(place) = inner.sends.info.get_mut(slot) {
                place.bad = true;
            }
            let failing = request.failing();
            posted = inner.requester.post(&mut inner.sends.wqes, failing);
        }
        if posted.is_ok() {
            inner.sends.taken();
        }
        posted.is_ok()
    }

    /// Puts a receive of a consumer in the kernel at the end of the queue; any context.
    ///
    /// EINVAL: wrong state, too many elements, or the queue is a user's; ENOMEM: the queue is full.
    pub(crate) fn post_recv(self: ArcBorrow<'_, Self>, wr_id: u64, sges: &[Sge]) -> Result {
        let _inside = self.gate.enter().ok_or(EINVAL)?;
        if self.state() == QpState::Reset || sges.len() > self.caps.recv_sge as usize {
            return Err(EINVAL);
        }
        if self.receives_in.post_receive(wr_id, sges)? {
            self.look_later();
        }
        Ok(())
    }

    /// Has a work item look at the queues.
    pub(super) fn look_later(self: ArcBorrow<'_, Self>) {
        self.hca.queue.later::<Self, LOOK>(self.into(), 0);
    }

    /// A user's process has posted a receive: in the error state it has to be flushed, otherwise the
    /// requester may wait to hear of it.
    pub(crate) fn posted(this: &Arc<Self>) {
        let owed = {
            let Some(_inside) = this.gate.enter() else {
                return;
            };
            let mut wakes = Wakes::default();
            let owed = {
                let mut inner = this.inner.lock();
                if inner.state == QpState::Err {
                    this.fail(&mut inner, &mut wakes);
                }
                this.look_at_receives(&mut inner)
            };
            this.wake(wakes);
            owed
        };
        if let Some(peer) = owed {
            acks::flush(&this.hca, &peer);
        }
    }
}

// `proto` reads requests by these numbers; those of a user and of the kernel are the same.
const _: () = {
    assert!(
        matches!(
            Op::of_verbs(sys::ib_wr_opcode_IB_WR_SEND_WITH_INV),
            Some(Op::SendInv)
        ) && matches!(Op::of_verbs(sys::ib_wr_opcode_IB_WR_SEND), Some(Op::Send))
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_SEND_WITH_IMM),
                Some(Op::SendImm)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_RDMA_WRITE),
                Some(Op::Write)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM),
                Some(Op::WriteImm)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_RDMA_READ),
                Some(Op::Read)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP),
                Some(Op::CmpSwap)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD),
                Some(Op::FetchAdd)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_LOCAL_INV),
                Some(Op::LocalInv)
            )
            && matches!(
                Op::of_verbs(sys::ib_wr_opcode_IB_WR_REG_MR),
                Some(Op::RegMr)
            )
    );
    assert!(
        user_flags::FENCE == send_flags::FENCE
            && user_flags::SIGNALED == send_flags::SIGNALED
            && user_flags::SOLICITED == send_flags::SOLICITED
            && user_flags::INLINE == send_flags::INLINE
    );
};
