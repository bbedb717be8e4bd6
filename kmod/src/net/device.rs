// SPDX-License-Identifier: GPL-2.0-only
//! Safe wrappers over `net_device` and `sk_buff`, as far as a frame forwarder needs them.

use crate::sys;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::ffi::{c_int, c_uint};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Arc;
use kernel::types::Opaque;

/// Packet counters.
pub(crate) struct Stats {
    pub(crate) rx_packets: Atomic<u64>,
    pub(crate) rx_bytes: Atomic<u64>,
    pub(crate) rx_dropped: Atomic<u64>,
    pub(crate) rx_errors: Atomic<u64>,
    pub(crate) tx_packets: Atomic<u64>,
    pub(crate) tx_bytes: Atomic<u64>,
    pub(crate) tx_dropped: Atomic<u64>,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            rx_packets: Atomic::new(0),
            rx_bytes: Atomic::new(0),
            rx_dropped: Atomic::new(0),
            rx_errors: Atomic::new(0),
            tx_packets: Atomic::new(0),
            tx_bytes: Atomic::new(0),
            tx_dropped: Atomic::new(0),
        }
    }
}

/// What a network device does; one implementation per device.
pub(crate) trait Port: Send + Sync + 'static {
    /// Takes a packet of the network stack. Softirq or process context, bottom halves off: queue
    /// it and return.
    fn transmit(this: &Arc<Self>, skb: Skb);
    /// The counters.
    fn stats(&self) -> &Stats;
    /// Speed for ethtool, Mb/s; 0 if unknown.
    fn speed(&self) -> u32;
}

/// A packet.
///
/// # Invariants
///
/// `ptr` is a socket buffer that this value owns.
pub(crate) struct Skb {
    ptr: NonNull<sys::sk_buff>,
}

// SAFETY: a socket buffer has no thread affinity.
unsafe impl Send for Skb {}

impl Skb {
    /// Bytes of the Ethernet frame, header included, FCS excluded.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_skb_len(self.ptr.as_ptr()) as usize }
    }

    /// Copies the first `to.len()` bytes.
    pub(crate) fn copy_to(&self, to: &mut [u8]) -> Result {
        let len = c_int::try_from(to.len()).map_err(|_| EMSGSIZE)?;
        // SAFETY: valid by the invariant; the function checks that the packet is long enough.
        to_result(unsafe { sys::skb_copy_bits(self.ptr.as_ptr(), 0, to.as_mut_ptr().cast(), len) })
    }

    /// Frees it as sent, not as dropped.
    pub(crate) fn consume(self) {
        // SAFETY: ours by the invariant, and forgotten below.
        unsafe { sys::consume_skb(self.ptr.as_ptr()) };
        core::mem::forget(self);
    }

    fn into_raw(self) -> *mut sys::sk_buff {
        let ptr = self.ptr.as_ptr();
        core::mem::forget(self);
        ptr
    }
}

impl Drop for Skb {
    fn drop(&mut self) {
        // SAFETY: ours by the invariant.
        unsafe { sys::tbrdma_skb_drop(self.ptr.as_ptr()) };
    }
}

/// A queue of packets, with a lock of its own that works in every context.
#[pin_data(PinnedDrop)]
pub(crate) struct SkbQueue {
    #[pin]
    head: Opaque<sys::sk_buff_head>,
}

// SAFETY: the C functions lock the queue.
unsafe impl Send for SkbQueue {}
// SAFETY: as above.
unsafe impl Sync for SkbQueue {}

impl SkbQueue {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: initialises the place in which the queue then stays.
            head <- Opaque::ffi_init(|slot| unsafe { sys::tbrdma_skb_queue_init(slot) }),
        })
    }

    pub(crate) fn len(&self) -> usize {
        // SAFETY: initialised in `new`.
        unsafe { sys::tbrdma_skb_queue_len(self.head.get()) as usize }
    }

    pub(crate) fn push_back(&self, skb: Skb) {
        // SAFETY: initialised; the packet is ours to give away.
        unsafe { sys::skb_queue_tail(self.head.get(), skb.into_raw()) };
    }

    pub(crate) fn push_front(&self, skb: Skb) {
        // SAFETY: as above.
        unsafe { sys::skb_queue_head(self.head.get(), skb.into_raw()) };
    }

    pub(crate) fn pop(&self) -> Option<Skb> {
        // SAFETY: initialised; what is taken out of the queue is ours.
        let ptr = unsafe { sys::skb_dequeue(self.head.get()) };
        // INVARIANT: as above.
        Some(Skb {
            ptr: NonNull::new(ptr)?,
        })
    }
}

