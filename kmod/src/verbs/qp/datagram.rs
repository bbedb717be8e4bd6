// SPDX-License-Identifier: GPL-2.0-only
//! Datagrams: QPs of the types UD and GSI (IBTA 1.7, 9.8.3).

use super::transmit::Sent;
use super::{Inner, Qp, Wakes};
use crate::link::{Peer, TxError};
use crate::proto::frame::Header;
use crate::proto::rc::{Next, Status, SEND_EXT_LEN};
use crate::proto::ud::{ipv4_of, Datagram, GRH_LEN, UD_MTU};
use crate::thunderbolt::os::now_us;
use crate::verbs::cq::{Extra, RouteHeader, WcOpcode, WcStatus, WorkCompletion};
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// The sender's QP decides about the Q_Key if this bit is set in the request (IBTA 1.7, 10.2.5).
const QKEY_OF_QP: u32 = 1 << 31;

impl Qp {
    /// One datagram of the send queue.
    pub(super) fn send_datagram(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) -> Sent {
        // The queue counts an extension that datagrams do not have.
        let room = (UD_MTU + SEND_EXT_LEN) as u32;
        let segment = match inner.requester.next(&inner.sends.wqes, now_us(), room) {
            Next::Frame(segment) => segment,
            Next::Until(at) => return Sent::Later(at),
            Next::Idle | Next::Local(_) => return Sent::Nothing,
        };
        let slot = inner.sends.slot(segment.msn);
        let sent = if segment.last {
            self.datagram(inner, slot, segment.len as usize)
        } else {
            Err(TxError::Fill(EMSGSIZE))
        };
        match sent {
            // To a peer that is gone it is lost, as datagrams may be.
            Ok(()) | Err(TxError::Down) => {
                inner.requester.sent(&inner.sends.wqes, &segment);
            }
            Err(TxError::Full) => return Sent::Full,
            Err(TxError::Fill(error)) => {
                let status = match error {
                    EMSGSIZE => Status::LocalLength,
                    EINVAL => Status::LocalOperation,
                    _ => Status::LocalProtection,
                };
                inner.requester.fail(segment.msn, status);
            }
        }
        self.complete_sends(inner, wakes);
        Sent::GoOn
    }

    fn datagram(&self, inner: &Inner, slot: usize, len: usize) -> Result<(), TxError> {
        let bad = TxError::Fill(EINVAL);
        let (Some(info), Some(wqe)) = (inner.sends.info.get(slot), inner.sends.wqes.get(slot))
        else {
            return Err(bad);
        };
        let ah = self.hca.ahs.get(info.ah);
        let Some(ah) = ah.filter(|ah| ah.pd == self.pd) else {
            return Err(bad);
        };
        let qkey = if info.qkey & QKEY_OF_QP != 0 {
            inner.attributes.qkey
        } else {
            info.qkey
        };
        let datagram = Datagram {
            dqpn: info.dqpn,
            sqpn: self.number,
            qkey,
            imm: wqe.op.has_imm().then_some(wqe.imm),
            solicited: wqe.flags.solicited,
            sgid: ah.sgid,
            dgid: ah.dgid,
        };
        let (header, ext) = datagram.emit(len).map_err(|_| bad)?;
        let peer = self
            .hca
            .links()
            .and_then(|links| links.peer_by_mac(&ah.mac));
        let Some(peer) = peer else {
            return Err(TxError::Down);
        };
        let sent = peer.send(self.number, header, &ext, len, |to| {
            self.fill(&inner.sends, slot, 0, to)
        });
        if sent == Err(TxError::Full) {
            // It is this peer's room that is waited for.
            self.peer.store(u64::from(peer.id()), Relaxed);
        }
        sent
    }

    /// Takes a datagram for this QP from `peer`. One that cannot be received is lost.
    pub(in crate::verbs) fn on_datagram(
        this: &Arc<Self>,
        peer: &Arc<Peer>,
        hdr: &Header,
        ext: &[u8],
        payload: &[u8],
    ) {
        let Ok(datagram) = Datagram::parse(hdr, ext, payload.len()) else {
            return this.hca.stray();
        };
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        {
            let mut inner = this.inner.lock();
            if !inner.state.can_receive()
                || !this.kind.is_datagram()
                || datagram.qkey != inner.attributes.qkey
                || this
                    .receive_datagram(&mut inner, peer, &datagram, payload, &mut wakes)
                    .is_err()
            {
                this.hca.stray();
            }
        }
        this.wake(wakes);
    }

    fn receive_datagram(
        &self,
        inner: &mut Inner,
        peer: &Peer,
        datagram: &Datagram,
        payload: &[u8],
        wakes: &mut Wakes,
    ) -> Result {
        if !inner.receives.claim() {
            return Err(ENOMEM);
        }
        let (info, sges) = inner.receives.claimed().ok_or(EINVAL)?;
        let total = GRH_LEN + payload.len();
        if total as u64 > info.room {
            return Err(EMSGSIZE);
        }
        let route = datagram.route_header(payload.len());
        let placed = self
            .hca
            .scatter(self.receive_pd(), sges, 0, &route)
            .and_then(|()| self.hca.scatter(self.receive_pd(), sges, GRH_LEN, payload));
        let status = if placed.is_ok() {
            WcStatus::Success
        } else {
            WcStatus::LocalProtection
        };
        let wr_id = inner.receives.finish().ok_or(EINVAL)?;
        self.blame(inner, wakes, status, true);
        let both = (ipv4_of(&datagram.sgid), ipv4_of(&datagram.dgid));
        let wake = self.recv_cq.push(
            WorkCompletion {
                wr_id,
                status,
                opcode: WcOpcode::Recv,
                byte_len: total as u32,
                qp: self.core,
                qpn: self.number,
                src_qp: datagram.sqpn,
                extra: Extra::imm(datagram.imm),
                route: Some(RouteHeader {
                    mac: peer.mac(),
                    ipv4: matches!(both, (Some(_), Some(_))),
                }),
            },
            datagram.solicited,
        );
        wakes.recv.merge(wake);
        Ok(())
    }
}
