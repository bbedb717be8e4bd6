// SPDX-License-Identifier: GPL-2.0-only
//! Memory that work requests name: pinned memory of a user, dma-bufs, and that of the kernel.

use super::device::IbDevice;
use crate::errno::not_supported;
use crate::sys;
use crate::verbs::mr::Access;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use kernel::error::{from_err_ptr, to_result};
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};

const PAGE: usize = 4096;

struct Pages {
    umem: NonNull<sys::ib_umem>,
    /// Kernel addresses of the pages, in order.
    addresses: KVVec<*mut u8>,
    /// Offset of the first byte in the first page.
    offset: usize,
    length: usize,
}

/// Changes the 8 bytes at `at` at once, and tells what was there before; `change` gives what comes
/// there, if anything does. EINVAL: not an address that is a multiple of 8.
///
/// # Safety
///
/// `at` points at 8 bytes of memory that may be written as atomically as this processor can. Others
/// may access them in any way meanwhile, as in a race on their own memory.
pub(super) unsafe fn change_at(at: *mut u8, change: impl Fn(u64) -> Option<u64>) -> Result<u64> {
    if at.addr() % 8 != 0 {
        return Err(EINVAL);
    }
    // SAFETY: as required, and aligned.
    let word = unsafe { Atomic::<u64>::from_ptr(at.cast()) };
    let mut seen = word.load(Relaxed);
    loop {
        let Some(new) = change(seen) else {
            return Ok(seen);
        };
        match word.cmpxchg(seen, new, Full) {
            Ok(_) => return Ok(seen),
            Err(now) => seen = now,
        }
    }
}

/// A range of a user's memory, pinned (`ib_umem`).
///
/// The pages are given back by [`release`](Self::release), in process context; dropping it without
/// that would leak them, so that a bug cannot turn into a use after free.
pub(crate) struct Pinned {
    pages: UnsafeCell<Option<Pages>>,
    /// Address of the first byte in the process.
    start: u64,
    /// Pinned to be written, too.
    writable: bool,
}

