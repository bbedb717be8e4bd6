// SPDX-License-Identifier: GPL-2.0-only
//! Kernel services the `kernel` crate has no safe form of: workqueues of our own, delayed work
//! that can be re-timed and cancelled, and single pages with an address.
//!
//! Used by the Thunderbolt wrappers, the link layer and the netdev.

use crate::sys;
use core::ptr::NonNull;
use kernel::bindings::workqueue_struct;
use kernel::container_of;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::time::{msecs_to_jiffies, Jiffies};
use kernel::workqueue::{HasDelayedWork, HasWork, Queue, Work, WorkItem};

/// Bytes of a page as a frame buffer. A frame has at most 4096 bytes (USB4 v2, 7.3: frame mode),
/// so larger pages are used in part only.
pub(crate) const BUF_LEN: usize = 4096;

/// Monotonic time, nanoseconds since boot.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: `ktime_get` has no preconditions once timekeeping runs, long before modules load.
    let ns = unsafe { sys::ktime_get() };
    // A monotonic clock is never negative.
    ns.unsigned_abs()
}

/// Monotonic time, microseconds since boot.
pub(crate) fn now_us() -> u64 {
    now_ns() / 1000
}

/// Whoever spins should stop: other tasks want the processor, or the caller has a signal to handle.
pub(crate) fn wanted_elsewhere() -> bool {
    // SAFETY: looks at the calling task.
    unsafe { sys::tbrdma_wanted_elsewhere() }
}

/// Sleeps for at least `ms` milliseconds. Process context only.
pub(crate) fn sleep_ms(ms: u32) {
    // SAFETY: only called from process context without spinlocks, as this function's own contract
    // says; `msleep` has no other precondition.
    unsafe { sys::msleep(ms) }
}

/// One page, directly addressable, for frames.
///
/// # Invariants
///
/// `addr` is the kernel address of a page allocated by `get_free_pages`, owned by this value.
pub(crate) struct PageBuf {
    addr: NonNull<u8>,
}

// SAFETY: the page belongs to this value alone; no thread affinity.
unsafe impl Send for PageBuf {}
// SAFETY: shared access is read only (`as_slice`).
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// Allocates a zeroed page; sleeps. Fails rather than having a process killed for it. A zeroed
    /// page never sends left-over kernel memory to a peer, whatever goes wrong above.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: called in process context.
        let addr = unsafe { sys::tbrdma_alloc_page() };
        // INVARIANT: a non-zero return is the address of a page that is ours.
        Ok(Self {
            addr: NonNull::new(addr as *mut u8).ok_or(ENOMEM)?,
        })
    }

    /// The kernel address, for the DMA API.
    pub(crate) fn addr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// The buffer's bytes.
    pub(crate) fn as_slice(&self) -> &[u8; BUF_LEN] {
        // SAFETY: by the invariant the page is ours and at least `BUF_LEN` bytes; all bytes are
        // initialised (zeroed at allocation).
        unsafe { self.addr.cast().as_ref() }
    }

    /// The buffer's bytes, to be changed.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8; BUF_LEN] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { self.addr.cast().as_mut() }
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        // SAFETY: by the invariant the page came from `get_free_pages` with order 0 and is ours.
        unsafe { sys::free_pages(self.addr.as_ptr() as usize, 0) };
    }
}

/// A workqueue of our own, unbound.
///
/// Dropping it waits until everything queued on it has run. Work that re-arms itself by a timer
/// must be cancelled before ([`cancel_sync`]).
///
/// # Invariants
///
/// `ptr` is a workqueue made by `alloc_workqueue` and not yet destroyed.
pub(crate) struct Workqueue {
    ptr: NonNull<workqueue_struct>,
}

// SAFETY: workqueues may be used and destroyed from any thread.
unsafe impl Send for Workqueue {}
// SAFETY: queueing is thread safe.
unsafe impl Sync for Workqueue {}

