//! Memory regions. The kernel keeps them; nothing is ours but the room for libibverbs' structure.
//!
//! Common ground of the SAFETY comments: as in `verbs`.

use crate::abi::{sizes, Buffer, MR_SIZE};
use crate::verbs::{destroy, functions, object};
use std::ffi::{c_int, c_void};
use std::ptr;

type Ptr = *mut c_void;

pub(crate) unsafe extern "C" fn reg_mr(
    pd: Ptr,
    addr: Ptr,
    length: usize,
    virt: u64,
    access: c_int,
) -> Ptr {
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

pub(crate) unsafe extern "C" fn dereg_mr(mr: Ptr) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { destroy(mr, functions().dereg_mr, |_| ()) }
}

pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: Ptr,
    offset: u64,
    length: usize,
    virt: u64,
    fd: c_int,
    access: c_int,
) -> Ptr {
    // An argument that came with rdma-core 54; older ones do not look at it.
    let driver = ptr::null_mut();
    object(MR_SIZE, |mr| {
        // SAFETY: see the module's common ground.
        unsafe { (functions().reg_dmabuf_mr)(pd, offset, length, virt, fd, access, mr, driver) }
    })
}

/// If it fails the region is as it was.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: Ptr,
    flags: c_int,
    pd: Ptr,
    addr: Ptr,
    length: usize,
    access: c_int,
) -> c_int {
    let mut command = Buffer::<{ sizes::REREG_MR }>::new();
    let mut response = Buffer::<{ sizes::REREG_MR_RESP }>::new();
    // SAFETY: see the module's common ground; buffers of the sizes told.
    unsafe {
        (functions().rereg_mr)(
            mr,
            flags as u32,
            addr,
            length,
            addr as u64,
            access,
            pd,
            command.as_mut_ptr(),
            sizes::REREG_MR,
            response.as_mut_ptr(),
            sizes::REREG_MR_RESP,
        )
    }
}
