//! Queue pairs: requests go into queues that the kernel reads.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, QP_SIZE};
use crate::command;
use crate::cq::forget;
use crate::public::{state, Pd, Qp, QpInitAttr, RecvWr, SendWr, QPT_UD};
use crate::qp_ex::Posting;
use crate::queue::Queue;
use crate::requests::Requests;
use crate::verbs::{destroy, finish, functions, object};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tbrdma_uapi::CreateQpResp;

type Ptr = *mut c_void;

/// `IBV_QP_STATE` of the mask of a modify call.
const MASK_STATE: c_int = 1;

/// A queue pair: libibverbs' part first.
#[repr(C)]
pub(crate) struct OurQp {
    verbs: [u64; QP_SIZE / 8],
    send: Mutex<Requests>,
    /// None if the receives are those of a shared queue.
    receive: Option<Mutex<Requests>>,
    /// While a program puts requests together (see `qp_ex`); behind the lock of `send`.
    posting: UnsafeCell<Option<Posting<'static>>>,
}

impl OurQp {
    /// # Safety
    ///
    /// `qp` is a queue pair of ours, for the lifetime chosen.
    pub(crate) unsafe fn of<'a>(qp: *mut Qp) -> &'a Self {
        // SAFETY: as required.
        unsafe { &*qp.cast::<Self>() }
    }

    /// Its sends.
    pub(crate) fn sends(&self) -> MutexGuard<'_, Requests> {
        lock(&self.send)
    }

    /// The requests that are being put together.
    ///
    /// # Safety
    ///
    /// Only from the thread that does, and not twice at a time.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn posting(&self) -> Option<&mut Posting<'static>> {
        // SAFETY: as required; the lock keeps others out.
        unsafe { &mut *self.posting.get() }.as_mut()
    }

    /// Starts putting requests together, or (with `None`) ends it, which unlocks the queue once
    /// what is returned is dropped.
    ///
    /// # Safety
    ///
    /// Only from the thread that holds the lock of `send`. The QP outlives it: a program does not
    /// destroy a QP that it posts to.
    pub(crate) unsafe fn set_posting(&self, posting: Option<Posting<'_>>) -> Option<Posting<'_>> {
        // SAFETY: the lifetime is that of the QP, which is long enough as required.
        let posting = unsafe {
            std::mem::transmute::<Option<Posting<'_>>, Option<Posting<'static>>>(posting)
        };
        // SAFETY: as required.
        unsafe { std::mem::replace(&mut *self.posting.get(), posting) }
    }

    /// A queue pair without a device.
    #[cfg(test)]
    pub(crate) fn for_tests(send: Requests) -> Box<Self> {
        Box::new(Self {
            verbs: [0; QP_SIZE / 8],
            send: Mutex::new(send),
            receive: None,
            posting: UnsafeCell::new(None),
        })
    }
}

fn lock(requests: &Mutex<Requests>) -> MutexGuard<'_, Requests> {
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps the queues. The error is an errno.
fn map(
    fd: c_int,
    places: &CreateQpResp,
    attr: &QpInitAttr,
) -> Result<(Requests, Option<Requests>), c_int> {
    let send = Requests::of_sends(
        Queue::map(fd, &places.sq)?,
        attr.max_send_sge,
        attr.max_inline_data,
        attr.qp_type == QPT_UD,
    );
    if places.rq.entries == 0 {
        return Ok((send, None));
    }
    let receive = Requests::of_receives(Queue::map(fd, &places.rq)?, attr.max_recv_sge);
    Ok((send, Some(receive)))
}

