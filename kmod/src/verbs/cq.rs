// SPDX-License-Identifier: GPL-2.0-only
//! Completion queues.

use super::{Hca, LIMITS};
use crate::errno::not_supported;
use crate::rdma::details::Detail;
use crate::rdma::event::{CoreCq, CoreQp};
use crate::rdma::gate::Gate;
use crate::rdma::queue::{full_barrier, Owner, Queue};
use crate::sys;
use crate::thunderbolt::irq_lock::{new_irq_lock, IrqLock};
use crate::thunderbolt::os::{cancel_sync, now_ns};
use crate::uapi::{queue as layout, wc_flags, CqEntry, QueueResp};
use core::mem::size_of;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{Arc, ArcBorrow};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// `enum ib_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcStatus {
    Success = sys::ib_wc_status_IB_WC_SUCCESS,
    LocalLength = sys::ib_wc_status_IB_WC_LOC_LEN_ERR,
    LocalOperation = sys::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    MwBind = sys::ib_wc_status_IB_WC_MW_BIND_ERR,
    LocalProtection = sys::ib_wc_status_IB_WC_LOC_PROT_ERR,
    RemoteInvalidRequest = sys::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    RemoteAccess = sys::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    RemoteOperational = sys::ib_wc_status_IB_WC_REM_OP_ERR,
    RetryExceeded = sys::ib_wc_status_IB_WC_RETRY_EXC_ERR,
    RnrRetryExceeded = sys::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    Flushed = sys::ib_wc_status_IB_WC_WR_FLUSH_ERR,
}

impl WcStatus {
    /// In words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local QP operation error",
            Self::MwBind => "memory window bind error",
            Self::LocalProtection => "local protection error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operation error",
            Self::RetryExceeded => "retries exceeded: the peer's QP is gone or not ready",
            Self::RnrRetryExceeded => "RNR retries exceeded: the peer posts no receives",
            Self::Flushed => "flushed",
        }
    }
}

/// `enum ib_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum WcOpcode {
    Send = sys::ib_wc_opcode_IB_WC_SEND,
    Write = sys::ib_wc_opcode_IB_WC_RDMA_WRITE,
    Read = sys::ib_wc_opcode_IB_WC_RDMA_READ,
    CmpSwap = sys::ib_wc_opcode_IB_WC_COMP_SWAP,
    FetchAdd = sys::ib_wc_opcode_IB_WC_FETCH_ADD,
    LocalInv = sys::ib_wc_opcode_IB_WC_LOCAL_INV,
    RegMr = sys::ib_wc_opcode_IB_WC_REG_MR,
    BindMw = sys::ib_wc_opcode_IB_WC_BIND_MW,
    Recv = sys::ib_wc_opcode_IB_WC_RECV,
    RecvWriteImm = sys::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// What came with a message beside its bytes.
#[derive(Clone, Copy, Default)]
pub(crate) enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, as they came.
    Imm(u32),
    /// A request to invalidate this key, which was done.
    Invalidated(u32),
}

impl Extra {
    /// The immediate data of a message, if there are any.
    pub(crate) fn imm(imm: Option<u32>) -> Self {
        imm.map_or(Self::None, Self::Imm)
    }
}

/// A completion.
#[derive(Clone, Copy)]
pub(crate) struct WorkCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) qp: CoreQp,
    pub(crate) qpn: u32,
    pub(crate) src_qp: u32,
    pub(crate) extra: Extra,
    /// Of datagrams.
    pub(crate) route: Option<RouteHeader>,
}

/// What is told of a datagram's way beside the 40 bytes in the receive.
#[derive(Clone, Copy)]
pub(crate) struct RouteHeader {
    /// MAC address of the sender.
    pub(crate) mac: [u8; 6],
    /// The addresses are IPv4, not IPv6.
    pub(crate) ipv4: bool,
}

impl WorkCompletion {
    /// As a user's process reads it.
    fn entry(&self) -> CqEntry {
        let (flags, imm) = match self.extra {
            Extra::None => (0, 0),
            Extra::Imm(imm) => (wc_flags::WITH_IMM, imm),
            Extra::Invalidated(key) => (wc_flags::WITH_INV, key),
        };
        CqEntry {
            wr_id: self.wr_id,
            timestamp: now_ns(),
            status: self.status as u32,
            opcode: self.opcode as u32,
            byte_len: self.byte_len,
            imm,
            qpn: self.qpn,
            src_qp: self.src_qp,
            flags: flags
                | self.route.map_or(0, |route| match route.ipv4 {
                    true => wc_flags::GRH | wc_flags::IPV4,
                    false => wc_flags::GRH,
                }),
            reserved: 0,
        }
    }
}

