//! Requests on their way into a queue that the kernel reads.

use crate::ah::{number, OurAh};
use crate::public::{wr, RecvWr, SendWr};
use crate::queue::Queue;
use std::ffi::c_int;
use std::mem::size_of;
use tbrdma_uapi::{send_flags, RecvEntry, SendEntry, Sge};

/// The producer's side of a queue of requests.
#[derive(Debug)]
pub(crate) struct Requests {
    queue: Queue,
    next: u32,
    max_sge: usize,
    max_inline: usize,
    /// Every send has an address of its own.
    datagrams: bool,
}

/// Looks at `count` elements of a list. EINVAL: more than `most`.
///
/// # Safety
///
/// `list` points at `count` elements, for the lifetime chosen.
unsafe fn sges<'a>(list: *const Sge, count: c_int, most: usize) -> Result<&'a [Sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: as required.
        Ok(count) if count <= most => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
        _ => Err(libc::EINVAL),
    }
}

/// The flags of a request that are kept as they are.
pub(crate) fn kept_flags(flags: u32) -> u16 {
    flags as u16 & (send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED)
}

impl Requests {
    /// For sends; `datagrams`: each of which has an address of its own.
    pub(crate) fn of_sends(queue: Queue, max_sge: u32, max_inline: u32, datagrams: bool) -> Self {
        Self {
            queue,
            next: 0,
            max_sge: max_sge as usize,
            max_inline: max_inline as usize,
            datagrams,
        }
    }

    /// For receives.
    pub(crate) fn of_receives(queue: Queue, max_sge: u32) -> Self {
        Self::of_sends(queue, max_sge, 0, false)
    }

    /// Index of a free place. ENOMEM: there is none.
    fn place(&self) -> Result<u32, c_int> {
        if self.next.wrapping_sub(self.queue.consumer()) >= self.queue.entries() {
            return Err(libc::ENOMEM);
        }
        Ok(self.next)
    }

    /// Puts a send into the queue; [`publish`](Self::publish) shows it to the kernel.
    ///
    /// # Safety
    ///
    /// The request's pointers are valid.
    pub(crate) unsafe fn send(&mut self, request: &SendWr) -> Result<(), c_int> {
        let inline = request.send_flags & u32::from(send_flags::INLINE) != 0
            && request.opcode != wr::RDMA_READ;
        let most = if inline { usize::MAX } else { self.max_sge };
        // SAFETY: as required.
        let (list, mut entry) = unsafe {
            (
                sges(request.sg_list, request.num_sge, most)?,
                self.entry_of(request)?,
            )
        };
        let start = self.next;
        self.open(&entry)?;
        let data = if inline {
            let pieces = list
                .iter()
                .map(|sge| (sge.addr as *const u8, sge.length as usize));
            // SAFETY: the program says that so many bytes are there.
            unsafe { self.set_inline(&mut entry, pieces) }
        } else {
            self.set_elements(&mut entry, list)
        };
        if data.is_err() {
            self.rewind(start);
        }
        data
    }

