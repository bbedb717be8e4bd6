// SPDX-License-Identifier: GPL-2.0-only
//! The RoCE network device `tbrdma0`: gives the RDMA device its GIDs and carries IP, ARP and
//! neighbour discovery between peers as datagrams over the same rails.
//!
//! The network stack sends from softirq, rails are used from process context: packets wait in a
//! short queue for a work item.

mod device;

use crate::link::{PeerTable, TxError};
use crate::proto::frame::{FRAME_MAX, HEADER_LEN};
use crate::thunderbolt::os::Workqueue;
use device::{HasDevice, NetDevice, Port, Registered, Skb, SkbQueue, Stats};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Ethernet header.
const ETH_HLEN: usize = 14;

/// MTU, default and largest: a packet is one frame, and 4000 leaves room for longer headers.
pub(crate) const MTU: usize = 4000;
const _: () = assert!(MTU + ETH_HLEN <= FRAME_MAX - HEADER_LEN);

/// Longest Ethernet frame that is sent or taken.
const LONGEST: usize = MTU + ETH_HLEN;

/// Packets that wait at most. The network stack keeps its own queue behind.
const QUEUE_MAX: usize = 256;

/// Packets sent before others get the CPU.
const BATCH: usize = 64;

/// The network device and its way to the peers.
#[pin_data]
pub(crate) struct Net {
    device: NetDevice,
    stats: Stats,
    mbps: Atomic<u32>,
    peers: Arc<PeerTable>,
    data_queue: Arc<Workqueue>,
    #[pin]
    queue: SkbQueue,
    #[pin]
    work: Work<Net>,
}

impl_has_work! {
    impl HasWork<Self> for Net { self.work }
}

/// The registered network device; dropping it unregisters.
pub(crate) struct NetHandle(Registered<Net>);

impl NetHandle {
    /// Registers `tbrdma0` with this address, and sets it up.
    pub(crate) fn new(
        mac: &[u8; 6],
        peers: Arc<PeerTable>,
        data_queue: Arc<Workqueue>,
    ) -> Result<Self> {
        let registered = Registered::new(mac, MTU as u32, |device| {
            try_pin_init!(Net {
                device,
                stats: Stats::new(),
                mbps: Atomic::new(0),
                peers,
                data_queue,
                queue <- SkbQueue::new(),
                work <- new_work!("tbrdma_net"),
            })
        })?;
        Ok(Self(registered))
    }

    /// For those who deliver to it.
    pub(crate) fn net(&self) -> &Arc<Net> {
        self.0.port()
    }
}

impl Net {
    /// The C device; valid while the [`NetHandle`] lives.
    pub(crate) fn as_ptr(&self) -> *mut crate::sys::net_device {
        self.device.as_ptr()
    }

    /// Says whether anybody can be reached, and how fast (Mb/s).
    pub(crate) fn set_link(&self, up: bool, mbps: u32) {
        self.mbps.store(mbps, Relaxed);
        self.device.set_carrier(up);
    }

    /// A packet came from the peer with address `from`. Only packets that say so themselves are
    /// taken: no host can speak for another.
    pub(crate) fn receive(&self, from: &[u8; 6], frame: &[u8]) {
        let honest = frame.get(6..12).is_some_and(|source| source == from);
        if !honest || frame.len() < ETH_HLEN || frame.len() > LONGEST {
            self.stats.rx_errors.fetch_add(1, Relaxed);
            return;
        }
        if self.device.receive(frame).is_err() {
            self.stats.rx_dropped.fetch_add(1, Relaxed);
            return;
        }
        self.stats.rx_packets.fetch_add(1, Relaxed);
        self.stats.rx_bytes.fetch_add(frame.len() as u64, Relaxed);
    }

    /// Sends what waits, in a work item: at first, and when a peer has room again.
    pub(crate) fn kick(this: &Arc<Self>) {
        if this.queue.len() > 0 {
            this.queue_work();
        }
    }

    fn queue_work(self: &Arc<Self>) {
        // Already queued is as good.
        let _ = self.data_queue.queue().enqueue::<_, 0>(self.clone());
    }

    /// Sends one packet; gives it back if the only peer that it is for has no room now.
    fn forward(&self, skb: Skb) -> Result<(), Skb> {
        let len = skb.len();
        let mut to = [0u8; 6];
        if len > LONGEST || skb.copy_to(&mut to).is_err() {
            self.stats.tx_dropped.fetch_add(1, Relaxed);
            return Ok(());
        }
        let group = to[0] & 1 != 0;
        let mut sent = false;
        if group {
            // To everybody; whoever has no room misses it, as on any network.
            self.peers.for_each_up(|peer| {
                sent |= peer.send_packet(len, |page| skb.copy_to(page)).is_ok();
            });
        } else if let Some(peer) = self.peers.by_mac(&to) {
            match peer.send_packet(len, |page| skb.copy_to(page)) {
                Ok(()) => sent = true,
                Err(TxError::Full) => return Err(skb),
                Err(_) => (),
            }
        }
        if sent {
            self.stats.tx_packets.fetch_add(1, Relaxed);
            self.stats.tx_bytes.fetch_add(len as u64, Relaxed);
            skb.consume();
        } else {
            self.stats.tx_dropped.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}

impl WorkItem for Net {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for _ in 0..BATCH {
            let Some(skb) = this.queue.pop() else { break };
            if let Err(skb) = this.forward(skb) {
                // `kick` comes when there is room.
                this.queue.push_front(skb);
                return;
            }
        }
        if this.queue.len() < QUEUE_MAX / 2 {
            this.device.wake_queue();
        }
        Self::kick(&this);
    }
}

impl Port for Net {
    fn transmit(this: &Arc<Self>, skb: Skb) {
        this.queue.push_back(skb);
        if this.queue.len() >= QUEUE_MAX {
            this.device.stop_queue();
        }
        // Always: the work may have emptied the queue just before we stopped it, and only the
        // work starts it again.
        this.queue_work();
    }

    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn speed(&self) -> u32 {
        self.mbps.load(Relaxed)
    }
}

impl HasDevice for Net {
    fn device(&self) -> &NetDevice {
        &self.device
    }
}
