// SPDX-License-Identifier: GPL-2.0-only
//! DMA rings in frame mode, and the page buffers that travel through them.
//!
//! A buffer is a boxed page with its DMA mapping and the core's `ring_frame`. The owner of the
//! box may touch the page; while the buffer is in the ring, the hardware owns it. For TX the box
//! stays with its owner, who asks [`TxBuf::in_ring`]; for RX the ring keeps the boxes and lends
//! them out one by one as [`Received`].

use super::os::{PageBuf, BUF_LEN};
use super::xdomain::XDomain;
use crate::sys;
use core::ptr::NonNull;
use kernel::container_of;
use kernel::error::to_result;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::Arc;
use kernel::types::Opaque;

/// A ring of the NHI, freed when dropped.
///
/// # Invariants
///
/// `ptr` is a ring that was allocated and not yet freed.
struct Ring {
    ptr: NonNull<sys::tb_ring>,
    running: Atomic<u32>,
    /// Keeps the domain, and so the NHI, as long as the ring.
    _xd: XDomain,
}

// SAFETY: the core locks the ring in all functions that we call.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn start(&self) {
        // SAFETY: valid by the invariant. Start and stop are not called in parallel: only the
        // owner of the rail's resources calls them, under a mutex.
        unsafe { sys::tb_ring_start(self.ptr.as_ptr()) };
        self.running.store(1, Release);
    }

    /// Stops the ring and waits until the core has let go of all frames.
    fn stop(&self) {
        if self.running.xchg(0, kernel::sync::atomic::Full) != 0 {
            // SAFETY: as in `start`; it is running, and we are not in a frame's callback.
            unsafe { sys::tb_ring_stop(self.ptr.as_ptr()) };
        }
    }

    fn hop(&self) -> c_int {
        // SAFETY: valid by the invariant; set at allocation.
        unsafe { (*self.ptr.as_ptr()).hop }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.stop();
        // SAFETY: valid by the invariant, stopped, and gone afterwards.
        unsafe { sys::tb_ring_free(self.ptr.as_ptr()) };
    }
}

/// A page mapped for the NHI.
struct Mapped {
    page: PageBuf,
    dma: sys::dma_addr_t,
    to_device: bool,
    ring: Arc<Ring>,
}

impl Mapped {
    fn new(ring: &Arc<Ring>, to_device: bool) -> Result<Self> {
        let page = PageBuf::new()?;
        let mut dma = 0;
        // SAFETY: the ring is valid; the page is ours and outlives the mapping, since `drop`
        // unmaps it first.
        let ok = unsafe {
            sys::tbrdma_dma_map(ring.ptr.as_ptr(), page.addr().cast(), to_device, &mut dma)
        };
        if !ok {
            return Err(ENOMEM);
        }
        Ok(Self {
            page,
            dma,
            to_device,
            ring: ring.clone(),
        })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with the same arguments.
        unsafe { sys::tbrdma_dma_unmap(self.ring.ptr.as_ptr(), self.dma, self.to_device) };
    }
}

fn new_frame(dma: sys::dma_addr_t, callback: sys::ring_cb) -> Opaque<sys::ring_frame> {
    let mut frame = sys::ring_frame::default();
    frame.buffer_phy = dma;
    frame.callback = callback;
    Opaque::new(frame)
}

/// A transmit buffer.
///
/// # Invariants
///
/// While `in_ring` is set, the core may use `frame` and the hardware may read the page.
#[repr(C)]
pub(crate) struct TxBuf {
    frame: Opaque<sys::ring_frame>,
    in_ring: Atomic<u32>,
    mapped: Mapped,
}

// SAFETY: the frame is only touched by the core while it is in the ring, and set up by the owner
// before; the flag is atomic.
unsafe impl Send for TxBuf {}
// SAFETY: as above.
unsafe impl Sync for TxBuf {}

impl TxBuf {
    /// The hardware has not let go of it yet.
    pub(crate) fn in_ring(&self) -> bool {
        // Acquire: what the owner does next comes after the hardware's read.
        self.in_ring.load(Acquire) != 0
    }