pub(crate) unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> Ptr {
    const RESPONSE: usize = sizes::CREATE_QP_RESP + size_of::<CreateQpResp>();
    let mut command = Buffer::<{ sizes::CREATE_QP }>::new();
    let mut response = Buffer::<RESPONSE>::new();
    object(size_of::<OurQp>(), |qp| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        let failed = unsafe {
            (functions().create_qp)(
                pd.cast(),
                qp,
                attr.cast(),
                command.as_mut_ptr(),
                sizes::CREATE_QP,
                response.as_mut_ptr(),
                RESPONSE,
            )
        };
        if failed != 0 {
            return failed;
        }
        let places: CreateQpResp = response.get(sizes::CREATE_QP_RESP);
        // SAFETY: an open context; the attributes now are as the kernel has granted them.
        let mapped = unsafe { map((*(*pd).context).cmd_fd, &places, &*attr) };
        // SAFETY: created above; room for what is ours, which nobody has used yet.
        unsafe {
            finish(qp, mapped, functions().destroy_qp, |(send, receive)| {
                let qp = qp.cast::<OurQp>();
                (&raw mut (*qp).send).write(Mutex::new(send));
                (&raw mut (*qp).receive).write(receive.map(Mutex::new));
                (&raw mut (*qp).posting).write(UnsafeCell::new(None));
            })
        }
    })
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut u32, mask: c_int) -> c_int {
    let mut command = Buffer::<{ sizes::MODIFY_QP }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    let failed = unsafe {
        (functions().modify_qp)(
            qp.cast(),
            attr.cast(),
            mask,
            command.as_mut_ptr(),
            sizes::MODIFY_QP,
        )
    };
    // SAFETY: `struct ibv_qp_attr` begins with the state.
    if failed == 0 && mask & MASK_STATE != 0 && unsafe { *attr } == state::RESET {
        // SAFETY: see the module's common ground.
        unsafe { forget_completions(qp) };
    }
    failed
}

/// # Safety
///
/// `qp` is a queue pair of ours.
unsafe fn forget_completions(qp: *mut Qp) {
    // SAFETY: its queues of completions are ours and live as long as it does.
    unsafe {
        let (send, receive, number) = ((*qp).send_cq, (*qp).recv_cq, (*qp).number);
        forget(send, number);
        if !ptr::eq(send, receive) {
            forget(receive, number);
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    let command = functions().destroy_qp;
    // SAFETY: see the module's common ground; both were written when it was created. The kernel
    // adds no completion of the QP any more.
    unsafe {
        destroy(qp.cast(), command, |ours| {
            forget_completions(qp);
            let ours = ours.cast::<OurQp>();
            (&raw mut (*ours).send).drop_in_place();
            (&raw mut (*ours).receive).drop_in_place();
        })
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut Qp,
    mut request: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let (ours, state) = unsafe { (OurQp::of(qp), (*qp).state) };
    let mut failed = 0;
    let call = {
        let mut send = ours.sends();
        while !request.is_null() {
            let posted = if state < state::RTS {
                Err(libc::EINVAL)
            } else {
                // SAFETY: an element of the program's list.
                unsafe { send.send(&*request) }
            };
            if let Err(error) = posted {
                // SAFETY: the program gives a place for it.
                unsafe { *bad = request };
                failed = error;
                break;
            }
            // SAFETY: an element of the program's list.
            request = unsafe { (*request).next };
        }
        send.publish()
    };
    if call {
        // SAFETY: see the module's common ground.
        let called = unsafe { call_kernel(qp) };
        if failed == 0 {
            failed = called;
        }
    }
    failed
}

/// Makes the kernel look at the send queue. Returns an errno.
///
/// # Safety
///
/// `qp` is a queue pair of ours.
pub(crate) unsafe fn call_kernel(qp: *mut Qp) -> c_int {
    // SAFETY: as required; its context is open.
    unsafe { command::post_send((*(*qp).context).cmd_fd, (*qp).handle) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut Qp,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let (ours, state) = unsafe { (OurQp::of(qp), (*qp).state) };
    let Some(receive) = ours.receive.as_ref().filter(|_| state != state::RESET) else {
        // SAFETY: the program gives a place for it.
        unsafe { *bad = request };
        return libc::EINVAL;
    };
    let (failed, call) = {
        let mut receive = lock(receive);
        // SAFETY: the program's list, and a place for its first bad element.
        let failed = unsafe { receive.receive_all(request, bad) };
        (failed, receive.publish())
    };
    if !call {
        return failed;
    }
    // SAFETY: see the module's common ground.
    let called = unsafe { command::post_recv((*(*qp).context).cmd_fd, (*qp).handle) };
    if failed == 0 {
        called
    } else {
        failed
    }
}