#[pinned_drop]
impl PinnedDrop for SkbQueue {
    fn drop(self: Pin<&mut Self>) {
        while let Some(skb) = self.pop() {
            drop(skb);
        }
    }
}

/// An Ethernet-like network device.
///
/// # Invariants
///
/// `dev` is allocated and not yet freed; registered while `registered` is set.
pub(crate) struct NetDevice {
    dev: NonNull<sys::net_device>,
    registered: Atomic<u32>,
}

// SAFETY: the functions called here may be called from any thread.
unsafe impl Send for NetDevice {}
// SAFETY: as above.
unsafe impl Sync for NetDevice {}

impl NetDevice {
    /// Allocates a device that has no owner yet.
    fn alloc<P: Port>(mac: &[u8; 6], mtu: u32) -> Result<Self> {
        // SAFETY: the operations are static; they are not used before `Registered::new` has set
        // an owner of type `P`. The MAC address is copied.
        let dev = unsafe {
            sys::tbrdma_net_alloc(
                &Ops::<P>::NETDEV,
                &Ops::<P>::ETHTOOL,
                mac.as_ptr(),
                mtu as c_uint,
            )
        };
        // INVARIANT: a non-null return is a new device.
        Ok(Self {
            dev: NonNull::new(dev).ok_or(ENOMEM)?,
            registered: Atomic::new(0),
        })
    }

    /// The C device, for `ib_device_set_netdev`. Valid until [`Registered`] is dropped.
    pub(crate) fn as_ptr(&self) -> *mut sys::net_device {
        self.dev.as_ptr()
    }

    /// Says whether anybody can be reached.
    pub(crate) fn set_carrier(&self, on: bool) {
        // SAFETY: valid by the invariant.
        unsafe {
            if on {
                sys::netif_carrier_on(self.dev.as_ptr());
            } else {
                sys::netif_carrier_off(self.dev.as_ptr());
            }
        }
    }

    /// The network stack keeps its packets until [`Self::wake_queue`].
    pub(crate) fn stop_queue(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_net_stop_queue(self.dev.as_ptr()) };
    }

    pub(crate) fn wake_queue(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_net_wake_queue(self.dev.as_ptr()) };
    }

    /// Hands an Ethernet frame to the network stack, which may refuse it. Process context.
    pub(crate) fn receive(&self, frame: &[u8]) -> Result {
        // SAFETY: valid by the invariant.
        if !unsafe { sys::tbrdma_net_running(self.dev.as_ptr()) } {
            return Err(ENODEV);
        }
        let len = c_uint::try_from(frame.len()).map_err(|_| EMSGSIZE)?;
        // SAFETY: as above; the bytes are copied.
        to_result(unsafe { sys::tbrdma_net_receive(self.dev.as_ptr(), frame.as_ptr().cast(), len) })
    }
}

impl Drop for NetDevice {
    fn drop(&mut self) {
        // SAFETY: allocated and not registered: `Registered` keeps its owner, and so this, alive.
        unsafe { sys::free_netdev(self.dev.as_ptr()) };
    }
}

/// Something that has a network device.
pub(crate) trait HasDevice: Port {
    fn device(&self) -> &NetDevice;
}

/// A port whose device is registered. Dropping it unregisters the device, which waits for
/// everybody who holds it.
pub(crate) struct Registered<P: HasDevice> {
    port: Arc<P>,
}

impl<P: HasDevice> Registered<P> {
    /// Makes a port around a new device with `init`, registers the device and sets it up.
    pub(crate) fn new<I: PinInit<P, Error>>(
        mac: &[u8; 6],
        mtu: u32,
        init: impl FnOnce(NetDevice) -> I,
    ) -> Result<Self> {
        let device = NetDevice::alloc::<P>(mac, mtu)?;
        let dev = device.as_ptr();
        let port = Arc::pin_init(init(device), GFP_KERNEL)?;
        // SAFETY: the device exists as long as the port; nobody knows it yet. The callbacks only
        // look at the owner, which lives until the device is unregistered (`drop`).
        let ret = unsafe {
            sys::tbrdma_net_set_owner(dev, Arc::as_ptr(&port).cast_mut().cast());
            sys::register_netdev(dev)
        };
        to_result(ret)?;
        port.device().registered.store(1, Relaxed);
        // SAFETY: registered.
        unsafe { sys::tbrdma_net_up(dev) };
        Ok(Self { port })
    }

