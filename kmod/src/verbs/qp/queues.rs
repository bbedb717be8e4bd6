// SPDX-License-Identifier: GPL-2.0-only
//! The memory of a QP's queues. All of it is there from creation to destruction.
//!
//! A user's process writes its requests into shared memory ([`Queue`]); those of a consumer in the
//! kernel come into such a queue, too (`Poster`). Sends are copied from there, validated once, into
//! arrays of our own ([`Sends`]), from which they are transmitted. A receive stays in its queue
//! until a message needs it ([`Receives`]).

use super::QpCaps;
use crate::proto::rc::Wqe;
use crate::rdma::queue::{full_barrier, Owner, Queue};
use crate::rdma::Sge;
use crate::uapi::SendEntry;
use crate::verbs::recv_queue::{Receive, RecvQueue};
use crate::verbs::srq::Srq;
use core::mem::size_of;
use core::ops::Range;
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// A send work request beyond what the wire is concerned with.
#[derive(Clone, Copy, Default)]
pub(super) struct SendInfo {
    pub(super) wr_id: u64,
    pub(super) sges: u32,
    pub(super) inline: bool,
    /// Datagrams: address handle, and QP and Q_Key of the receiver.
    pub(super) ah: u32,
    pub(super) dqpn: u32,
    pub(super) qkey: u32,
    /// It makes no sense, and fails when it is its turn.
    pub(super) bad: bool,
}

/// The sends that were taken over, by message number modulo the length, which is a power of two.
#[derive(Default)]
pub(super) struct Sends {
    pub(super) wqes: KVVec<Wqe>,
    pub(super) info: KVVec<SendInfo>,
    /// `caps.send_sge` for each entry.
    sges: KVVec<Sge>,
    /// `caps.inline` bytes for each entry.
    inline: KVVec<u8>,
    sge_stride: usize,
    inline_stride: usize,
    /// Where the consumer puts its requests, and the next to take from there; `None` once the QP is
    /// destroyed.
    shared: Option<(Arc<Queue>, u32)>,
}

impl Sends {
    pub(super) fn new(caps: &QpCaps, owner: Owner<'_>) -> Result<Self> {
        let places = caps.send_wr as usize;
        let (sge_stride, inline_stride) = (caps.send_sge as usize, caps.inline as usize);
        let data = (sge_stride * size_of::<Sge>()).max(inline_stride);
        let size = size_of::<SendEntry>() + data;
        let queue = Arc::new(Queue::new(owner, caps.send_wr, size)?, GFP_KERNEL)?;
        queue.flag().store(1, Relaxed);
        Ok(Self {
            wqes: KVVec::from_elem(Wqe::default(), places, GFP_KERNEL)?,
            info: KVVec::from_elem(SendInfo::default(), places, GFP_KERNEL)?,
            sges: KVVec::from_elem(Sge::default(), places * sge_stride, GFP_KERNEL)?,
            inline: KVVec::from_elem(0, places * inline_stride, GFP_KERNEL)?,
            sge_stride,
            inline_stride,
            shared: Some((queue, 0)),
        })
    }

    /// The queue that the consumer writes.
    pub(super) fn shared(&self) -> Option<&Arc<Queue>> {
        self.shared.as_ref().map(|(queue, _)| queue)
    }

    /// The place of a message.
    pub(super) fn slot(&self, msn: u32) -> usize {
        msn as usize & self.wqes.len().wrapping_sub(1)
    }

    fn sge_range(&self, slot: usize, count: usize) -> Range<usize> {
        let from = slot * self.sge_stride;
        from..from + count
    }

    /// Elements of the send in `slot`.
    pub(super) fn sges(&self, slot: usize) -> &[Sge] {
        let count = self.info.get(slot).map_or(0, |info| info.sges as usize);
        self.sges.get(self.sge_range(slot, count)).unwrap_or(&[])
    }

    /// Room for `count` elements of the send in `slot`.
    pub(super) fn sges_mut(&mut self, slot: usize, count: usize) -> Result<&mut [Sge]> {
        if count > self.sge_stride {
            return Err(EINVAL);
        }
        let range = self.sge_range(slot, count);
        self.sges.get_mut(range).ok_or(EINVAL)
    }

    /// Inline data of the send in `slot`: all the room there is.
    pub(super) fn inline(&self, slot: usize) -> &[u8] {
        let from = slot * self.inline_stride;
        self.inline
            .get(from..from + self.inline_stride)
            .unwrap_or(&[])
    }

    /// Room for `len` bytes of inline data of the send in `slot`.
    pub(super) fn inline_mut(&mut self, slot: usize, len: usize) -> Result<&mut [u8]> {
        if len > self.inline_stride {
            return Err(EINVAL);
        }
        let from = slot * self.inline_stride;
        self.inline.get_mut(from..from + len).ok_or(EINVAL)
    }

