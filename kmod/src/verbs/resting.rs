// SPDX-License-Identifier: GPL-2.0-only
//! QPs whose acknowledgement waits: for a frame to ride on, or for more to acknowledge.
//!
//! A QP stays in the list when its acknowledgement has found a frame; whoever looks at it next takes
//! it out. So a busy QP costs neither an entry nor a timer for each message.

use super::cq::Cq;
use super::lists::QpList;
use super::qp::{Qp, Rest};
use super::{acks, Hca};
use crate::link::Peer;
use crate::thunderbolt::alarm::{Alarm, OnAlarm};
use crate::thunderbolt::os::{cancel_sync, now_us, Workqueue};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// The list, and what looks at it when somebody has waited for long enough.
#[pin_data]
struct List {
    #[pin]
    qps: QpList,
    queue: Arc<Workqueue>,
    /// When the alarm rings, microseconds; 0: it is not set.
    rings_at: Atomic<u64>,
    #[pin]
    work: DelayedWork<List>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for List { self.work }
}

/// The list with its alarm.
pub(super) struct Resting {
    alarm: Alarm<List>,
    list: Arc<List>,
}

impl Resting {
    pub(super) fn new(queue: Arc<Workqueue>) -> Result<Self> {
        let list = Arc::pin_init(
            pin_init!(List {
                qps <- QpList::new(),
                queue,
                rings_at: Atomic::new(0),
                work <- new_delayed_work!("tbrdma_resting"),
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            alarm: Alarm::new(list.clone())?,
            list,
        })
    }

    /// See [`QpList::reserve`].
    pub(super) fn reserve(&self, count: usize) -> Result {
        self.list.qps.reserve(count)
    }

    /// Puts a QP in that is not there yet.
    pub(super) fn push(&self, qp: Arc<Qp>) {
        self.list.qps.push(qp);
    }

    /// Takes a QP out that is going away.
    pub(super) fn remove(&self, qp: &Arc<Qp>) {
        self.list.qps.remove(qp);
    }

    /// Sees to it that the list is looked at by this time, microseconds.
    pub(super) fn look_at(&self, at_us: u64) {
        let rings_at = self.list.rings_at.load(Relaxed);
        if rings_at != 0 && rings_at <= at_us {
            return;
        }
        // Two who do that at once: the alarm may ring too late by what it takes them, or once more
        // than needed.
        self.list.rings_at.store(at_us.max(1), Relaxed);
        self.alarm.set(at_us.saturating_sub(now_us()));
    }

    /// A program looks at `cq` for the next time, so it has not answered what it got there: those
    /// QPs wait no longer.
    pub(super) fn came_back(&self, hca: &Hca, cq: &Cq) {
        for _ in 0..self.list.qps.len() {
            let Some(qp) = self.list.qps.pop_if(|qp| qp.uses(cq)) else {
                return;
            };
            if let Rest::Over(peer) = Qp::rest(&qp, true) {
                acks::flush(hca, &peer);
            }
        }
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        // The alarm first, or it could queue the work once more, which would then be the last to hold
        // the queue that it runs on.
        self.alarm.cancel();
        cancel_sync::<_, 0>(&self.list);
    }
}

impl OnAlarm for List {
    fn on_alarm(this: &Arc<Self>) -> Option<u64> {
        // Already queued is as good.
        let _ = this.queue.queue().enqueue::<_, 0>(this.clone());
        None
    }
}

impl WorkItem for List {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.rings_at.xchg(0, Full);
        let mut peer: Option<(Arc<Peer>, Arc<Hca>)> = None;
        for _ in 0..this.qps.len() {
            let Some(qp) = this.qps.pop_if(|_| true) else {
                break;
            };
            match Qp::rest(&qp, false) {
                Rest::Over(owed) => {
                    // All that is owed to one peer goes out together.
                    let same = peer.as_ref().is_some_and(|(p, _)| Arc::ptr_eq(p, &owed));
                    if !same {
                        if let Some((peer, hca)) = peer.replace((owed, qp.hca().clone())) {
                            acks::flush(&hca, &peer);
                        }
                    }
                }
                // It is in the list again.
                Rest::Until(at) => qp.hca().resting.look_at(at),
                Rest::Nothing => {}
            }
        }
        if let Some((peer, hca)) = peer {
            acks::flush(&hca, &peer);
        }
    }
}
