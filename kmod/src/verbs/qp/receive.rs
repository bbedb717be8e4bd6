// SPDX-License-Identifier: GPL-2.0-only
//! Frames come in.

use super::{Inner, Qp, QpKind, QpState, Wakes};
use crate::link::Peer;
use crate::proto::frame::{Header, Opcode};
use crate::proto::rc::{
    first_sqpn, AckEntry, Delivery, Kind, NakCode, Placed, Segment, Status, Step,
};
use crate::rdma::event::QpEvent;
use crate::sys;
use crate::thunderbolt::os::now_us;
use crate::verbs::acks;
use crate::verbs::cq::{Extra, WcOpcode, WcStatus};
use crate::verbs::mr::{Copy, Purpose};
use kernel::prelude::*;
use kernel::sync::Arc;

impl Qp {
    /// Takes a frame for this QP from `peer`.
    pub(in crate::verbs) fn on_frame(
        this: &Arc<Self>,
        peer: &Arc<Peer>,
        hdr: &Header,
        ext: &[u8],
        payload: &[u8],
    ) {
        if matches!(hdr.opcode, Opcode::ReadResp | Opcode::AtomicResp) {
            return Self::on_response(this, peer, hdr, payload);
        }
        let Some(frame) = Delivery::new(hdr, ext, payload) else {
            return this.hca.stray();
        };
        let kind = frame.kind;
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let sqpn = if hdr.first {
            first_sqpn(kind, ext)
        } else {
            None
        };
        let mut wakes = Wakes::default();
        let mut later = None;
        let mut answer = None;
        {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !inner.state.can_receive() {
                // Told once per message: the first frame names whom to tell.
                answer = sqpn
                    .filter(|_| this.kind == QpKind::Rc)
                    .map(|qpn| AckEntry::new(qpn, hdr.msn, Self::cannot_receive(inner.state)));
            } else if !this.is_partner(inner, peer)
                || hdr.first && sqpn != Some(inner.attributes.dest_qpn)
            {
                this.hca.stray();
            } else {
                if inner.state == QpState::Rtr && !inner.established {
                    inner.established = true;
                    wakes.events.add(QpEvent::Established);
                }
                this.execute(inner, &frame, payload, &mut wakes);
                this.owe(inner);
                if matches!(kind, Kind::Read | Kind::Atomic) {
                    later = this.pump(inner, &mut wakes);
                }
            }
        }
        if let Some(entry) = answer {
            acks::answer(&this.hca, peer, entry);
        }
        this.finish(wakes, later);
    }

