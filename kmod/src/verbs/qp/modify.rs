// SPDX-License-Identifier: GPL-2.0-only
//! States and attributes of a QP.

use super::{Qp, QpKind, Wakes, NO_PEER};
use crate::errno::unreachable_host;
use crate::proto::rc::{Config, Requester, Responder};
use crate::proto::ud::Gid;
use crate::sys;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::{Arc, ArcBorrow};

/// `enum ib_qp_state` (IBTA 1.7, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QpState {
    Reset = sys::ib_qp_state_IB_QPS_RESET,
    Init = sys::ib_qp_state_IB_QPS_INIT,
    Rtr = sys::ib_qp_state_IB_QPS_RTR,
    Rts = sys::ib_qp_state_IB_QPS_RTS,
    Sqd = sys::ib_qp_state_IB_QPS_SQD,
    Err = sys::ib_qp_state_IB_QPS_ERR,
}

impl QpState {
    /// From the raw value. SQE is not for connected QPs, so it is not known here.
    pub(crate) fn from_raw(raw: sys::ib_qp_state) -> Option<Self> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Err]
            .into_iter()
            .find(|state| *state as u32 == raw)
    }

    /// From its number; the error state if it is none.
    pub(super) fn of(number: u32) -> Self {
        Self::from_raw(number).unwrap_or(Self::Err)
    }

    /// Sends may be posted (IBTA 1.7, 10.3.1).
    pub(super) fn can_post_send(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Err)
    }

    pub(super) fn can_receive(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }
}

/// The path of a connected QP as it was given (IBTA 1.7, 11.2.5.2, "primary address path"). The MAC
/// address says which peer that is; the rest is kept to be told again.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    /// MAC address of the peer.
    pub(crate) mac: [u8; 6],
    pub(crate) dgid: Gid,
    pub(crate) sgid_index: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    pub(crate) static_rate: u8,
}

/// Attributes that a QP keeps; names, units and ranges are those of `struct ib_qp_attr`.
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttributes {
    pub(crate) access: u32,
    pub(crate) qkey: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) path_mtu: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) max_rd_atomic: u32,
    pub(crate) max_dest_rd_atomic: u32,
    pub(crate) min_rnr_timer: u32,
    pub(crate) timeout: u32,
    pub(crate) retry_cnt: u32,
    pub(crate) rnr_retry: u32,
    /// None before there was one, and in RESET.
    pub(crate) path: Option<Path>,
}

/// The least time that a peer's QP may take to become ready, whatever `timeout` says: connection
/// managers move the two QPs one after the other.
const NOT_READY_LEAST_US: u64 = 1_000_000;

impl QpAttributes {
    pub(super) fn requester(&self, kind: QpKind) -> Config {
        // IBTA 1.7, 9.7.6.1.3: 4.096 us times a power of two; 0 means without end.
        let not_ready_limit_us = (self.timeout != 0).then(|| {
            let once = (4096u64 << self.timeout.min(31)) / 1000;
            (once * u64::from(self.retry_cnt + 1)).max(NOT_READY_LEAST_US)
        });
        Config {
            reliable: kind == QpKind::Rc,
            max_reads: self.max_rd_atomic.min(super::LIMITS.reads) as u16,
            rnr_retry: (self.rnr_retry & 7) as u8,
            not_ready_limit_us,
        }
    }

    pub(super) fn responder(&self, kind: QpKind) -> Responder {
        if kind != QpKind::Rc {
            return Responder::unreliable();
        }
        Responder::new(self.max_dest_rd_atomic as u16, self.min_rnr_timer as u8)
    }
}

/// Attributes that a modify call gives.
pub(crate) struct QpMask {
    pub(crate) state: Option<QpState>,
    pub(crate) assumed: Option<QpState>,
    /// With a change to SQD: an event is wanted when the send queue is drained.
    pub(crate) tell_drained: bool,
    pub(crate) path: Option<Path>,
    pub(crate) access: Option<u32>,
    pub(crate) qkey: Option<u32>,
    pub(crate) dest_qpn: Option<u32>,
    pub(crate) path_mtu: Option<u32>,
    pub(crate) rq_psn: Option<u32>,
    pub(crate) sq_psn: Option<u32>,
    pub(crate) max_rd_atomic: Option<u32>,
    pub(crate) max_dest_rd_atomic: Option<u32>,
    pub(crate) min_rnr_timer: Option<u32>,
    pub(crate) timeout: Option<u32>,
    pub(crate) retry_cnt: Option<u32>,
    pub(crate) rnr_retry: Option<u32>,
}

fn set(place: &mut u32, value: Option<u32>, most: u32) -> Result {
    if let Some(value) = value {
        if value > most {
            return Err(EINVAL);
        }
        *place = value;
    }
    Ok(())
}

