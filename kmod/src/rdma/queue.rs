// SPDX-License-Identifier: GPL-2.0-only
//! Queues in memory that a user's process may share: `uapi` tells how they look.
//!
//! The other side may write anything at any time. So everything is read once and copied before it
//! is looked at, and every place is computed from our own numbers.

use crate::sys;
use crate::uapi::{queue as layout, CqEntry, QueueResp, RecvEntry, SendEntry, Sge};
use core::marker::PhantomData;
use core::mem::{size_of, size_of_val};
use core::ptr::{self, NonNull};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};

/// No access to memory passes this in either direction (`smp_mb`).
pub(crate) fn full_barrier() {
    // SAFETY: no preconditions.
    unsafe { sys::tbrdma_full_barrier() }
}

/// Whose a new object is: that of a user's process, or the kernel's own.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    udata: *mut sys::ib_udata,
    _lifetime: PhantomData<&'a sys::ib_udata>,
}

impl Owner<'_> {
    /// # Safety
    ///
    /// `udata` is null, or valid for the lifetime chosen, which is that of a create operation.
    pub(super) unsafe fn new(udata: *mut sys::ib_udata) -> Self {
        Self {
            udata,
            _lifetime: PhantomData,
        }
    }

    /// It is a user's.
    pub(crate) fn is_user(self) -> bool {
        !self.udata.is_null()
    }
}

/// Structures without padding for which every pattern of bits is a value.
///
/// # Safety
///
/// Exactly that.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: integers only, without padding (the sizes are asserted in `uapi`).
unsafe impl Plain for SendEntry {}
// SAFETY: as above.
unsafe impl Plain for RecvEntry {}
// SAFETY: as above.
unsafe impl Plain for CqEntry {}
// SAFETY: as above.
unsafe impl Plain for Sge {}
// SAFETY: a byte.
unsafe impl Plain for u8 {}

/// A queue.
///
/// # Invariants
///
/// `base` points at `HEAD_LEN + entries * stride` bytes that stay until `memory` is freed in
/// `drop`; it is aligned to a page.
pub(crate) struct Queue {
    memory: NonNull<sys::tbrdma_memory>,
    base: NonNull<u8>,
    offset: u64,
    entries: u32,
    stride: u32,
}

// SAFETY: the memory may be accessed from any thread; it is only accessed as bytes that may
// change at any time.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    /// Makes a queue of at least `entries` places of at least `size` bytes. Sleeps.
    pub(crate) fn new(owner: Owner<'_>, entries: u32, size: usize) -> Result<Self> {
        let entries = entries.max(1).checked_next_power_of_two().ok_or(EINVAL)?;
        let stride = size.next_multiple_of(16);
        let bytes = (entries as usize)
            .checked_mul(stride)
            .and_then(|bytes| bytes.checked_add(layout::HEAD_LEN))
            .filter(|bytes| u32::try_from(*bytes).is_ok())
            .ok_or(ENOMEM)?;
        let mut base = ptr::null_mut();
        let mut offset = 0;
        // SAFETY: `udata` is null or valid by the invariant of `Owner`.
        let memory = unsafe { sys::tbrdma_memory_new(owner.udata, bytes, &mut base, &mut offset) };
        let memory = NonNull::new(memory).ok_or(ENOMEM)?;
        let base = NonNull::new(base.cast()).ok_or(ENOMEM)?;
        // INVARIANT: that much was allocated, in whole pages.
        Ok(Self {
            memory,
            base,
            offset,
            entries,
            stride: u32::try_from(stride).map_err(|_| EINVAL)?,
        })
    }

    /// What the user has to know.
    pub(crate) fn response(&self) -> QueueResp {
        QueueResp {
            offset: self.offset,
            bytes: self.bytes().next_multiple_of(4096) as u32,
            entries: self.entries,
            stride: self.stride,
            reserved: 0,
        }
    }

    fn bytes(&self) -> usize {
        layout::HEAD_LEN + self.entries as usize * self.stride as usize
    }

    /// Places.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    fn word(&self, at: usize) -> &Atomic<u32> {
        const {
            assert!(layout::DEAD + size_of::<u32>() <= layout::HEAD_LEN);
        }
        let at = at.min(layout::DEAD);
        // SAFETY: within the head by the invariant and the line above, and aligned, since the
        // fields are; the other side may only use atomic accesses, too.
        unsafe { Atomic::from_ptr(self.base.as_ptr().add(at & !3).cast()) }
    }

    /// The index after the newest entry, as the producer says. What it wrote before is seen.
    pub(crate) fn producer(&self) -> u32 {
        self.word(layout::PRODUCER).load(Acquire)
    }

    /// Publishes what was written before.
    pub(crate) fn set_producer(&self, index: u32) {
        self.word(layout::PRODUCER).store(index, Release);
    }

    /// The index of the oldest entry in use, as the consumer says.
    pub(crate) fn consumer(&self) -> u32 {
        self.word(layout::CONSUMER).load(Acquire)
    }

    /// Gives entries back.
    pub(crate) fn set_consumer(&self, index: u32) {
        self.word(layout::CONSUMER).store(index, Release);
    }

    /// The flag; see `uapi`.
    pub(crate) fn flag(&self) -> &Atomic<u32> {
        self.word(layout::FLAG)
    }

    /// Tells the user that the queue is of no use any more.
    pub(crate) fn set_dead(&self, why: u32) {
        self.word(layout::DEAD).store(why, Release);
    }

    /// Address of `len` bytes, `at` bytes into the entry of `index`.
    fn place(&self, index: u32, at: usize, len: usize) -> Result<NonNull<u8>> {
        let end = at.checked_add(len).ok_or(EINVAL)?;
        if end > self.stride as usize {
            return Err(EINVAL);
        }
        let slot = (index & (self.entries - 1)) as usize;
        let from = layout::HEAD_LEN + slot * self.stride as usize + at;
        // SAFETY: `slot` is below `entries` and the range is within the stride: by the invariant
        // within the memory.
        Ok(unsafe { self.base.add(from) })
    }

    /// Copies out of the entry of `index`, from `at` bytes into it. EINVAL: beyond the entry.
    pub(crate) fn read<T: Plain>(&self, index: u32, at: usize, to: &mut [T]) -> Result {
        let len = size_of_val(to);
        let from = self.place(index, at, len)?;
        // SAFETY: `len` bytes at both places, which do not overlap; any bytes are values of `T`.
        // That the other side may write meanwhile makes the bytes arbitrary, nothing worse, as
        // with `copy_from_user`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr().cast(), len) };
        Ok(())
    }

    /// Copies into the entry of `index`, to `at` bytes into it. EINVAL: beyond the entry.
    pub(crate) fn write<T: Plain>(&self, index: u32, at: usize, from: &[T]) -> Result {
        let len = size_of_val(from);
        let to = self.place(index, at, len)?;
        // SAFETY: as in `read`, the other way; `T` has no padding.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_ptr(), len) };
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody uses `self` any more.
        unsafe { sys::tbrdma_memory_free(self.memory.as_ptr()) }
    }
}
