// SPDX-License-Identifier: GPL-2.0-only
//! Queue pairs.
//!
//! - this file: what a QP consists of, how it begins and ends
//! - [`modify`]: states and attributes
//! - [`queues`]: where work requests are kept
//! - [`post`]: work requests come in
//! - [`transmit`]: frames go out
//! - [`receive`]: frames come in
//! - [`datagram`]: both, for QPs that are not connected

mod datagram;
mod modify;
mod post;
mod queues;
mod receive;
mod transmit;

pub(crate) use modify::{Path, QpAttributes, QpMask, QpState};

use super::cq::{Cq, Extra, Wake, WcOpcode, WcStatus, WorkCompletion};
use super::poster::Poster;
use super::srq::Srq;
use super::{acks, Hca, LIMITS};
use crate::link::Peer;
use crate::print::log_warn_each_second;
use crate::proto::rc::{AckEntry, Due, NakCode, Op, Requester, Responder, Syndrome};
use crate::rdma::details::Detail;
use crate::rdma::event::{CoreQp, QpEvent, QpEvents};
use crate::rdma::gate::Gate;
use crate::rdma::queue::{Owner, Queue};
use crate::sys;
use crate::thunderbolt::os::{cancel_sync, now_us};
use crate::uapi::{CreateQpResp, Sge};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_spinlock, Arc, ArcBorrow, SpinLock};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};
use queues::{Receives, Sends};

/// Types of QP (IBTA 1.7, 10.2.4.1).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpKind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// That of the connection managers, number 1.
    Gsi,
}

impl QpKind {
    /// From `enum ib_qp_type`.
    pub(crate) fn from_raw(raw: sys::ib_qp_type) -> Option<Self> {
        Some(match raw {
            sys::ib_qp_type_IB_QPT_RC => Self::Rc,
            sys::ib_qp_type_IB_QPT_UC => Self::Uc,
            sys::ib_qp_type_IB_QPT_UD => Self::Ud,
            sys::ib_qp_type_IB_QPT_GSI => Self::Gsi,
            _ => return None,
        })
    }

    /// As `enum ib_qp_type`.
    pub(crate) fn raw(self) -> sys::ib_qp_type {
        match self {
            Self::Rc => sys::ib_qp_type_IB_QPT_RC,
            Self::Uc => sys::ib_qp_type_IB_QPT_UC,
            Self::Ud => sys::ib_qp_type_IB_QPT_UD,
            Self::Gsi => sys::ib_qp_type_IB_QPT_GSI,
        }
    }

    /// Not connected.
    pub(crate) fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }

    /// The operation is for QPs of this type (IBTA 1.7, 10.8.1).
    fn allows(self, op: Op) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => !op.is_answered() && op != Op::SendInv,
            Self::Ud | Self::Gsi => matches!(op, Op::Send | Op::SendImm),
        }
    }
}

/// Sizes of a QP's queues.
#[derive(Clone, Copy)]
pub(crate) struct QpCaps {
    /// Send work requests; a power of two.
    pub(crate) send_wr: u32,
    /// Receive work requests; a power of two.
    pub(crate) recv_wr: u32,
    /// Elements of a send.
    pub(crate) send_sge: u32,
    /// Elements of a receive.
    pub(crate) recv_sge: u32,
    /// Inline bytes of a send.
    pub(crate) inline: u32,
}

impl QpCaps {
    /// What is given for what was asked; EINVAL if it is more than the device has.
    fn grant(self) -> Result<Self> {
        let fits = self.send_wr <= LIMITS.work_requests
            && self.recv_wr <= LIMITS.work_requests
            && self.send_sge <= LIMITS.sges
            && self.recv_sge <= LIMITS.sges
            && self.inline <= LIMITS.inline;
        if !fits {
            return Err(EINVAL);
        }
        let send_sge = self.send_sge.max(1);
        let room = send_sge * size_of::<Sge>() as u32;
        Ok(Self {
            send_wr: self.send_wr.max(1).next_power_of_two(),
            recv_wr: self.recv_wr.max(1).next_power_of_two(),
            send_sge,
            recv_sge: self.recv_sge.max(1),
            // Inline bytes lie where elements would. Programs that ask for none and send as many inline as fit there
            // (librdmacm's rdma_xclient) work with the devices that their authors had.
            inline: self.inline.max(room).min(LIMITS.inline),
        })
    }
}