impl Workqueue {
    /// Makes a workqueue. `name` appears in the names of its worker threads. `data`: for frames,
    /// that is of high priority and with a worker of its own when memory is short; such work must
    /// not wait for work on the system's queues (the kernel warns).
    pub(crate) fn new(name: &CStr, data: bool) -> Result<Self> {
        // SAFETY: `name` is a C string; the workqueue core copies it.
        let ptr = unsafe { sys::tbrdma_alloc_workqueue(name.as_char_ptr(), data) };
        let ptr = ptr.cast::<workqueue_struct>();
        // INVARIANT: a non-null return is a new workqueue.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
        })
    }

    /// As the `kernel` crate's queue.
    pub(crate) fn queue(&self) -> &Queue {
        // SAFETY: valid for as long as `self` lives, which the returned borrow does not exceed.
        unsafe { Queue::from_raw(self.ptr.as_ptr()) }
    }

    /// Waits until all work queued before this call has run. Not from work of this queue.
    pub(crate) fn flush(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::__flush_workqueue(self.ptr.as_ptr()) };
    }

    /// Runs work `ID` of `item` `ms` milliseconds from now, unless it already waits for its time.
    pub(crate) fn later<T, const ID: u64>(&self, item: Arc<T>, ms: u32)
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
    {
        // Already waiting is as good.
        let _ = self
            .queue()
            .enqueue_delayed::<_, ID>(item, msecs_to_jiffies(ms));
    }

    /// (Re-)times `work` of `item` to run `ms` milliseconds from now (0: at once), whether or not
    /// it is already waiting. If it runs at this moment it will run once more.
    pub(crate) fn retime<T, const ID: u64>(&self, item: Arc<T>, ms: u32)
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
    {
        let delay: Jiffies = if ms == 0 {
            0
        } else {
            msecs_to_jiffies(ms).max(1)
        };
        let raw = Arc::into_raw(item).cast_mut();
        let dwork = delayed_work_of::<T, ID>(raw);
        // SAFETY: `dwork` is the initialised delayed work inside `*raw`, whose reference count we
        // hold. If it was idle the queue now owns that count and gives it back in `run`; if it was
        // already waiting, the count given then serves, and ours is returned below.
        let was_waiting = unsafe {
            sys::mod_delayed_work_on(
                sys::wq_misc_consts_WORK_CPU_UNBOUND as kernel::ffi::c_int,
                self.ptr.as_ptr(),
                dwork,
                delay,
            )
        };
        if was_waiting {
            // SAFETY: our count, from `into_raw` above, is not used by anyone.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
        }
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: valid by the invariant, and gone afterwards.
        unsafe { sys::destroy_workqueue(self.ptr.as_ptr()) };
    }
}

/// The C `delayed_work` of field `ID` in `*raw`.
fn delayed_work_of<T, const ID: u64>(raw: *mut T) -> *mut sys::delayed_work
where
    T: HasDelayedWork<T, ID>,
{
    // SAFETY: `raw` comes from an `Arc`, so it points at a valid `T`.
    let work = unsafe { <T as HasWork<T, ID>>::raw_get_work(raw) };
    // SAFETY: not dangling, as above.
    let work = unsafe { Work::raw_get(work) };
    // SAFETY: `HasDelayedWork` promises that the work is the `work` field of a `delayed_work`.
    unsafe { container_of!(work, sys::delayed_work, work) }
}

/// Cancels delayed work `ID` of `item` and waits for a run in progress to end. Work that re-arms
/// itself must have been told to stop before. Sleeps; not from the work itself.
pub(crate) fn cancel_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
{
    let raw = Arc::as_ptr(item).cast_mut();
    // SAFETY: initialised delayed work in a live object.
    let was_waiting = unsafe { sys::cancel_delayed_work_sync(delayed_work_of::<T, ID>(raw)) };
    if was_waiting {
        // SAFETY: the waiting work owned one count, which nobody will take in `run` any more.
        drop(unsafe { Arc::from_raw(raw.cast_const()) });
    }
}

/// Waits until every task has slept or left the kernel once: none that was in the middle of
/// calling a function which has been made unreachable is still on the way into it. Sleeps.
pub(crate) fn synchronize_tasks() {
    // SAFETY: called in process context without locks.
    unsafe { sys::tbrdma_synchronize_rcu_tasks() };
}

/// A random number that nobody can guess.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: fills the given number of bytes of a buffer of that size.
    unsafe { sys::get_random_bytes(bytes.as_mut_ptr().cast(), bytes.len()) };
    u64::from_le_bytes(bytes)
}
