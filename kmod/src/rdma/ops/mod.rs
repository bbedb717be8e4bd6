// SPDX-License-Identifier: GPL-2.0-only
//! The operations table of the `ib_device`: C functions that turn pointers into values.
//!
//! Common ground of the SAFETY comments: the core calls an operation only with valid pointers to
//! objects of our device, an object's create operation before any other, and its destroy operation
//! last and alone (Documentation/infiniband/core_locking.rst).

mod ah;
mod context;
mod cq;
mod device;
mod mr;
mod post;
mod qp;
mod srq;

use crate::rdma::device::Device;
use crate::sys;
use crate::verbs::Hca;
use ah::{create_ah, destroy_ah, AhObject};
use context::{
    alloc_pd, alloc_ucontext, dealloc_pd, dealloc_ucontext, disassociate_ucontext, mmap, mmap_free,
    Pd, Ucontext,
};
use core::mem::size_of;
use core::ptr;
use cq::{create_cq, destroy_cq, fill_res_cq_entry, poll_cq, req_notify_cq, resize_cq, CqObject};
use device::{
    alloc_hw_port_stats, get_hw_stats, get_link_layer, get_port_immutable, query_device,
    query_pkey, query_port,
};
use kernel::prelude::*;
use kernel::sync::ArcBorrow;
use mr::{
    alloc_mr, dereg_mr, fill_res_mr_entry, get_dma_mr, map_mr_sg, reg_user_mr, reg_user_mr_dmabuf,
    rereg_user_mr,
};
use post::{post_recv, post_send, post_srq_recv};
use qp::{create_qp, destroy_qp, fill_res_qp_entry, modify_qp, query_qp, QpObject};
use srq::{create_srq, destroy_srq, modify_srq, query_srq, SrqObject};

/// The table for `ib_set_device_ops`.
pub(super) fn table(owner: *mut sys::module, driver_id: u32) -> sys::ib_device_ops {
    sys::ib_device_ops {
        owner,
        driver_id,
        uverbs_abi_ver: crate::uapi::ABI_VERSION,
        query_device: Some(query_device),
        query_port: Some(query_port),
        get_port_immutable: Some(get_port_immutable),
        get_link_layer: Some(get_link_layer),
        query_pkey: Some(query_pkey),
        alloc_hw_port_stats: Some(alloc_hw_port_stats),
        get_hw_stats: Some(get_hw_stats),
        fill_res_qp_entry: Some(fill_res_qp_entry),
        fill_res_cq_entry: Some(fill_res_cq_entry),
        fill_res_mr_entry: Some(fill_res_mr_entry),
        alloc_ucontext: Some(alloc_ucontext),
        dealloc_ucontext: Some(dealloc_ucontext),
        disassociate_ucontext: Some(disassociate_ucontext),
        mmap: Some(mmap),
        mmap_free: Some(mmap_free),
        alloc_pd: Some(alloc_pd),
        dealloc_pd: Some(dealloc_pd),
        create_cq: Some(create_cq),
        destroy_cq: Some(destroy_cq),
        resize_user_cq: Some(resize_cq),
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        create_qp: Some(create_qp),
        modify_qp: Some(modify_qp),
        query_qp: Some(query_qp),
        destroy_qp: Some(destroy_qp),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        create_srq: Some(create_srq),
        modify_srq: Some(modify_srq),
        query_srq: Some(query_srq),
        destroy_srq: Some(destroy_srq),
        post_srq_recv: Some(post_srq_recv),
        create_ah: Some(create_ah),
        create_user_ah: Some(create_ah),
        destroy_ah: Some(destroy_ah),
        get_dma_mr: Some(get_dma_mr),
        reg_user_mr: Some(reg_user_mr),
        reg_user_mr_dmabuf: Some(reg_user_mr_dmabuf),
        rereg_user_mr: Some(rereg_user_mr),
        dereg_mr: Some(dereg_mr),
        alloc_mr: Some(alloc_mr),
        map_mr_sg: Some(map_mr_sg),
        size_ib_ucontext: size_of::<Ucontext>(),
        size_ib_pd: size_of::<Pd>(),
        size_ib_cq: size_of::<CqObject>(),
        size_ib_qp: size_of::<QpObject>(),
        size_ib_ah: size_of::<AhObject>(),
        size_ib_srq: size_of::<SrqObject>(),
        ..Default::default()
    }
}

/// # Safety
///
/// `device` is our registered device (or being registered), for the lifetime chosen.
unsafe fn hca<'a>(device: *mut sys::ib_device) -> ArcBorrow<'a, Hca> {
    // SAFETY: our devices are `Device`s, whose `hca` is set before registration and stays until
    // after unregistration.
    unsafe { ArcBorrow::from_raw((*device.cast::<Device>()).hca) }
}

/// No private data is expected from or for the user.
///
/// # Safety
///
/// `udata` is null or valid.
unsafe fn no_udata(udata: *mut sys::ib_udata) -> Result {
    // SAFETY: as required.
    match unsafe { udata.as_ref() } {
        Some(data) if data.inlen != 0 || data.outlen != 0 => Err(EINVAL),
        _ => Ok(()),
    }
}

/// Gives a structure of `uapi` to the user who has asked for an object.
///
/// # Safety
///
/// `udata` is null or valid, and `T` is plain data without padding.
unsafe fn respond<T>(udata: *mut sys::ib_udata, response: &T) -> Result {
    if udata.is_null() {
        return Ok(());
    }
    // SAFETY: as required.
    kernel::error::to_result(unsafe {
        sys::tbrdma_copy_to_udata(udata, ptr::from_ref(response).cast(), size_of::<T>())
    })
}