/// What a new QP is made of.
pub(crate) struct QpNew<'a> {
    pub(crate) hca: Arc<Hca>,
    pub(crate) kind: QpKind,
    pub(crate) core: CoreQp,
    pub(crate) pd: u32,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) owner: Owner<'a>,
}

/// What the QP's lock protects.
struct Inner {
    state: QpState,
    attributes: QpAttributes,
    /// Chosen when the QP becomes ready to receive.
    peer: Option<Arc<Peer>>,
    requester: Requester,
    responder: Responder,
    sends: Sends,
    receives: Receives,
    /// The consumer was told that a message came before the QP was ready to send.
    established: bool,
    /// The consumer wants to be told when the send queue is drained.
    tell_drained: bool,
    /// In [`Hca::blocked`] or about to be looked at by whoever took it from there.
    blocked: bool,
    /// In [`Hca::owing`], likewise.
    owing: bool,
    /// What [`Qp::wake_later`] has left to be told.
    events: QpEvents,
    /// In [`Hca::resting`], likewise.
    resting: bool,
}

/// What became of an acknowledgement that waited.
pub(super) enum Rest {
    /// Nothing is owed any more.
    Nothing,
    /// It waits on, until this time, microseconds.
    Until(u64),
    /// It is owed to this peer now.
    Over(Arc<Peer>),
}

/// Notifications to give once the QP's lock is dropped.
#[derive(Default)]
struct Wakes {
    send: Wake,
    recv: Wake,
    events: QpEvents,
    blame: Option<Blame>,
}

/// What is told of a completion that failed by itself, not because another did.
struct Blame {
    status: WcStatus,
    receive: bool,
    /// MAC address of the peer, if the QP has one, and the QP there.
    peer: Option<[u8; 6]>,
    qpn: u32,
}

impl kernel::fmt::Display for Blame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let what = if self.receive { "receive" } else { "send" };
        write!(f, "a {what} failed: {}", self.status.text())?;
        let Some([a, b, c, d, e, g]) = self.peer else {
            return Ok(());
        };
        let qpn = self.qpn;
        write!(
            f,
            "; its peer is QP {qpn:#x} of host {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"
        )
    }
}

impl Wakes {
    /// Tells once if both queues are the same.
    fn share(&mut self, send: &Arc<Cq>, recv: &Arc<Cq>) {
        if Arc::ptr_eq(send, recv) {
            self.send.merge(core::mem::take(&mut self.recv));
        }
    }
}

/// Number of the GSI QP (IBTA 1.7, 3.9.1).
const GSI_QPN: u32 = 1;

/// `peer` of a QP that is not connected.
const NO_PEER: u64 = u64::MAX;

/// A queue pair.
#[pin_data(PinnedDrop)]
pub(crate) struct Qp {
    number: u32,
    kind: QpKind,
    hca: Arc<Hca>,
    core: CoreQp,
    pd: u32,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    caps: QpCaps,
    signal_all: bool,
    /// It is a process's, not the kernel's own.
    user: bool,
    /// `Inner::state`, for those who may not take the lock.
    state: Atomic<u32>,
    #[pin]
    sends_in: Poster,
    #[pin]
    receives_in: Poster,
    /// Id of the peer, for the lists, whose locks are inside the QP's.
    peer: Atomic<u64>,
    #[pin]
    gate: Gate,
    #[pin]
    inner: SpinLock<Inner>,
    /// Goes on transmitting: after an RNR pause, or after a burst.
    #[pin]
    timer: DelayedWork<Qp, TIMER>,
    /// Looks at what a consumer in the kernel has posted.
    #[pin]
    look: DelayedWork<Qp, LOOK>,
}

const TIMER: u64 = 1;
const LOOK: u64 = 2;

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Qp { self.timer }
    impl HasDelayedWork<Self, 2> for Qp { self.look }
}

impl WorkItem<TIMER> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Qp::transmit(&this);
    }
}

impl WorkItem<LOOK> for Qp {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        Qp::transmit(&this);
    }
}

