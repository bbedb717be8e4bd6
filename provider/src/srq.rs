//! Shared receive queues.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, SRQ_SIZE};
use crate::public::{Pd, RecvWr, SrqInitAttr};
use crate::queue::Queue;
use crate::requests::Requests;
use crate::verbs::{destroy, finish, functions, object};
use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::sync::{Mutex, PoisonError};
use tbrdma_uapi::QueueResp;

type Ptr = *mut c_void;

/// A shared receive queue: libibverbs' part first.
#[repr(C)]
pub(crate) struct OurSrq {
    verbs: [u64; SRQ_SIZE / 8],
    receive: Mutex<Requests>,
}

pub(crate) unsafe extern "C" fn create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> Ptr {
    const RESPONSE: usize = sizes::CREATE_SRQ_RESP + size_of::<QueueResp>();
    let mut command = Buffer::<{ sizes::CREATE_SRQ }>::new();
    let mut response = Buffer::<RESPONSE>::new();
    object(size_of::<OurSrq>(), |srq| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        let failed = unsafe {
            (functions().create_srq)(
                pd.cast(),
                srq,
                attr.cast(),
                command.as_mut_ptr(),
                sizes::CREATE_SRQ,
                response.as_mut_ptr(),
                RESPONSE,
            )
        };
        if failed != 0 {
            return failed;
        }
        let place: QueueResp = response.get(sizes::CREATE_SRQ_RESP);
        // SAFETY: an open context; the attributes now are as the kernel has granted them.
        let (mapped, max_sge) =
            unsafe { (Queue::map((*(*pd).context).cmd_fd, &place), (*attr).max_sge) };
        // SAFETY: created above; room for what is ours, which nobody has used yet.
        unsafe {
            finish(srq, mapped, functions().destroy_srq, |queue| {
                let requests = Requests::of_receives(queue, max_sge);
                (&raw mut (*srq.cast::<OurSrq>()).receive).write(Mutex::new(requests));
            })
        }
    })
}

pub(crate) unsafe extern "C" fn modify_srq(srq: Ptr, attr: Ptr, mask: c_int) -> c_int {
    let mut command = Buffer::<{ sizes::MODIFY_SRQ }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe { (functions().modify_srq)(srq, attr, mask, command.as_mut_ptr(), sizes::MODIFY_SRQ) }
}

pub(crate) unsafe extern "C" fn query_srq(srq: Ptr, attr: Ptr) -> c_int {
    let mut command = Buffer::<{ sizes::QUERY_SRQ }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe { (functions().query_srq)(srq, attr, command.as_mut_ptr(), sizes::QUERY_SRQ) }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: Ptr) -> c_int {
    let command = functions().destroy_srq;
    // SAFETY: see the module's common ground; the queue was written when it was created.
    unsafe {
        destroy(srq, command, |srq| {
            (&raw mut (*srq.cast::<OurSrq>()).receive).drop_in_place();
        })
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut OurSrq,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let receive = unsafe { &(*srq).receive };
    let mut receive = receive.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the program's list, and a place for its first bad element.
    let failed = unsafe { receive.receive_all(request, bad) };
    // The kernel looks by itself when a message comes.
    receive.publish();
    failed
}
