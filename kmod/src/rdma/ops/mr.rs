// SPDX-License-Identifier: GPL-2.0-only
//! Memory regions.

use super::context::Pd;
use super::{hca, no_udata};
use crate::errno::not_supported;
use crate::rdma::details;
use crate::rdma::memory::KernelMemory;
use crate::rdma::page_list::PageList;
use crate::sys;
use crate::verbs::mr::{Access, Mr};
use crate::verbs::LIMITS;
use core::ptr;
use kernel::error::from_result;
use kernel::ffi::{c_int, c_uint};
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

/// EINVAL: the region may not have so many pages; EOPNOTSUPP: it is not an ordinary one.
pub(super) unsafe extern "C" fn alloc_mr(
    pd: *mut sys::ib_pd,
    kind: sys::ib_mr_type,
    pages: u32,
) -> *mut sys::ib_mr {
    let make = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the common ground in `super`.
        let (hca, pd_number) = unsafe { (hca((*pd).device), (*pd.cast::<Pd>()).number) };
        if kind != sys::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return Err(not_supported());
        }
        if pages == 0 || pages > LIMITS.fast_pages {
            return Err(EINVAL);
        }
        // SAFETY: only `map_mr_sg` adds pages, for which its caller promises this (ib_verbs.h).
        let list = || unsafe { PageList::new(pages as usize) };
        mr_object(Mr::fast(hca, pd_number, list()?, list()?)?)
    };
    make().unwrap_or_else(Error::to_ptr)
}

/// The DMA addresses of our device, which has no DMA, are the kernel's own (`ib_uses_virt_dma`).
pub(super) unsafe extern "C" fn map_mr_sg(
    mr: *mut sys::ib_mr,
    list: *mut sys::scatterlist,
    entries: c_int,
    offset: *mut c_uint,
) -> c_int {
    // SAFETY: see the common ground in `super`; any context.
    let region = unsafe { &(*mr.cast::<MrObject>()).mr };
    from_result(|| {
        // SAFETY: as above; the core has set the size.
        let page = unsafe { (*mr).page_size } as usize;
        region.stage(|pages| pages.begin(page))??;
        // SAFETY: the caller gives so many entries, and perhaps an offset; `add_page` is for this.
        let mapped = unsafe { sys::ib_sg_to_pages(mr, list, entries, offset, Some(add_page)) };
        if mapped > 0 {
            // SAFETY: as above; the core has set them.
            let (first, length) = unsafe { ((*mr).iova, (*mr).length) };
            region.stage(|pages| pages.end(first, length))??;
        }
        Ok(mapped)
    })
}

unsafe extern "C" fn add_page(mr: *mut sys::ib_mr, address: u64) -> c_int {
    // SAFETY: the region for which `map_mr_sg` asks the core for pages.
    let region = unsafe { &(*mr.cast::<MrObject>()).mr };
    from_result(|| {
        region.stage(|pages| pages.push(address as usize))??;
        Ok(0)
    })
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
