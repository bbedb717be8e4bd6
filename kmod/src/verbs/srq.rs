// SPDX-License-Identifier: GPL-2.0-only
//! Shared receive queues.

use super::poster::Poster;
use super::recv_queue::{Receive, RecvQueue};
use super::{Hca, LIMITS};
use crate::rdma::event::CoreSrq;
use crate::rdma::queue::Owner;
use crate::rdma::Sge;
use crate::uapi::QueueResp;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_spinlock, Arc, ArcBorrow, SpinLock};

struct State {
    /// `None` once the queue is destroyed.
    queue: Option<RecvQueue>,
    /// An event is wanted when fewer receives are left; 0: none (IBTA 1.7, 10.2.9.3).
    limit: u32,
}

impl State {
    fn entries(&self) -> u32 {
        self.queue.as_ref().map_or(0, |own| own.queue().entries())
    }
}

/// A queue of receives that many QPs share.
#[pin_data(PinnedDrop)]
pub(crate) struct Srq {
    hca: Arc<Hca>,
    core: CoreSrq,
    pd: u32,
    sges: u32,
    #[pin]
    poster: Poster,
    /// The limit was passed, and nobody was told yet.
    passed: Atomic<u32>,
    #[pin]
    state: SpinLock<State>,
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
        let queue = RecvQueue::new(owner, entries, sges)?;
        let posted = (!owner.is_user()).then(|| queue.queue().clone());
        let state = State {
            queue: Some(queue),
            limit: 0,
        };
        hca.srq_count.take(LIMITS.srqs)?;
        let made = Arc::pin_init(
            pin_init!(Self {
                hca: hca.into(),
                core,
                pd,
                sges,
                poster <- Poster::new(posted),
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
        let queue = state.queue.as_ref();
        queue.map(|own| own.queue().response()).unwrap_or_default()
    }

    /// Protection domain of the receives.
    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// Receives that it holds at the most, elements of each, and the limit.
    pub(crate) fn attributes(&self) -> (u32, u32, u32) {
        let state = self.state.lock();
        (state.entries(), self.sges, state.limit)
    }

    /// Asks for one event when fewer than `limit` receives are left. EINVAL: more than it holds.
    pub(crate) fn set_limit(&self, limit: u32) -> Result {
        let mut state = self.state.lock();
        if limit > state.entries() {
            return Err(EINVAL);
        }
        state.limit = limit;
        Ok(())
    }

    /// Puts a receive of a consumer in the kernel at the end; any context. EINVAL: too many
    /// elements, or the queue is a user's; ENOMEM: it is full.
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result {
        if sges.len() > self.sges as usize {
            return Err(EINVAL);
        }
        // Nobody waits for receives of a shared queue.
        self.poster.post_receive(wr_id, sges).map(drop)
    }

    /// Takes the oldest receive, with its elements in `sges`, which has room for those of any.
    /// Call [`tell`](Self::tell) when no lock is held.
    pub(super) fn take(&self, sges: &mut [Sge]) -> Option<Receive> {
        let mut state = self.state.lock();
        let queue = state.queue.as_mut()?;
        let waiting = queue.waiting();
        let taken = queue.take(sges)?;
        if state.limit != 0 && waiting.saturating_sub(1) < state.limit {
            // Once only, until it is set again.
            state.limit = 0;
            self.passed.store(1, Relaxed);
        }
        Some(taken)
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
        let queue = (self.poster.close(), self.state.lock().queue.take());
        drop(queue);
    }
}

#[pinned_drop]
impl PinnedDrop for Srq {
    fn drop(self: Pin<&mut Self>) {
        self.hca.srq_count.give();
    }
}
