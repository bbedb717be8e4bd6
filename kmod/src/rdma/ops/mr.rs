// SPDX-License-Identifier: GPL-2.0-only
//! Memory regions.

use super::context::Pd;
use super::{hca, no_udata};
use crate::errno::not_supported;
use crate::rdma::details;
use crate::rdma::memory::KernelMemory;
use crate::sys;
use crate::verbs::mr::{Access, Mr};
use core::ptr;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::Arc;

#[repr(C)]
struct MrObject {
    ib: sys::ib_mr,
    mr: Arc<Mr>,
}

pub(super) unsafe extern "C" fn fill_res_mr_entry(
    msg: *mut sys::sk_buff,
    mr: *mut sys::ib_mr,
) -> c_int {
    // SAFETY: as above.
    unsafe { details::put(msg, &(*mr.cast::<MrObject>()).mr.details()) }
}

pub(super) unsafe extern "C" fn get_dma_mr(pd: *mut sys::ib_pd, access: c_int) -> *mut sys::ib_mr {
    let make = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the common ground in `super`.
        let (hca, pd_number) = unsafe { (hca((*pd).device), (*pd.cast::<Pd>()).number) };
        // SAFETY: the core calls this for protection domains of consumers in the kernel only.
        let all = unsafe { KernelMemory::new() };
        mr_object(Mr::of_kernel(
            hca,
            pd_number,
            Access::from_raw(access as u32)?,
            all,
        )?)
    };
    make().unwrap_or_else(Error::to_ptr)
}

/// The core's object of a region.
fn mr_object(mr: Arc<Mr>) -> Result<*mut sys::ib_mr> {
    let key = mr.key();
    let (virt, length) = mr.place();
    let Ok(mut object) = KBox::<MrObject>::new_uninit(GFP_KERNEL) else {
        mr.deregister();
        return Err(ENOMEM);
    };
    let raw = object.as_mut_ptr();
    // SAFETY: room for the object; an all-zero `ib_mr` is what the core expects.
    unsafe {
        (&raw mut (*raw).ib).write_bytes(0, 1);
        (&raw mut (*raw).mr).write(mr);
        (*raw).ib.lkey = key;
        (*raw).ib.rkey = key;
        (*raw).ib.iova = virt;
        (*raw).ib.length = length;
    }
    // SAFETY: both fields were written.
    let object = unsafe { object.assume_init() };
    Ok(KBox::into_raw(object).cast())
}

pub(super) unsafe extern "C" fn reg_user_mr(
    pd: *mut sys::ib_pd,
    start: u64,
    length: u64,
    virt: u64,
    access: c_int,
    dmah: *mut sys::ib_dmah,
    udata: *mut sys::ib_udata,
) -> *mut sys::ib_mr {
    let register = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the common ground in `super`.
        let (hca, pd_number) = unsafe {
            no_udata(udata)?;
            (hca((*pd).device), (*pd.cast::<Pd>()).number)
        };
        if !dmah.is_null() {
            return Err(not_supported());
        }
        let access = Access::from_raw(access as u32)?;
        mr_object(Mr::register(hca, pd_number, start, length, virt, access)?)
    };
    register().unwrap_or_else(Error::to_ptr)
}

pub(super) unsafe extern "C" fn reg_user_mr_dmabuf(
    pd: *mut sys::ib_pd,
    offset: u64,
    length: u64,
    virt: u64,
    fd: c_int,
    access: c_int,
    dmah: *mut sys::ib_dmah,
    _attrs: *mut sys::uverbs_attr_bundle,
) -> *mut sys::ib_mr {
    let register = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the common ground in `super`.
        let (hca, pd) = unsafe { (hca((*pd).device), (*pd.cast::<Pd>()).number) };
        if !dmah.is_null() {
            return Err(not_supported());
        }
        let access = Access::from_raw(access as u32)?;
        mr_object(Mr::of_dma_buf(hca, pd, fd, (offset, length), virt, access)?)
    };
    register().unwrap_or_else(Error::to_ptr)
}

/// Null: the region itself has changed. Otherwise a new one, in whose favour the core ends it.
pub(super) unsafe extern "C" fn rereg_user_mr(
    mr: *mut sys::ib_mr,
    flags: c_int,
    start: u64,
    length: u64,
    virt: u64,
    access: c_int,
    pd: *mut sys::ib_pd,
    udata: *mut sys::ib_udata,
) -> *mut sys::ib_mr {
    let change = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the common ground in `super`; without a new PD the core gives the old one.
        let (region, pd) = unsafe {
            no_udata(udata)?;
            (&(*mr.cast::<MrObject>()).mr, (*pd.cast::<Pd>()).number)
        };
        let given = |bit: sys::ib_mr_rereg_flags| flags as u32 & bit != 0;
        let access = given(sys::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
            .then(|| Access::from_raw(access as u32))
            .transpose()?;
        let place =
            given(sys::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some((start, length, virt));
        match region.reregister(pd, access, place)? {
            Some(new) => mr_object(new),
            None => Ok(ptr::null_mut()),
        }
    };
    change().unwrap_or_else(Error::to_ptr)
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut sys::ib_mr, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: from `reg_user_mr`; last use.
    let object = unsafe { KBox::from_raw(mr.cast::<MrObject>()) };
    object.mr.deregister();
    0
}
