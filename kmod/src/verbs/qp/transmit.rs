// SPDX-License-Identifier: GPL-2.0-only
//! Frames go out.

use super::{Inner, Qp, QpState, Queues, Wakes};
use crate::link::{Peer, TxError};
use crate::proto::frame::{Header, Opcode};
use crate::proto::rc::{NakCode, Next, Op, RethExt, Segment, SendExt, Status, Wqe};
use crate::thunderbolt::os::now_us;
use crate::verbs::mr::{Copy, Purpose};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Frames that a QP sends in one go; then others get the CPU and the rail.
const BURST: u32 = 64;

/// How an attempt to send a frame went.
enum Sent {
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
    /// Sends what can be sent: in the caller's context, at most a burst.
    pub(crate) fn transmit(this: &Arc<Self>) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        let later = {
            let mut inner = this.inner.lock();
            this.pump(&mut inner, &mut wakes)
        };
        this.finish(wakes, later);
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
        let peer = inner.peer.clone()?;
        for _ in 0..BURST {
            let sent = match self.send_response(inner, &peer) {
                Sent::Nothing => self.send_request(inner, &peer, wakes),
                sent => sent,
            };
            match sent {
                Sent::GoOn => {}
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

    /// One frame of a READ's response.
    fn send_response(self: &Arc<Self>, inner: &mut Inner, peer: &Arc<Peer>) -> Sent {
        if !inner.state.can_receive() {
            return Sent::Nothing;
        }
        let Some(read) = inner.responder.next_read(peer.mtu_payload() as u32) else {
            return Sent::Nothing;
        };
        let header = Header {
            opcode: Opcode::ReadResp,
            first: read.offset == 0,
            last: read.last,
            dqpn: inner.attributes.dest_qpn,
            msn: read.msn,
            offset: read.offset,
            ..Header::default()
        };
        let sent = peer.send(self.number, header, &[], read.len as usize, |to| {
            if to.is_empty() {
                return Ok(());
            }
            self.hca.access(
                self.pd,
                read.rkey,
                read.addr,
                Purpose::RemoteRead,
                Copy::Out(to),
            )
        });
        match sent {
            Ok(()) => {
                inner.responder.read_sent(&read);
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

    /// One frame of the send queue.
    fn send_request(
        self: &Arc<Self>,
        inner: &mut Inner,
        peer: &Arc<Peer>,
        wakes: &mut Wakes,
    ) -> Sent {
        if inner.state != QpState::Rts {
            return Sent::Nothing;
        }
        let room = peer.mtu_payload() as u32;
        let segment = match inner.requester.next(&inner.queues.sq, now_us(), room) {
            Next::Frame(segment) => segment,
            Next::Idle => return Sent::Nothing,
            Next::Until(at) => return Sent::Later(at),
        };
        let slot = inner.send_slot(segment.msn);
        let Some(wqe) = inner.queues.sq.get(slot) else {
            return Sent::Nothing;
        };
        let mut ext = [0; EXT_MAX];
        let ext_len = if segment.first {
            self.extension(wqe, &mut ext)
        } else {
            0
        };
        let header = self.header(wqe, &segment, inner.attributes.dest_qpn);
        let queues = &inner.queues;
        let sent = peer.send(
            self.number,
            header,
            ext.get(..ext_len).unwrap_or(&[]),
            segment.len as usize,
            |to| self.fill(queues, slot, segment.offset as usize, to),
        );
        match sent {
            Ok(()) => {
                inner.requester.sent(&inner.queues.sq, &segment);
                Sent::GoOn
            }
            Err(TxError::Full) => Sent::Full,
            Err(TxError::Down) => Sent::Nothing,
            Err(TxError::Fill(error)) => {
                let status = if error == EMSGSIZE {
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

    fn fill(&self, queues: &Queues, slot: usize, offset: usize, to: &mut [u8]) -> Result {
        let inline = queues.sq_info.get(slot).is_some_and(|info| info.inline);
        if !inline {
            return self
                .hca
                .gather(self.pd, queues.send_sges(&self.caps, slot), offset, to);
        }
        let bytes = queues
            .sq_inline
            .get(Queues::inline_range(&self.caps, slot))
            .ok_or(EINVAL)?;
        to.copy_from_slice(bytes.get(offset..offset + to.len()).ok_or(EINVAL)?);
        Ok(())
    }

    fn header(&self, wqe: &Wqe, segment: &Segment, dqpn: u32) -> Header {
        let opcode = match wqe.op {
            Op::Send | Op::SendImm => Opcode::Send,
            Op::Write | Op::WriteImm => Opcode::Write,
            Op::Read => Opcode::ReadReq,
        };
        Header {
            opcode,
            first: segment.first,
            last: segment.last,
            imm: matches!(wqe.op, Op::SendImm | Op::WriteImm),
            solicited: wqe.flags.solicited,
            dqpn,
            msn: segment.msn,
            offset: segment.offset,
            ..Header::default()
        }
    }

    /// Writes the extension of a message's first frame; returns its length.
    fn extension(&self, wqe: &Wqe, to: &mut [u8; EXT_MAX]) -> usize {
        let (total, imm, sqpn) = (wqe.len, wqe.imm, self.number);
        match wqe.op {
            Op::Send | Op::SendImm => put(&SendExt { total, imm, sqpn }.emit(), to),
            Op::Write | Op::WriteImm | Op::Read => {
                let (raddr, rkey) = (wqe.raddr, wqe.rkey);
                let ext = RethExt {
                    raddr,
                    rkey,
                    total,
                    imm,
                    sqpn,
                };
                put(&ext.emit(), to)
            }
        }
    }
}

/// Copies an extension; returns its length.
fn put(ext: &[u8], to: &mut [u8; EXT_MAX]) -> usize {
    to[..ext.len()].copy_from_slice(ext);
    ext.len()
}

/// Bytes of the longest extension.
const EXT_MAX: usize = crate::proto::rc::RETH_EXT_LEN;