// SAFETY: the page addresses are those of the kernel's direct map, usable from any thread, and
// `ib_umem_release` may be called from any process.
unsafe impl Send for Pinned {}
// SAFETY: `pages` only changes in `release`, whose caller guarantees that nobody else uses `self`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Pins `length` bytes at `start` of the calling process. Fails with EFAULT, ENOMEM (also if
    /// RLIMIT_MEMLOCK is exceeded) or EINVAL.
    pub(crate) fn new(
        device: &IbDevice,
        start: u64,
        length: usize,
        access: Access,
    ) -> Result<Self> {
        let writable = access.writes();
        let access = access.raw as c_int;
        let start = usize::try_from(start).map_err(|_| EFAULT)?;
        // SAFETY: the device is registered while a user has a context on it.
        let umem =
            from_err_ptr(unsafe { sys::tbrdma_umem_get(device.as_ptr(), start, length, access) })?;
        let umem = NonNull::new(umem).ok_or(ENOMEM)?;
        let offset = start & (PAGE - 1);
        let release = |error| {
            // SAFETY: the umem is ours and not used any more.
            unsafe { sys::ib_umem_release(umem.as_ptr()) };
            error
        };
        let count = (offset + length).div_ceil(PAGE);
        let mut addresses: KVVec<*mut u8> =
            KVVec::from_elem(ptr::null_mut(), count, GFP_KERNEL).map_err(|e| release(e.into()))?;
        // SAFETY: `umem` is valid; the array has room for `count` entries.
        let found =
            unsafe { sys::tbrdma_umem_pages(umem.as_ptr(), addresses.as_mut_ptr().cast(), count) };
        if found < count || addresses.iter().any(|a| a.is_null()) {
            return Err(release(EFAULT));
        }
        Ok(Self {
            pages: UnsafeCell::new(Some(Pages {
                umem,
                addresses,
                offset,
                length,
            })),
            start: start as u64,
            writable,
        })
    }

    /// Address of the first byte in the process that registered it.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The pages may be written.
    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// Gives the pages back. Sleeps.
    ///
    /// # Safety
    ///
    /// Nobody else uses `self` during this call.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: exclusive by the caller's guarantee.
        if let Some(pages) = unsafe { &mut *self.pages.get() }.take() {
            // SAFETY: the umem is ours; the page addresses die with `pages`.
            unsafe { sys::ib_umem_release(pages.umem.as_ptr()) };
        }
    }

    /// Calls `copy(kernel address, offset in the range of this call, bytes)` for each piece of
    /// [offset, offset + length) that lies within one page.
    fn pieces(
        &self,
        offset: usize,
        length: usize,
        mut copy: impl FnMut(*mut u8, usize, usize),
    ) -> Result {
        // SAFETY: only `release` writes, and its caller guarantees that we do not run then.
        let pages = unsafe { &*self.pages.get() }.as_ref().ok_or(EFAULT)?;
        let end = offset.checked_add(length).ok_or(EFAULT)?;
        if end > pages.length {
            return Err(EFAULT);
        }
        let mut at = pages.offset + offset;
        let mut done = 0;
        while done < length {
            let base = *pages.addresses.get(at / PAGE).ok_or(EFAULT)?;
            let within = at % PAGE;
            let n = (PAGE - within).min(length - done);
            copy(base.wrapping_add(within), done, n);
            done += n;
            at += n;
        }
        Ok(())
    }

    /// Copies bytes out of the range.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let len = to.len();
        self.pieces(offset, len, |from, at, n| {
            // SAFETY: `from` points at `n` bytes of a pinned page; `at + n` is within `to`. The
            // user may write to the page meanwhile, which can only make the bytes arbitrary: a
            // plain byte copy in assembly, as `copy_from_user` of the same page would be.
            unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(at), n) }
        })
    }

    /// Copies bytes into the range.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result {
        self.pieces(offset, from.len(), |to, at, n| {
            // SAFETY: as in `read`, the other way.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr().add(at), to, n) }
        })
    }

    /// Changes the 8 bytes at `offset` at once, and tells what was there before; `change` gives
    /// what comes there, if anything does. EFAULT: not within the range; EINVAL: not on an address
    /// that is a multiple of 8.
    pub(crate) fn atomic(&self, offset: usize, change: impl Fn(u64) -> Option<u64>) -> Result<u64> {
        let mut place = None;
        self.pieces(offset, 8, |at, _, len| {
            if len == 8 {
                place = Some(at);
            }
        })?;
        // SAFETY: 8 bytes of a pinned page, which the user's process may access, too.
        unsafe { change_at(place.ok_or(EINVAL)?, change) }
    }
}

/// A part of a dma-buf, mapped for this processor, which keeps it where it is.
///
/// As with [`Pinned`], it is given back by [`release`](Self::release).
pub(crate) struct DmaBuf {
    mapping: UnsafeCell<Option<Mapping>>,
}

struct Mapping {
    buf: NonNull<sys::dma_buf>,
    map: sys::iosys_map,
    /// Kernel address of the part's first byte.
    base: *mut u8,
    length: usize,
}