impl QpMask {
    fn apply(&self, to: &mut QpAttributes) -> Result {
        let reads = super::LIMITS.reads;
        to.path = self.path.or(to.path);
        set(&mut to.access, self.access, u32::MAX)?;
        set(&mut to.qkey, self.qkey, u32::MAX)?;
        set(&mut to.dest_qpn, self.dest_qpn, 0xff_ffff)?;
        set(&mut to.path_mtu, self.path_mtu, sys::ib_mtu_IB_MTU_4096)?;
        set(&mut to.rq_psn, self.rq_psn, 0xff_ffff)?;
        set(&mut to.sq_psn, self.sq_psn, 0xff_ffff)?;
        set(&mut to.max_rd_atomic, self.max_rd_atomic, reads)?;
        set(&mut to.max_dest_rd_atomic, self.max_dest_rd_atomic, reads)?;
        set(&mut to.min_rnr_timer, self.min_rnr_timer, 31)?;
        set(&mut to.timeout, self.timeout, 31)?;
        set(&mut to.retry_cnt, self.retry_cnt, 7)?;
        set(&mut to.rnr_retry, self.rnr_retry, 7)
    }
}

impl Qp {
    /// Changes state and attributes. `allowed` is the core's table of transitions.
    ///
    /// EHOSTUNREACH: no peer has the MAC address of the destination, that is, no cable leads there.
    pub(crate) fn modify(
        self: ArcBorrow<'_, Self>,
        wanted: &QpMask,
        allowed: impl Fn(QpState, QpState) -> bool,
    ) -> Result {
        let this: Arc<Self> = self.into();
        let _inside = this.gate.enter().ok_or(EINVAL)?;
        let peer = match &wanted.path {
            None => None,
            // Datagrams have addresses of their own.
            Some(_) if this.kind.is_datagram() => None,
            Some(Path { mac, .. }) => {
                let found = this.hca.links().and_then(|links| links.peer_by_mac(mac));
                Some(
                    found
                        .filter(|peer| peer.is_up())
                        .ok_or_else(unreachable_host)?,
                )
            }
        };
        let mut wakes = Wakes::default();
        {
            let mut inner = this.inner.lock();
            let from = wanted.assumed.unwrap_or(inner.state);
            let to = wanted.state.unwrap_or(from);
            // The state may have changed behind the caller's back, to the error state only.
            let from = if inner.state == QpState::Err {
                inner.state
            } else {
                from
            };
            if from != inner.state || !allowed(from, to) {
                return Err(EINVAL);
            }
            let mut attributes = inner.attributes;
            wanted.apply(&mut attributes)?;
            inner.attributes = attributes;
            if let Some(peer) = peer {
                this.peer.store(u64::from(peer.id()), Relaxed);
                inner.peer = Some(peer);
            }
            inner.requester.configure(attributes.requester(this.kind));
            inner.responder.configure(
                attributes.max_dest_rd_atomic as u16,
                attributes.min_rnr_timer as u8,
            );
            if wanted.state == Some(QpState::Sqd) {
                inner.tell_drained = wanted.tell_drained;
            }
            match to {
                QpState::Reset => {
                    inner.established = false;
                    inner.requester = Requester::new(attributes.requester(this.kind));
                    inner.responder = attributes.responder(this.kind);
                    inner.sends.reset();
                    inner.receives.reset();
                    inner.attributes.path = None;
                    inner.peer = None;
                    this.peer.store(NO_PEER, Relaxed);
                    this.set_state(&mut inner, to);
                }
                QpState::Err => this.fail(&mut inner, &mut wakes),
                _ => this.set_state(&mut inner, to),
            }
            this.look_drained(&mut inner, &mut wakes);
            // The peer may have been lost between the look-up and now, when this QP was not yet
            // among those that are told.
            let lost = inner.peer.as_ref().is_some_and(|peer| !peer.is_up());
            if lost && to != QpState::Err {
                this.fail(&mut inner, &mut wakes);
            }
        }
        if wanted.state == Some(QpState::Reset) {
            // Completions of a QP in RESET are gone (IBTA 1.7, 10.3.1.1).
            this.send_cq.forget(this.core);
            this.recv_cq.forget(this.core);
        }
        this.as_arc_borrow().wake_later(wakes);
        if this.user {
            Qp::transmit(&this);
        }
        Ok(())
    }

    /// State and attributes.
    pub(crate) fn query(&self) -> (QpState, QpAttributes) {
        let inner = self.inner.lock();
        (inner.state, inner.attributes)
    }

    /// The QP is in the SQD state, and what had begun has not ended.
    pub(crate) fn is_draining(&self) -> bool {
        let inner = self.inner.lock();
        inner.state == QpState::Sqd && !inner.requester.is_drained()
    }
}
