// SPDX-License-Identifier: GPL-2.0-only
//! Contexts of processes, their mappings, and protection domains.

use super::{hca, no_udata, respond};
use crate::sys;
use kernel::error::from_result;
use kernel::ffi::c_int;

#[repr(C)]
pub(super) struct Ucontext {
    ib: sys::ib_ucontext,
}

#[repr(C)]
pub(super) struct Pd {
    ib: sys::ib_pd,
    pub(super) number: u32,
}

pub(super) unsafe extern "C" fn alloc_ucontext(
    _context: *mut sys::ib_ucontext,
    udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: see the common ground in `super`; a structure of `uapi`.
    from_result(|| unsafe { respond(udata, &crate::verbs::ucontext_response()).map(|()| 0) })
}

pub(super) unsafe extern "C" fn dealloc_ucontext(_context: *mut sys::ib_ucontext) {}

/// The processes keep the pages of their queues, which say that the device is gone; see
/// `Cq::destroy`.
pub(super) unsafe extern "C" fn disassociate_ucontext(_context: *mut sys::ib_ucontext) {}

pub(super) unsafe extern "C" fn mmap(
    context: *mut sys::ib_ucontext,
    area: *mut sys::vm_area_struct,
) -> c_int {
    // SAFETY: see the common ground in `super`; only memory of queues is known to the core.
    unsafe { sys::tbrdma_memory_mmap(context, area) }
}

pub(super) unsafe extern "C" fn mmap_free(entry: *mut sys::rdma_user_mmap_entry) {
    // SAFETY: as above; the last reference is gone.
    unsafe { sys::tbrdma_memory_mmap_free(entry) }
}

pub(super) unsafe extern "C" fn alloc_pd(pd: *mut sys::ib_pd, udata: *mut sys::ib_udata) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`; the core allocated `size_ib_pd` bytes.
        unsafe {
            no_udata(udata)?;
            (*pd.cast::<Pd>()).number = hca((*pd).device).new_pd()?;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn dealloc_pd(
    pd: *mut sys::ib_pd,
    _udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    unsafe { hca((*pd).device) }.drop_pd();
    0
}