/// Where completions wait.
enum Ring {
    /// For a consumer in the kernel.
    Kernel {
        /// Fixed size, `None` beyond `len`.
        ring: KVVec<Option<WorkCompletion>>,
        head: usize,
        len: usize,
        /// One of `uapi::queue::ARM_*`.
        armed: u32,
    },
    /// In memory that the consumer's process has mapped; it arms the queue there, too.
    User { queue: Arc<Queue>, producer: u32 },
    /// Nowhere: the queue is destroyed.
    Gone,
}

impl Ring {
    /// Adds a completion. `false`: there is no room.
    fn push(&mut self, completion: WorkCompletion) -> bool {
        match self {
            Self::Kernel {
                ring, head, len, ..
            } => {
                let size = ring.len();
                if *len == size {
                    return false;
                }
                if let Some(entry) = ring.get_mut((*head + *len) % size) {
                    *entry = Some(completion);
                    *len += 1;
                }
                true
            }
            Self::User { queue, producer } => {
                if producer.wrapping_sub(queue.consumer()) >= queue.entries() {
                    return false;
                }
                if queue.write(*producer, 0, &[completion.entry()]).is_err() {
                    return false;
                }
                *producer = producer.wrapping_add(1);
                queue.set_producer(*producer);
                true
            }
            Self::Gone => true,
        }
    }

    /// Whether a new completion raises an event; if so, no other one does until the queue is armed
    /// again.
    fn fire(&mut self, solicited: bool) -> bool {
        let wanted = |armed: u32| match armed {
            layout::ARM_NONE => false,
            layout::ARM_SOLICITED => solicited,
            _ => true,
        };
        match self {
            Self::Kernel { armed, .. } => {
                let fire = wanted(*armed);
                if fire {
                    *armed = layout::ARM_NONE;
                }
                fire
            }
            Self::User { queue, .. } => {
                // The consumer arms and then looks for completions, we add one and then look
                // whether it has armed: one of the two sees the other.
                full_barrier();
                if !wanted(queue.flag().load(Relaxed)) {
                    return false;
                }
                wanted(queue.flag().xchg(layout::ARM_NONE, Full))
            }
            Self::Gone => false,
        }
    }
}

struct State {
    ring: Ring,
    /// The consumer did not keep up; the queue is dead (IBTA 1.7, 10.10.2).
    overrun: bool,
    /// What [`Cq::wake_later`] has left to do.
    owed: Wake,
}

/// A completion queue.
#[pin_data(PinnedDrop)]
pub(crate) struct Cq {
    hca: Arc<Hca>,
    core: CoreCq,
    user: bool,
    #[pin]
    gate: Gate,
    #[pin]
    state: IrqLock<State>,
    /// How often somebody wanted to notify the consumer since whoever does it began.
    notifying: Atomic<u32>,
    #[pin]
    waker: DelayedWork<Cq, WAKER>,
}

const WAKER: u64 = 1;

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Cq { self.waker }
}

impl WorkItem<WAKER> for Cq {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let owed = core::mem::take(&mut this.state.lock().owed);
        this.wake(owed);
    }
}