impl Qp {
    /// Makes a QP in the RESET state.
    pub(crate) fn new(new: QpNew<'_>) -> Result<Arc<Self>> {
        let caps = new.caps.grant()?;
        let hca = new.hca.clone();
        hca.qp_count.take(LIMITS.qps)?;
        let made = Self::allocate(new, caps);
        if made.is_err() {
            hca.qp_count.give();
        }
        made
    }

    fn allocate(new: QpNew<'_>, caps: QpCaps) -> Result<Arc<Self>> {
        let room = new.hca.qp_count.get() as usize;
        new.hca.blocked.reserve(room)?;
        new.hca.owing.reserve(room)?;
        new.hca.resting.reserve(room)?;
        let sends = Sends::new(&caps, new.owner)?;
        let receives = match &new.srq {
            Some(srq) => Receives::shared(srq.clone())?,
            None => Receives::new(&caps, new.owner)?,
        };
        let user = new.owner.is_user();
        let posted = |queue: Option<&Arc<Queue>>| queue.filter(|_| !user).cloned();
        let (sends_in, receives_in) = (posted(sends.shared()), posted(receives.queue()));
        let attributes = QpAttributes::default();
        let inner = Inner {
            state: QpState::Reset,
            requester: Requester::new(attributes.requester(new.kind)),
            responder: attributes.responder(new.kind),
            attributes,
            peer: None,
            sends,
            receives,
            established: false,
            tell_drained: false,
            blocked: false,
            owing: false,
            events: QpEvents::default(),
            resting: false,
        };
        let hca = new.hca.clone();
        let kind = new.kind;
        let make = |number| {
            Arc::pin_init(
                pin_init!(Self {
                    number,
                    kind,
                    hca: new.hca,
                    core: new.core,
                    pd: new.pd,
                    send_cq: new.send_cq,
                    recv_cq: new.recv_cq,
                    srq: new.srq,
                    caps,
                    signal_all: new.signal_all,
                    user,
                    state: Atomic::new(QpState::Reset as u32),
                    sends_in <- Poster::new(sends_in),
                    receives_in <- Poster::new(receives_in),
                    peer: Atomic::new(NO_PEER),
                    gate <- Gate::new(),
                    inner <- new_spinlock!(inner, "tbrdma_qp"),
                    timer <- new_delayed_work!("tbrdma_qp_timer"),
                    look <- new_delayed_work!("tbrdma_qp_look"),
                }),
                GFP_KERNEL,
            )
        };
        match kind {
            QpKind::Gsi => hca.qps.insert_at(GSI_QPN, GFP_KERNEL, make),
            _ => hca.qps.insert(make),
        }
    }

    /// What `rdma resource` tells of it.
    pub(crate) fn details(&self) -> [Detail; 6] {
        let inner = self.inner.lock();
        let waiting = inner.receives.waiting();
        [
            (c"sq_entries", self.caps.send_wr),
            (c"sq_outstanding", inner.requester.outstanding()),
            (
                c"rq_entries",
                inner.receives.queue().map_or(0, |q| q.entries()),
            ),
            (c"rq_posted", waiting),
            (c"waits_for_room", inner.blocked.into()),
            (c"owes_ack", inner.responder.owes_ack().into()),
        ]
    }

    /// Its type.
    pub(crate) fn kind(&self) -> QpKind {
        self.kind
    }

    /// A user's process posts and polls.
    pub(crate) fn is_user(&self) -> bool {
        self.user
    }

    /// QP number, 24 bits.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Sizes as granted.
    pub(crate) fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Where the user finds the queues.
    pub(crate) fn response(&self) -> CreateQpResp {
        let inner = self.inner.lock();
        CreateQpResp {
            sq: inner
                .sends
                .shared()
                .map(|q| q.response())
                .unwrap_or_default(),
            rq: inner
                .receives
                .queue()
                .map(|q| q.response())
                .unwrap_or_default(),
        }
    }

    /// Every send gives a completion.
    pub(crate) fn signals_all(&self) -> bool {
        self.signal_all
    }

    /// Id of the peer it is connected to.
    pub(super) fn peer_id(&self) -> Option<u32> {
        u32::try_from(self.peer.load(Relaxed)).ok()
    }