    pub(crate) fn port(&self) -> &Arc<P> {
        &self.port
    }
}

impl<P: HasDevice> Drop for Registered<P> {
    fn drop(&mut self) {
        let device = self.port.device();
        if device.registered.xchg(0, Full) != 0 {
            // SAFETY: registered once, unregistered once; no callback runs afterwards.
            unsafe { sys::unregister_netdev(device.as_ptr()) };
        }
    }
}

struct Ops<P: Port>(core::marker::PhantomData<P>);

impl<P: Port> Ops<P> {
    const NETDEV: sys::net_device_ops = sys::net_device_ops {
        ndo_open: Some(Self::open),
        ndo_stop: Some(Self::stop),
        ndo_start_xmit: Some(Self::start_xmit),
        ndo_validate_addr: Some(sys::eth_validate_addr),
        ndo_get_stats64: Some(Self::get_stats64),
        // SAFETY: all other members are optional function pointers, absent when zero.
        ..unsafe { core::mem::zeroed() }
    };

    const ETHTOOL: sys::ethtool_ops = sys::ethtool_ops {
        get_link: Some(sys::ethtool_op_get_link),
        get_link_ksettings: Some(Self::get_link_ksettings),
        // SAFETY: as above.
        ..unsafe { core::mem::zeroed() }
    };

    /// # Safety
    ///
    /// `dev` must be a device made by [`Registered::new`] for this `P`.
    unsafe fn port<'a>(dev: *mut sys::net_device) -> core::mem::ManuallyDrop<Arc<P>> {
        // SAFETY: the owner is the pointer of an `Arc<P>` that lives while callbacks come; we
        // only look at it (`ManuallyDrop`).
        core::mem::ManuallyDrop::new(unsafe { Arc::from_raw(sys::tbrdma_net_owner(dev).cast()) })
    }

    unsafe extern "C" fn open(dev: *mut sys::net_device) -> c_int {
        // SAFETY: called by the core with our device.
        unsafe { sys::tbrdma_net_start_queue(dev) };
        0
    }

    unsafe extern "C" fn stop(dev: *mut sys::net_device) -> c_int {
        // SAFETY: called by the core with our device.
        unsafe { sys::tbrdma_net_stop_queue(dev) };
        0
    }

    unsafe extern "C" fn start_xmit(
        skb: *mut sys::sk_buff,
        dev: *mut sys::net_device,
    ) -> sys::netdev_tx_t {
        if let Some(ptr) = NonNull::new(skb) {
            // SAFETY: our device.
            let port = unsafe { Self::port(dev) };
            // INVARIANT: the core gives the packet away when we answer NETDEV_TX_OK.
            P::transmit(&port, Skb { ptr });
        }
        sys::netdev_tx_NETDEV_TX_OK
    }

    unsafe extern "C" fn get_stats64(dev: *mut sys::net_device, out: *mut sys::rtnl_link_stats64) {
        // SAFETY: our device.
        let port = unsafe { Self::port(dev) };
        let stats = port.stats();
        // SAFETY: the core passes a zeroed structure to be filled.
        let out = unsafe { &mut *out };
        out.rx_packets = stats.rx_packets.load(Relaxed);
        out.rx_bytes = stats.rx_bytes.load(Relaxed);
        out.rx_dropped = stats.rx_dropped.load(Relaxed);
        out.rx_errors = stats.rx_errors.load(Relaxed);
        out.tx_packets = stats.tx_packets.load(Relaxed);
        out.tx_bytes = stats.tx_bytes.load(Relaxed);
        out.tx_dropped = stats.tx_dropped.load(Relaxed);
    }

    unsafe extern "C" fn get_link_ksettings(
        dev: *mut kernel::bindings::net_device,
        out: *mut sys::ethtool_link_ksettings,
    ) -> c_int {
        // SAFETY: our device; the two types are the same C structure.
        let port = unsafe { Self::port(dev.cast()) };
        // SAFETY: the core passes a zeroed structure to be filled.
        let base = unsafe { &mut (*out).base };
        base.speed = match port.speed() {
            0 => u32::MAX, // SPEED_UNKNOWN
            speed => speed,
        };
        base.duplex = 1; // DUPLEX_FULL
        base.port = 0xef; // PORT_NONE
        base.autoneg = 0; // AUTONEG_DISABLE
        0
    }
}
