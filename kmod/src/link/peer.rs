// SPDX-License-Identifier: GPL-2.0-only
//! A host that QPs can be connected to.

use super::bundle::Bundle;
use super::frames::Refusal;
use super::loopback::{self, Loopback};
use super::rail::Rail;
use super::{Queues, Upcalls};
use crate::proto::frame::{Header, Opcode, FRAME_MAX, HEADER_LEN};
use crate::thunderbolt::ring::TxBuf;
use crate::thunderbolt::routers;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_spinlock, Arc, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Who a host is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The lowest router UUID of the machine, in the byte order of its text form; without a
    /// USB4 router something else that stays the same, or random as the last resort.
    pub(crate) uuid: [u8; 16],
    /// Locally administered unicast MAC address, derived from `uuid`.
    pub(crate) mac: [u8; 6],
}

impl Identity {
    /// Of this machine.
    pub(crate) fn of_this_host() -> Result<Self> {
        let uuid = match routers::lowest_uuid()? {
            Some(uuid) => uuid,
            None => routers::machine_uuid(),
        };
        Ok(Self::from_uuid(uuid))
    }

    /// Of the host with this identity.
    pub(crate) fn from_uuid(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            mac: mac_of(&uuid),
        }
    }
}

/// FNV-1a over the UUID, folded to 48 bits. Router UUIDs of one vendor differ in few bytes, which
/// must all reach the address.
fn mac_of(uuid: &[u8; 16]) -> [u8; 6] {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in uuid {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 48;
    let [b0, b1, b2, b3, b4, b5, ..] = hash.to_le_bytes();
    // Bit 1: locally administered; bit 0 clear: one station.
    [(b0 & 0xfc) | 0x02, b1, b2, b3, b4, b5]
}

/// Why a frame was not taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxError {
    /// No room now; [`Upcalls::tx_ready`] will come.
    Full,
    /// The peer is lost.
    Down,
    /// `fill` failed; nothing was consumed.
    Fill(Error),
}

/// Rails of one peer at most.
const MAX_RAILS: usize = 16;

/// A QP's frames keep to one rail as long as fewer are under way there: what is answered at once
/// finds the other end at the same ring, and need not be put in order.
const FEW: u32 = 8;

/// How far the layer above knows about a peer's life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Up,
    Down,
}

struct Life {
    /// What is true.
    stage: Stage,
    /// What has been told.
    told: Stage,
}

/// A remote host for as long as it is connected without a break, or this host.
///
/// A host that comes back, after a reboot or when its last cable was pulled, is a new peer.
#[pin_data]
pub(crate) struct Peer {
    id: u32,
    identity: Identity,
    /// Tells the boots of one host apart.
    incarnation: u64,
    upcalls: Arc<dyn Upcalls>,
    queues: Queues,
    /// Only of the loopback peer.
    wire: Option<Arc<Loopback>>,
    /// Links that have or make a rail to it; changed with [`Shared::hosts`](super::Shared) locked.
    claims: Atomic<u32>,
    #[pin]
    bundle: Bundle,
    #[pin]
    rails: SpinLock<KVec<Arc<Rail>>>,
    #[pin]
    life: SpinLock<Life>,
    #[pin]
    delivery: Work<Peer, DELIVERY>,
    #[pin]
    events: Work<Peer, EVENTS>,
}

/// Work: delivers what the loopback queue holds.
const DELIVERY: u64 = 1;
/// Work: tells the layer above that the peer has come or gone.
const EVENTS: u64 = 2;

impl_has_work! {
    impl HasWork<Self, 1> for Peer { self.delivery }
    impl HasWork<Self, 2> for Peer { self.events }
}

impl WorkItem<DELIVERY> for Peer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(wire) = &this.wire else { return };
        if wire.deliver_batch(&this) {
            this.queue_delivery();
        }
    }
}

impl WorkItem<EVENTS> for Peer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let (tell_up, tell_down, is_up) = {
            let mut life = this.life.lock();
            let tell_up = life.told == Stage::New && life.stage != Stage::New;
            let tell_down = life.told != Stage::Down && life.stage == Stage::Down;
            life.told = life.stage;
            (tell_up, tell_down, life.stage == Stage::Up)
        };
        if tell_up {
            this.upcalls.peer_up(&this);
        }
        // Now, so that nothing is delivered before `peer_up`.
        for rail in this.rails.lock().iter() {
            rail.open();
        }
        if is_up {
            // Whoever was refused by a rail that went can send on the others.
            this.upcalls.tx_ready(&this);
        }
        if tell_down {
            this.upcalls.peer_down(&this);
        }
    }
}

