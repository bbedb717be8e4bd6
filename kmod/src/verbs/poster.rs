// SPDX-License-Identifier: GPL-2.0-only
//! How work requests of consumers in the kernel come in: they may post from any context, interrupts
//! included, so that nothing happens here but writing into a queue.

use crate::rdma::queue::{full_barrier, Queue};
use crate::rdma::Sge;
use crate::thunderbolt::irq_lock::{new_irq_lock, IrqLock};
use crate::uapi::RecvEntry;
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// The producer's end of a queue that only consumers in the kernel post into. They keep to what
/// `uapi` asks of a user's process.
#[pin_data]
pub(super) struct Poster {
    /// `None`: it is a user's, or it is destroyed.
    #[pin]
    queue: IrqLock<Option<Arc<Queue>>>,
}

impl Poster {
    pub(super) fn new(queue: Option<Arc<Queue>>) -> impl PinInit<Self> {
        pin_init!(Self { queue <- new_irq_lock!(queue, "tbrdma_poster") })
    }

    /// Adds an entry: `write` writes it at the index that it is given. Returns whether somebody has
    /// to be sent to look at it. EINVAL: there is no queue; ENOMEM: it is full.
    pub(super) fn post(&self, write: impl FnOnce(&Queue, u32) -> Result) -> Result<bool> {
        let queue = self.queue.lock();
        let queue = queue.as_ref().ok_or(EINVAL)?;
        let tail = queue.producer();
        if tail.wrapping_sub(queue.consumer()) >= queue.entries() {
            return Err(ENOMEM);
        }
        write(queue, tail)?;
        queue.set_producer(tail.wrapping_add(1));
        // Whoever looks no longer sets the flag and then looks once more: one of the two sees the
        // other.
        full_barrier();
        Ok(queue.flag().load(Relaxed) != 0)
    }

    /// Adds a receive. As [`post`](Self::post), and EINVAL: it has too many elements.
    pub(super) fn post_receive(&self, wr_id: u64, sges: &[Sge]) -> Result<bool> {
        let entry = RecvEntry {
            wr_id,
            num_sge: u32::try_from(sges.len()).map_err(|_| EINVAL)?,
            reserved: 0,
        };
        self.post(|queue, index| {
            queue.write(index, size_of::<RecvEntry>(), sges)?;
            queue.write(index, 0, &[entry])
        })
    }

    /// Takes nothing any more. The caller drops what is returned where one may sleep.
    pub(super) fn close(&self) -> Option<Arc<Queue>> {
        self.queue.lock().take()
    }
}