    /// What a request says, but for its data.
    ///
    /// # Safety
    ///
    /// The request's pointers are valid.
    unsafe fn entry_of(&self, request: &SendWr) -> Result<SendEntry, c_int> {
        let mut entry = SendEntry {
            wr_id: request.wr_id,
            opcode: request.opcode as u16,
            flags: kept_flags(request.send_flags),
            imm: request.imm,
            ..SendEntry::default()
        };
        match request.opcode {
            wr::SEND | wr::SEND_WITH_IMM if self.datagrams => {
                let ah = request.remote as *const OurAh;
                if ah.is_null() {
                    return Err(libc::EINVAL);
                }
                // SAFETY: the program gives a handle of this device.
                entry.ah = unsafe { number(ah) };
                (entry.dqpn, entry.qkey) = request.datagram();
            }
            wr::SEND | wr::SEND_WITH_IMM | wr::SEND_WITH_INV => {}
            wr::RDMA_WRITE | wr::RDMA_WRITE_WITH_IMM | wr::RDMA_READ => {
                entry.raddr = request.remote;
                entry.rkey = request.rdma_rkey();
            }
            wr::ATOMIC_CMP_AND_SWP | wr::ATOMIC_FETCH_AND_ADD => {
                entry.raddr = request.remote;
                (entry.compare_add, entry.swap, entry.rkey) = request.atomic();
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(entry)
    }

    /// Every send has an address of its own.
    pub(crate) fn datagrams(&self) -> bool {
        self.datagrams
    }

    /// Index of the next place.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Takes back what was put in since the next place was `next`, and was not shown.
    pub(crate) fn rewind(&mut self, next: u32) {
        self.next = next;
    }

    /// Puts a send without data into the next place. ENOMEM: there is none.
    pub(crate) fn open(&mut self, entry: &SendEntry) -> Result<(), c_int> {
        let at = self.place()?;
        self.queue.write(at, 0, &[*entry]);
        self.next = at.wrapping_add(1);
        Ok(())
    }

    /// Writes the newest send again, after a change.
    pub(crate) fn rewrite(&mut self, entry: &SendEntry) {
        self.queue.write(self.next.wrapping_sub(1), 0, &[*entry]);
    }

    /// Gives the newest send, which is `entry`, elements. EINVAL: too many.
    pub(crate) fn set_elements(
        &mut self,
        entry: &mut SendEntry,
        list: &[Sge],
    ) -> Result<(), c_int> {
        if list.len() > self.max_sge {
            return Err(libc::EINVAL);
        }
        entry.flags &= !send_flags::INLINE;
        entry.inline_len = 0;
        entry.num_sge = list.len() as u32;
        let at = self.next.wrapping_sub(1);
        self.queue.write(at, size_of::<SendEntry>(), list);
        self.rewrite(entry);
        Ok(())
    }

    /// Gives the newest send, which is `entry`, a copy of these (address, bytes). EINVAL: too many
    /// bytes.
    ///
    /// # Safety
    ///
    /// The bytes are there.
    pub(crate) unsafe fn set_inline(
        &mut self,
        entry: &mut SendEntry,
        pieces: impl Iterator<Item = (*const u8, usize)> + Clone,
    ) -> Result<(), c_int> {
        let total = pieces
            .clone()
            .try_fold(0usize, |sum, (_, len)| sum.checked_add(len));
        let total = total
            .filter(|total| *total <= self.max_inline)
            .ok_or(libc::EINVAL)?;
        entry.flags |= send_flags::INLINE;
        entry.inline_len = total as u32;
        entry.num_sge = 0;
        let at = self.next.wrapping_sub(1);
        let mut to = size_of::<SendEntry>();
        for (from, len) in pieces.filter(|(_, len)| *len > 0) {
            // SAFETY: as required, and they fit.
            unsafe { self.queue.write_from(at, to, from, len) };
            to += len;
        }
        self.rewrite(entry);
        Ok(())
    }

    /// Puts a receive into the queue, likewise.
    ///
    /// # Safety
    ///
    /// The request's pointers are valid.
    unsafe fn receive(&mut self, request: &RecvWr) -> Result<(), c_int> {
        let at = self.place()?;
        // SAFETY: as required.
        let list = unsafe { sges(request.sg_list, request.num_sge, self.max_sge)? };
        let entry = RecvEntry {
            wr_id: request.wr_id,
            num_sge: list.len() as u32,
            reserved: 0,
        };
        self.queue.write(at, 0, &[entry]);
        self.queue.write(at, size_of::<RecvEntry>(), list);
        self.next = at.wrapping_add(1);
        Ok(())
    }

    /// Puts a list of receives into the queue. Returns an errno if one does not fit, and which in
    /// `bad`.
    ///
    /// # Safety
    ///
    /// The list and its pointers are valid; there is a place at `bad`.
    pub(crate) unsafe fn receive_all(
        &mut self,
        mut request: *mut RecvWr,
        bad: *mut *mut RecvWr,
    ) -> c_int {
        while !request.is_null() {
            // SAFETY: an element of the list.
            if let Err(error) = unsafe { self.receive(&*request) } {
                // SAFETY: as required.
                unsafe { *bad = request };
                return error;
            }
            // SAFETY: an element of the list.
            request = unsafe { (*request).next };
        }
        0
    }

    /// Shows the kernel what was put in. `true`: the kernel has to be called.
    pub(crate) fn publish(&self) -> bool {
        if self.queue.producer() == self.next {
            return false;
        }
        self.queue.set_producer(self.next);
        self.queue.wants_call()
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
