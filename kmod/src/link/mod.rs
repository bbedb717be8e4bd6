// SPDX-License-Identifier: GPL-2.0-only
//! Peers, links and rails: everything between the verbs and the Thunderbolt rings.
//!
//! - [`Peer`]: a remote host, known by the host identity that it gives in HELLO, or the loopback
//!   peer, which is this host itself.
//! - link: one cable (one XDomain service) to a peer.
//! - rail: one DMA path of a link, a TX ring and an RX ring, with `proto::rail` making it
//!   reliable: frames arrive exactly once and in order, per rail.
//! - bundle: what the rails to one peer have in common, with `proto::bundle` putting the frames of
//!   all of them in order.
//!
//! # Locks
//!
//! Outermost first; a lock may be taken while holding those before it, never the other way:
//!
//! 1. the Thunderbolt core's own locks (device lock, `tb->lock`, `xdomain_lock`), which its
//!    callbacks may hold
//! 2. link state (mutex): HELLO and the resources of one link; never held across an upcall
//! 3. `Shared::hosts` (mutex): which peers exist; the pump's target and ring, and then the order of
//!    the peer's bundle (mutexes)
//! 4. QP lock of the verbs (spinlock)
//! 5. the peer table, then a peer's life, then its set of rails; the list of links (spinlocks)
//! 6. rail lock, loopback queue (spinlocks)
//! 7. what the bundle sends (spinlock)
//! 8. the ring's own lock inside the Thunderbolt core (irq-safe)
//!
//! Upcalls are made from work items, or from a program that polls or posts ([`Links::poll`],
//! [`Links::attend`]), with no lock of this module held but the mutexes of the ring and the bundle,
//! or of the loopback wire, which keep frames in order. All of it runs in process context, except the ring's interrupt callback, which does nothing but queue work.

mod bundle;
pub(crate) mod counters;
mod fifo;
mod frames;
mod loopback;

mod link;
mod peer;
mod pump;
mod rail;
mod rings;
mod table;

pub(crate) use peer::{Identity, Peer, TxError};
pub(crate) use table::PeerTable;

use crate::net::{Net, NetHandle};
use crate::print::log_warn;
use crate::proto::bundle::{Epoch, Verdict};
use crate::proto::frame::Header;
use crate::thunderbolt::debugfs::{Report, StateFile, Writer};
use crate::thunderbolt::os::{self, Workqueue};
use crate::thunderbolt::property::Announcement;
use crate::thunderbolt::protocol::{self, Handler};
use crate::thunderbolt::service::{self, Registration};
use crate::thunderbolt::xdomain::XDomain;
use core::fmt::Write;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};
use link::{Hex, Link};
use loopback::Loopback;
use rail::Rail;

/// How long a program that finds no completion is kept looking for frames, microseconds: about
/// what a frame takes there and back, and short enough for one that has other things to do.
const LOOK_US: u64 = 50;

/// Cables at most that are used.
const MAX_LINKS: usize = 32;

/// Speed that the port claims for `loopback=1` without any link: two lanes of USB4 Gen 3.
const NOMINAL: PortState = PortState {
    active: true,
    lane_gbps: 20,
    lanes: 2,
};

impl PortState {
    const DOWN: Self = Self {
        active: false,
        lane_gbps: 0,
        lanes: 0,
    };
}

/// What the layer above is told. All calls come in process context, from work items or from
/// programs that look for frames, without any lock held but the mutexes of those who deliver.
pub(crate) trait Upcalls: Send + Sync {
    /// A frame arrived. Frames of one peer come in the order of sending and exactly once. `NETDEV` frames are not passed on.
    fn deliver(&self, peer: &Arc<Peer>, hdr: &Header, ext: &[u8], payload: &[u8]);
    /// End of a batch of deliveries: coalesced acknowledgements are due now.
    fn batch_end(&self, peer: &Arc<Peer>);
    /// There is room again after a [`TxError::Full`].
    fn tx_ready(&self, peer: &Arc<Peer>);
    /// The peer can be sent to.
    fn peer_up(&self, peer: &Arc<Peer>);
    /// The peer is lost. No frame of its life so far is delivered after this call returned.
    fn peer_down(&self, peer: &Arc<Peer>);
    /// [`Links::port`] gives another answer than before.
    fn port_changed(&self);
}

/// State of the HCA's one port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortState {
    /// At least one peer is up, or `loopback=1`.
    pub(crate) active: bool,
    /// Gb/s of one lane of the fastest link.
    pub(crate) lane_gbps: u32,
    /// Lanes of all links that are up, together.
    pub(crate) lanes: u32,
}

