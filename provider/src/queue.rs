//! Queues that are shared with the kernel; `tbrdma-uapi` tells how they look.

use std::ffi::c_int;
use std::mem::{size_of, size_of_val};
use std::ptr::{self, NonNull};
use std::sync::atomic::{fence, AtomicU32, Ordering};
use tbrdma_uapi::queue::{CONSUMER, DEAD, FLAG, HEAD_LEN, PRODUCER};
use tbrdma_uapi::{CqEntry, QueueResp, RecvEntry, SendEntry, Sge};

/// Structures of integers without padding.
///
/// # Safety
///
/// Exactly that.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: the sizes are asserted in `tbrdma-uapi`.
unsafe impl Plain for SendEntry {}
// SAFETY: as above.
unsafe impl Plain for RecvEntry {}
// SAFETY: as above.
unsafe impl Plain for CqEntry {}
// SAFETY: as above.
unsafe impl Plain for Sge {}
// SAFETY: a byte.
unsafe impl Plain for u8 {}

/// The errno for a queue that cannot be. Who answers so is no kernel module that we know, and would
/// not undo what was asked for either: closing the device does.
pub(crate) const NONSENSE: c_int = libc::EPROTO;

/// A mapped queue.
///
/// # Invariants
///
/// `base` is a mapping of `bytes` bytes, aligned to a page, in which `HEAD_LEN + entries * stride`
/// bytes fit.
#[derive(Debug)]
pub(crate) struct Queue {
    base: NonNull<u8>,
    bytes: usize,
    entries: u32,
    stride: usize,
}

// SAFETY: the mapping may be used by any thread; who writes where is a matter of the locks above.
unsafe impl Send for Queue {}

impl Queue {
    /// Maps a queue of the device that `fd` has open. The error is an errno.
    pub(crate) fn map(fd: c_int, place: &QueueResp) -> Result<Self, c_int> {
        let (bytes, stride) = (place.bytes as usize, place.stride as usize);
        let needed = (place.entries as usize)
            .checked_mul(stride)
            .and_then(|needed| needed.checked_add(HEAD_LEN));
        if !place.entries.is_power_of_two() || needed.is_none_or(|needed| needed > bytes) {
            return Err(NONSENSE);
        }
        let offset = libc::off_t::try_from(place.offset).map_err(|_| NONSENSE)?;
        // SAFETY: a new mapping, anywhere.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::ENOMEM));
        }
        // INVARIANT: mapped just now; the sizes were checked above.
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(libc::ENOMEM)?,
            bytes,
            entries: place.entries,
            stride,
        })
    }

    /// A queue in this process alone.
    #[cfg(test)]
    pub(crate) fn anonymous(entries: u32, stride: usize) -> Self {
        let bytes = HEAD_LEN + entries as usize * stride;
        // SAFETY: a new anonymous mapping.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Self {
            base: NonNull::new(base.cast()).expect("mapped"),
            bytes,
            entries,
            stride,
        }
    }

    #[cfg(test)]
    pub(crate) fn base_for_tests(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// The other side's view of an anonymous queue; to be forgotten, not dropped.
    #[cfg(test)]
    pub(crate) fn at_for_tests(base: usize, entries: u32, stride: usize) -> Self {
        Self {
            base: NonNull::new(base as *mut u8).expect("mapped"),
            bytes: HEAD_LEN + entries as usize * stride,
            entries,
            stride,
        }
    }

    /// Places.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + size_of::<u32>() <= HEAD_LEN && at % 4 == 0);
        // SAFETY: within the head by the invariant, for the constants that this is called with;
        // the kernel uses atomic accesses, too.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    pub(crate) fn producer(&self) -> u32 {
        self.word(PRODUCER).load(Ordering::Acquire)
    }

    pub(crate) fn set_producer(&self, index: u32) {
        self.word(PRODUCER).store(index, Ordering::Release);
    }

    pub(crate) fn consumer(&self) -> u32 {
        self.word(CONSUMER).load(Ordering::Acquire)
    }

    pub(crate) fn set_consumer(&self, index: u32) {
        self.word(CONSUMER).store(index, Ordering::Release);
    }

    pub(crate) fn flag(&self) -> &AtomicU32 {
        self.word(FLAG)
    }

    /// Why the queue is of no use any more; 0 if it is.
    pub(crate) fn dead(&self) -> u32 {
        self.word(DEAD).load(Ordering::Acquire)
    }

    /// The kernel wants to be called. What was published before is seen by the kernel, or this
    /// sees that it looks no more.
    pub(crate) fn wants_call(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flag().load(Ordering::Relaxed) != 0
    }

    fn place(&self, index: u32, at: usize, len: usize) -> NonNull<u8> {
        assert!(at + len <= self.stride, "beyond an entry");
        let slot = (index & (self.entries - 1)) as usize;
        // SAFETY: `slot` is below `entries`, and the range is within the stride.
        unsafe { self.base.add(HEAD_LEN + slot * self.stride + at) }
    }

    /// Copies out of the entry of `index`, from `at` bytes into it.
    pub(crate) fn read<T: Plain>(&self, index: u32, at: usize) -> T {
        let from = self.place(index, at, size_of::<T>());
        // SAFETY: that many bytes, of which any are a value.
        unsafe { from.cast::<T>().read_unaligned() }
    }

    /// Copies into the entry of `index`, to `at` bytes into it.
    pub(crate) fn write<T: Plain>(&self, index: u32, at: usize, from: &[T]) {
        let to = self.place(index, at, size_of_val(from));
        // SAFETY: as many bytes at both places, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_ptr(), size_of_val(from)) }
    }

    /// Copies `len` bytes of this process to `at` bytes into the entry of `index`.
    ///
    /// # Safety
    ///
    /// `from` points at `len` readable bytes.
    pub(crate) unsafe fn write_from(&self, index: u32, at: usize, from: *const u8, len: usize) {
        let to = self.place(index, at, len);
        // SAFETY: as required, and within the entry.
        unsafe { ptr::copy_nonoverlapping(from, to.as_ptr(), len) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_wrap_around_the_places() {
        let queue = Queue::anonymous(4, 64);
        let entry = |wr_id| RecvEntry {
            wr_id,
            ..RecvEntry::default()
        };
        for index in (u32::MAX - 1..=u32::MAX).chain(0..2) {
            queue.write(index, 0, &[entry(u64::from(index))]);
        }
        assert_eq!(
            queue.read::<RecvEntry>(u32::MAX, 0).wr_id,
            u64::from(u32::MAX)
        );
        assert_eq!(queue.read::<RecvEntry>(1, 0).wr_id, 1);
        assert_eq!(queue.read::<RecvEntry>(5, 0).wr_id, 1);
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let place = QueueResp {
            offset: 0,
            bytes: 4096,
            entries: 64,
            stride: 64,
            reserved: 0,
        };
        assert_eq!(Queue::map(-1, &place).unwrap_err(), NONSENSE);
        let fits = QueueResp {
            bytes: 8192,
            ..place
        };
        assert_eq!(Queue::map(-1, &fits).unwrap_err(), libc::EBADF);
        let uneven = QueueResp {
            entries: 63,
            ..fits
        };
        assert_eq!(Queue::map(-1, &uneven).unwrap_err(), NONSENSE);
    }

    #[test]
    #[should_panic(expected = "beyond an entry")]
    fn nothing_is_written_beyond_an_entry() {
        Queue::anonymous(2, 16).write(0, 8, &[Sge::default()]);
    }
}