    /// Only the peer that the QP is connected to is listened to.
    fn is_partner(&self, inner: &Inner, peer: &Arc<Peer>) -> bool {
        inner
            .peer
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, peer))
    }

    /// Executes one frame of a request.
    fn execute(&self, inner: &mut Inner, frame: &Delivery<'_>, payload: &[u8], wakes: &mut Wakes) {
        // A receive is claimed when a message begins that uses one up.
        let posted = !frame.first || !frame.takes_receive() || inner.receives.claim();
        match inner.responder.on_frame(frame, posted) {
            Step::Drop | Step::Answer => {}
            Step::Receive { total, offset } => {
                if let Err(status) = self.place(inner, total, offset, payload) {
                    let code = match status {
                        WcStatus::LocalLength => NakCode::InvalidRequest,
                        _ => NakCode::RemoteOperational,
                    };
                    self.receive_failed(inner, wakes, status);
                    inner.responder.refuse(code);
                    return;
                }
                let key = inner.responder.invalidates(frame);
                if key.is_some_and(|key| self.hca.invalidate_remotely(self.pd, key).is_err()) {
                    self.receive_failed(inner, wakes, WcStatus::LocalProtection);
                    self.tell_access(wakes);
                    inner.responder.refuse(NakCode::RemoteAccess);
                    return;
                }
                self.placed(inner, frame, wakes);
            }
            Step::Write { addr, rkey, whole } => {
                let allowed = self.allows(inner, sys::ib_access_flags_IB_ACCESS_REMOTE_WRITE)
                    && whole
                        .is_none_or(|(from, len)| self.may(rkey, from, len, Purpose::RemoteWrite));
                let write = Purpose::RemoteWrite;
                let written = allowed
                    && (payload.is_empty()
                        || self
                            .hca
                            .access(self.pd, rkey, addr, write, Copy::In(payload))
                            .is_ok());
                if written {
                    self.placed(inner, frame, wakes);
                } else {
                    self.tell_access(wakes);
                    inner.responder.refuse(NakCode::RemoteAccess);
                }
            }
            Step::Read { addr, rkey, total } => {
                let allowed = self.allows(inner, sys::ib_access_flags_IB_ACCESS_REMOTE_READ)
                    && self.may(rkey, addr, total, Purpose::RemoteRead);
                if !allowed {
                    self.tell_access(wakes);
                    inner.responder.refuse_read(NakCode::RemoteAccess);
                }
            }
            Step::Atomic { addr, rkey, op } => {
                let allowed = self.allows(inner, sys::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC);
                let done = if allowed {
                    self.hca.atomic(self.pd, rkey, addr, op)
                } else {
                    Err(EACCES)
                };
                match done {
                    Ok(original) => inner.responder.executed(original),
                    Err(_) => {
                        self.tell_access(wakes);
                        inner.responder.refuse(NakCode::RemoteAccess);
                    }
                }
            }
        }
    }

    /// The receive in use ends, and the QP with it.
    fn receive_failed(&self, inner: &mut Inner, wakes: &mut Wakes, status: WcStatus) {
        let nothing = Extra::None;
        self.complete_receive(inner, wakes, status, WcOpcode::Recv, 0, nothing, false);
    }

    /// A peer asks for what it may not, which ends a reliable QP.
    fn tell_access(&self, wakes: &mut Wakes) {
        if self.kind == QpKind::Rc {
            wakes.events.add(QpEvent::Access);
        }
    }

    fn allows(&self, inner: &Inner, access: u32) -> bool {
        inner.attributes.access & access != 0
    }

    /// The whole range may be accessed. An empty one always (IBTA 1.7, 9.7.4.1.5).
    fn may(&self, rkey: u32, addr: u64, len: u32, purpose: Purpose) -> bool {
        len == 0
            || self
                .hca
                .access(self.pd, rkey, addr, purpose, Copy::Check(len as usize))
                .is_ok()
    }

    /// Puts a piece of a SEND into the receive in use.
    fn place(
        &self,
        inner: &Inner,
        total: u32,
        offset: u32,
        payload: &[u8],
    ) -> core::result::Result<(), WcStatus> {
        let (info, sges) = inner.receives.claimed().ok_or(WcStatus::LocalProtection)?;
        if u64::from(total) > info.room {
            return Err(WcStatus::LocalLength);
        }
        self.hca
            .scatter(self.receive_pd(), sges, offset as usize, payload)
            .map_err(|_| WcStatus::LocalProtection)
    }

    /// Protection domain of the receives: of a shared queue its own (IBTA 1.7, 10.2.9.2).
    pub(super) fn receive_pd(&self) -> u32 {
        self.srq.as_ref().map_or(self.pd, |srq| srq.pd())
    }

    fn placed(&self, inner: &mut Inner, frame: &Delivery<'_>, wakes: &mut Wakes) {
        if let Placed::Receive {
            total,
            imm,
            inv,
            write,
            solicited,
        } = inner.responder.placed(frame)
        {
            let opcode = if write {
                WcOpcode::RecvWriteImm
            } else {
                WcOpcode::Recv
            };
            let extra = inv.map_or(Extra::imm(imm), Extra::Invalidated);
            let done = WcStatus::Success;
            self.complete_receive(inner, wakes, done, opcode, total, extra, solicited);
        }
    }

    fn on_response(this: &Arc<Self>, peer: &Arc<Peer>, hdr: &Header, payload: &[u8]) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let response = Segment::of(hdr, payload);
        let mut wakes = Wakes::default();
        let later = {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !this.is_partner(inner, peer) || inner.state == QpState::Err {
                return;
            }
            let atomic = hdr.opcode == Opcode::AtomicResp;
            let wqes = &inner.sends.wqes;
            let slot = if atomic {
                inner.requester.atomic_slot(wqes, &response)
            } else {
                inner.requester.read_slot(wqes, &response)
            };
            let Some(slot) = slot else {
                return this.hca.stray();
            };
            let sges = inner.sends.sges(slot);
            // The result of an atomic is a number of this host (IBTA 1.7, 9.4.5).
            let native = payload
                .first_chunk()
                .map(|bytes| u64::from_le_bytes(*bytes).to_ne_bytes());
            let payload = match &native {
                Some(bytes) if atomic => &bytes[..],
                _ => payload,
            };
            match this
                .hca
                .scatter(this.pd, sges, response.offset as usize, payload)
            {
                Ok(()) => inner
                    .requester
                    .read_placed(&mut inner.sends.wqes, &response),
                Err(_) => inner.requester.fail(response.msn, Status::LocalProtection),
            }
            this.complete_sends(inner, &mut wakes);
            this.pump(inner, &mut wakes)
        };
        this.finish(wakes, later);
    }

    /// Takes news of this QP's requests.
    pub(in crate::verbs) fn on_ack(this: &Arc<Self>, peer: &Arc<Peer>, entry: &AckEntry) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        let later = {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !this.is_partner(inner, peer) || inner.state == QpState::Err {
                return;
            }
            if !inner.requester.on_ack(&inner.sends.wqes, entry, now_us()) {
                this.hca.stray();
            }
            this.complete_sends(inner, &mut wakes);
            this.pump(inner, &mut wakes)
        };
        this.finish(wakes, later);
    }
}
