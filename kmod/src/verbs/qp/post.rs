// SPDX-License-Identifier: GPL-2.0-only
//! Work requests come in.

use super::queues::SendInfo;
use super::{Inner, Qp, QpKind, QpState, Wakes};
use crate::proto::rc::{user_flags, Op, PostError, Status, UserSend, Wqe, WqeFlags, MAX_MESSAGE};
use crate::rdma::Sge;
use crate::sys;
use crate::uapi::send_flags;
use crate::verbs::cq::{WcOpcode, WcStatus};
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

/// A send work request.
pub(crate) struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) opcode: Op,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) inline: bool,
    pub(crate) imm: u32,
    pub(crate) raddr: u64,
    pub(crate) rkey: u32,
    /// CMP_SWAP: what has to be there.
    pub(crate) compare: u64,
    /// CMP_SWAP: what comes there; FETCH_ADD: what is added.
    pub(crate) swap_add: u64,
    /// Datagrams: number of the address handle, and QP and Q_Key of the receiver.
    pub(crate) ah: u32,
    pub(crate) dqpn: u32,
    pub(crate) qkey: u32,
    pub(crate) sges: &'a [Sge],
}

/// A receive work request.
pub(crate) struct RecvRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) sges: &'a [Sge],
}

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
    /// Takes a send of a consumer in the kernel; [`transmit`](Self::transmit) sends it. `copy`
    /// fetches inline data: (address, destination).
    ///
    /// EINVAL: wrong state, too many elements, too long, or the QP is a user's; ENOMEM: the queue
    /// is full.
    pub(crate) fn post_send(
        self: ArcBorrow<'_, Self>,
        request: &SendRequest<'_>,
        copy: impl Fn(u64, &mut [u8]),
    ) -> Result {
        let this: Arc<Self> = self.into();
        let _inside = this.gate.enter().ok_or(EINVAL)?;
        let len = total(request.sges);
        if !this.kind.allows(request.opcode) {
            return Err(EINVAL);
        }
        let inline = request.inline && !request.opcode.is_answered();
        if len > u64::from(MAX_MESSAGE)
            || inline && len > u64::from(this.caps.inline)
            || request.sges.len() > this.caps.send_sge as usize
        {
            return Err(EINVAL);
        }
        let flags = WqeFlags {
            signaled: request.signaled || this.signal_all,
            solicited: request.solicited,
            fence: request.fence,
        };
        let mut wqe = Wqe::new(
            request.opcode,
            flags,
            len as u32,
            request.raddr,
            request.rkey,
            request.imm,
        );
        wqe.compare = request.compare;
        wqe.swap_add = request.swap_add;
        let mut wakes = Wakes::default();
        {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !matches!(inner.state, QpState::Rts | QpState::Sqd | QpState::Err)
                || inner.sends.shared().is_some()
            {
                return Err(EINVAL);
            }
            let sends = &mut inner.sends;
            let slot = inner
                .requester
                .post(&mut sends.wqes, wqe)
                .map_err(|error| match error {
                    PostError::Full => ENOMEM,
                    PostError::Invalid => EINVAL,
                })?;
            if inline {
                let mut rest = sends.inline_mut(slot, len as usize)?;
                for sge in request.sges {
                    let (piece, tail) = rest
                        .split_at_mut_checked(sge.length as usize)
                        .ok_or(EINVAL)?;
                    copy(sge.addr, piece);
                    rest = tail;
                }
            } else {
                sends
                    .sges_mut(slot, request.sges.len())?
                    .copy_from_slice(request.sges);
            }
            *sends.info.get_mut(slot).ok_or(EINVAL)? = SendInfo {
                wr_id: request.wr_id,
                sges: if inline { 0 } else { request.sges.len() as u32 },
                inline,
                ah: request.ah,
                dqpn: request.dqpn,
                qkey: request.qkey,
                bad: false,
            };
            if inner.state == QpState::Err {
                this.complete_sends(inner, &mut wakes);
            }
        }
        this.wake(wakes);
        Ok(())
    }

    /// Takes over a request that a user's process has put into its queue. `false`: there is none,
    /// or no room for it now.
    pub(super) fn take_sends(inner: &mut Inner, signal_all: bool, kind: QpKind) -> bool {
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
        .read(signal_all, |op| kind.allows(op));
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
        let wqe = match request.wqe(len).filter(|_| fetched.is_ok()) {
            Some(wqe) => wqe,
            // It has to fail in its turn, after those before it.
            None => {
                if let Some(place) = inner.sends.info.get_mut(slot) {
                    place.bad = true;
                }
                request.failing()
            }
        };
        let mut posted = inner.requester.post(&mut inner.sends.wqes, wqe);
        if posted == Err(PostError::Invalid) {
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

    /// Puts a receive of a consumer in the kernel at the end of the queue.
    ///
    /// EINVAL: wrong state or too many elements; ENOMEM: the queue is full.
    pub(crate) fn post_recv(self: ArcBorrow<'_, Self>, request: &RecvRequest<'_>) -> Result {
        let this: Arc<Self> = self.into();
        let _inside = this.gate.enter().ok_or(EINVAL)?;
        {
            let mut inner = this.inner.lock();
            if inner.state == QpState::Reset || inner.sends.shared().is_some() {
                return Err(EINVAL);
            }
            inner.receives.post(request.wr_id, request.sges)?;
        }
        Self::posted(&this);
        Ok(())
    }

    /// Something was posted: in the error state it has to be flushed.
    pub(crate) fn posted(this: &Arc<Self>) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        {
            let mut inner = this.inner.lock();
            if inner.state == QpState::Err {
                this.fail(&mut inner, &mut wakes);
            }
        }
        this.wake(wakes);
    }
}

/// The operation of an `enum ib_wr_opcode`, which is also that of a user.
pub(crate) fn op_of(opcode: sys::ib_wr_opcode) -> Option<Op> {
    Op::of_verbs(opcode)
}

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
    );
    assert!(
        user_flags::FENCE == send_flags::FENCE
            && user_flags::SIGNALED == send_flags::SIGNALED
            && user_flags::SOLICITED == send_flags::SOLICITED
            && user_flags::INLINE == send_flags::INLINE
    );
};
