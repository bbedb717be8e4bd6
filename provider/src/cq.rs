//! Completion queues.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, CQ_SIZE};
use crate::command;
use crate::public::{Context, Cq, Wc};
use crate::queue::Queue;
use crate::verbs::{destroy, finish, functions, object};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tbrdma_uapi::{queue as layout, wc_flags, CqEntry, QueueResp};

type Ptr = *mut c_void;

/// In [`CqEntry::reserved`]: the QP is gone, and so is the completion.
const FORGOTTEN: u32 = 1;

/// A completion queue: libibverbs' part first.
#[repr(C)]
pub(crate) struct OurCq {
    verbs: [u64; CQ_SIZE / 8],
    state: Mutex<Completions>,
    /// Of an extended queue, while a program polls it; behind the lock of `state`.
    polling: UnsafeCell<Option<Polling<'static>>>,
}

/// A program reads completions one by one, with the queue locked.
pub(crate) struct Polling<'a> {
    pub(crate) completions: MutexGuard<'a, Completions>,
    /// The completion that is being read.
    pub(crate) entry: CqEntry,
}

/// The consumer's side of a queue of completions.
#[derive(Debug)]
pub(crate) struct Completions {
    queue: Queue,
    next: u32,
    /// Times that there was none since the kernel looked, and after how many it looks again.
    empty: u32,
    patience: u32,
}

/// After this many looks without a completion the kernel is asked to look for frames at once:
/// interrupts may be moderated, and a work item would have to find a processor. It looks for some
/// tens of microseconds. Whenever that was in vain, twice as many looks pass before the next time, up
/// to the second number, so that a program which does other work between its looks does not notice.
const EMPTY_LOOKS: u32 = 8;
const EMPTY_LOOKS_MAX: u32 = 128;

impl Completions {
    pub(crate) fn new(queue: Queue) -> Self {
        Self {
            queue,
            next: 0,
            empty: 0,
            patience: EMPTY_LOOKS,
        }
    }

    /// There was no completion. Whether the kernel should look now.
    fn in_vain(&mut self) -> bool {
        self.empty += 1;
        if self.empty < self.patience {
            return false;
        }
        self.empty = 0;
        self.patience = (self.patience * 2).min(EMPTY_LOOKS_MAX);
        true
    }

    /// Takes the oldest completion.
    pub(crate) fn take(&mut self) -> Option<CqEntry> {
        self.skip_forgotten();
        if self.queue.producer() == self.next {
            return None;
        }
        let entry = self.queue.read(self.next, 0);
        self.next = self.next.wrapping_add(1);
        self.empty = 0;
        self.patience = EMPTY_LOOKS;
        Some(entry)
    }

