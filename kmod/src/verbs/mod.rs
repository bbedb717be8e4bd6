// SPDX-License-Identifier: GPL-2.0-only
//! The verbs: what a program sees of the HCA.
//!
//! - [`Hca`]: the one device of this host; knows all objects and takes the frames of all peers
//! - [`qp`]: queue pairs, around the state machines of `proto::rc`
//! - [`srq`]: shared receive queues
//! - [`resting`]: acknowledgements that wait
//! - [`cq`], [`mr`], [`ah`]: completion queues, memory regions, address handles
//! - [`fast_mr`]: regions that work requests fill
//!
//! # Locks and contexts
//!
//! Everything runs in process context, with interrupts and softirqs on, in work items and in calls
//! of programs; all locks are plain spinlocks. There is one exception: consumers in the kernel may
//! post, poll, arm, fill regions for fast registration, and make and destroy address handles from any
//! context (Documentation/infiniband/core_locking.rst). What these do takes only an [`IrqLock`], with
//! nothing inside it: a [`poster`]'s, a CQ's, a region's, or that of the table of address handles. So posting just
//! writes into a queue and has a work item look at it, which transmits.
//!
//! A QP's lock is the outermost spinlock. Inside it: the tables, the lists of [`lists`], a shared
//! receive queue's lock, that of a [`fast_mr`], the locks named above, and whatever `Peer::send` takes. No two QP locks are
//! ever held at once.
//!
//! Consumers are notified with no lock held; those in the kernel never from within a call of theirs,
//! since they may hold a lock that their handler takes, and one handler of a CQ at a time. Their
//! handlers run with softirqs off.
//!
//! [`IrqLock`]: crate::thunderbolt::irq_lock::IrqLock

mod acks;
pub(crate) mod ah;
pub(crate) mod cq;
mod fast_mr;
mod limits;
mod lists;
pub(crate) mod mr;
mod port;
mod poster;
pub(crate) mod qp;
mod recv_queue;
mod resting;
pub(crate) mod srq;
pub(crate) mod statistics;
mod table;

pub(crate) use limits::LIMITS;
pub(crate) use port::Port;

use crate::link::{Links, Peer, Upcalls};
use crate::proto::frame::{Header, Opcode, RIDER_LEN};
use crate::proto::rc::{AckEntries, AckEntry};
use crate::rdma::device::IbDevice;
use crate::thunderbolt::os::Workqueue;
use crate::uapi::AllocUcontextResp;
use ah::Ah;
use cq::Cq;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use limits::Count;
use lists::QpList;
use mr::Mr;
use qp::Qp;
use resting::Resting;
use table::{IrqTable, Table};

/// The host channel adapter.
#[pin_data]
pub(crate) struct Hca {
    pub(crate) device: Arc<IbDevice>,
    /// Programs know of the device.
    registered: Atomic<u32>,
    #[pin]
    links: SpinLock<Option<Arc<Links>>>,
    #[pin]
    qps: Table<Qp>,
    #[pin]
    mrs: Table<Mr>,
    #[pin]
    ahs: IrqTable<Ah>,
    qp_count: Count,
    cq_count: Count,
    mr_count: Count,
    ah_count: Count,
    srq_count: Count,
    pd_count: Count,
    next_pd: Atomic<u32>,
    /// QPs that wait for room to send.
    #[pin]
    blocked: QpList,
    /// QPs that owe their peer an acknowledgement.
    #[pin]
    owing: QpList,
    /// QPs whose acknowledgement waits.
    resting: Resting,
    /// Answers on behalf of QPs that cannot give them: peer and entry.
    #[pin]
    answers: Mutex<KVec<(u32, AckEntry)>>,
    counters: statistics::Counters,
    /// Timers and long transmissions of QPs, and what consumers in the kernel have left to be done.
    queue: Arc<Workqueue>,
}

/// Answers kept for one flush; a peer that provokes more does not get them all.
const MAX_ANSWERS: usize = 256;

