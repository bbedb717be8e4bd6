//! The operations. Each hands its arguments to libibverbs' command function of the same name.
//!
//! Common ground of the SAFETY comments: libibverbs calls an operation with valid objects that
//! came from the operations here, and each object's destroy operation last.

use crate::abi::{sizes, Buffer, CQ_SIZE, MR_SIZE, PD_SIZE, QP_SIZE};
use crate::driver::{set_errno, Context};
use crate::layout::Family;
use crate::library::{Functions, Library};
use std::ffi::{c_int, c_void};
use std::ptr;

type Ptr = *mut c_void;

/// The table of operations for this layout; 0 where we have none.
pub(crate) fn table(family: Family) -> Vec<usize> {
    let ours: [(&str, usize); 17] = [
        ("query_device_ex", query_device_ex as *const () as usize),
        ("query_port", query_port as *const () as usize),
        ("alloc_pd", alloc_pd as *const () as usize),
        ("dealloc_pd", dealloc_pd as *const () as usize),
        ("reg_mr", reg_mr as *const () as usize),
        ("dereg_mr", dereg_mr as *const () as usize),
        ("create_cq", create_cq as *const () as usize),
        ("destroy_cq", destroy_cq as *const () as usize),
        ("poll_cq", poll_cq as *const () as usize),
        ("req_notify_cq", req_notify_cq as *const () as usize),
        ("create_qp", create_qp as *const () as usize),
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

fn library() -> &'static Library {
    match Library::get() {
        Ok(library) => library,
        // A context exists, so the library was found before.
        Err(_) => std::process::abort(),
    }
}

fn functions() -> &'static Functions {
    &library().functions
}

/// Makes an object of `size` zeroed bytes and lets `create` fill it; null and errno on failure.
fn object(size: usize, create: impl FnOnce(Ptr) -> c_int) -> Ptr {
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

/// Destroys an object and frees it if that went well.
fn destroy(object: Ptr, command: unsafe extern "C" fn(Ptr) -> c_int) -> c_int {
    // SAFETY: see the module's common ground.
    let failed = unsafe { command(object) };
    if failed == 0 {
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
    destroy(pd, functions().dealloc_pd)
}

unsafe extern "C" fn reg_mr(pd: Ptr, addr: Ptr, length: usize, virt: u64, access: c_int) -> Ptr {
    let mut command = Buffer::<{ sizes::REG_MR }>::new();
    let mut response = Buffer::<{ sizes::REG_MR_RESP }>::new();
    object(MR_SIZE, |mr| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        unsafe {
            (functions().reg_mr)(
                pd,
                addr,
                length,
                virt,
                access,
                mr,
                command.as_mut_ptr(),
                sizes::REG_MR,
                response.as_mut_ptr(),
                sizes::REG_MR_RESP,
            )
        }
    })
}

unsafe extern "C" fn dereg_mr(mr: Ptr) -> c_int {
    destroy(mr, functions().dereg_mr)
}

unsafe extern "C" fn create_cq(context: Ptr, entries: c_int, channel: Ptr, vector: c_int) -> Ptr {
    let mut command = Buffer::<{ sizes::CREATE_CQ }>::new();
    let mut response = Buffer::<{ sizes::CREATE_CQ_RESP }>::new();
    object(CQ_SIZE, |cq| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        unsafe {
            (functions().create_cq)(
                context,
                entries,
                channel,
                vector,
                cq,
                command.as_mut_ptr(),
                sizes::CREATE_CQ,
                response.as_mut_ptr(),
                sizes::CREATE_CQ_RESP,
            )
        }
    })
}

unsafe extern "C" fn destroy_cq(cq: Ptr) -> c_int {
    destroy(cq, functions().destroy_cq)
}

unsafe extern "C" fn poll_cq(cq: Ptr, entries: c_int, wc: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { (functions().poll_cq)(cq, entries, wc) }
}

unsafe extern "C" fn req_notify_cq(cq: Ptr, solicited_only: c_int) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { (functions().req_notify_cq)(cq, solicited_only) }
}

unsafe extern "C" fn create_qp(pd: Ptr, attr: Ptr) -> Ptr {
    let mut command = Buffer::<{ sizes::CREATE_QP }>::new();
    let mut response = Buffer::<{ sizes::CREATE_QP_RESP }>::new();
    object(QP_SIZE, |qp| {
        // SAFETY: see the module's common ground; buffers of the sizes told.
        unsafe {
            (functions().create_qp)(
                pd,
                qp,
                attr,
                command.as_mut_ptr(),
                sizes::CREATE_QP,
                response.as_mut_ptr(),
                sizes::CREATE_QP_RESP,
            )
        }
    })
}

unsafe extern "C" fn modify_qp(qp: Ptr, attr: Ptr, mask: c_int) -> c_int {
    let mut command = Buffer::<{ sizes::MODIFY_QP }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe { (functions().modify_qp)(qp, attr, mask, command.as_mut_ptr(), sizes::MODIFY_QP) }
}

unsafe extern "C" fn query_qp(qp: Ptr, attr: Ptr, mask: c_int, init: Ptr) -> c_int {
    let mut command = Buffer::<{ sizes::QUERY_QP }>::new();
    // SAFETY: see the module's common ground; a buffer of the size told.
    unsafe { (functions().query_qp)(qp, attr, mask, init, command.as_mut_ptr(), sizes::QUERY_QP) }
}

unsafe extern "C" fn destroy_qp(qp: Ptr) -> c_int {
    destroy(qp, functions().destroy_qp)
}

unsafe extern "C" fn post_send(qp: Ptr, wr: Ptr, bad: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { (functions().post_send)(qp, wr, bad) }
}

unsafe extern "C" fn post_recv(qp: Ptr, wr: Ptr, bad: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { (functions().post_recv)(qp, wr, bad) }
}

unsafe extern "C" fn free_context(public: Ptr) {
    let library = library();
    // SAFETY: a context of ours; last use.
    unsafe { Context::of(library, public).free(library) }
}