    /// Its state, without the lock.
    fn state(&self) -> QpState {
        QpState::of(self.state.load(Acquire))
    }

    fn set_state(&self, inner: &mut Inner, state: QpState) {
        inner.state = state;
        self.state.store(state as u32, Release);
    }

    /// Ends the QP: after this returned it uses nothing of the core's or of its queues.
    pub(crate) fn destroy(self: &Arc<Self>) {
        self.hca.qps.remove(self.number);
        self.gate.close();
        cancel_sync::<Self, TIMER>(self);
        cancel_sync::<Self, LOOK>(self);
        self.hca.blocked.remove(self);
        self.hca.owing.remove(self);
        self.hca.resting.remove(self);
        self.last_words();
        self.send_cq.forget(self.core);
        self.recv_cq.forget(self.core);
        // Freed here, where sleeping is allowed, whoever drops the last reference.
        let gone = {
            let mut inner = self.inner.lock();
            self.set_state(&mut inner, QpState::Err);
            (
                self.sends_in.close(),
                self.receives_in.close(),
                core::mem::take(&mut inner.sends),
                core::mem::take(&mut inner.receives),
                inner.peer.take(),
            )
        };
        drop(gone);
    }

    /// An acknowledgement still owed is given all the same: the program that received the message
    /// may well destroy the QP at once, and the sender must not see a failure for that.
    fn last_words(&self) {
        let owed = {
            let mut inner = self.inner.lock();
            let qpn = inner.attributes.dest_qpn;
            let entry = inner.responder.take_ack(qpn);
            entry.zip(inner.peer.clone())
        };
        if let Some((entry, peer)) = owed {
            acks::answer(&self.hca, &peer, entry);
            acks::flush(&self.hca, &peer);
        }
    }

    /// Puts the QP into the list of those that owe an acknowledgement, or into that of those which
    /// wait with it.
    fn owe(self: &Arc<Self>, inner: &mut Inner) {
        match inner.responder.ack_due(now_us()) {
            Due::No => {}
            Due::Now => self.owe_now(inner),
            // Within this host a frame costs next to nothing, and leaves at once.
            Due::At(_) if inner.peer.as_ref().is_some_and(|p| p.is_loopback()) => {
                self.owe_now(inner);
            }
            Due::At(at) => self.rest_until(inner, at),
        }
    }

    fn owe_now(self: &Arc<Self>, inner: &mut Inner) {
        if !inner.owing {
            inner.owing = true;
            self.hca.owing.push(self.clone());
        }
    }

    fn rest_until(self: &Arc<Self>, inner: &mut Inner, at: u64) {
        if !inner.resting {
            inner.resting = true;
            self.hca.resting.push(self.clone());
        }
        self.hca.resting.look_at(at);
    }

    /// Looks whether the acknowledgement has waited for long enough, which with `over` it has in any
    /// case; the QP was taken out of the list of those that wait.
    pub(super) fn rest(this: &Arc<Self>, over: bool) -> Rest {
        let Some(_inside) = this.gate.enter() else {
            return Rest::Nothing;
        };
        let mut inner = this.inner.lock();
        inner.resting = false;
        let now = now_us();
        match inner.responder.ack_due(now) {
            Due::No => return Rest::Nothing,
            Due::Now => {}
            Due::At(at) => {
                if now < at && !over {
                    inner.resting = true;
                    this.hca.resting.push(this.clone());
                    return Rest::Until(at);
                }
                inner.responder.rides_not();
            }
        }
        this.owe_now(&mut inner);
        match &inner.peer {
            Some(peer) => Rest::Over(peer.clone()),
            None => Rest::Nothing,
        }
    }

    /// Completions of this QP go there.
    pub(super) fn uses(&self, cq: &Cq) -> bool {
        let is_it = |own: &Arc<Cq>| core::ptr::eq(&**own, cq);
        is_it(&self.recv_cq) || is_it(&self.send_cq)
    }

