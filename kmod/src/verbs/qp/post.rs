// SPDX-License-Identifier: GPL-2.0-only
//! Work requests come in.

use super::{Qp, QpState, Queues, Wakes};
use crate::proto::rc::{Op, Status, Wqe, WqeFlags, MAX_MESSAGE};
use crate::rdma::Sge;
use crate::verbs::cq::{WcOpcode, WcStatus};
use crate::verbs::LIMITS;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

pub(crate) use crate::proto::rc::Op as Opcode;

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
        Op::Send | Op::SendImm => WcOpcode::Send,
        Op::Write | Op::WriteImm => WcOpcode::Write,
        Op::Read => WcOpcode::Read,
    }
}

/// Bytes of a message.
fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

impl Qp {
    /// Puts a send at the end of the queue; [`transmit`](Self::transmit) sends it. `copy` fetches
    /// inline data: (from a user, address, destination).
    ///
    /// EINVAL: wrong state, too many elements, too long; ENOMEM: the queue is full.
    pub(crate) fn post_send(
        self: ArcBorrow<'_, Self>,
        request: &SendRequest<'_>,
        copy: impl Fn(bool, u64, &mut [u8]) -> Result,
    ) -> Result {
        let this: Arc<Self> = self.into();
        let _inside = this.gate.enter().ok_or(EINVAL)?;
        let len = total(request.sges);
        if len > u64::from(MAX_MESSAGE) || request.sges.len() > this.caps.send_sge as usize {
            return Err(EINVAL);
        }
        let mut inline = [0u8; LIMITS.inline as usize];
        let inline = if request.inline && request.opcode != Op::Read {
            if len > u64::from(this.caps.inline) {
                return Err(EINVAL);
            }
            let mut rest = &mut inline[..];
            for sge in request.sges {
                let (piece, tail) = rest
                    .split_at_mut_checked(sge.length as usize)
                    .ok_or(EINVAL)?;
                copy(this.user, sge.addr, piece)?;
                rest = tail;
            }
            Some(&inline[..len as usize])
        } else {
            None
        };
        let flags = WqeFlags {
            signaled: request.signaled || this.signal_all,
            solicited: request.solicited,
            fence: request.fence,
        };
        let wqe = Wqe::new(
            request.opcode,
            flags,
            len as u32,
            request.raddr,
            request.rkey,
            request.imm,
        );
        let mut wakes = Wakes::default();
        {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !matches!(inner.state, QpState::Rts | QpState::Sqd | QpState::Err) {
                return Err(EINVAL);
            }
            let queues = &mut inner.queues;
            let slot = inner.requester.post(&mut queues.sq, wqe).ok_or(ENOMEM)?;
            let info = queues.sq_info.get_mut(slot).ok_or(EINVAL)?;
            info.wr_id = request.wr_id;
            info.inline = inline.is_some();
            info.sges = request.sges.len() as u32;
            match inline {
                Some(bytes) => {
                    let room = Queues::inline_range(&this.caps, slot);
                    if let Some(to) = queues.sq_inline.get_mut(room) {
                        to[..bytes.len()].copy_from_slice(bytes);
                    }
                }
                None => {
                    let from = slot * this.caps.send_sge as usize;
                    let to = queues.sq_sges.get_mut(from..from + request.sges.len());
                    to.ok_or(EINVAL)?.copy_from_slice(request.sges);
                }
            }
            if inner.state == QpState::Err {
                this.complete_sends(inner, &mut wakes);
            }
        }
        this.wake(wakes);
        Ok(())
    }

    /// Puts a receive at the end of the queue.
    ///
    /// EINVAL: wrong state or too many elements; ENOMEM: the queue is full.
    pub(crate) fn post_recv(self: ArcBorrow<'_, Self>, request: &RecvRequest<'_>) -> Result {
        let this: Arc<Self> = self.into();
        let _inside = this.gate.enter().ok_or(EINVAL)?;
        if request.sges.len() > this.caps.recv_sge as usize {
            return Err(EINVAL);
        }
        let mut wakes = Wakes::default();
        {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if inner.state == QpState::Reset {
                return Err(EINVAL);
            }
            if inner.rq_tail.wrapping_sub(inner.rq_head) as usize >= inner.queues.rq.len() {
                return Err(ENOMEM);
            }
            let slot = inner.recv_slot(inner.rq_tail);
            let info = inner.queues.rq.get_mut(slot).ok_or(EINVAL)?;
            info.wr_id = request.wr_id;
            info.sges = request.sges.len() as u32;
            info.room = total(request.sges);
            let from = slot * this.caps.recv_sge as usize;
            let to = inner
                .queues
                .rq_sges
                .get_mut(from..from + request.sges.len());
            to.ok_or(EINVAL)?.copy_from_slice(request.sges);
            inner.rq_tail = inner.rq_tail.wrapping_add(1);
            if inner.state == QpState::Err {
                this.fail(inner, &mut wakes);
            }
        }
        this.wake(wakes);
        Ok(())
    }
}
