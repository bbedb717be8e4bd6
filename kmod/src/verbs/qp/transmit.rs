// SPDX-License-Identifier: GPL-2.0-only
//! Frames go out.

use super::queues::Sends;
use super::{Inner, Qp, QpKind, QpState, Wakes};
use crate::link::{Peer, TxError};
use crate::proto::frame::{Header, FRAME_MAX, HEADER_LEN, RIDER_LEN};
use crate::proto::rc::{Ext, NakCode, Next, Op, Response, Status, Wqe};
use crate::thunderbolt::os::now_us;
use crate::verbs::acks;
use crate::verbs::mr::{Copy, Purpose};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Frames that a QP sends in one go; then others get the CPU and the rail.
const BURST: u32 = 64;

/// How an attempt to send a frame went.
pub(super) enum Sent {
    /// It is on its way, or it failed in a way that was dealt with: go on.
    GoOn,
    /// There was nothing to send.
    Nothing,
    /// Nothing before this time, microseconds.
    Later(u64),
    /// There is no room; the QP will be called.
    Full,
}

impl Qp {
    /// Looks at what was posted, and sends what can be sent: in the caller's context, at most a burst.
    pub(crate) fn transmit(this: &Arc<Self>) {
        let owed = {
            let Some(_inside) = this.gate.enter() else {
                return;
            };
            let mut wakes = Wakes::default();
            let (owed, later) = {
                let mut inner = this.inner.lock();
                wakes.events = core::mem::take(&mut inner.events);
                let owed = this.look_at_receives(&mut inner);
                (owed, this.pump(&mut inner, &mut wakes))
            };
            this.finish(wakes, later);
            owed
        };
        if let Some(peer) = owed {
            acks::flush(&this.hca, &peer);
        }
    }

    /// There is room again.
    pub(in crate::verbs) fn unblocked(this: &Arc<Self>) {
        if let Some(_inside) = this.gate.enter() {
            this.inner.lock().blocked = false;
        }
        Self::transmit(this);
    }

    /// Sends frames until there is nothing to send, no room, or the burst is over. Returns when to
    /// go on by the timer, microseconds.
    pub(super) fn pump(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) -> Option<u64> {
        if inner.state == QpState::Err {
            self.fail(inner, wakes);
            return None;
        }
        let peer = inner.peer.clone();
        for _ in 0..BURST {
            let sent = match &peer {
                Some(peer) => match self.send_response(inner, peer) {
                    Sent::Nothing => self.send_request(inner, peer, wakes),
                    sent => sent,
                },
                None if self.kind.is_datagram() && inner.state == QpState::Rts => {
                    self.send_datagram(inner, wakes)
                }
                None => return None,
            };
            match sent {
                Sent::GoOn => {}
                // What a user's process has posted meanwhile.
                Sent::Nothing if inner.state == QpState::Rts && self.take_sends(inner) => {}
                Sent::Nothing => return None,
                Sent::Later(at) => return Some(at),
                Sent::Full => {
                    if inner.blocked {
                        return None;
                    }
                    // In the list first, then one more attempt: room that came meanwhile would
                    // not be told again.
                    inner.blocked = true;
                    self.hca.blocked.push(self.clone());
                }
            }
        }
        Some(0)
    }

    /// One frame of the answer to a READ or an atomic.
    fn send_response(self: &Arc<Self>, inner: &mut Inner, peer: &Arc<Peer>) -> Sent {
        if !inner.state.can_receive() {
            return Sent::Nothing;
        }
        let Some(response) = inner.responder.next_response(peer.mtu_payload() as u32) else {
            return Sent::Nothing;
        };
        let mut header = response.header(inner.attributes.dest_qpn);
        let len = response.payload_len() as usize;
        let (ext, rider) = Self::with_rider(inner, &mut header, Ext::NONE, len);
        let sent = peer.send(self.number, header, ext.bytes(), len, |to| match response {
            Response::Read(_) if to.is_empty() => Ok(()),
            Response::Read(read) => {
                let purpose = Purpose::RemoteRead;
                self.hca
                    .access(self.pd, read.rkey, read.addr, purpose, Copy::Out(to))
            }
            Response::Atomic { original, .. } => {
                to.copy_from_slice(&original.to_le_bytes());
                Ok(())
            }
        });
        match sent {
            Ok(()) => {
                self.rode(inner, rider);
                inner.responder.response_sent(&response);
                self.owe(inner);
                Sent::GoOn
            }
            Err(TxError::Full) => Sent::Full,
            Err(TxError::Down) => Sent::Nothing,
            Err(TxError::Fill(_)) => {
                inner.responder.refuse_oldest_read(NakCode::RemoteAccess);
                self.owe(inner);
                Sent::GoOn
            }
        }
    }

