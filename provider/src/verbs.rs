//! The operations. Those here hand their arguments to libibverbs' command function of the same name;
//! for the others see `cq`, `mr` and `qp`.
//!
//! Common ground of the SAFETY comments: libibverbs calls an operation with valid objects that
//! came from the operations here, and each object's destroy operation last.

use crate::abi::{sizes, Buffer, PD_SIZE};
use crate::ah::{create_ah, destroy_ah};
use crate::cq::{create_cq, destroy_cq, poll_cq, req_notify_cq, resize_cq};
use crate::cq_ex::create_cq_ex;
use crate::driver::{set_errno, Context};
use crate::layout::Family;
use crate::library::{Functions, Library};
use crate::mr::{dereg_mr, reg_dmabuf_mr, reg_mr, rereg_mr};
use crate::qp::{create_qp, destroy_qp, modify_qp, post_recv, post_send};
use crate::qp_ex::create_qp_ex;
use crate::queue::NONSENSE;
use crate::srq::{create_srq, destroy_srq, modify_srq, post_srq_recv, query_srq};
use std::ffi::{c_int, c_void};
use std::ptr;

type Ptr = *mut c_void;

/// The table of operations for this layout; 0 where we have none.
pub(crate) fn table(family: Family) -> Vec<usize> {
    let ours: [(&str, usize); 29] = [
        ("query_device_ex", query_device_ex as *const () as usize),
        ("query_port", query_port as *const () as usize),
        ("alloc_pd", alloc_pd as *const () as usize),
        ("dealloc_pd", dealloc_pd as *const () as usize),
        ("reg_mr", reg_mr as *const () as usize),
        ("reg_dmabuf_mr", reg_dmabuf_mr as *const () as usize),
        ("rereg_mr", rereg_mr as *const () as usize),
        ("dereg_mr", dereg_mr as *const () as usize),
        ("create_srq", create_srq as *const () as usize),
        ("modify_srq", modify_srq as *const () as usize),
        ("query_srq", query_srq as *const () as usize),
        ("destroy_srq", destroy_srq as *const () as usize),
        ("post_srq_recv", post_srq_recv as *const () as usize),
        ("create_ah", create_ah as *const () as usize),
        ("destroy_ah", destroy_ah as *const () as usize),
        ("create_cq", create_cq as *const () as usize),
        ("create_cq_ex", create_cq_ex as *const () as usize),
        ("resize_cq", resize_cq as *const () as usize),
        ("destroy_cq", destroy_cq as *const () as usize),
        ("poll_cq", poll_cq as *const () as usize),
        ("req_notify_cq", req_notify_cq as *const () as usize),
        ("create_qp", create_qp as *const () as usize),
        ("create_qp_ex", create_qp_ex as *const () as usize),
        ("modify_qp", modify_qp as *const () as usize),
        ("query_qp", query_qp as *const () as usize),
        ("destroy_qp", destroy_qp as *const () as usize),
        ("post_send", post_send as *const () as usize),
        ("post_recv", post_recv as *const () as usize),
        ("free_context", free_context as *const () as usize),
    ];
    family
        .operations()
        .map(|name| {
            ours.iter()
                .find(|(ours, _)| *ours == name)
                .map_or(0, |(_, at)| *at)
        })
        .collect()
}

pub(crate) fn library() -> &'static Library {
    match Library::get() {
        Ok(library) => library,
        // A context exists, so the library was found before.
        Err(_) => std::process::abort(),
    }
}

pub(crate) fn functions() -> &'static Functions {
    &library().functions
}

/// Makes an object of `size` zeroed bytes and lets `create` fill it; null and errno on failure.
pub(crate) fn object(size: usize, create: impl FnOnce(Ptr) -> c_int) -> Ptr {
    // SAFETY: plain allocation.
    let object = unsafe { libc::calloc(1, size) };
    if object.is_null() {
        set_errno(libc::ENOMEM);
        return object;
    }
    let failed = create(object);
    if failed != 0 {
        // SAFETY: ours; nobody knows of it.
        unsafe { libc::free(object) };
        set_errno(failed);
        return ptr::null_mut();
    }
    object
}

/// Ends the creation of an object: `keep` writes what is ours of it, if its queues could be mapped;
/// otherwise `undo`, the command that destroys it. Returns an errno.
///
/// # Safety
///
/// `object` was created just now, and nobody knows of it.
pub(crate) unsafe fn finish<T>(
    object: Ptr,
    mapped: Result<T, c_int>,
    undo: unsafe extern "C" fn(Ptr) -> c_int,
    keep: impl FnOnce(T),
) -> c_int {
    match mapped {
        Ok(queues) => {
            keep(queues);
            0
        }
        Err(NONSENSE) => NONSENSE,
        Err(error) => {
            // SAFETY: as required.
            unsafe { undo(object) };
            error
        }
    }
}

/// Destroys an object; if that went well, `clean` ends what is ours of it, and it is freed.
///
/// # Safety
///
/// `object` came from [`object`]; this is its last use if it succeeds.
pub(crate) unsafe fn destroy(
    object: Ptr,
    command: unsafe extern "C" fn(Ptr) -> c_int,
    clean: impl FnOnce(Ptr),
) -> c_int {
    // SAFETY: as required.
    let failed = unsafe { command(object) };
    if failed == 0 {
        clean(object);
        // SAFETY: from `object`; last use.
        unsafe { libc::free(object) };
    }
    failed
}

unsafe extern "C" fn query_device_ex(context: Ptr, input: Ptr, attr: Ptr, size: usize) -> c_int {
    let none = ptr::null_mut();
    // SAFETY: see the module's common ground; without a response of ours libibverbs uses its own.
    unsafe { (functions().query_device)(context, input, attr, size, none, none) }
}

unsafe extern "C" fn query_port(context: Ptr, port: u8, attr: Ptr) -> c_int {
    let mut command = Buffer::<{ sizes::QUERY_PORT }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe {
        (functions().query_port)(context, port, attr, command.as_mut_ptr(), sizes::QUERY_PORT)
    }
}

unsafe extern "C" fn alloc_pd(context: Ptr) -> Ptr {
    let mut command = Buffer::<{ sizes::ALLOC_PD }>::new();
    let mut response = Buffer::<{ sizes::ALLOC_PD_RESP }>::new();
    object(PD_SIZE, |pd| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        unsafe {
            (functions().alloc_pd)(
                context,
                pd,
                command.as_mut_ptr(),
                sizes::ALLOC_PD,
                response.as_mut_ptr(),
                sizes::ALLOC_PD_RESP,
            )
        }
    })
}

unsafe extern "C" fn dealloc_pd(pd: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { destroy(pd, functions().dealloc_pd, |_| ()) }
}

unsafe extern "C" fn query_qp(qp: Ptr, attr: Ptr, mask: c_int, init: Ptr) -> c_int {
    let mut command = Buffer::<{ sizes::QUERY_QP }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe { (functions().query_qp)(qp, attr, mask, init, command.as_mut_ptr(), sizes::QUERY_QP) }
}

unsafe extern "C" fn free_context(public: Ptr) {
    let library = library();
    // SAFETY: a context of ours; last use.
    unsafe { Context::of(library, public).free(library) }
}