/// Entries looked at, or moved, before interrupts are let in.
const FORGET_BATCH: usize = 256;
const MOVE_BATCH: u32 = 256;

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
    pub(crate) fn new(
        hca: ArcBorrow<'_, Hca>,
        core: CoreCq,
        entries: u32,
        owner: Owner<'_>,
    ) -> Result<Arc<Self>> {
        if entries == 0 || entries > LIMITS.cqes {
            return Err(EINVAL);
        }
        let ring = if owner.is_user() {
            Ring::User {
                queue: Arc::new(
                    Queue::new(owner, entries, size_of::<CqEntry>())?,
                    GFP_KERNEL,
                )?,
                producer: 0,
            }
        } else {
            Ring::Kernel {
                ring: KVVec::from_elem(None, entries as usize, GFP_KERNEL)?,
                head: 0,
                len: 0,
                armed: layout::ARM_NONE,
            }
        };
        hca.cq_count.take(LIMITS.cqs)?;
        let state = State {
            ring,
            overrun: false,
            owed: Wake::default(),
        };
        let made = Arc::pin_init(
            pin_init!(Self {
                hca: hca.into(),
                core,
                user: owner.is_user(),
                gate <- Gate::new(),
                state <- new_irq_lock!(state, "tbrdma_cq"),
                notifying: Atomic::new(0),
                waker <- new_delayed_work!("tbrdma_cq_waker"),
            }),
            GFP_KERNEL,
        );
        if made.is_err() {
            hca.cq_count.give();
        }
        made
    }

    /// Where the user finds the queue; zeros if it is the kernel's own.
    pub(crate) fn response(&self) -> QueueResp {
        match &self.state.lock().ring {
            Ring::User { queue, .. } => queue.response(),
            _ => QueueResp::default(),
        }
    }

    /// A user's process polls it.
    pub(crate) fn is_user(&self) -> bool {
        self.user
    }

    /// Completions that there is room for.
    pub(crate) fn entries(&self) -> u32 {
        match &self.state.lock().ring {
            Ring::User { queue, .. } => queue.entries(),
            Ring::Kernel { ring, .. } => ring.len() as u32,
            Ring::Gone => 0,
        }
    }

    /// What `rdma resource` tells of it.
    pub(crate) fn details(&self) -> [Detail; 4] {
        let state = self.state.lock();
        let (entries, waiting, armed) = match &state.ring {
            Ring::User { queue, producer } => (
                queue.entries(),
                producer.wrapping_sub(queue.consumer()),
                queue.flag().load(Relaxed),
            ),
            Ring::Kernel {
                ring, len, armed, ..
            } => (ring.len() as u32, *len as u32, *armed),
            Ring::Gone => (0, 0, 0),
        };
        [
            (c"entries", entries),
            (c"waiting", waiting),
            (c"armed", armed),
            (c"overrun", state.overrun.into()),
        ]
    }

    /// Adds a completion. Call [`wake`](Self::wake) with the result when no lock is held.
    pub(crate) fn push(&self, completion: WorkCompletion, solicited: bool) -> Wake {
        let mut state = self.state.lock();
        if state.overrun {
            return Wake::default();
        }
        if !state.ring.push(completion) {
            state.overrun = true;
            if let Ring::User { queue, .. } = &state.ring {
                queue.set_dead(layout::DEAD_OVERRUN);
            }
            return Wake {
                notify: false,
                error: true,
            };
        }
        Wake {
            notify: state
                .ring
                .fire(solicited || completion.status != WcStatus::Success),
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
            self.notify();
        }
    }

    /// One handler of a queue runs at a time (Documentation/infiniband/core_locking.rst): whoever
    /// comes meanwhile leaves it to the one that is there.
    fn notify(&self) {
        if self.notifying.fetch_add(1, Full) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.core.notify();
            match self.notifying.cmpxchg(seen, 0, Full) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// [`wake`](Self::wake) for those that a consumer in the kernel has called, whose handler must not
    /// run before they return. A user's process is told at once.
    pub(crate) fn wake_later(this: &Arc<Self>, wake: Wake) {
        if this.user {
            return this.wake(wake);
        }
        if wake.notify || wake.error {
            this.state.lock().owed.merge(wake);
            this.hca.queue.later::<Self, WAKER>(this.clone(), 0);
        }
    }

    /// Completions wait in it. What a user's process has taken counts as waiting until the process
    /// says so.
    pub(crate) fn has_entries(&self) -> bool {
        match &self.state.lock().ring {
            Ring::User { queue, producer } => queue.consumer() != *producer,
            Ring::Kernel { len, .. } => *len > 0,
            Ring::Gone => true,
        }
    }

    /// Takes the oldest completion; any context. A user's process takes its own.
    pub(crate) fn poll(&self) -> Option<WorkCompletion> {
        let mut state = self.state.lock();
        let Ring::Kernel {
            ring, head, len, ..
        } = &mut state.ring
        else {
            return None;
        };
        while *len > 0 {
            let at = *head;
            *head = (at + 1) % ring.len();
            *len -= 1;
            // An entry of a QP that is gone was emptied.
            if let Some(done) = ring.get_mut(at).and_then(Option::take) {
                return Some(done);
            }
        }
        None
    }

    /// Asks for one notification; any context. Returns whether completions wait already. A user's
    /// process does that by itself.
    pub(crate) fn arm(&self, solicited_only: bool) -> bool {
        let mut state = self.state.lock();
        let Ring::Kernel { len, armed, .. } = &mut state.ring else {
            return false;
        };
        // The stronger of two requests holds (IBTA 1.7, 11.4.2.2).
        let wanted = if solicited_only {
            layout::ARM_SOLICITED
        } else {
            layout::ARM_ANY
        };
        *armed = wanted.max(*armed);
        *len > 0
    }

    /// Makes room for at least `entries` completions. Those that wait move along, and so does a
    /// request for an event. `tell` tells the process where the new queue is; it does not use the
    /// old one meanwhile.
    ///
    /// EINVAL: too small for those that wait, or more than the device has; EOPNOTSUPP: the queue is
    /// the kernel's own; EIO: it is of no use any more.
    pub(crate) fn resize(
        &self,
        entries: u32,
        owner: Owner<'_>,
        tell: impl FnOnce(&QueueResp) -> Result,
    ) -> Result {
        if entries == 0 || entries > LIMITS.cqes {
            return Err(EINVAL);
        }
        if !self.user {
            return Err(not_supported());
        }
        let fresh = Queue::new(owner, entries, size_of::<CqEntry>())?;
        let mut fresh = Arc::new(fresh, GFP_KERNEL)?;
        tell(&fresh.response())?;
        let mut moved = None;
        let result = loop {
            let mut state = self.state.lock();
            let dead = state.overrun;
            let Ring::User { queue, producer } = &mut state.ring else {
                break Err(EINVAL);
            };
            let (old, from, consumer) = moved.get_or_insert_with(|| {
                let consumer = queue.consumer();
                (queue.clone(), consumer, consumer)
            });
            let (end, consumer) = (*producer, *consumer);
            let waiting = end.wrapping_sub(consumer);
            if dead {
                break Err(EIO);
            }
            if waiting > old.entries() || waiting > fresh.entries() || !Arc::ptr_eq(queue, old) {
                break Err(EINVAL);
            }
            let begin = core::mem::replace(from, end);
            if end.wrapping_sub(begin) > MOVE_BATCH {
                // Interrupts are let in; what comes meanwhile is looked at in the next round. No more
                // can come than the old queue has room for.
                drop(state);
                if let Err(error) = move_entries(old, &fresh, begin, end) {
                    break Err(error);
                }
                continue;
            }
            if let Err(error) = move_entries(old, &fresh, begin, end) {
                break Err(error);
            }
            fresh.set_consumer(consumer);
            fresh.flag().store(old.flag().load(Relaxed), Relaxed);
            fresh.set_producer(end);
            core::mem::swap(queue, &mut fresh);
            fresh.set_dead(layout::DEAD_MOVED);
            break Ok(());
        };
        // The old queue, or the new one if it is not used, is freed where sleeping is allowed.
        drop((moved, fresh));
        result
    }

    /// Takes out the completions of a QP that is going away. In a user's queue the provider does.
    pub(crate) fn forget(&self, qp: CoreQp) {
        for from in (0..).step_by(FORGET_BATCH) {
            let mut state = self.state.lock();
            let Ring::Kernel { ring, .. } = &mut state.ring else {
                return;
            };
            let Some(rest) = ring.get_mut(from..).filter(|rest| !rest.is_empty()) else {
                return;
            };
            for entry in rest.iter_mut().take(FORGET_BATCH) {
                if entry.as_ref().is_some_and(|done| done.qp == qp) {
                    *entry = None;
                }
            }
        }
    }

    /// No notification runs after this returned.
    pub(crate) fn destroy(self: &Arc<Self>) {
        self.gate.close();
        cancel_sync::<Self, WAKER>(self);
        // Freed here, where sleeping is allowed, whoever drops the last reference.
        let ring = {
            let mut state = self.state.lock();
            state.overrun = true;
            core::mem::replace(&mut state.ring, Ring::Gone)
        };
        if let Ring::User { queue, .. } = &ring {
            // The process may still have it mapped, if it is the device that goes.
            queue.set_dead(layout::DEAD_DEVICE);
        }
        drop(ring);
    }
}

/// Copies the entries from index `begin` to `end`.
fn move_entries(old: &Queue, new: &Queue, begin: u32, end: u32) -> Result {
    for n in 0..end.wrapping_sub(begin) {
        let mut entry = [CqEntry::default()];
        let index = begin.wrapping_add(n);
        old.read(index, 0, &mut entry)?;
        new.write(index, 0, &entry)?;
    }
    Ok(())
}

#[pinned_drop]
impl PinnedDrop for Cq {
    fn drop(self: Pin<&mut Self>) {
        self.hca.cq_count.give();
    }
}