impl Hca {
    /// An HCA without peers.
    pub(crate) fn new(device: Arc<IbDevice>) -> Result<Arc<Self>> {
        let answers = KVec::with_capacity(MAX_ANSWERS, GFP_KERNEL)?;
        let queue = Arc::new(Workqueue::new(c"tbrdma_qp", true)?, GFP_KERNEL)?;
        let resting = Resting::new(queue.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                device,
                registered: Atomic::new(0),
                links <- new_spinlock!(None, "tbrdma_hca_links"),
                qps <- Table::new(0xff_ffff, LOWEST_QPN),
                mrs <- Table::new(mr::NUMBERS, 1),
                ahs <- IrqTable::for_any_context(u32::MAX, 1),
                qp_count: Count::new(),
                cq_count: Count::new(),
                mr_count: Count::new(),
                ah_count: Count::new(),
                srq_count: Count::new(),
                pd_count: Count::new(),
                next_pd: Atomic::new(0),
                blocked <- QpList::new(),
                owing <- QpList::new(),
                resting,
                answers <- new_mutex!(answers, "tbrdma_answers"),
                counters: statistics::Counters::new(),
                queue,
            }),
            GFP_KERNEL,
        )
    }

    /// Connects the HCA with the peers below it, or (with `None`) parts them.
    pub(crate) fn set_links(&self, links: Option<Arc<Links>>) {
        let old = core::mem::replace(&mut *self.links.lock(), links);
        drop(old);
    }

    fn links(&self) -> Option<Arc<Links>> {
        self.links.lock().clone()
    }

    /// From now on (or no longer) events reach the core.
    pub(crate) fn set_registered(&self, registered: bool) {
        self.registered.store(u32::from(registered), Release);
    }

    /// State and speed of the port.
    pub(crate) fn port(&self) -> Port {
        Port::new(self.links().map(|links| links.port()))
    }

    /// EUI-64 of the host's MAC address (IBTA 1.7, 4.1.1), big-endian.
    pub(crate) fn guid(&self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.links().map_or([0; 6], |links| links.identity().mac);
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// [`guid`](Self::guid) as the core's `__be64`.
    pub(crate) fn node_guid(&self) -> u64 {
        u64::from_ne_bytes(self.guid())
    }

    /// Number for a new protection domain.
    pub(crate) fn new_pd(&self) -> Result<u32> {
        self.pd_count.take(LIMITS.pds)?;
        Ok(self.next_pd.fetch_add(1, Relaxed))
    }

    /// A protection domain is gone.
    pub(crate) fn drop_pd(&self) {
        self.pd_count.give();
    }

    /// Looks for frames in the context of a program that has found `cq` empty, until there are some
    /// or a short time is over. Sleeps, briefly.
    pub(crate) fn poll(&self, cq: &Cq) {
        if cq.has_entries() {
            // They have come since it looked.
            return;
        }
        self.resting.came_back(self, cq);
        if let Some(links) = self.links() {
            links.poll(|| cq.has_entries());
        }
    }

    /// Calls `send` in the context of a program, which delivers to QPs of this host at once. Sleeps,
    /// briefly.
    pub(crate) fn attend(&self, send: impl FnOnce()) {
        match self.links() {
            Some(links) => links.attend(send),
            None => send(),
        }
    }

    fn take_ack(&self, peer: &Arc<Peer>, qp: Option<&Arc<Qp>>, entry: &AckEntry) {
        self.counters.ack_received(entry);
        match qp {
            Some(qp) => Qp::on_ack(qp, peer, entry),
            None => self.stray(),
        }
    }

    /// The acknowledgement that came with a frame for `qp`, for which it mostly is. It is looked at
    /// first: the frame may be the answer that the program waits for, and then what was answered is
    /// complete.
    fn take_rider(&self, peer: &Arc<Peer>, qp: Option<&Arc<Qp>>, rider: &[u8; RIDER_LEN]) {
        match AckEntry::parse_rider(rider) {
            Some(entry) => match qp.filter(|qp| qp.number() == entry.qpn) {
                Some(qp) => self.take_ack(peer, Some(qp), &entry),
                None => self.take_ack(peer, self.qps.get(entry.qpn).as_ref(), &entry),
            },
            None => self.stray(),
        }
    }

    fn stray(&self) {
        self.counters.stray();
    }
}

/// QP numbers 0 and 1 are the management QPs (IBTA 1.7, 3.9.1); a few more are left out so that no
/// QP number looks like a small constant.
const LOWEST_QPN: u32 = 0x100;

/// What a new user context is told.
pub(crate) fn ucontext_response() -> AllocUcontextResp {
    AllocUcontextResp {
        abi_minor: crate::uapi::ABI_MINOR,
        features: 0,
        max_inline: LIMITS.inline,
        reserved: 0,
    }
}

impl Hca {
    /// Has the QPs go on that wait for room at `peer`.
    fn unblock(&self, peer: &Arc<Peer>) {
        for _ in 0..self.blocked.len() {
            let Some(qp) = self.blocked.pop_for(peer) else {
                break;
            };
            Qp::unblocked(&qp);
        }
    }
}

impl Upcalls for Hca {
    fn deliver(&self, peer: &Arc<Peer>, hdr: &Header, ext: &[u8], payload: &[u8]) {
        if hdr.opcode == Opcode::QpAck {
            let mut entries = AckEntries::new(payload);
            for entry in &mut entries {
                self.take_ack(peer, self.qps.get(entry.qpn).as_ref(), &entry);
            }
            if !entries.rest().is_empty() {
                self.stray();
            }
            return;
        }
        let (ext, rider) = hdr.split_rider(ext);
        let qp = self.qps.get(hdr.dqpn);
        if let Some(rider) = rider {
            self.take_rider(peer, qp.as_ref(), rider);
        }
        match qp {
            Some(qp) if hdr.opcode == Opcode::Datagram => {
                Qp::on_datagram(&qp, peer, hdr, ext, payload);
            }
            Some(qp) => Qp::on_frame(&qp, peer, hdr, ext, payload),
            None => {
                self.stray();
                acks::answer_for_missing(self, peer, hdr, ext);
            }
        }
    }

    fn batch_end(&self, peer: &Arc<Peer>) {
        acks::flush(self, peer);
    }

    fn tx_ready(&self, peer: &Arc<Peer>) {
        acks::flush(self, peer);
        self.unblock(peer);
    }

    fn peer_up(&self, _peer: &Arc<Peer>) {}

    fn peer_down(&self, peer: &Arc<Peer>) {
        self.qps.for_each(|qp| Qp::peer_lost(qp, peer));
        self.answers.lock().retain(|(to, _)| *to != peer.id());
        // Datagrams do not wait for a peer that is gone.
        self.unblock(peer);
    }

    fn port_changed(&self) {
        if self.registered.load(Acquire) != 0 {
            self.device.port_event(self.port().active);
        }
    }
}