/// The workqueues of the link layer.
#[derive(Clone)]
struct Queues {
    /// Frames: delivery, polling, timers. Nothing there sleeps for long.
    data: Arc<Workqueue>,
    /// Everything that waits for other machines or for the Thunderbolt core.
    control: Arc<Workqueue>,
}

/// What all links share.
#[pin_data]
struct Shared {
    upcalls: Arc<dyn Upcalls>,
    identity: Identity,
    /// Tells this load of the module from others.
    incarnation: u64,
    queues: Queues,
    table: Arc<PeerTable>,
    net: Arc<Net>,
    next_id: Atomic<u32>,
    #[pin]
    links: SpinLock<KVec<Arc<Link>>>,
    /// Serializes the coming and going of peers.
    #[pin]
    hosts: Mutex<KVec<Arc<Peer>>>,
    #[pin]
    told_port: SpinLock<PortState>,
    retired: counters::Retired,
    /// What was told of the counters: they never go back, although a rail that goes is counted
    /// nowhere for a moment.
    #[pin]
    told_counts: SpinLock<counters::Counts>,
    #[pin]
    port_work: Work<Shared>,
}

impl_has_work! {
    impl HasWork<Self> for Shared { self.port_work }
}

/// What is registered with the Thunderbolt core; dropped in this order.
struct Registered {
    _announcement: Announcement,
    _driver: Registration<Shared>,
    _handler: Pin<KBox<Handler<Shared>>>,
}

/// All peers of this host, and its network device.
#[pin_data]
pub(crate) struct Links {
    _state_file: StateFile<Shared>,
    shared: Arc<Shared>,
    loopback: Arc<Peer>,
    #[pin]
    registered: Mutex<Option<Registered>>,
    /// Last, so that everything that uses it is gone before it.
    net: NetHandle,
}

impl Links {
    /// Finds out who this host is, makes the loopback peer and registers the network device.
    pub(crate) fn new(upcalls: Arc<dyn Upcalls>) -> Result<Arc<Self>> {
        let identity = Identity::of_this_host()?;
        let queues = Queues {
            data: Arc::new(Workqueue::new(c"tbrdma", true)?, GFP_KERNEL)?,
            control: Arc::new(Workqueue::new(c"tbrdma_control", false)?, GFP_KERNEL)?,
        };
        let wire = Arc::pin_init(Loopback::new()?, GFP_KERNEL)?;
        let loopback = Peer::loopback(&identity, wire, upcalls.clone(), queues.clone())?;
        let table = PeerTable::new()?;
        table.add(loopback.clone())?;
        let net = NetHandle::new(&identity.mac, table.clone(), queues.data.clone())?;
        let links = KVec::with_capacity(MAX_LINKS, GFP_KERNEL)?;
        let hosts = KVec::with_capacity(MAX_LINKS, GFP_KERNEL)?;
        let device = net.net().clone();
        let shared = Arc::pin_init(
            pin_init!(Shared {
                upcalls,
                identity,
                incarnation: os::random_u64().max(1),
                queues,
                table,
                net: device,
                next_id: Atomic::new(1),
                links <- new_spinlock!(links, "tbrdma_links"),
                hosts <- new_mutex!(hosts, "tbrdma_hosts"),
                told_port <- new_spinlock!(PortState::DOWN, "tbrdma_port"),
                retired: counters::Retired::new(),
                told_counts <- new_spinlock!([0; counters::COUNT], "tbrdma_counts"),
                port_work <- new_work!("tbrdma_port"),
            }),
            GFP_KERNEL,
        )?;
        shared.queue_port();
        Arc::pin_init(
            pin_init!(Self {
                _state_file: StateFile::new(shared.clone()),
                shared,
                loopback,
                registered <- new_mutex!(None, "tbrdma_registered"),
                net,
            }),
            GFP_KERNEL,
        )
    }

    /// Announces the service on all cables and starts to look for peers.
    pub(crate) fn start(&self) -> Result {
        let handler = Handler::new(self.shared.clone())?;
        let driver = Registration::new(self.shared.clone())?;
        let announcement = Announcement::new()?;
        *self.registered.lock() = Some(Registered {
            _announcement: announcement,
            _driver: driver,
            _handler: handler,
        });
        Ok(())
    }

    /// Takes everything down; bounded time. After it returned no upcall runs any more. The
    /// network device stays until the value is dropped.
    pub(crate) fn stop(&self) {
        let registered = self.registered.lock().take();
        drop(registered);
        self.loopback.close();
        // Events queue nothing more, frames are not delivered any more.
        self.shared.queues.control.flush();
        self.shared.queues.data.flush();
    }

    /// The peer with this MAC address; our own gives the loopback peer.
    pub(crate) fn peer_by_mac(&self, mac: &[u8; 6]) -> Option<Arc<Peer>> {
        self.shared.table.by_mac(mac)
    }