    pub(super) fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }

    /// Takes the acknowledgement that the QP owes; the QP was taken out of the list.
    pub(super) fn take_ack(&self) -> Option<AckEntry> {
        let _inside = self.gate.enter()?;
        let mut inner = self.inner.lock();
        inner.owing = false;
        let qpn = inner.attributes.dest_qpn;
        let entry = inner.responder.take_ack(qpn)?;
        Some(Self::telling(&mut inner, entry))
    }

    /// The acknowledgement, which is about to leave, with the number of receives. In the error state
    /// they take no message, and the consumer has to call for another reason.
    fn telling(inner: &mut Inner, entry: AckEntry) -> AckEntry {
        if inner.state.can_receive() {
            entry.telling(inner.receives.tell())
        } else {
            entry
        }
    }

    /// Looks whether there are receives again after the requester was told that there are none.
    /// Returns the peer that is owed the news: see [`acks::flush`].
    fn look_at_receives(self: &Arc<Self>, inner: &mut Inner) -> Option<Arc<Peer>> {
        if !inner.state.can_receive() || !inner.receives.has_news() {
            return None;
        }
        inner.responder.receives_posted();
        self.owe(inner);
        inner.peer.clone()
    }

    /// The acknowledgement could not be sent.
    pub(super) fn restore_ack(this: &Arc<Self>, entry: &AckEntry) {
        match this.gate.enter() {
            Some(_inside) => {
                let mut inner = this.inner.lock();
                inner.responder.restore_ack(entry);
                this.owe(&mut inner);
            }
            None => {
                let peer = this.inner.lock().peer.clone();
                if let Some(peer) = peer {
                    acks::answer(&this.hca, &peer, *entry);
                }
            }
        }
    }

    /// The acknowledgement was sent. A refusal ends the QP.
    pub(super) fn ack_sent(this: &Arc<Self>, entry: &AckEntry) {
        if !matches!(entry.syndrome, Syndrome::Nak(_)) {
            return;
        }
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        {
            let mut inner = this.inner.lock();
            this.fail(&mut inner, &mut wakes);
        }
        this.wake(wakes);
    }

    /// The peer is lost: everything outstanding ends.
    pub(super) fn peer_lost(this: &Arc<Self>, peer: &Arc<Peer>) {
        let Some(_inside) = this.gate.enter() else {
            return;
        };
        let mut wakes = Wakes::default();
        {
            let mut inner = this.inner.lock();
            if inner
                .peer
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, peer))
            {
                this.fail(&mut inner, &mut wakes);
            }
        }
        this.wake(wakes);
    }

    /// Enters the error state and flushes both queues, in order (IBTA 1.7, 10.3.1.5).
    fn fail(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) {
        if inner.state != QpState::Err && self.srq.is_some() {
            wakes.events.add(QpEvent::LastReceive);
        }
        self.set_state(inner, QpState::Err);
        inner.requester.flush();
        loop {
            self.complete_sends(inner, wakes);
            // What a user's process has posted and nobody has looked at yet.
            if !self.take_sends(inner) {
                break;
            }
        }
        inner.receives.set_call(true);
        while inner.receives.claim_to_flush() {
            self.complete_receive(
                inner,
                wakes,
                WcStatus::Flushed,
                WcOpcode::Recv,
                0,
                Extra::None,
                false,
            );
        }
    }

    /// Reports the sends that ended.
    fn complete_sends(self: &Arc<Self>, inner: &mut Inner, wakes: &mut Wakes) {
        let mut failed = false;
        while let Some(done) = inner.requester.complete(&inner.sends.wqes) {
            let slot = inner.sends.slot(done.msn);
            let (Some(wqe), Some(info)) = (inner.sends.wqes.get(slot), inner.sends.info.get(slot))
            else {
                break;
            };
            let status = post::wc_status(done.status);
            failed |= status != WcStatus::Success;
            self.blame(inner, wakes, status, false);
            if status == WcStatus::Success && !wqe.flags.signaled {
                continue;
            }
            let wake = self.send_cq.push(
                WorkCompletion {
                    wr_id: info.wr_id,
                    status,
                    opcode: post::wc_opcode(wqe.op),
                    byte_len: wqe.len,
                    qp: self.core,
                    qpn: self.number,
                    src_qp: inner.attributes.dest_qpn,
                    extra: Extra::None,
                    route: None,
                },
                false,
            );
            wakes.send.merge(wake);
        }
        if failed && inner.state != QpState::Err {
            self.fail(inner, wakes);
        }
        self.look_drained(inner, wakes);
    }

    /// Tells the consumer if it wants to know that the send queue is drained.
    fn look_drained(&self, inner: &mut Inner, wakes: &mut Wakes) {
        if inner.state == QpState::Sqd && inner.tell_drained && inner.requester.is_drained() {
            inner.tell_drained = false;
            wakes.events.add(QpEvent::Drained);
        }
    }

    /// Counts a completion that did not go well, and keeps what is to be told of the first.
    fn blame(&self, inner: &Inner, wakes: &mut Wakes, status: WcStatus, receive: bool) {
        if status == WcStatus::Success {
            return;
        }
        self.hca.counters.completion_failed(status);
        if status != WcStatus::Flushed && wakes.blame.is_none() {
            wakes.blame = Some(Blame {
                status,
                receive,
                peer: inner.peer.as_ref().map(|peer| peer.mac()),
                qpn: inner.attributes.dest_qpn,
            });
        }
    }

    /// Reports the receive in use.
    #[allow(clippy::too_many_arguments)]
    fn complete_receive(
        &self,
        inner: &mut Inner,
        wakes: &mut Wakes,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
        extra: Extra,
        solicited: bool,
    ) {
        let Some(wr_id) = inner.receives.finish() else {
            return;
        };
        self.blame(inner, wakes, status, true);
        let wake = self.recv_cq.push(
            WorkCompletion {
                wr_id,
                status,
                opcode,
                byte_len,
                qp: self.core,
                qpn: self.number,
                src_qp: inner.attributes.dest_qpn,
                extra,
                route: None,
            },
            solicited,
        );
        wakes.recv.merge(wake);
    }

    /// Tells the consumers. No lock may be held, the caller is inside the gate, and nobody in the
    /// kernel may be waiting for it: see [`wake_later`](Self::wake_later).
    fn wake(&self, mut wakes: Wakes) {
        if let Some(blame) = &wakes.blame {
            // Whatever programs and peers do.
            log_warn_each_second!("QP {:#x}: {}", self.number, blame);
        }
        wakes.share(&self.send_cq, &self.recv_cq);
        self.send_cq.wake(wakes.send);
        self.recv_cq.wake(wakes.recv);
        for event in wakes.events.iter() {
            self.core.event(event);
        }
        if let Some(srq) = &self.srq {
            srq.tell();
        }
    }

    /// The same within a call of the consumer's. One in the kernel may hold a lock of its own that its
    /// handlers take: such a one is told by work items.
    fn wake_later(self: ArcBorrow<'_, Self>, mut wakes: Wakes) {
        if self.user {
            return self.wake(wakes);
        }
        wakes.share(&self.send_cq, &self.recv_cq);
        Cq::wake_later(&self.send_cq, wakes.send);
        Cq::wake_later(&self.recv_cq, wakes.recv);
        self.inner.lock().events.merge(wakes.events);
        self.look_later();
    }

    /// Does what has to wait until the QP's lock is dropped: tells the consumers, and sees to it
    /// that transmitting goes on at `later`, microseconds.
    fn finish(self: &Arc<Self>, wakes: Wakes, later: Option<u64>) {
        self.wake(wakes);
        if let Some(at) = later {
            self.transmit_at(at);
        }
    }

    /// Goes on transmitting at `at_us`.
    fn transmit_at(self: &Arc<Self>, at_us: u64) {
        let wait_ms = at_us.saturating_sub(now_us()).div_ceil(1000);
        let wait_ms = u32::try_from(wait_ms).unwrap_or(u32::MAX);
        self.hca.queue.retime::<Self, TIMER>(self.clone(), wait_ms);
    }

    /// The QP cannot take the frame: what to tell the requester.
    fn cannot_receive(state: QpState) -> Syndrome {
        match state {
            QpState::Reset | QpState::Init => Syndrome::NotReady,
            _ => Syndrome::Nak(NakCode::Gone),
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Qp {
    fn drop(self: Pin<&mut Self>) {
        self.hca.qp_count.give();
    }
}
