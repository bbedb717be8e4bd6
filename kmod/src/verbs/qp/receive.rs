// SPDX-License-Identifier: GPL-2.0-only
//! Frames come in.

use super::{Inner, Qp, QpState, Wakes};
use crate::link::Peer;
use crate::proto::frame::{Header, Opcode};
use crate::proto::rc::{
    first_sqpn, AckEntry, Delivery, Kind, NakCode, Placed, Segment, Status, Step,
};
use crate::sys;
use crate::thunderbolt::os::now_us;
use crate::verbs::acks;
use crate::verbs::cq::{WcOpcode, WcStatus};
use crate::verbs::mr::{Copy, Purpose};
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
        let kind = match hdr.opcode {
            Opcode::Send => Kind::Send,
            Opcode::Write => Kind::Write,
            Opcode::ReadReq => Kind::Read,
            Opcode::ReadResp => return Self::on_read_response(this, peer, hdr, payload),
            _ => return this.hca.stray(),
        };
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
                answer = sqpn.map(|qpn| AckEntry {
                    qpn,
                    msn: hdr.msn,
                    syndrome: Self::cannot_receive(inner.state),
                });
            } else if !this.is_partner(inner, peer)
                || hdr.first && sqpn != Some(inner.attributes.dest_qpn)
            {
                this.hca.stray();
            } else {
                let frame = Delivery {
                    kind,
                    msn: hdr.msn,
                    offset: hdr.offset,
                    len: payload.len() as u32,
                    first: hdr.first,
                    last: hdr.last,
                    imm: hdr.imm,
                    solicited: hdr.solicited,
                    ext,
                };
                this.execute(inner, &frame, payload, &mut wakes);
                this.owe(inner);
                if kind == Kind::Read {
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
        let posted = inner.receive_posted();
        match inner.responder.on_frame(frame, posted) {
            Step::Drop | Step::Answer => {}
            Step::Receive { total, offset } => {
                if let Err(status) = self.place(inner, total, offset, payload) {
                    let code = match status {
                        WcStatus::LocalLength => NakCode::InvalidRequest,
                        _ => NakCode::RemoteOperational,
                    };
                    self.complete_receive(inner, wakes, status, WcOpcode::Recv, 0, None, false);
                    inner.responder.refuse(code);
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
                    inner.responder.refuse(NakCode::RemoteAccess);
                }
            }
            Step::Read { addr, rkey, total } => {
                let allowed = self.allows(inner, sys::ib_access_flags_IB_ACCESS_REMOTE_READ)
                    && self.may(rkey, addr, total, Purpose::RemoteRead);
                if !allowed {
                    inner.responder.refuse_read(NakCode::RemoteAccess);
                }
            }
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

    /// Puts a piece of a SEND into the oldest receive.
    fn place(
        &self,
        inner: &Inner,
        total: u32,
        offset: u32,
        payload: &[u8],
    ) -> core::result::Result<(), WcStatus> {
        let slot = inner.recv_slot(inner.rq_head);
        let info = inner.queues.rq.get(slot).ok_or(WcStatus::LocalProtection)?;
        if u64::from(total) > info.room {
            return Err(WcStatus::LocalLength);
        }
        let sges = inner.queues.recv_sges(&self.caps, slot);
        self.hca
            .scatter(self.pd, sges, offset as usize, payload)
            .map_err(|_| WcStatus::LocalProtection)
    }

    fn placed(&self, inner: &mut Inner, frame: &Delivery<'_>, wakes: &mut Wakes) {
        if let Placed::Receive {
            total,
            imm,
            write,
            solicited,
        } = inner.responder.placed(frame)
        {
            let opcode = if write {
                WcOpcode::RecvWriteImm
            } else {
                WcOpcode::Recv
            };
            let done = WcStatus::Success;
            self.complete_receive(inner, wakes, done, opcode, total, imm, solicited);
        }
    }

    fn on_read_response(this: &Arc<Self>, peer: &Arc<Peer>, hdr: &Header, payload: &[u8]) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let response = Segment {
            msn: hdr.msn,
            offset: hdr.offset,
            len: payload.len() as u32,
            first: hdr.first,
            last: hdr.last,
        };
        let mut wakes = Wakes::default();
        let later = {
            let mut guard = this.inner.lock();
            let inner = &mut *guard;
            if !this.is_partner(inner, peer) || inner.state == QpState::Err {
                return;
            }
            let Some(slot) = inner.requester.read_slot(&inner.queues.sq, &response) else {
                return;
            };
            let sges = inner.queues.send_sges(&this.caps, slot);
            match this
                .hca
                .scatter(this.pd, sges, response.offset as usize, payload)
            {
                Ok(()) => inner.requester.read_placed(&mut inner.queues.sq, &response),
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
            if !inner
                .requester
                .on_ack(&mut inner.queues.sq, entry, now_us())
            {
                this.hca.stray();
            }
            this.complete_sends(inner, &mut wakes);
            this.pump(inner, &mut wakes)
        };
        this.finish(wakes, later);
    }
}
