// SPDX-License-Identifier: GPL-2.0-only
//! Peers, links and rails: everything between the verbs and the Thunderbolt rings.
//!
//! - [`Peer`]: a remote host, known by the host identity that it gives in HELLO, or the loopback
//!   peer, which is this host itself.
//! - link: one cable (one XDomain service) to a peer.
//! - rail: one DMA path of a link, a TX ring and an RX ring, with `proto::rail` making it
//!   reliable: frames arrive exactly once and in order, per rail.
//!
//! # Locks
//!
//! Outermost first; a lock may be taken while holding those before it, never the other way:
//!
//! 1. the Thunderbolt core's own locks (device lock, `tb->lock`, `xdomain_lock`), which its
//!    callbacks may hold
//! 2. `Links::hosts` (mutex): which links and peers exist
//! 3. link state (mutex, sleeps): HELLO and the resources of one link; never held across an upcall
//! 4. QP lock of the verbs (spinlock)
//! 5. `Links::peers`, a peer's set of rails (spinlocks)
//! 6. rail lock, loopback queue (spinlocks)
//! 7. the ring's own lock inside the Thunderbolt core (irq-safe)
//!
//! Upcalls are made from work items, with no lock of this module held. All of it runs in process
//! context, except the ring's interrupt callback, which does nothing but queue work.

mod loopback;

mod peer;
mod table;

pub(crate) use peer::{Identity, Peer, TxError};
pub(crate) use table::PeerTable;

use crate::net::NetHandle;
use crate::proto::frame::Header;
use crate::thunderbolt::os::Workqueue;
use kernel::prelude::*;
use kernel::sync::Arc;
use loopback::Loopback;

/// Speed that the port claims for `loopback=1` without any link: two lanes of USB4 Gen 3.
const NOMINAL: PortState = PortState {
    active: true,
    lane_gbps: 20,
    lanes: 2,
};

/// What the layer above is told. All calls come from work items, without any lock held.
pub(crate) trait Upcalls: Send + Sync {
    /// A frame arrived. Frames of one rail come in order and exactly once; rails are independent.
    /// `NETDEV` frames are not passed on.
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

/// All peers of this host, and its network device.
pub(crate) struct Links {
    upcalls: Arc<dyn Upcalls>,
    identity: Identity,
    loopback: Arc<Peer>,
    peers: Arc<PeerTable>,
    /// Frames: delivery, polling, timers.
    data_queue: Arc<Workqueue>,
    net: NetHandle,
}

impl Links {
    /// Finds out who this host is, makes the loopback peer and registers the network device.
    pub(crate) fn new(upcalls: Arc<dyn Upcalls>) -> Result<Arc<Self>> {
        let identity = Identity::of_this_host()?;
        let data_queue = Arc::new(Workqueue::new(c"tbrdma", true)?, GFP_KERNEL)?;
        let wire = Arc::pin_init(Loopback::new()?, GFP_KERNEL)?;
        let loopback = Peer::loopback(&identity, wire, upcalls.clone(), data_queue.clone())?;
        let peers = PeerTable::new()?;
        peers.add(loopback.clone())?;
        let net = NetHandle::new(&identity.mac, peers.clone(), data_queue.clone())?;
        let this = Arc::new(
            Self {
                upcalls,
                identity,
                loopback,
                peers,
                data_queue,
                net,
            },
            GFP_KERNEL,
        )?;
        this.update_net();
        Ok(this)
    }

    /// Announces the service on all cables and starts to look for peers.
    pub(crate) fn start(&self) -> Result {
        Ok(())
    }

    /// Takes everything down; bounded time. After it returned no upcall runs any more. The
    /// network device stays until the value is dropped.
    pub(crate) fn stop(&self) {
        self.loopback.close();
        self.data_queue.flush();
    }

    /// The peer with this MAC address; our own gives the loopback peer.
    pub(crate) fn peer_by_mac(&self, mac: &[u8; 6]) -> Option<Arc<Peer>> {
        self.peers.by_mac(mac)
    }

    /// Who this host is.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// State and speed of the port.
    pub(crate) fn port(&self) -> PortState {
        if crate::params::loopback() {
            return NOMINAL;
        }
        PortState {
            active: false,
            lane_gbps: 0,
            lanes: 0,
        }
    }

    /// The network device, for `ib_device_set_netdev`: valid until this value is dropped, before
    /// which the RDMA device has to be unregistered, since it holds the network device.
    pub(crate) fn netdev(&self) -> *mut crate::sys::net_device {
        self.net.net().as_ptr()
    }

    fn update_net(&self) {
        let port = self.port();
        let mbps = port.lane_gbps * port.lanes * 1000;
        self.net.net().set_link(port.active, mbps);
    }
}