    /// The consumer has put requests in that were not taken yet.
    pub(super) fn has_more(&self) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|(queue, next)| queue.producer() != *next)
    }

    /// The index of the consumer's oldest request that was not taken yet. If there is none, the
    /// consumer is asked to call for the next one.
    pub(super) fn peek(&mut self) -> Option<u32> {
        let (queue, next) = self.shared.as_ref()?;
        let waiting = || {
            let count = queue.producer().wrapping_sub(*next);
            // More than there are places for is nonsense, and no request.
            count != 0 && count <= queue.entries()
        };
        if !waiting() {
            queue.flag().store(1, Relaxed);
            // The consumer writes a request and then looks at the flag; we do it the other way
            // round, so one of the two sees the other.
            full_barrier();
            if !waiting() {
                return None;
            }
        }
        // Only one looks at a time: behind the QP's lock.
        if queue.flag().load(Relaxed) != 0 {
            queue.flag().store(0, Relaxed);
        }
        Some(*next)
    }

    /// Copies the head of the request at `index`.
    pub(super) fn head(&self, index: u32) -> SendEntry {
        let mut entry = [SendEntry::default()];
        if let Some(queue) = self.shared() {
            // Within every entry.
            let _ = queue.read(index, 0, &mut entry);
        }
        let [entry] = entry;
        entry
    }

    /// Copies the elements, or (`inline`) the data, of the request at `index` to `slot`.
    pub(super) fn fetch(&mut self, index: u32, slot: usize, count: usize, inline: bool) -> Result {
        // Taken out for the copy, since the copy goes to another part of `self`.
        let (queue, next) = self.shared.take().ok_or(EINVAL)?;
        let at = size_of::<SendEntry>();
        let copied = if inline {
            self.inline_mut(slot, count)
                .and_then(|to| queue.read(index, at, to))
        } else {
            self.sges_mut(slot, count)
                .and_then(|to| queue.read(index, at, to))
        };
        self.shared = Some((queue, next));
        copied
    }

    /// The request at the front was taken over: its place in the shared queue is free.
    pub(super) fn taken(&mut self) {
        if let Some((queue, next)) = &mut self.shared {
            *next = next.wrapping_add(1);
            queue.set_consumer(*next);
        }
    }

    /// Forgets what was not taken over.
    pub(super) fn reset(&mut self) {
        if let Some((queue, next)) = &mut self.shared {
            *next = queue.producer();
            queue.set_consumer(*next);
            queue.flag().store(1, Relaxed);
        }
    }
}

/// A queue of receives, and the one that is in use.
#[derive(Default)]
pub(super) struct Receives {
    /// `None` if they come from a shared queue.
    own: Option<RecvQueue>,
    srq: Option<Arc<Srq>>,
    claimed: Option<Receive>,
    claimed_sges: KVVec<Sge>,
    /// The requester was told that there are none.
    told_none: bool,
}

impl Receives {
    pub(super) fn new(caps: &QpCaps, owner: Owner<'_>) -> Result<Self> {
        let sges = caps.recv_sge;
        Ok(Self {
            own: Some(RecvQueue::new(owner, caps.recv_wr, sges)?),
            claimed_sges: KVVec::from_elem(Sge::default(), sges as usize, GFP_KERNEL)?,
            ..Self::default()
        })
    }

    /// Receives that come from a shared queue.
    pub(super) fn shared(srq: Arc<Srq>) -> Result<Self> {
        let (_, sges, _) = srq.attributes();
        Ok(Self {
            srq: Some(srq),
            claimed_sges: KVVec::from_elem(Sge::default(), sges as usize, GFP_KERNEL)?,
            ..Self::default()
        })
    }

    /// The queue itself, unless it is a shared one.
    pub(super) fn queue(&self) -> Option<&Arc<Queue>> {
        self.own.as_ref().map(RecvQueue::queue)
    }

    /// Receives that wait, unless they are those of a shared queue.
    pub(super) fn waiting(&self) -> u32 {
        self.own.as_ref().map_or(0, RecvQueue::waiting)
    }

    /// Receives for messages that are not done: those that wait, and the one in use.
    fn left(&self) -> u32 {
        self.waiting().saturating_add(self.claimed.is_some().into())
    }

    /// How many receives a requester is told to be left; it has to hear of the next one if there are
    /// none. `None`: they are those of a shared queue, which others may take (IBTA 1.7, 9.7.7.2).
    pub(super) fn tell(&mut self) -> Option<u32> {
        self.own.as_ref()?;
        let mut left = self.left();
        let asked = left == 0;
        if asked {
            self.set_call(true);
            left = self.left();
        }
        if left > 0 && (asked || self.told_none) {
            self.set_call(false);
        }
        self.told_none = left == 0;
        Some(left)
    }

    /// The requester was told that there are none, and now there are.
    pub(super) fn has_news(&self) -> bool {
        self.told_none && self.left() > 0
    }

    /// Takes the oldest receive out of the queue, unless one is in use already. `false`: there is
    /// none.
    pub(super) fn claim(&mut self) -> bool {
        if self.claimed.is_none() {
            let to = &mut self.claimed_sges;
            self.claimed = match (&mut self.own, &self.srq) {
                (Some(own), _) => own.take(to),
                (None, Some(srq)) => srq.take(to),
                (None, None) => None,
            };
        }
        self.claimed.is_some()
    }

    /// Ends the receive in use in a QP that fails; those that were not claimed yet belong to a
    /// shared queue if there is one (IBTA 1.7, 10.2.9.5).
    pub(super) fn claim_to_flush(&mut self) -> bool {
        self.claimed.is_some() || self.srq.is_none() && self.claim()
    }

    /// The receive in use.
    pub(super) fn claimed(&self) -> Option<(Receive, &[Sge])> {
        let info = self.claimed?;
        let sges = self.claimed_sges.get(..info.sges as usize)?;
        Some((info, sges))
    }

    /// Ends the receive in use; gives its number.
    pub(super) fn finish(&mut self) -> Option<u64> {
        self.claimed.take().map(|info| info.wr_id)
    }

    /// Forgets all receives.
    pub(super) fn reset(&mut self) {
        self.claimed = None;
        self.told_none = false;
        if let Some(own) = &mut self.own {
            own.reset();
        }
        self.set_call(false);
    }

    /// Whether the consumer has to call after it has posted: to have the receive flushed, or the
    /// requester told of it.
    pub(super) fn set_call(&self, call: bool) {
        if let Some(queue) = self.queue() {
            queue.flag().store(u32::from(call), Relaxed);
            // It posts and then looks; whoever sets this looks for receives afterwards.
            full_barrier();
        }
    }
}