    /// Who this host is.
    pub(crate) fn identity(&self) -> Identity {
        self.shared.identity
    }

    /// State and speed of the port.
    pub(crate) fn port(&self) -> PortState {
        self.shared.port()
    }

    /// Looks for frames of all peers in the caller's context, so that somebody who waits for one
    /// need not wait for an interrupt and a work item. Returns when some were handed up, when `done`
    /// says so, when the processor is wanted elsewhere, or after [`LOOK_US`]. Sleeps, briefly.
    pub(crate) fn poll(&self, done: impl Fn() -> bool) {
        let end = os::now_us() + LOOK_US;
        loop {
            let mut found = false;
            for at in 0.. {
                let Some(peer) = self.shared.table.get(at) else {
                    break;
                };
                found |= peer.poll();
            }
            if found || done() || os::now_us() >= end || os::wanted_elsewhere() {
                return;
            }
            core::hint::spin_loop();
        }
    }

    /// Calls `send`, which may send to QPs of this host, and delivers what was sent in the caller's
    /// context if it is little. Process context; sleeps, briefly.
    pub(crate) fn attend(&self, send: impl FnOnce()) {
        self.loopback.attend(send);
    }

    /// What all rails have counted.
    pub(crate) fn counts(&self) -> counters::Counts {
        self.shared.counts()
    }

    /// The network device, for `ib_device_set_netdev`: valid until this value is dropped, before
    /// which the RDMA device has to be unregistered, since it holds the network device.
    pub(crate) fn netdev(&self) -> *mut crate::sys::net_device {
        self.net.net().as_ptr()
    }
}

impl Shared {
    fn port(&self) -> PortState {
        let mut port = PortState::DOWN;
        for link in self.links.lock().iter() {
            let Some(speed) = link.speed() else { continue };
            port.active = true;
            port.lane_gbps = port.lane_gbps.max(speed.lane_gbps);
            port.lanes += speed.lanes;
        }
        if !port.active && crate::params::loopback() {
            return NOMINAL;
        }
        port
    }

    fn counts(&self) -> counters::Counts {
        let mut counts = self.retired.counts();
        for at in 0.. {
            let Some(link) = self.links.lock().get(at).cloned() else {
                break;
            };
            if let Some(own) = link.counts() {
                counters::add(&mut counts, &own);
            }
        }
        for peer in self.hosts.lock().iter() {
            counters::add(&mut counts, &counters::of_bundle(&peer.bundle().stats()));
        }
        let mut told = self.told_counts.lock();
        for (told, now) in told.iter_mut().zip(counts) {
            *told = now.max(*told);
        }
        *told
    }

    /// Has everybody concerned told if the port has changed.
    fn queue_port(self: &Arc<Self>) {
        // Already queued is as good.
        let _ = self.queues.control.queue().enqueue::<_, 0>(self.clone());
    }

    /// A rail to `identity` is to be made: finds or makes the peer, which lasts until
    /// [`Self::release`]. `EAGAIN`: the host has restarted and its old links are on their way out.
    fn claim(&self, identity: &Identity, incarnation: u64) -> Result<Arc<Peer>> {
        let mut hosts = self.hosts.lock();
        let known = hosts.iter().find(|peer| peer.identity() == identity);
        let peer = match known {
            Some(peer) if peer.incarnation() == incarnation => peer.clone(),
            Some(old) => {
                // It has restarted and we have not noticed: its old rails are of no use. Their
                // links try again, and find the old peer gone then.
                old.declare_dead();
                return Err(EAGAIN);
            }
            None => {
                // Nobody may pass for this host, nor for another one that is here already.
                let taken = |peer: &Arc<Peer>| peer.mac() == identity.mac;
                if self.identity.mac == identity.mac || hosts.iter().any(taken) {
                    return Err(EEXIST);
                }
                let id = self.next_id.fetch_add(1, Relaxed);
                let peer = Peer::remote(
                    id,
                    identity,
                    incarnation,
                    self.upcalls.clone(),
                    self.queues.clone(),
                )?;
                hosts.push(peer.clone(), GFP_KERNEL)?;
                peer
            }
        };
        peer.claim()?;
        Ok(peer)
    }

    /// Gives back what [`Self::claim`] gave, after the rail has been stopped.
    fn release(&self, peer: &Arc<Peer>) {
        let mut hosts = self.hosts.lock();
        if peer.release() {
            hosts.retain(|p| !Arc::ptr_eq(p, peer));
            self.retired.take_bundle(peer.bundle());
        }
    }

