// SPDX-License-Identifier: GPL-2.0-only
//! Lists of pages that consumers in the kernel register fast.

use super::memory::change_at;
use core::mem::swap;
use core::ptr;
use kernel::prelude::*;

/// Pages of a fast registration, in order, by the addresses at which the kernel sees them.
pub(crate) struct PageList {
    /// As many as there may be; those from `used` on mean nothing.
    addresses: KVVec<usize>,
    used: usize,
    /// Bytes of a page; a power of two.
    page: usize,
    /// Offset of the first byte in the first page.
    offset: usize,
    length: usize,
}

impl PageList {
    /// Room for `most` pages; there are none yet.
    ///
    /// # Safety
    ///
    /// What is [`push`](Self::push)ed are pages that a consumer in the kernel owns, and keeps until
    /// it has invalidated the region or ended it.
    pub(super) unsafe fn new(most: usize) -> Result<Self> {
        Ok(Self {
            addresses: KVVec::from_elem(0, most, GFP_KERNEL)?,
            used: 0,
            page: 1,
            offset: 0,
            length: 0,
        })
    }

    /// Takes all pages out; those to come have `page` bytes. EINVAL: not a power of two.
    pub(crate) fn begin(&mut self, page: usize) -> Result {
        self.clear();
        if !page.is_power_of_two() {
            return Err(EINVAL);
        }
        self.page = page;
        Ok(())
    }

    /// Adds a page. ENOMEM: there is no room.
    pub(super) fn push(&mut self, address: usize) -> Result {
        *self.addresses.get_mut(self.used).ok_or(ENOMEM)? = address;
        self.used += 1;
        Ok(())
    }

    /// The pages hold `length` bytes, and the first of them has this address, of which only the
    /// offset in a page counts. EINVAL: that does not fit.
    pub(crate) fn end(&mut self, first: u64, length: u64) -> Result {
        let offset = first as usize & (self.page - 1);
        let length = usize::try_from(length).map_err(|_| EINVAL)?;
        let room = self.used.checked_mul(self.page).ok_or(EINVAL)?;
        if offset.checked_add(length).is_none_or(|end| end > room) {
            return Err(EINVAL);
        }
        (self.offset, self.length) = (offset, length);
        Ok(())
    }

    /// Forgets the pages.
    pub(crate) fn clear(&mut self) {
        (self.used, self.offset, self.length) = (0, 0, 0);
    }

    /// Exchanges the pages of two lists.
    pub(crate) fn exchange(&mut self, other: &mut Self) {
        swap(self, other);
    }

    /// Gives the list's own memory away, to be freed where one may sleep. There is no room any more.
    pub(crate) fn take(&mut self) -> KVVec<usize> {
        self.clear();
        core::mem::take(&mut self.addresses)
    }

    /// Bytes in the pages.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Calls `copy(kernel address, offset in the range of this call, bytes)` for each piece of
    /// [offset, offset + length) that lies within one page.
    fn pieces(
        &self,
        offset: usize,
        length: usize,
        mut copy: impl FnMut(usize, usize, usize),
    ) -> Result {
        let end = offset.checked_add(length).ok_or(EFAULT)?;
        if end > self.length {
            return Err(EFAULT);
        }
        let pages = self.addresses.get(..self.used).ok_or(EFAULT)?;
        let mut at = self.offset + offset;
        let mut done = 0;
        while done < length {
            let base = *pages.get(at / self.page).ok_or(EFAULT)?;
            let within = at % self.page;
            let n = (self.page - within).min(length - done);
            copy(base + within, done, n);
            done += n;
            at += n;
        }
        Ok(())
    }

    /// Copies bytes out of the pages. EFAULT: there are not so many.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        let len = to.len();
        self.pieces(offset, len, |from, at, n| {
            // SAFETY: `n` bytes of a page, by the promise of `new`; `at + n` is within `to`. Others
            // may write to the page meanwhile, which can only make the bytes arbitrary.
            unsafe { ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr().add(at), n) }
        })
    }

    /// Copies bytes into the pages. EFAULT: there are not so many.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result {
        self.pieces(offset, from.len(), |to, at, n| {
            // SAFETY: as in `read`, the other way.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr().add(at), to as *mut u8, n) }
        })
    }

    /// Changes the 8 bytes at `offset` at once, as `Pinned::atomic` does.
    pub(crate) fn atomic(&self, offset: usize, change: impl Fn(u64) -> Option<u64>) -> Result<u64> {
        let mut place = None;
        self.pieces(offset, 8, |at, _, len| {
            if len == 8 {
                place = Some(at as *mut u8);
            }
        })?;
        // SAFETY: 8 bytes of a page, by the promise of `new`.
        unsafe { change_at(place.ok_or(EINVAL)?, change) }
    }
}
