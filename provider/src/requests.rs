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
        let at = self.place()?;
        let inline = request.send_flags & u32::from(send_flags::INLINE) != 0
            && request.opcode != wr::RDMA_READ;
        let most = if inline { usize::MAX } else { self.max_sge };
        // SAFETY: as required.
        let list = unsafe { sges(request.sg_list, request.num_sge, most)? };
        let mut entry = SendEntry {
            wr_id: request.wr_id,
            opcode: request.opcode as u16,
            flags: request.send_flags as u16
                & (send_flags::FENCE | send_flags::SIGNALED | send_flags::SOLICITED),
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
        if inline {
            let total: usize = list.iter().map(|sge| sge.length as usize).sum();
            if total > self.max_inline {
                return Err(libc::EINVAL);
            }
            entry.flags |= send_flags::INLINE;
            entry.inline_len = total as u32;
            let mut to = size_of::<SendEntry>();
            for sge in list {
                let len = sge.length as usize;
                // SAFETY: the program says that so many bytes are there, and they fit.
                unsafe { self.queue.write_from(at, to, sge.addr as *const u8, len) };
                to += len;
            }
        } else {
            entry.num_sge = list.len() as u32;
            self.queue.write(at, size_of::<SendEntry>(), list);
        }
        self.queue.write(at, 0, &[entry]);
        self.next = at.wrapping_add(1);
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
