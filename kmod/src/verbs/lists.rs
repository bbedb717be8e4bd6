// SPDX-License-Identifier: GPL-2.0-only
//! Lists of QPs that never need memory when a QP is put in.

use super::qp::Qp;
use crate::link::Peer;
use kernel::prelude::*;
use kernel::sync::{new_spinlock, Arc, SpinLock};

/// A list that holds each QP at most once; a flag in the QP sees to that.
#[pin_data]
pub(crate) struct QpList {
    #[pin]
    qps: SpinLock<KVec<Arc<Qp>>>,
}

impl QpList {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self { qps <- new_spinlock!(KVec::new(), "tbrdma_qp_list") })
    }

    /// Makes room for `count` QPs. Sleeps.
    pub(super) fn reserve(&self, count: usize) -> Result {
        if self.qps.lock().capacity() >= count {
            return Ok(());
        }
        let mut bigger = KVec::with_capacity(count.next_power_of_two(), GFP_KERNEL)?;
        let mut qps = self.qps.lock();
        if qps.capacity() < bigger.capacity() {
            for qp in qps.drain_all() {
                // Room enough: the old capacity was smaller.
                let _ = bigger.push_within_capacity(qp);
            }
            core::mem::swap(&mut *qps, &mut bigger);
        }
        drop(qps);
        Ok(())
    }

    /// Puts a QP at the end. There is room for every QP that exists.
    pub(super) fn push(&self, qp: Arc<Qp>) {
        let _ = self.qps.lock().push_within_capacity(qp);
    }

    /// Takes the first QP that is connected to `peer`.
    pub(super) fn pop_for(&self, peer: &Arc<Peer>) -> Option<Arc<Qp>> {
        self.pop_if(|qp| qp.peer_id() == Some(peer.id()))
    }

    /// Takes the first QP that is wanted; `wanted` must not lock anything.
    pub(super) fn pop_if(&self, wanted: impl Fn(&Qp) -> bool) -> Option<Arc<Qp>> {
        let mut qps = self.qps.lock();
        let at = qps.iter().position(|qp| wanted(qp))?;
        qps.remove(at).ok()
    }

    /// Takes a QP out that is going away.
    pub(super) fn remove(&self, gone: &Arc<Qp>) {
        let found = {
            let mut qps = self.qps.lock();
            let at = qps.iter().position(|qp| Arc::ptr_eq(qp, gone));
            at.and_then(|at| qps.remove(at).ok())
        };
        drop(found);
    }

    pub(super) fn len(&self) -> usize {
        self.qps.lock().len()
    }
}
