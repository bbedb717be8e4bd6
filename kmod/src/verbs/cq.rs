// SPDX-License-Identifier: GPL-2.0-only
//! Completion queues.

use super::{Hca, LIMITS};
use crate::rdma::event::{CoreCq, CoreQp};
use crate::rdma::gate::Gate;
use crate::sys;
use kernel::prelude::*;
use kernel::sync::{new_spinlock, Arc, ArcBorrow, SpinLock};

/// `enum ib_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcStatus {
    Success = sys::ib_wc_status_IB_WC_SUCCESS,
    LocalLength = sys::ib_wc_status_IB_WC_LOC_LEN_ERR,
    LocalProtection = sys::ib_wc_status_IB_WC_LOC_PROT_ERR,
    RemoteInvalidRequest = sys::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    RemoteAccess = sys::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    RemoteOperational = sys::ib_wc_status_IB_WC_REM_OP_ERR,
    RetryExceeded = sys::ib_wc_status_IB_WC_RETRY_EXC_ERR,
    RnrRetryExceeded = sys::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    Flushed = sys::ib_wc_status_IB_WC_WR_FLUSH_ERR,
}

/// `enum ib_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcOpcode {
    Send = sys::ib_wc_opcode_IB_WC_SEND,
    Write = sys::ib_wc_opcode_IB_WC_RDMA_WRITE,
    Read = sys::ib_wc_opcode_IB_WC_RDMA_READ,
    Recv = sys::ib_wc_opcode_IB_WC_RECV,
    RecvWriteImm = sys::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// A completion.
#[derive(Clone, Copy)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) qp: CoreQp,
    pub(crate) src_qp: u32,
    pub(crate) imm: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct State {
    /// Fixed size, `None` beyond `len`.
    ring: KVVec<Option<WorkCompletion>>,
    head: usize,
    len: usize,
    armed: Armed,
    /// The consumer did not keep up; the queue is dead (IBTA 1.7, 10.10.2).
    overrun: bool,
}

/// A completion queue.
#[pin_data(PinnedDrop)]
pub(crate) struct Cq {
    hca: Arc<Hca>,
    core: CoreCq,
    #[pin]
    gate: Gate,
    #[pin]
    state: SpinLock<State>,
}

/// What has to be told once all locks are dropped.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wake {
    notify: bool,
    error: bool,
}

impl Wake {
    /// Both.
    pub(crate) fn merge(&mut self, other: Wake) {
        self.notify |= other.notify;
        self.error |= other.error;
    }
}

impl Cq {
    /// Makes a queue for `entries` completions.
    pub(crate) fn new(hca: ArcBorrow<'_, Hca>, core: CoreCq, entries: u32) -> Result<Arc<Self>> {
        if entries == 0 || entries > LIMITS.cqes {
            return Err(EINVAL);
        }
        let ring = KVVec::from_elem(None, entries as usize, GFP_KERNEL)?;
        hca.cq_count.take(LIMITS.cqs)?;
        let state = State {
            ring,
            head: 0,
            len: 0,
            armed: Armed::No,
            overrun: false,
        };
        let made = Arc::pin_init(
            pin_init!(Self {
                hca: hca.into(),
                core,
                gate <- Gate::new(),
                state <- new_spinlock!(state, "tbrdma_cq"),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            hca.cq_count.give();
        }
        made
    }

    /// Adds a completion. Call [`wake`](Self::wake) with the result when no lock is held.
    pub(crate) fn push(&self, completion: WorkCompletion, solicited: bool) -> Wake {
        let mut state = self.state.lock();
        if state.overrun {
            return Wake::default();
        }
        let size = state.ring.len();
        if state.len == size {
            state.overrun = true;
            return Wake {
                notify: false,
                error: true,
            };
        }
        let tail = (state.head + state.len) % size;
        if let Some(entry) = state.ring.get_mut(tail) {
            *entry = Some(completion);
            state.len += 1;
        }
        let notify = match state.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || completion.status != WcStatus::Success,
        };
        if notify {
            state.armed = Armed::No;
        }
        Wake {
            notify,
            error: false,
        }
    }

    /// Tells the consumer what [`push`](Self::push) found to be told.
    pub(crate) fn wake(&self, wake: Wake) {
        if !wake.notify && !wake.error {
            return;
        }
        let Some(_inside) = self.gate.enter() else {
            return;
        };
        if wake.error {
            crate::print::log_warn_ratelimited!(
                "a completion queue overran: its program polls too rarely or made it too small"
            );
            self.core.error();
        }
        if wake.notify {
            self.core.notify();
        }
    }

    /// Takes the oldest completion.
    pub(crate) fn poll(&self) -> Option<WorkCompletion> {
        let mut state = self.state.lock();
        while state.len > 0 {
            let (head, size) = (state.head, state.ring.len());
            state.head = (head + 1) % size;
            state.len -= 1;
            // An entry of a QP that is gone was emptied.
            if let Some(done) = state.ring.get_mut(head).and_then(Option::take) {
                return Some(done);
            }
        }
        None
    }

    /// Asks for one notification. Returns whether completions wait already.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let mut state = self.state.lock();
        // The stronger of two requests holds (IBTA 1.7, 11.4.2.2).
        if !(solicited_only && state.armed == Armed::Any) {
            state.armed = if solicited_only {
                Armed::Solicited
            } else {
                Armed::Any
            };
        }
        state.len > 0
    }

    /// Takes out the completions of a QP that is going away.
    pub(crate) fn forget(&self, qp: CoreQp) {
        let mut state = self.state.lock();
        for entry in state.ring.iter_mut() {
            if entry.as_ref().is_some_and(|done| done.qp == qp) {
                *entry = None;
            }
        }
    }

    /// No notification runs after this returned.
    pub(crate) fn destroy(&self) {
        self.gate.close();
        // Freed here, where sleeping is allowed, whoever drops the last reference.
        let ring = {
            let mut state = self.state.lock();
            state.len = 0;
            state.overrun = true;
            core::mem::take(&mut state.ring)
        };
        drop(ring);
    }
}

#[pinned_drop]
impl PinnedDrop for Cq {
    fn drop(self: Pin<&mut Self>) {
        self.hca.cq_count.give();
    }
}