    /// Passes by completions of QPs that are gone, if they are the oldest.
    fn skip_forgotten(&mut self) {
        while self.queue.producer() != self.next {
            let entry: CqEntry = self.queue.read(self.next, 0);
            if entry.reserved != FORGOTTEN {
                break;
            }
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Tells the kernel what was taken.
    pub(crate) fn give_back(&self) {
        self.queue.set_consumer(self.next);
    }

    /// The queue is of no use any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.queue.dead() != 0
    }

    fn forget(&self, qpn: u32) {
        let end = self.queue.producer();
        let mut index = self.next;
        while index != end {
            let mut entry: CqEntry = self.queue.read(index, 0);
            if entry.qpn == qpn {
                entry.reserved = FORGOTTEN;
                self.queue.write(index, 0, &[entry]);
            }
            index = index.wrapping_add(1);
        }
    }

    fn arm(&self, wanted: u32) {
        let flag = self.queue.flag();
        // The stronger of two requests holds (IBTA 1.7, 11.4.2.2). The kernel adds a completion
        // and then looks here, the program arms and then looks for completions: one of them sees
        // the other, whatever their processors reorder.
        if wanted == layout::ARM_ANY {
            flag.swap(wanted, Ordering::SeqCst);
        } else {
            let _ =
                flag.compare_exchange(layout::ARM_NONE, wanted, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// Flags as programs know them.
pub(crate) fn flags(entry: &CqEntry) -> u32 {
    entry.flags & !wc_flags::IPV4
}

/// Of a datagram, the kind of its packet: 8 for RoCE v2, and 1 for IPv6 or 2 for IPv4. Other HCAs with Ethernet ports have
/// that in the place of the service level too (IBTA 1.7, A17.4.5.1, wants the program to learn it, and libibverbs
/// has no other place), and UCX finds the destination's address by it.
pub(crate) fn service_level(entry: &CqEntry) -> u8 {
    match (entry.flags & wc_flags::GRH, entry.flags & wc_flags::IPV4) {
        (0, _) => 0,
        (_, 0) => 8 | 1,
        _ => 8 | 2,
    }
}

/// A completion as programs get it.
fn wc(entry: &CqEntry) -> Wc {
    Wc {
        wr_id: entry.wr_id,
        status: entry.status,
        opcode: entry.opcode,
        byte_len: entry.byte_len,
        imm: entry.imm,
        qp_num: entry.qpn,
        src_qp: entry.src_qp,
        wc_flags: flags(entry),
        sl: service_level(entry),
        ..Wc::default()
    }
}

impl OurCq {
    /// # Safety
    ///
    /// `cq` is a queue of ours, for the lifetime chosen.
    pub(crate) unsafe fn of<'a>(cq: *mut Cq) -> &'a Self {
        // SAFETY: as required.
        unsafe { &*cq.cast::<Self>() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Completions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There was no completion: has the kernel look for frames now and then. Returns 0, or a
    /// negative errno if the queue is of no use any more.
    ///
    /// # Safety
    ///
    /// `cq` is a queue of ours, and `state` is its.
    pub(crate) unsafe fn look(cq: *mut Cq, mut state: MutexGuard<'_, Completions>) -> c_int {
        if state.is_dead() {
            return -libc::EIO;
        }
        if !state.in_vain() {
            return 0;
        }
        // Other threads may look meanwhile.
        drop(state);
        // SAFETY: as required; its context is open.
        let (fd, handle) = unsafe { ((*(*cq).context).cmd_fd, (*cq).handle) };
        command::poll_cq(fd, handle);
        0
    }

    /// The polling under way.
    ///
    /// # Safety
    ///
    /// Only from the thread that polls, and not twice at a time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn polling(&self) -> Option<&mut Polling<'static>> {
        // SAFETY: as required; the lock keeps others out.
        unsafe { &mut *self.polling.get() }.as_mut()
    }

    /// Starts polling, or ends it, which unlocks the queue.
    ///
    /// # Safety
    ///
    /// Only from the thread that holds the lock of `state`. The queue outlives the polling: a
    /// program does not destroy a queue that it polls.
    pub(crate) unsafe fn set_polling(&self, polling: Option<Polling<'_>>) {
        // SAFETY: the lifetime is that of the queue, which is long enough as required.
        let polling = unsafe {
            std::mem::transmute::<Option<Polling<'_>>, Option<Polling<'static>>>(polling)
        };
        // SAFETY: as required. What was there is taken out first: dropping it unlocks.
        let old = unsafe { std::mem::replace(&mut *self.polling.get(), polling) };
        drop(old);
    }
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut Context,
    entries: c_int,
    channel: Ptr,
    vector: c_int,
) -> Ptr {
    const RESPONSE: usize = sizes::CREATE_CQ_RESP + size_of::<QueueResp>();
    let mut command = Buffer::<{ sizes::CREATE_CQ }>::new();
    let mut response = Buffer::<RESPONSE>::new();
    object(size_of::<OurCq>(), |cq| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        let failed = unsafe {
            (functions().create_cq)(
                context.cast(),
                entries,
                channel,
                vector,
                cq,
                command.as_mut_ptr(),
                sizes::CREATE_CQ,
                response.as_mut_ptr(),
                RESPONSE,
            )
        };
        if failed != 0 {
            return failed;
        }
        let place: QueueResp = response.get(sizes::CREATE_CQ_RESP);
        // SAFETY: an open context.
        let mapped = Queue::map(unsafe { (*context).cmd_fd }, &place);
        // SAFETY: created above; room for what is ours, which nobody has used yet.
        unsafe {
            finish(cq, mapped, functions().destroy_cq, |queue| {
                let cq = cq.cast::<OurCq>();
                (&raw mut (*cq).state).write(Mutex::new(Completions::new(queue)));
                (&raw mut (*cq).polling).write(UnsafeCell::new(None));
            })
        }
    })
}

/// Nobody takes completions meanwhile; those that wait are in the new queue, at the same indices.
pub(crate) unsafe extern "C" fn resize_cq(cq: *mut Cq, entries: c_int) -> c_int {
    const RESPONSE: usize = sizes::RESIZE_CQ_RESP + size_of::<QueueResp>();
    let mut command = Buffer::<{ sizes::RESIZE_CQ }>::new();
    let mut response = Buffer::<RESPONSE>::new();
    // SAFETY: see the module's common ground.
    let mut state = unsafe { OurCq::of(cq) }.lock();
    // Completions of a QP that is gone do not count.
    state.skip_forgotten();
    state.give_back();
    // SAFETY: see the module's common ground; buffers of the sizes told.
    let failed = unsafe {
        (functions().resize_cq)(
            cq.cast(),
            entries,
            command.as_mut_ptr(),
            sizes::RESIZE_CQ,
            response.as_mut_ptr(),
            RESPONSE,
        )
    };
    if failed != 0 {
        return failed;
    }
    let place: QueueResp = response.get(sizes::RESIZE_CQ_RESP);
    // SAFETY: an open context.
    match Queue::map(unsafe { (*(*cq).context).cmd_fd }, &place) {
        Ok(queue) => {
            state.queue = queue;
            0
        }
        // The old queue says that it is of no use any more, and so will polling.
        Err(error) => error,
    }
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: Ptr) -> c_int {
    let command = functions().destroy_cq;
    // SAFETY: see the module's common ground; the state was written when it was created.
    unsafe {
        destroy(cq, command, |cq| {
            (&raw mut (*cq.cast::<OurCq>()).state).drop_in_place();
        })
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
    // SAFETY: see the module's common ground.
    let mut state = unsafe { OurCq::of(cq) }.lock();
    let mut count = 0;
    while count < room {
        let Some(entry) = state.take() else { break };
        // SAFETY: the caller has room for that many.
        unsafe { to.add(count as usize).write(wc(&entry)) };
        count += 1;
    }
    if count > 0 {
        state.give_back();
        return count;
    }
    if room <= 0 {
        return 0;
    }
    // SAFETY: see the module's common ground.
    unsafe { OurCq::look(cq, state) }
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut Cq, solicited_only: c_int) -> c_int {
    let wanted = if solicited_only != 0 {
        layout::ARM_SOLICITED
    } else {
        layout::ARM_ANY
    };
    // SAFETY: see the module's common ground.
    unsafe { OurCq::of(cq) }.lock().arm(wanted);
    0
}

/// The completions of a QP that begins anew, or ends, are gone (IBTA 1.7, 10.3.1.1).
///
/// # Safety
///
/// `cq` is a queue of ours, or null.
pub(crate) unsafe fn forget(cq: *mut Cq, qpn: u32) {
    if !cq.is_null() {
        // SAFETY: as required.
        unsafe { OurCq::of(cq) }.lock().forget(qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completions() -> (Completions, impl FnMut(u64, u32)) {
        let queue = Queue::anonymous(8, size_of::<CqEntry>());
        let base = queue.base_for_tests();
        let mut produced = 0;
        let add = move |wr_id, qpn| {
            let entry = CqEntry {
                wr_id,
                qpn,
                ..CqEntry::default()
            };
            let other = Queue::at_for_tests(base, 8, size_of::<CqEntry>());
            other.write(produced, 0, &[entry]);
            produced = produced.wrapping_add(1);
            other.set_producer(produced);
            std::mem::forget(other);
        };
        (Completions::new(queue), add)
    }

    #[test]
    fn a_datagram_says_what_packet_it_came_in() {
        let told = |flags| {
            let entry = CqEntry {
                flags,
                ..CqEntry::default()
            };
            let wc = wc(&entry);
            (wc.wc_flags, wc.sl)
        };
        assert_eq!(told(wc_flags::WITH_IMM), (wc_flags::WITH_IMM, 0));
        assert_eq!(told(wc_flags::GRH), (wc_flags::GRH, 9));
        assert_eq!(told(wc_flags::GRH | wc_flags::IPV4), (wc_flags::GRH, 10));
    }

    #[test]
    fn completions_come_in_order_and_those_of_a_lost_qp_do_not() {
        let (mut taken, mut add) = completions();
        assert!(taken.take().is_none());
        for (wr_id, qpn) in [(1, 10), (2, 11), (3, 10), (4, 11)] {
            add(wr_id, qpn);
        }
        assert_eq!(taken.take().map(|entry| entry.wr_id), Some(1));
        taken.forget(11);
        add(5, 11);
        let rest: Vec<u64> = std::iter::from_fn(|| taken.take())
            .map(|entry| entry.wr_id)
            .collect();
        assert_eq!(rest, [3, 5]);
        add(6, 12);
        taken.forget(12);
        taken.skip_forgotten();
        taken.give_back();
        assert_eq!(taken.queue.consumer(), 6);
    }

    #[test]
    fn the_kernel_is_asked_ever_more_seldom() {
        let (mut taken, mut add) = completions();
        let looks = |taken: &mut Completions| (1..).find(|_| taken.in_vain());
        let rounds: Vec<_> = (0..6).map(|_| looks(&mut taken)).collect();
        assert_eq!(rounds, [8, 16, 32, 64, 128, 128].map(Some));
        add(1, 10);
        assert!(taken.take().is_some());
        assert_eq!(looks(&mut taken), Some(8));
    }

    #[test]
    fn the_stronger_request_for_an_event_holds() {
        let (taken, _) = completions();
        let flag = || taken.queue.flag().load(Ordering::Relaxed);
        taken.arm(layout::ARM_SOLICITED);
        assert_eq!(flag(), layout::ARM_SOLICITED);
        taken.arm(layout::ARM_ANY);
        taken.arm(layout::ARM_SOLICITED);
        assert_eq!(flag(), layout::ARM_ANY);
    }
}
