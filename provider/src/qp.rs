//! Queue pairs: requests go into queues that the kernel reads.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, QP_SIZE};
use crate::cq::forget;
use crate::public::{state, Pd, Qp, QpInitAttr, RecvWr, SendWr, QPT_UD};
use crate::queue::Queue;
use crate::requests::Requests;
use crate::verbs::{destroy, functions, object};
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
}

impl OurQp {
    /// # Safety
    ///
    /// `qp` is a queue pair of ours, for the lifetime chosen.
    unsafe fn of<'a>(qp: *mut Qp) -> &'a Self {
        // SAFETY: as required.
        unsafe { &*qp.cast::<Self>() }
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
        match mapped {
            Ok((send, receive)) => {
                let qp = qp.cast::<OurQp>();
                // SAFETY: room for them, which nobody has used yet.
                unsafe {
                    (&raw mut (*qp).send).write(Mutex::new(send));
                    (&raw mut (*qp).receive).write(receive.map(Mutex::new));
                }
                0
            }
            Err(error) => {
                // SAFETY: created above; nobody knows of it.
                unsafe { (functions().destroy_qp)(qp) };
                error
            }
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
        let mut send = lock(&ours.send);
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
        // SAFETY: see the module's common ground; an empty list.
        let called = unsafe { ring(qp, doorbell::SEND) };
        if failed == 0 {
            failed = called;
        }
    }
    failed
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
    let called = unsafe { ring(qp, doorbell::RECV) };
    if failed == 0 {
        called
    } else {
        failed
    }
}

/// Commands that post an empty list (`rdma/ib_user_verbs.h`): they make the kernel look.
mod doorbell {
    /// `IB_USER_VERBS_CMD_POST_SEND`.
    pub(super) const SEND: u32 = 28;
    /// `IB_USER_VERBS_CMD_POST_RECV`.
    pub(super) const RECV: u32 = 29;

    /// `struct ib_uverbs_cmd_hdr` and `struct ib_uverbs_post_send`, which is also that of receives.
    #[repr(C)]
    pub(super) struct Command {
        pub(super) command: u32,
        pub(super) in_words: u16,
        pub(super) out_words: u16,
        pub(super) response: u64,
        pub(super) handle: u32,
        pub(super) wr_count: u32,
        pub(super) sge_count: u32,
        pub(super) wqe_size: u32,
    }

    const _: () = assert!(size_of::<Command>() == 32);

    /// Bytes of `struct ib_uverbs_send_wr` and `struct ib_uverbs_recv_wr`: the least that the
    /// kernel takes for an entry, even if there is none.
    pub(super) const fn wqe_size(command: u32) -> u32 {
        match command {
            SEND => 56,
            _ => 16,
        }
    }
}

/// Makes the kernel look at the queue. The error is an errno.
///
/// # Safety
///
/// `qp` is a queue pair of ours.
unsafe fn ring(qp: *mut Qp, command: u32) -> c_int {
    let mut bad_wr = 0u32;
    let request = doorbell::Command {
        command,
        in_words: (size_of::<doorbell::Command>() / 4) as u16,
        out_words: 1,
        response: ptr::from_mut(&mut bad_wr) as u64,
        // SAFETY: as required.
        handle: unsafe { (*qp).handle },
        wr_count: 0,
        sge_count: 0,
        wqe_size: doorbell::wqe_size(command),
    };
    let len = size_of::<doorbell::Command>();
    // SAFETY: an open descriptor, and a command of that length whose response is writable.
    let written = unsafe {
        let fd = (*(*qp).context).cmd_fd;
        libc::write(fd, ptr::from_ref(&request).cast(), len)
    };
    if written == len as isize {
        return 0;
    }
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