    /// The page, to be written. The caller has made sure that it is not in the ring; otherwise
    /// the frame on the wire may be a mixture, never anything worse.
    pub(crate) fn bytes(&mut self) -> &mut [u8; BUF_LEN] {
        // SAFETY: the CPU may write; the mapping is to-device, so this needs no cache operation
        // on coherent machines and the right one on others.
        unsafe {
            sys::tbrdma_dma_sync_for_cpu(
                self.mapped.ring.ptr.as_ptr(),
                self.mapped.dma,
                BUF_LEN,
                true,
            )
        };
        self.mapped.page.as_mut_slice()
    }
}

impl Drop for TxBuf {
    fn drop(&mut self) {
        // A buffer must not be freed under the hardware. The rail stops the ring before it drops
        // buffers; should that ever be forgotten, stopping here is right, if slow.
        if self.in_ring() {
            self.mapped.ring.stop();
        }
    }
}

/// The core is done with a frame that was sent, or cancels it. Runs in a work item of the core,
/// or from [`TxRing::reap`].
unsafe extern "C" fn tx_done(
    _ring: *mut sys::tb_ring,
    frame: *mut sys::ring_frame,
    _canceled: bool,
) {
    let frame = frame.cast::<Opaque<sys::ring_frame>>();
    // SAFETY: every frame of a TX ring of ours is the `frame` of a `TxBuf`, which exists as long
    // as `in_ring` is set.
    let buf = unsafe { container_of!(frame, TxBuf, frame) };
    // Release: the core's last access comes before. Nothing is touched after the store.
    // SAFETY: as above.
    unsafe { (*buf).in_ring.store(0, Release) };
}

/// A transmit ring. Dropping it stops it, after which no buffer is in it; this sleeps.
pub(crate) struct TxRing {
    ring: Arc<Ring>,
}

impl Drop for TxRing {
    fn drop(&mut self) {
        self.ring.stop();
    }
}

impl TxRing {
    /// Allocates a ring of `size` descriptors, of which `size - 1` can be used at a time.
    pub(crate) fn new(xd: &XDomain, size: u32) -> Result<Self> {
        let size = c_int::try_from(size).map_err(|_| EINVAL)?;
        // SAFETY: the XDomain is valid, and so is its domain and NHI.
        let ptr = unsafe { sys::tbrdma_ring_alloc_tx(xd.as_ptr(), size) };
        Ok(Self {
            ring: new_ring(ptr, xd)?,
        })
    }

    /// Allocates a buffer for this ring.
    pub(crate) fn new_buf(&self) -> Result<KBox<TxBuf>> {
        let mapped = Mapped::new(&self.ring, true)?;
        let buf = TxBuf {
            frame: new_frame(mapped.dma, Some(tx_done)),
            in_ring: Atomic::new(0),
            mapped,
        };
        Ok(KBox::new(buf, GFP_KERNEL)?)
    }

    pub(crate) fn start(&self) {
        self.ring.start();
    }

    /// Hands the first `len` bytes of `buf` to the hardware. `EBUSY` if it is already there.
    ///
    /// No more than `size - 1` buffers may be there at a time: a frame beyond waits inside the
    /// core until one of its interrupts, which may be off.
    pub(crate) fn submit(&self, buf: &mut KBox<TxBuf>, len: usize) -> Result {
        if len == 0 || len > BUF_LEN {
            return Err(EMSGSIZE);
        }
        if !Arc::ptr_eq(&self.ring, &buf.mapped.ring) || buf.in_ring() {
            return Err(EBUSY);
        }
        let ring = self.ring.ptr.as_ptr();
        // SAFETY: the ring is valid and the mapping is of this ring.
        unsafe { sys::tbrdma_dma_sync_for_device(ring, buf.mapped.dma, len, true) };
        buf.in_ring.store(1, Relaxed);
        // SAFETY: the frame is not in the ring, and stays where it is (boxed) until `tx_done`
        // says that the core is done with it; `TxBuf::drop` enforces that.
        let ret = unsafe { sys::tbrdma_ring_tx(ring, buf.frame.get(), len) };
        if ret != 0 {
            buf.in_ring.store(0, Release);
        }
        to_result(ret)
    }

