// SPDX-License-Identifier: GPL-2.0-only
//! A host that QPs can be connected to.

use super::loopback::Loopback;
use super::Upcalls;
use crate::proto::frame::{Header, FRAME_MAX, HEADER_LEN};
use crate::thunderbolt::os::Workqueue;
use crate::thunderbolt::routers;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::Arc;
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

/// A remote host, or this one.
#[pin_data]
pub(crate) struct Peer {
    id: u32,
    identity: Identity,
    up: Atomic<u32>,
    upcalls: Arc<dyn Upcalls>,
    data_queue: Arc<Workqueue>,
    wire: Arc<Loopback>,
    #[pin]
    delivery: Work<Peer, DELIVERY>,
}

/// Work: delivers what the loopback queue holds.
const DELIVERY: u64 = 1;

impl_has_work! {
    impl HasWork<Self, 1> for Peer { self.delivery }
}

impl WorkItem<DELIVERY> for Peer {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.wire.deliver_batch(&this) {
            this.queue_delivery();
        }
    }
}

impl Peer {
    /// The peer that is this host.
    pub(super) fn loopback(
        identity: &Identity,
        wire: Arc<Loopback>,
        upcalls: Arc<dyn Upcalls>,
        data_queue: Arc<Workqueue>,
    ) -> Result<Arc<Self>> {
        let identity = *identity;
        Arc::pin_init(
            pin_init!(Self {
                id: 0,
                identity,
                up: Atomic::new(1),
                upcalls,
                data_queue,
                wire,
                delivery <- new_work!("tbrdma_loopback"),
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

    /// It can be sent to.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Acquire) != 0
    }

    /// Payload bytes of a frame without extension. An extension takes its own length from it.
    pub(crate) fn mtu_payload(&self) -> usize {
        FRAME_MAX - HEADER_LEN
    }

    /// Sends one frame: `fill` writes exactly `payload_len` bytes. Rail fields of `hdr` are
    /// stamped here. `rail_hint` chooses among the peer's rails; equal hints keep their order.
    /// Does not sleep: may be called with a QP spinlock held, in process context.
    pub(crate) fn send(
        self: &Arc<Self>,
        _rail_hint: u32,
        hdr: Header,
        ext: &[u8],
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<(), TxError> {
        self.wire.send(hdr, ext, payload_len, fill)?;
        self.queue_delivery();
        Ok(())
    }

    /// It is this host.
    pub(super) fn is_loopback(&self) -> bool {
        self.id == 0
    }

    /// Sends a packet of the network device, best effort.
    pub(crate) fn send_packet(
        self: &Arc<Self>,
        _len: usize,
        _fill: impl FnOnce(&mut [u8]) -> Result,
    ) -> Result<(), TxError> {
        // The network stack never sends to its own address.
        Err(TxError::Down)
    }

    pub(super) fn upcalls(&self) -> &dyn Upcalls {
        &*self.upcalls
    }

    /// No frame is taken or delivered from now on.
    pub(super) fn close(&self) {
        self.up.store(0, Release);
        self.wire.close();
    }

    fn queue_delivery(self: &Arc<Self>) {
        // Already queued is as good.
        let _ = self.data_queue.queue().enqueue::<_, DELIVERY>(self.clone());
    }
}
