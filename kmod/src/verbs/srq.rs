// SPDX-License-Identifier: GPL-2.0-only
//! Shared receive queues.

use super::{Hca, LIMITS};
use crate::rdma::event::CoreSrq;
use crate::rdma::queue::{Owner, Queue};
use crate::rdma::Sge;
use crate::uapi::{QueueResp, RecvEntry};
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_spinlock, Arc, ArcBorrow, SpinLock};

struct State {
    /// `None` once the queue is destroyed.
    queue: Option<Queue>,
    /// The next receive to take; one past the newest that a consumer in the kernel has posted.
    next: u32,
    tail: u32,
    /// An event is wanted when fewer receives are left; 0: none (IBTA 1.7, 10.2.9.3).
    limit: u32,
}

impl State {
    /// Receives that nobody has taken.
    fn waiting(&self) -> u32 {
        let Some(queue) = &self.queue else { return 0 };
        let waiting = queue.producer().wrapping_sub(self.next);
        // More than there are places for is nonsense.
        if waiting > queue.entries() {
            0
        } else {
            waiting
        }
    }
}

/// A queue of receives that many QPs share.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq {
    hca: Arc<Hca>,
    core: CoreSrq,
    pd: u32,
    sges: u32,
    user: bool,
    /// The limit was passed, and nobody was told yet.
    passed: Atomic<u32>,
    #[pin]
    state: SpinLock<State>,
}

/// A receive that was taken out.
pub(super) struct Taken {
    pub(super) wr_id: u64,
    /// Elements; none, and so no room, if it named more than it may.
    pub(super) num_sge: u32,
}

impl Srq {
    /// Makes a queue for `entries` receives of at most `sges` elements.
    pub(crate) fn new(
        hca: ArcBorrow<'_, Hca>,
        core: CoreSrq,
        pd: u32,
        entries: u32,
        sges: u32,
        owner: Owner<'_>,
    ) -> Result<Arc<Self>> {
        if entries == 0 || entries > LIMITS.work_requests || sges > LIMITS.sges {
            return Err(EINVAL);
        }
        let sges = sges.max(1);
        let size = size_of::<RecvEntry>() + sges as usize * size_of::<Sge>();
        let state = State {
            queue: Some(Queue::new(owner, entries, size)?),
            next: 0,
            tail: 0,
            limit: 0,
        };
        hca.srq_count.take(LIMITS.srqs)?;
        let made = Arc::pin_init(
            pin_init!(Self {
                hca: hca.into(),
                core,
                pd,
                sges,
                user: owner.is_user(),
                passed: Atomic::new(0),
                state <- new_spinlock!(state, "tbrdma_srq"),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            hca.srq_count.give();
        }
        made
    }

    /// Where the user finds the queue.
    pub(crate) fn response(&self) -> QueueResp {
        let state = self.state.lock();
        state
            .queue
            .as_ref()
            .map(Queue::response)
            .unwrap_or_default()
    }

    /// Protection domain of the receives.
    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// Receives that it holds at the most, elements of each, and the limit.
    pub(crate) fn attributes(&self) -> (u32, u32, u32) {
        let state = self.state.lock();
        let entries = state.queue.as_ref().map_or(0, Queue::entries);
        (entries, self.sges, state.limit)
    }

    /// Asks for one event when fewer than `limit` receives are left. EINVAL: more than it holds.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        let mut state = self.state.lock();
        if limit > state.queue.as_ref().map_or(0, Queue::entries) {
            return Err(EINVAL);
        }
        state.limit = limit;
        Ok(())
    }

    /// Puts a receive of a consumer in the kernel at the end. EINVAL: too many elements, or the
    /// queue is a user's; ENOMEM: it is full.
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result {
        if self.user || sges.len() > self.sges as usize {
            return Err(EINVAL);
        }
        let mut state = self.state.lock();
        let queue = state.queue.as_ref().ok_or(EINVAL)?;
        if state.tail.wrapping_sub(state.next) >= queue.entries() {
            return Err(ENOMEM);
        }
        let entry = RecvEntry {
            wr_id,
            num_sge: sges.len() as u32,
            reserved: 0,
        };
        queue.write(state.tail, 0, &[entry])?;
        queue.write(state.tail, size_of::<RecvEntry>(), sges)?;
        let tail = state.tail.wrapping_add(1);
        queue.set_producer(tail);
        state.tail = tail;
        Ok(())
    }

    /// Takes the oldest receive, with its elements in `sges`, which has room for those of any.
    /// Call [`tell`](Self::tell) when no lock is held.
    pub(super) fn take(&self, sges: &mut [Sge]) -> Option<Taken> {
        let mut state = self.state.lock();
        let waiting = state.waiting();
        if waiting == 0 {
            return None;
        }
        let queue = state.queue.as_ref()?;
        let mut entry = [RecvEntry::default()];
        queue.read(state.next, 0, &mut entry).ok()?;
        let [entry] = entry;
        let fits = sges
            .get_mut(..entry.num_sge as usize)
            .ok_or(EINVAL)
            .and_then(|to| queue.read(state.next, size_of::<RecvEntry>(), to));
        let num_sge = fits.map_or(0, |()| entry.num_sge);
        let next = state.next.wrapping_add(1);
        queue.set_consumer(next);
        state.next = next;
        if state.limit != 0 && waiting - 1 < state.limit {
            // Once only, until it is set again.
            state.limit = 0;
            self.passed.store(1, Relaxed);
        }
        Some(Taken {
            wr_id: entry.wr_id,
            num_sge,
        })
    }

    /// Tells the consumer that the limit was passed, if it was. Called by those who use a QP of
    /// this queue, which outlives it.
    pub(super) fn tell(&self) {
        if self.passed.load(Relaxed) != 0 && self.passed.xchg(0, Full) != 0 {
            self.core.limit_reached();
        }
    }

    /// The core destroys its object. No QP uses the queue any more.
    pub(crate) fn destroy(&self) {
        // Freed here, where sleeping is allowed, whoever drops the last reference.
        let queue = self.state.lock().queue.take();
        drop(queue);
    }
}

#[pinned_drop]
impl PinnedDrop for Srq {
    fn drop(self: Pin<&mut Self>) {
        self.hca.srq_count.give();
    }
}
