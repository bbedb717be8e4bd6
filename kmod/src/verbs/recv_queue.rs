// SPDX-License-Identifier: GPL-2.0-only
//! A queue of receives: that of one QP, or a shared one.

use crate::rdma::queue::{Owner, Queue};
use crate::rdma::Sge;
use crate::uapi::RecvEntry;
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::Arc;

/// A receive that was taken out.
#[derive(Clone, Copy)]
pub(super) struct Receive {
    pub(super) wr_id: u64,
    /// Elements; none, and so no room, if it named more than it may.
    pub(super) sges: u32,
    /// Bytes it can take.
    pub(super) room: u64,
}

/// The end of a queue of receives at which they are taken.
pub(super) struct RecvQueue {
    queue: Arc<Queue>,
    /// The next to take.
    next: u32,
}

impl RecvQueue {
    /// For at least `entries` receives of at most `sges` elements. Sleeps.
    pub(super) fn new(owner: Owner<'_>, entries: u32, sges: u32) -> Result<Self> {
        let size = size_of::<RecvEntry>() + sges as usize * size_of::<Sge>();
        Ok(Self {
            queue: Arc::new(Queue::new(owner, entries, size)?, GFP_KERNEL)?,
            next: 0,
        })
    }

    /// The queue itself.
    pub(super) fn queue(&self) -> &Arc<Queue> {
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
        self.queue.set_consumer(self.next);
    }
}