    /// A rail to `peer` has been proven, and `theirs` is what the other end says of the bundle:
    /// opens it for frames. `EAGAIN`: one of the ends has begun anew, and the other one has to.
    fn connect(&self, peer: &Arc<Peer>, theirs: &Epoch, rail: &Arc<Rail>) -> Result {
        // Held, so that no two rails begin the bundle with different ends.
        let _hosts = self.hosts.lock();
        let bundle = peer.bundle();
        match bundle.epoch().judge(theirs) {
            Verdict::Join => {}
            Verdict::Wait => return Err(EAGAIN),
            Verdict::Over => {
                peer.declare_dead();
                return Err(EAGAIN);
            }
        }
        if peer.rails() == 0 {
            if peer.is_down() {
                return Err(EAGAIN);
            }
            self.table.add(peer.clone())?;
        }
        bundle.begin(theirs.mine);
        if let Err(e) = peer.add_rail(rail.clone()) {
            if peer.rails() == 0 {
                self.table.remove(peer);
            }
            return Err(e);
        }
        Ok(())
    }

    /// Takes `rail` from its peer, so that nobody sends on it; to be followed by stopping it and
    /// [`Self::disconnected`]. Returns whether it was the last one.
    fn disconnect(&self, peer: &Arc<Peer>, rail: &Arc<Rail>) -> bool {
        let mut hosts = self.hosts.lock();
        let last = peer.remove_rail(rail);
        if last {
            hosts.retain(|p| !Arc::ptr_eq(p, peer));
            self.table.remove(peer);
        }
        last
    }

    /// The rail of `peer` that was taken from it has been stopped.
    fn disconnected(&self, peer: &Arc<Peer>) {
        peer.take_over();
        peer.queue_events();
        Net::kick(&self.net);
    }

    fn remove_link(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        let at = links.iter().position(|l| Arc::ptr_eq(l, link));
        let removed = at.and_then(|at| links.remove(at).ok());
        drop(links);
        drop(removed);
    }
}

impl WorkItem for Shared {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let port = this.port();
        let told = core::mem::replace(&mut *this.told_port.lock(), port);
        if told == port {
            return;
        }
        let mbps = port.lane_gbps * port.lanes * 1000;
        this.net.set_link(port.active, mbps);
        this.upcalls.port_changed();
    }
}

impl Report for Shared {
    fn report(&self, out: &mut Writer) -> core::fmt::Result {
        let port = self.port();
        writeln!(
            out,
            "host uuid={} mac={}",
            Hex(&self.identity.uuid),
            Mac(&self.identity.mac)
        )?;
        writeln!(
            out,
            "port active={} lanes={} lane_gbps={}",
            u8::from(port.active),
            port.lanes,
            port.lane_gbps
        )?;
        for peer in self.hosts.lock().iter() {
            let identity = peer.identity();
            let stats = peer.bundle().stats();
            writeln!(
                out,
                "peer id={} uuid={} mac={} up={} rails={} held={} duplicates={} beyond={} \
                 moved={} stalls={}",
                peer.id(),
                Hex(&identity.uuid),
                Mac(&identity.mac),
                u8::from(peer.is_up()),
                peer.rails(),
                stats.held,
                stats.duplicates,
                stats.beyond,
                stats.orphans,
                stats.stalls,
            )?;
        }
        for at in 0.. {
            let Some(link) = self.links.lock().get(at).cloned() else {
                break;
            };
            link.report(out)?;
        }
        Ok(())
    }
}

/// A MAC address in text form.
struct Mac<'a>(&'a [u8; 6]);

impl core::fmt::Display for Mac<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl service::Driver for Shared {
    type Link = Link;

    fn probe(self: &Arc<Self>, xd: XDomain) -> Result<Arc<Link>> {
        let id = self.next_id.fetch_add(1, Relaxed);
        let link = Link::new(id, self.clone(), xd)?;
        let refused = self.links.lock().push_within_capacity(link.clone());
        if refused.is_err() {
            log_warn!("more than {} cables: this one is not used", MAX_LINKS);
            return Err(ENOSPC);
        }
        link.begin();
        Ok(link)
    }

    fn remove(self: &Arc<Self>, link: Arc<Link>) {
        link.end();
        self.remove_link(&link);
    }

    fn suspend(&self, link: &Arc<Link>) {
        link.end();
    }

    fn resume(&self, link: &Arc<Link>) {
        link.begin();
    }
}

impl protocol::Receiver for Shared {
    fn message(&self, route: u64, body: &[u8]) -> bool {
        // Two domains may use the same route, so every link with it is asked.
        for at in 0.. {
            let Some(link) = self.links.lock().get(at).cloned() else {
                return false;
            };
            if link.route() == route && link.message(body) {
                return true;
            }
        }
        false
    }
}