// SAFETY: the mapping may be used from any thread, and given back in any process.
unsafe impl Send for DmaBuf {}
// SAFETY: `mapping` only changes in `release`, whose caller guarantees that nobody else uses `self`.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Maps `length` bytes, from `offset` on, of what the calling process has open as `fd`. Sleeps.
    ///
    /// EBADF, EINVAL: it is not a dma-buf, or it is too short; EOPNOTSUPP: its memory is not such
    /// that this processor can access it like any other.
    pub(crate) fn new(fd: c_int, offset: usize, length: usize) -> Result<Self> {
        // SAFETY: no preconditions.
        let buf = from_err_ptr(unsafe { sys::dma_buf_get(fd) })?;
        let buf = NonNull::new(buf).ok_or(EINVAL)?;
        match Self::map(buf, offset, length) {
            Ok(mapping) => Ok(Self {
                mapping: UnsafeCell::new(Some(mapping)),
            }),
            Err(error) => {
                // SAFETY: the reference of `dma_buf_get`.
                unsafe { sys::dma_buf_put(buf.as_ptr()) };
                Err(error)
            }
        }
    }

    fn map(buf: NonNull<sys::dma_buf>, offset: usize, length: usize) -> Result<Mapping> {
        let raw = buf.as_ptr();
        // SAFETY: a dma-buf that is held; its operations and its size do not change.
        let (size, can_map) = unsafe { ((*raw).size, (*(*raw).ops).vmap.is_some()) };
        if offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(EINVAL);
        }
        if !can_map {
            return Err(not_supported());
        }
        let mut map = sys::iosys_map::default();
        // SAFETY: as above; without a lock of the buffer held.
        to_result(unsafe { sys::dma_buf_vmap_unlocked(raw, &mut map) })?;
        let begun = if map.is_iomem {
            Err(not_supported())
        } else {
            // SAFETY: as above. The bytes are this processor's until `release`.
            to_result(unsafe { sys::tbrdma_dmabuf_begin(raw) })
        };
        if let Err(error) = begun {
            // SAFETY: mapped above.
            unsafe { sys::dma_buf_vunmap_unlocked(raw, &mut map) };
            return Err(error);
        }
        // SAFETY: not I/O memory, so this member of the union is the valid one; the part lies
        // within the buffer.
        let base = unsafe { map.__bindgen_anon_1.vaddr.cast::<u8>().add(offset) };
        Ok(Mapping {
            buf,
            map,
            base,
            length,
        })
    }

    /// Gives the buffer back. Sleeps.
    ///
    /// # Safety
    ///
    /// Nobody else uses `self` during this call.
    pub(crate) unsafe fn release(&self) {
        // SAFETY: exclusive by the caller's guarantee.
        if let Some(mut mapping) = unsafe { &mut *self.mapping.get() }.take() {
            let raw = mapping.buf.as_ptr();
            // SAFETY: held and mapped by `new`; last use.
            unsafe {
                sys::tbrdma_dmabuf_end(raw);
                sys::dma_buf_vunmap_unlocked(raw, &mut mapping.map);
                sys::dma_buf_put(raw);
            }
        }
    }

    /// Address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        // SAFETY: only `release` writes, and its caller guarantees that we do not run then.
        let mapping = unsafe { &*self.mapping.get() }.as_ref().ok_or(EFAULT)?;
        let end = offset.checked_add(len).ok_or(EFAULT)?;
        if end > mapping.length {
            return Err(EFAULT);
        }
        Ok(mapping.base.wrapping_add(offset))
    }

    /// Copies bytes out of it.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let from = self.at(offset, to.len())?;
        // SAFETY: that many mapped bytes. Others may write to them meanwhile, which can only make
        // them arbitrary, as with `Pinned`.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes into it.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result {
        let to = self.at(offset, from.len())?;
        // SAFETY: as in `read`, the other way.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// As [`Pinned::atomic`].
    pub(crate) fn atomic(&self, offset: usize, change: impl Fn(u64) -> Option<u64>) -> Result<u64> {
        // SAFETY: 8 mapped bytes of memory, not of a device.
        unsafe { change_at(self.at(offset, 8)?, change) }
    }
}

/// All memory of the kernel, by the addresses at which the kernel sees it: what consumers in the
/// kernel name in work requests, since this device has no DMA addresses of its own (`ib_dma_map_*`
/// hand on kernel addresses for such devices).
pub(crate) struct KernelMemory(());

impl KernelMemory {
    /// # Safety
    ///
    /// Only work requests of consumers in the kernel lead to accesses: they name memory that they
    /// own, mapped for as long as the request is under way.
    pub(super) unsafe fn new() -> Self {
        Self(())
    }

    /// Copies bytes from an address.
    pub(crate) fn read(&self, addr: usize, to: &mut [u8]) -> Result {
        // SAFETY: by the promise of `new`.
        unsafe { ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes to an address.
    pub(crate) fn write(&self, addr: usize, from: &[u8]) -> Result {
        // SAFETY: by the promise of `new`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
        Ok(())
    }
}
