// SPDX-License-Identifier: GPL-2.0-only
//! A queue of receives: that of one QP, or a shared one.

use crate::rdma::queue::{Owner, Queue};
use crate::rdma::Sge;
use crate::uapi::RecvEntry;
use core::mem::size_of;
use kernel::prelude::*;

/// A receive that was taken out.
#[derive(Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    /// Elements; none, and so no room, if it named more than it may.
    pub(super) sges: u32,
    /// Bytes it can take.
    pub(super) room: u64,
}

/// A queue of receives.
pub(super) struct RecvQueue {
    queue: Queue,
    /// Elements of a receive at the most.
    sges: usize,
    /// The next to take; one past the newest that a consumer in the kernel has posted.
    next: u32,
    tail: u32,
}

impl RecvQueue {
    /// For at least `entries` receives of at most `sges` elements. Sleeps.
    pub(super) fn new(owner: Owner<'_>, entries: u32, sges: u32) -> Result<Self> {
        let sges = sges as usize;
        let size = size_of::<RecvEntry>() + sges * size_of::<Sge>();
        Ok(Self {
            queue: Queue::new(owner, entries, size)?,
            sges,
            next: 0,
            tail: 0,
        })
    }

    /// The queue itself.
    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Receives that nobody has taken.
    pub(super) fn waiting(&self) -> u32 {
        let waiting = self.queue.producer().wrapping_sub(self.next);
        // More than there are places for is nonsense.
        if waiting > self.queue.entries() {
            0
        } else {
            waiting
        }
    }

    /// Puts a receive of a consumer in the kernel at the end. EINVAL: too many elements; ENOMEM:
    /// the queue is full.
    pub(super) fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result {
        if sges.len() > self.sges {
            return Err(EINVAL);
        }
        if self.tail.wrapping_sub(self.next) >= self.queue.entries() {
            return Err(ENOMEM);
        }
        let entry = RecvEntry {
            wr_id,
            num_sge: sges.len() as u32,
            reserved: 0,
        };
        self.queue.write(self.tail, 0, &[entry])?;
        self.queue.write(self.tail, size_of::<RecvEntry>(), sges)?;
        self.tail = self.tail.wrapping_add(1);
        self.queue.set_producer(self.tail);
        Ok(())
    }

    /// Takes the oldest receive, with its elements in `to`, which has room for those of any.
    pub(super) fn take(&mut self, to: &mut [Sge]) -> Option<Receive> {
        if self.waiting() == 0 {
            return None;
        }
        let mut entry = [RecvEntry::default()];
        self.queue.read(self.next, 0, &mut entry).ok()?;
        let [entry] = entry;
        let mut receive = Receive {
            wr_id: entry.wr_id,
            sges: 0,
            room: 0,
        };
        // With too many elements it fails when it is used.
        if let Some(sges) = to.get_mut(..entry.num_sge as usize) {
            let read = self.queue.read(self.next, size_of::<RecvEntry>(), sges);
            if read.is_ok() {
                receive.sges = entry.num_sge;
                receive.room = sges.iter().map(|sge| u64::from(sge.length)).sum();
            }
        }
        self.next = self.next.wrapping_add(1);
        self.queue.set_consumer(self.next);
        Some(receive)
    }

    /// Forgets all receives.
    pub(super) fn reset(&mut self) {
        self.next = self.queue.producer();
        self.tail = self.next;
        self.queue.set_consumer(self.next);
    }
}