    /// Takes back what the hardware has finished; returns how many. Rings without interrupt
    /// depend on it.
    pub(crate) fn reap(&self) -> usize {
        let mut count = 0;
        loop {
            // SAFETY: the ring is valid; the core locks it.
            let frame = unsafe { sys::tb_ring_poll(self.ring.ptr.as_ptr()) };
            if frame.is_null() {
                return count;
            }
            // SAFETY: a frame of this ring, which the core has just let go of.
            unsafe { tx_done(self.ring.ptr.as_ptr(), frame, false) };
            count += 1;
        }
    }

    pub(super) fn hop(&self) -> c_int {
        self.ring.hop()
    }
}

fn new_ring(ptr: *mut sys::tb_ring, xd: &XDomain) -> Result<Arc<Ring>> {
    // INVARIANT: a non-null return of the allocation is a new ring.
    let ring = Ring {
        ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
        running: Atomic::new(0),
        _xd: xd.clone(),
    };
    Ok(Arc::new(ring, GFP_KERNEL)?)
}

/// A receive buffer.
#[repr(C)]
struct RxBuf {
    frame: Opaque<sys::ring_frame>,
    /// Its place in `RxRing::bufs`.
    at: usize,
    mapped: Mapped,
}

// SAFETY: see `TxBuf`.
unsafe impl Send for RxBuf {}
// SAFETY: see `TxBuf`.
unsafe impl Sync for RxBuf {}

/// Told from the interrupt that frames have come. The interrupt is masked until
/// [`RxRing::poll_done`].
pub(crate) trait Wake: Send + Sync + 'static {
    /// Runs in hard interrupt context with the ring's locks held: queue work, nothing else.
    fn wake(this: &Arc<Self>);
}

/// A receive ring with its buffers.
pub(crate) struct RxRing {
    ring: Arc<Ring>,
    bufs: KVec<KBox<RxBuf>>,
    /// Owns the count of the `Wake` object that the interrupt uses.
    waker: NonNull<c_void>,
    drop_waker: unsafe fn(NonNull<c_void>),
}

// SAFETY: the waker is an `Arc` of a `Send + Sync` type; everything else is.
unsafe impl Send for RxRing {}
// SAFETY: as above.
unsafe impl Sync for RxRing {}

unsafe extern "C" fn start_poll<W: Wake>(data: *mut c_void) {
    // SAFETY: `data` is the `Arc` that `RxRing::new` turned into a pointer; its count lives until
    // after the ring is freed. `ManuallyDrop`: we only look at it.
    let waker = unsafe { core::mem::ManuallyDrop::new(Arc::from_raw(data.cast::<W>())) };
    W::wake(&waker);
}

unsafe fn drop_waker<W: Wake>(data: NonNull<c_void>) {
    // SAFETY: called once, by `RxRing::drop`, with the pointer made in `new`.
    drop(unsafe { Arc::from_raw(data.as_ptr().cast::<W>()) });
}