impl Peer {
    /// The peer that is this host.
    pub(super) fn loopback(
        identity: &Identity,
        wire: Arc<Loopback>,
        upcalls: Arc<dyn Upcalls>,
        queues: Queues,
    ) -> Result<Arc<Self>> {
        Self::new(0, identity, 0, upcalls, queues, Some(wire))
    }

    /// A remote host that has just been met; `id` is not 0.
    pub(super) fn remote(
        id: u32,
        identity: &Identity,
        incarnation: u64,
        upcalls: Arc<dyn Upcalls>,
        queues: Queues,
    ) -> Result<Arc<Self>> {
        Self::new(id, identity, incarnation, upcalls, queues, None)
    }

    fn new(
        id: u32,
        identity: &Identity,
        incarnation: u64,
        upcalls: Arc<dyn Upcalls>,
        queues: Queues,
        wire: Option<Arc<Loopback>>,
    ) -> Result<Arc<Self>> {
        let identity = *identity;
        let stage = if wire.is_some() {
            Stage::Up
        } else {
            Stage::New
        };
        let life = Life { stage, told: stage };
        let rails = KVec::with_capacity(MAX_RAILS, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                id,
                identity,
                incarnation,
                upcalls,
                queues,
                wire,
                claims: Atomic::new(0),
                bundle <- Bundle::new(),
                rails <- new_spinlock!(rails, "tbrdma_peer_rails"),
                life <- new_spinlock!(life, "tbrdma_peer_life"),
                delivery <- new_work!("tbrdma_loopback"),
                events <- new_work!("tbrdma_peer_events"),
            }),
            GFP_KERNEL,
        )
    }

    /// Number of the peer; 0 is the loopback peer. Not used again while the module is loaded.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// MAC address of its `tbrdma0`.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.identity.mac
    }

    /// It is lost for good.
    pub(super) fn is_down(&self) -> bool {
        self.life.lock().stage == Stage::Down
    }

    /// Who it is.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Which boot of the host it is.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// How many rails it has.
    pub(super) fn rails(&self) -> usize {
        self.rails.lock().len()
    }

    /// It is this host.
    pub(crate) fn is_loopback(&self) -> bool {
        self.wire.is_some()
    }

    /// It can be sent to.
    pub(crate) fn is_up(&self) -> bool {
        self.life.lock().stage == Stage::Up
    }

    /// Payload bytes of a frame without extension. An extension takes its own length from it.
    pub(crate) fn mtu_payload(&self) -> usize {
        match self.wire {
            Some(_) => loopback::ROOM,
            None => FRAME_MAX - HEADER_LEN,
        }
    }

    /// Sends one frame: `fill` writes exactly `payload_len` bytes. Rail fields of `hdr` are
    /// stamped here. All frames keep their order, whatever rail they take; `rail_hint` chooses the
    /// one that is taken if little is to be sent.
    /// Does not sleep: may be called with a QP spinlock held, in process context.
    pub(crate) fn send(
        self: &Arc<Self>,
        rail_hint: u32,
        hdr: Header,
        ext: &[u8],
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<(), TxError> {
        if let Some(wire) = &self.wire {
            if wire.send(hdr, ext, payload_len, fill)? {
                self.queue_delivery();
            }
            return Ok(());
        }
        let (rail, buf) = self.claim_buf(rail_hint)?;
        rail.send(buf, hdr, ext, payload_len, fill)
    }

    /// The rail to send on, with a buffer of it.
    fn claim_buf(&self, hint: u32) -> Result<(Arc<Rail>, KBox<TxBuf>), TxError> {
        let first = self.choose(hint).ok_or(TxError::Down)?;
        match first.take_buf() {
            Ok(buf) => return Ok((first, buf)),
            Err(Refusal::Span) => return Err(TxError::Full),
            Err(Refusal::Rail) => {}
        }
        for at in 0.. {
            let Some(rail) = self.rail(at) else { break };
            if Arc::ptr_eq(&rail, &first) {
                continue;
            }
            match rail.take_buf() {
                Ok(buf) => return Ok((rail, buf)),
                Err(Refusal::Span) => break,
                Err(Refusal::Rail) => {}
            }
        }
        Err(TxError::Full)
    }

    fn choose(&self, hint: u32) -> Option<Arc<Rail>> {
        let rails = self.rails.lock();
        let home = rails.get((hint as usize).checked_rem(rails.len())?)?;
        if rails.len() == 1 || home.load() < FEW {
            return Some(home.clone());
        }
        rails.iter().min_by_key(|rail| rail.load()).cloned()
    }

    fn rail(&self, at: usize) -> Option<Arc<Rail>> {
        self.rails.lock().get(at).cloned()
    }

    /// Calls `f` for every rail; those that come or go meanwhile may be missed.
    fn for_each_rail(&self, mut f: impl FnMut(&Arc<Rail>)) {
        for at in 0.. {
            let Some(rail) = self.rail(at) else { return };
            f(&rail);
        }
    }

    /// What its rails have in common.
    pub(super) fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Has rails that owe acknowledgements give them, if others may have to wait for them.
    pub(super) fn hasten_acks(&self) {
        if self.rails() > 1 {
            self.for_each_rail(Rail::hasten_ack);
        }
    }

    /// A link makes a rail to this peer; followed by [`Self::release`]. Sleeps.
    pub(super) fn claim(&self) -> Result {
        if self.claims.load(Relaxed) > 0 {
            self.bundle.expect_more_rails()?;
        }
        self.claims.fetch_add(1, Relaxed);
        Ok(())
    }

    /// A link gives up its claim. Returns whether it was the last.
    pub(super) fn release(&self) -> bool {
        self.claims.fetch_sub(1, Relaxed) == 1
    }

    /// Looks for frames in the caller's context. Returns whether some were handed up. Sleeps,
    /// briefly.
    pub(super) fn poll(self: &Arc<Self>) -> bool {
        if let Some(wire) = &self.wire {
            return wire.deliver_now(self);
        }
        let mut found = false;
        self.for_each_rail(|rail| found |= rail.poll());
        found
    }

    /// Of the loopback peer: see [`Links::attend`](super::Links::attend).
    pub(super) fn attend(self: &Arc<Self>, send: impl FnOnce()) {
        let Some(wire) = &self.wire else {
            return send();
        };
        if wire.attend(self, send) {
            self.queue_delivery();
        }
    }

    /// Sends a packet of the network device, best effort.
    pub(crate) fn send_packet(
        self: &Arc<Self>,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<(), TxError> {
        let header = Header {
            opcode: Opcode::Netdev,
            ..Header::default()
        };
        self.send(0, header, &[], len, fill)
    }

    pub(super) fn upcalls(&self) -> &dyn Upcalls {
        &*self.upcalls
    }

    /// Adds a rail that is ready. The first one makes the peer be up.
    pub(super) fn add_rail(self: &Arc<Self>, rail: Arc<Rail>) -> Result {
        {
            // The order of locks is life, then rails: a peer that is down gets no rails.
            let mut life = self.life.lock();
            if life.stage == Stage::Down {
                return Err(ENODEV);
            }
            let mut rails = self.rails.lock();
            if rails.len() == MAX_RAILS {
                return Err(ENOSPC);
            }
            for other in rails.iter() {
                other.share();
            }
            rail.join(rails.is_empty());
            if life.told == Stage::Up {
                rail.open();
            }
            // There is room, as was asked above.
            rails.push_within_capacity(rail).map_err(|_| ENOSPC)?;
            life.stage = Stage::Up;
        }
        self.queue_events();
        Ok(())
    }

    /// Takes a rail out, so that nobody sends on it. Returns whether it was the last one: then
    /// the peer is down for good, once [`Self::queue_events`] was called.
    pub(super) fn remove_rail(&self, rail: &Arc<Rail>) -> bool {
        let mut life = self.life.lock();
        let mut rails = self.rails.lock();
        let at = rails.iter().position(|r| Arc::ptr_eq(r, rail));
        let Some(removed) = at.and_then(|at| rails.remove(at).ok()) else {
            return false;
        };
        let last = rails.is_empty();
        if last {
            life.stage = Stage::Down;
        }
        drop(rails);
        drop(life);
        drop(removed);
        last
    }

    /// Has the layer above told what it does not know yet. To be called after the last rail has
    /// been stopped, so that nothing is delivered after `peer_down`.
    pub(super) fn queue_events(self: &Arc<Self>) {
        // Already queued is as good.
        let _ = self
            .queues
            .control
            .queue()
            .enqueue::<_, EVENTS>(self.clone());
    }

    /// Every rail of this peer, to be told that the host is not the same any more.
    pub(super) fn declare_dead(&self) {
        self.for_each_rail(|rail| rail.declare_dead());
    }

    /// Has the rails send what others have left behind.
    pub(super) fn take_over(&self) {
        self.for_each_rail(|rail| rail.ask());
    }

    /// No frame is taken or delivered by the loopback wire from now on.
    pub(super) fn close(&self) {
        if let Some(wire) = &self.wire {
            self.life.lock().stage = Stage::Down;
            wire.close();
        }
    }

    fn queue_delivery(self: &Arc<Self>) {
        // Already queued is as good.
        let _ = self
            .queues
            .data
            .queue()
            .enqueue::<_, DELIVERY>(self.clone());
    }
}
