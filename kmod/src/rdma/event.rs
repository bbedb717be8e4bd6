// SPDX-License-Identifier: GPL-2.0-only
//! Events to the RDMA core.

use crate::sys;
use core::ptr::NonNull;
use kernel::ffi::c_int;

/// The core's object of a completion queue.
///
/// # Invariants
///
/// Valid until the queue's destroy operation returns; whoever uses it is inside the queue's gate,
/// which that operation closes first.
pub(crate) struct CoreCq(NonNull<sys::ib_cq>);

// SAFETY: the core's handlers may be called from any thread.
unsafe impl Send for CoreCq {}
// SAFETY: as above; the pointer is never written through here.
unsafe impl Sync for CoreCq {}

impl CoreCq {
    /// # Safety
    ///
    /// See the type's invariant.
    pub(super) unsafe fn new(cq: NonNull<sys::ib_cq>) -> Self {
        Self(cq)
    }

    /// Tells the consumer that there is a completion. Process context, with interrupts on and no lock
    /// held: the handler of a kernel consumer may poll and post, and the softirq that it raises runs
    /// at once.
    pub(crate) fn notify(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_cq_notify(self.0.as_ptr()) }
    }

    /// Tells the consumer that completions were lost.
    pub(crate) fn error(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_cq_error(self.0.as_ptr()) }
    }
}

/// The core's object of a shared receive queue.
///
/// # Invariants
///
/// Valid until the queue's destroy operation returns; the core lets that happen only when no QP
/// uses the queue, and whoever uses this is inside the gate of such a QP.
pub(crate) struct CoreSrq(NonNull<sys::ib_srq>);

// SAFETY: the core's handlers may be called from any thread.
unsafe impl Send for CoreSrq {}
// SAFETY: as above; the pointer is never written through here.
unsafe impl Sync for CoreSrq {}

impl CoreSrq {
    /// # Safety
    ///
    /// See the type's invariant.
    pub(super) unsafe fn new(srq: NonNull<sys::ib_srq>) -> Self {
        Self(srq)
    }

    /// Tells the consumer that fewer receives are left than it wanted to be told of.
    pub(crate) fn limit_reached(&self) {
        // SAFETY: valid by the invariant.
        unsafe { sys::tbrdma_srq_limit(self.0.as_ptr()) }
    }
}

/// The core's object of a QP: an identity that completions carry.
///
/// # Invariants
///
/// Valid until the QP's destroy operation returns, which takes the QP's completions out of its
/// queues before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoreQp(NonNull<sys::ib_qp>);

// SAFETY: only handed back to the core.
unsafe impl Send for CoreQp {}
// SAFETY: only handed back to the core.
unsafe impl Sync for CoreQp {}

impl CoreQp {
    /// # Safety
    ///
    /// See the type's invariant.
    pub(super) unsafe fn new(qp: NonNull<sys::ib_qp>) -> Self {
        Self(qp)
    }

    pub(super) fn as_ptr(self) -> *mut sys::ib_qp {
        self.0.as_ptr()
    }

    /// Tells the consumer of an event. No lock may be held. Whoever calls this is inside the QP's
    /// gate, which its destroy operation closes first.
    pub(crate) fn event(self, event: QpEvent) {
        // SAFETY: valid by the invariant, inside the gate.
        unsafe { sys::tbrdma_qp_event(self.0.as_ptr(), event as c_int) }
    }
}

/// Asynchronous events of a QP (IBTA 1.7, 11.6.3), `enum ib_event_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QpEvent {
    /// A message came before the QP was ready to send.
    Established = sys::ib_event_type_IB_EVENT_COMM_EST,
    /// All that had begun when the QP went to the SQD state has ended.
    Drained = sys::ib_event_type_IB_EVENT_SQ_DRAINED,
    /// A peer asked for what it may not, and the QP has ended for that.
    Access = sys::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
    /// The QP takes no more receives of its shared queue.
    LastReceive = sys::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
}

impl QpEvent {
    const ALL: [Self; 4] = [
        Self::Established,
        Self::Drained,
        Self::Access,
        Self::LastReceive,
    ];
}

/// Events that are to be told.
#[derive(Clone, Copy, Default)]
pub(crate) struct QpEvents(u32);

impl QpEvents {
    /// One more.
    pub(crate) fn add(&mut self, event: QpEvent) {
        self.0 |= 1 << event as u32;
    }

    /// All of both.
    pub(crate) fn merge(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// In the order in which they happen to a QP.
    pub(crate) fn iter(self) -> impl Iterator<Item = QpEvent> {
        let all = QpEvent::ALL.into_iter();
        all.filter(move |event| self.0 & 1 << *event as u32 != 0)
    }
}
