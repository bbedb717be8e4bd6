//! Does libibverbs really have the layout that we think it has?
//!
//! A wrong table would call one operation for another without any sign. So, before a context is
//! used, a scratch context gets a table of recognisable numbers, and what libibverbs copied from
//! it into the public structures, whose layout is known, shows which slot it took each from.

use crate::abi::CONTEXT_SIZE;
use crate::driver::Context;
use crate::library::Library;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// Operations in `struct ibv_context_ops` that libibverbs fills from the table, in order; empty
/// names are slots that it does not fill so.
const PUBLIC: [&str; 32] = [
    "",
    "",
    "alloc_pd",
    "dealloc_pd",
    "reg_mr",
    "rereg_mr",
    "dereg_mr",
    "alloc_mw",
    "bind_mw",
    "dealloc_mw",
    "create_cq",
    "poll_cq",
    "req_notify_cq",
    "cq_event",
    "resize_cq",
    "destroy_cq",
    "create_srq",
    "modify_srq",
    "query_srq",
    "destroy_srq",
    "post_srq_recv",
    "create_qp",
    "query_qp",
    "modify_qp",
    "destroy_qp",
    "post_send",
    "post_recv",
    "create_ah",
    "destroy_ah",
    "attach_mcast",
    "detach_mcast",
    "async_event",
];

/// The number for a slot; no function is at such an address.
fn mark(slot: usize) -> usize {
    0x1000 + slot
}

/// Checks once per process.
///
/// # Safety
///
/// `device` is libibverbs' device, `fd` an open descriptor of it; neither is kept.
pub(crate) unsafe fn run(library: &Library, device: *mut c_void, fd: c_int) -> Result<(), String> {
    static RESULT: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: as required of the caller.
    RESULT
        .get_or_init(|| unsafe { check(library, device, fd) })
        .clone()
}

/// # Safety
///
/// As for [`run`].
unsafe fn check(library: &Library, device: *mut c_void, fd: c_int) -> Result<(), String> {
    // The scratch context closes its descriptor.
    // SAFETY: an open descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(format!(
            "cannot copy a descriptor: {}",
            std::io::Error::last_os_error()
        ));
    }
    // SAFETY: as required of the caller.
    let Some(context) = (unsafe { Context::new(library, device, copy) }) else {
        return Err("out of memory".to_string());
    };
    let family = library.family;
    // Longer than any table, in case libibverbs knows more operations than we think.
    let table: Vec<usize> = (0..256).map(mark).collect();
    let context_at = family.context_offset() / size_of::<usize>();
    // SAFETY: the scratch context is ours, and longer than what is read.
    let (size, public) = unsafe {
        (library.functions.set_ops)(context.verbs(), table.as_ptr());
        let words = context.verbs().cast::<usize>();
        let size = words.add(context_at - 1).read();
        // `ibv_context` begins with a pointer to the device; its operations follow.
        let public = std::slice::from_raw_parts(words.add(context_at + 1), PUBLIC.len()).to_vec();
        (size, public)
    };
    // SAFETY: nobody else knows of it.
    unsafe { context.free(library) };
    let mut wrong = Vec::new();
    if size != family.context_offset() + CONTEXT_SIZE {
        wrong.push(format!("size of verbs_context is {size}"));
    }
    for (name, found) in PUBLIC.iter().zip(public) {
        if name.is_empty() {
            continue;
        }
        if family.slot(name).map(mark) != Some(found) {
            wrong.push((*name).to_string());
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this libibverbs (private ABI {}) does not have the layout {family:?} ({} of {} checks \
         failed, first: {}); the device is not used. Install a newer ibverbs-provider-tbrdma, and \
         please report this",
        library.private_abi,
        wrong.len(),
        PUBLIC.len() - 1,
        wrong[0]
    ))
}