    /// Adds the acknowledgement that the QP owes to a frame with `len` bytes of payload, if there is
    /// one and room for it. Tells whether.
    fn with_rider(inner: &mut Inner, header: &mut Header, ext: Ext, len: usize) -> (Ext, bool) {
        let end = HEADER_LEN + ext.bytes().len() + RIDER_LEN + len;
        let rider = inner.responder.rider(inner.attributes.dest_qpn);
        match rider.filter(|_| end <= FRAME_MAX) {
            Some(entry) => {
                header.rider = true;
                let entry = Self::telling(inner, entry);
                (ext.with_rider(&entry), true)
            }
            None => (ext, false),
        }
    }

    /// The frame has left, and (`rider`) the acknowledgement with it.
    fn rode(&self, inner: &mut Inner, rider: bool) {
        if self.kind == QpKind::Rc {
            inner.responder.frame_sent(rider, now_us());
        }
        if rider {
            self.hca.counters.rider_sent();
        }
    }

    /// One frame of the send queue.
    fn send_request(
        self: &Arc<Self>,
        inner: &mut Inner,
        peer: &Arc<Peer>,
        wakes: &mut Wakes,
    ) -> Sent {
        let may = match inner.state {
            QpState::Rts => true,
            // What has begun goes on to its end (IBTA 1.7, 10.3.1.4).
            QpState::Sqd => inner.requester.is_resuming(),
            _ => false,
        };
        if !may {
            return Sent::Nothing;
        }
        let room = peer.mtu_payload() as u32;
        let segment = match inner.requester.next(&inner.sends.wqes, now_us(), room) {
            Next::Frame(segment) => segment,
            Next::Idle => return Sent::Nothing,
            Next::Local(msn) => {
                let wqe = inner.sends.wqes.get(inner.sends.slot(msn));
                let status = wqe.map_or(Status::LocalOperation, |wqe| self.execute_local(wqe));
                let wqes = &mut inner.sends.wqes;
                inner.requester.local_done(wqes, msn, status);
                self.complete_sends(inner, wakes);
                return Sent::GoOn;
            }
            Next::Until(at) => return Sent::Later(at),
        };
        let slot = inner.sends.slot(segment.msn);
        let Some(wqe) = inner.sends.wqes.get(slot) else {
            return Sent::Nothing;
        };
        let ext = wqe.extension(&segment, self.number);
        let Some(mut header) = wqe.header(&segment, inner.attributes.dest_qpn) else {
            return Sent::Nothing;
        };
        let more = inner.sends.has_more();
        header.ack_req = inner.requester.asks(&inner.sends.wqes, &segment, more);
        let (ext, rider) = Self::with_rider(inner, &mut header, ext, segment.len as usize);
        let sends = &inner.sends;
        let sent = peer.send(
            self.number,
            header,
            ext.bytes(),
            segment.len as usize,
            |to| self.fill(sends, slot, segment.offset as usize, to),
        );
        match sent {
            Ok(()) => {
                self.rode(inner, rider);
                inner.requester.sent(&inner.sends.wqes, &segment);
                if self.kind == QpKind::Uc && segment.last {
                    self.complete_sends(inner, wakes);
                }
                Sent::GoOn
            }
            Err(TxError::Full) => Sent::Full,
            Err(TxError::Down) => Sent::Nothing,
            Err(TxError::Fill(error)) => {
                let bad = inner.sends.info.get(slot).is_some_and(|info| info.bad);
                let status = if bad {
                    Status::LocalOperation
                } else if error == EMSGSIZE {
                    Status::LocalLength
                } else {
                    Status::LocalProtection
                };
                inner.requester.fail(segment.msn, status);
                self.complete_sends(inner, wakes);
                Sent::GoOn
            }
        }
    }

    /// Executes a local operation; only consumers in the kernel have any.
    fn execute_local(&self, wqe: &Wqe) -> Status {
        let done = match wqe.op {
            Op::RegMr => self
                .hca
                .register_fast(self.pd, wqe.rkey, wqe.raddr, wqe.imm),
            Op::LocalInv => self.hca.invalidate(self.pd, wqe.imm),
            _ => Err(EINVAL),
        };
        done.map_or(Status::MwBind, |()| Status::Success)
    }

    pub(super) fn fill(&self, sends: &Sends, slot: usize, offset: usize, to: &mut [u8]) -> Result {
        let info = sends.info.get(slot).ok_or(EINVAL)?;
        if info.bad {
            return Err(EINVAL);
        }
        if !info.inline {
            return self.hca.gather(self.pd, sends.sges(slot), offset, to);
        }
        let bytes = sends.inline(slot);
        to.copy_from_slice(bytes.get(offset..offset + to.len()).ok_or(EINVAL)?);
        Ok(())
    }
}