impl RxRing {
    /// Allocates a ring of `size` descriptors and `size - 1` buffers.
    pub(crate) fn new<W: Wake>(xd: &XDomain, size: u32, waker: Arc<W>) -> Result<Self> {
        let c_size = c_int::try_from(size).map_err(|_| EINVAL)?;
        let waker = Arc::into_raw(waker).cast_mut().cast::<c_void>();
        // SAFETY: the XDomain is valid; the callback fits the data, which outlives the ring.
        let ptr =
            unsafe { sys::tbrdma_ring_alloc_rx(xd.as_ptr(), c_size, Some(start_poll::<W>), waker) };
        let ring = match new_ring(ptr, xd) {
            Ok(ring) => ring,
            Err(e) => {
                // SAFETY: made above; no ring uses it.
                drop(unsafe { Arc::from_raw(waker.cast::<W>()) });
                return Err(e);
            }
        };
        let mut this = Self {
            ring,
            bufs: KVec::new(),
            // An `Arc`'s pointer is not null.
            waker: NonNull::new(waker).ok_or(ENOMEM)?,
            drop_waker: drop_waker::<W>,
        };
        let count = (size as usize).saturating_sub(1);
        this.bufs.reserve(count, GFP_KERNEL)?;
        for at in 0..count {
            let mapped = Mapped::new(&this.ring, false)?;
            let buf = RxBuf {
                frame: new_frame(mapped.dma, None),
                at,
                mapped,
            };
            this.bufs.push(KBox::new(buf, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Starts the ring with all buffers in it.
    pub(crate) fn start(&self) -> Result {
        self.ring.start();
        for buf in &self.bufs {
            self.post(buf)?;
        }
        Ok(())
    }

    fn post(&self, buf: &RxBuf) -> Result {
        // SAFETY: ring and mapping belong together, and nobody reads the page now.
        unsafe {
            sys::tbrdma_dma_sync_for_device(self.ring.ptr.as_ptr(), buf.mapped.dma, BUF_LEN, false)
        };
        // SAFETY: the frame is not in the ring, and boxed in `bufs` until after `stop`.
        to_result(unsafe { sys::tbrdma_ring_rx(self.ring.ptr.as_ptr(), buf.frame.get()) })
    }

    /// The next frame that has come. One caller at a time keeps the order of frames.
    pub(crate) fn poll(&self) -> Option<Received<'_>> {
        // SAFETY: the ring is valid; the core locks it.
        let frame = unsafe { sys::tb_ring_poll(self.ring.ptr.as_ptr()) };
        if frame.is_null() {
            return None;
        }
        let frame = frame.cast::<Opaque<sys::ring_frame>>();
        // SAFETY: every frame of an RX ring of ours is the `frame` of an `RxBuf` in `bufs`.
        let buf = unsafe { &*container_of!(frame, RxBuf, frame) };
        // SAFETY: the core has let go of the frame.
        let (len, damaged) = unsafe {
            (
                sys::tbrdma_frame_len(buf.frame.get()),
                sys::tbrdma_frame_damaged(buf.frame.get()),
            )
        };
        let len = len.min(BUF_LEN);
        // SAFETY: ring and mapping belong together.
        unsafe { sys::tbrdma_dma_sync_for_cpu(self.ring.ptr.as_ptr(), buf.mapped.dma, len, false) };
        Some(Received {
            ring: self,
            buf,
            len,
            damaged,
        })
    }

    /// The frame that was kept with [`Received::keep`].
    pub(crate) fn restore(&self, kept: Kept) -> Option<Received<'_>> {
        Some(Received {
            ring: self,
            buf: self.bufs.get(kept.at)?,
            len: kept.len,
            damaged: false,
        })
    }

    /// Unmasks the interrupt again.
    pub(crate) fn poll_done(&self) {
        // SAFETY: the ring is valid; the core locks it.
        unsafe { sys::tb_ring_poll_complete(self.ring.ptr.as_ptr()) };
    }

    pub(super) fn hop(&self) -> c_int {
        self.ring.hop()
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // The hardware must let go before the buffers are freed. An interrupt after that would
        // find the ring stopped and not call the waker.
        self.ring.stop();
        // SAFETY: made in `new` for this type, used by nobody any more.
        unsafe { (self.drop_waker)(self.waker) };
    }
}

/// A frame that has come. Goes back into the ring when dropped.
pub(crate) struct Received<'a> {
    ring: &'a RxRing,
    buf: &'a RxBuf,
    len: usize,
    damaged: bool,
}

/// A frame that is kept out of the ring, which has one buffer less meanwhile.
pub(crate) struct Kept {
    at: usize,
    len: usize,
}

impl Received<'_> {
    /// Keeps the frame until [`RxRing::restore`].
    pub(crate) fn keep(self) -> Kept {
        let kept = Kept {
            at: self.buf.at,
            len: self.len,
        };
        core::mem::forget(self);
        kept
    }

    /// The frame's bytes; `None` if the hardware marked it as damaged (CRC, overrun).
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.damaged {
            return None;
        }
        self.buf.mapped.page.as_slice().get(..self.len)
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        // Fails only when the ring has been stopped: then the buffer is not needed any more.
        let _ = self.ring.post(self.buf);
    }
}
