// SPDX-License-Identifier: GPL-2.0-only
//! Completion queues.

use super::{hca, respond};
use crate::errno::not_supported;
use crate::rdma::details;
use crate::rdma::event::CoreCq;
use crate::rdma::queue::Owner;
use crate::sys;
use crate::verbs::cq::{Cq, Extra, WorkCompletion};
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::{c_int, c_uint};
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

#[repr(C)]
pub(super) struct CqObject {
    ib: sys::ib_cq,
    cq: *const Cq,
}

/// # Safety
///
/// `cq` was created by [`create_cq`] and is not destroyed, for the lifetime chosen.
pub(super) unsafe fn cq_of<'a>(cq: *mut sys::ib_cq) -> ArcBorrow<'a, Cq> {
    // SAFETY: `create_cq` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*cq.cast::<CqObject>()).cq) }
}

pub(super) unsafe extern "C" fn fill_res_cq_entry(
    msg: *mut sys::sk_buff,
    cq: *mut sys::ib_cq,
) -> c_int {
    // SAFETY: as above.
    unsafe { details::put(msg, &cq_of(cq).details()) }
}

pub(super) unsafe extern "C" fn create_cq(
    cq: *mut sys::ib_cq,
    attr: *const sys::ib_cq_init_attr,
    attrs: *mut sys::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
        let (hca, attr) = unsafe { (hca((*cq).device), &*attr) };
        if attr.flags != 0 {
            return Err(not_supported());
        }
        // SAFETY: valid until `destroy_cq` returns, which closes the gate.
        let core = unsafe { CoreCq::new(NonNull::new(cq).ok_or(EINVAL)?) };
        // SAFETY: null or valid.
        let udata = unsafe { sys::tbrdma_udata_of(attrs) };
        // SAFETY: as above.
        let new = Cq::new(hca, core, attr.cqe, unsafe { Owner::new(udata) })?;
        // SAFETY: as above; a structure of `uapi`.
        if let Err(error) = unsafe { respond(udata, &new.response()) } {
            new.destroy();
            return Err(error);
        }
        // SAFETY: the core allocated `size_ib_cq` bytes.
        unsafe {
            (*cq).cqe = new.entries() as c_int;
            (*cq.cast::<CqObject>()).cq = Arc::into_raw(new);
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn destroy_cq(
    cq: *mut sys::ib_cq,
    _udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: created by `create_cq`; last use of the counted pointer.
    unsafe { Arc::from_raw((*cq.cast::<CqObject>()).cq) }.destroy();
    0
}

pub(super) unsafe extern "C" fn resize_cq(
    cq: *mut sys::ib_cq,
    entries: c_uint,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`; a structure of `uapi`.
        unsafe {
            let queue = cq_of(cq);
            queue.resize(entries, Owner::new(udata), |place| respond(udata, place))?;
            (*cq).cqe = queue.entries() as c_int;
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut sys::ib_cq,
    num: c_int,
    wc: *mut sys::ib_wc,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    let queue = unsafe { cq_of(cq) };
    if queue.is_user() {
        // A process takes its completions by itself; it calls when there are none.
        // SAFETY: see the common ground in `super`.
        unsafe { hca((*cq).device) }.poll(&queue);
        return 0;
    }
    let mut n = 0;
    while n < num {
        let Some(done) = queue.poll() else { break };
        // SAFETY: the caller gives room for `num` entries.
        unsafe { wc.add(n as usize).write(wc_of(&done)) };
        n += 1;
    }
    n
}

fn wc_of(done: &WorkCompletion) -> sys::ib_wc {
    let mut wc = sys::ib_wc {
        status: done.status as sys::ib_wc_status,
        opcode: done.opcode as sys::ib_wc_opcode,
        byte_len: done.byte_len,
        qp: done.qp.as_ptr(),
        src_qp: done.src_qp,
        port_num: 1,
        ..Default::default()
    };
    // SAFETY: both members of the union are plain numbers.
    unsafe { *wc.__bindgen_anon_1.wr_id.as_mut() = done.wr_id };
    if let Some(route) = &done.route {
        wc.wc_flags |= (sys::ib_wc_flags_IB_WC_GRH
            | sys::ib_wc_flags_IB_WC_WITH_SMAC
            | sys::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE) as c_int;
        wc.smac = route.mac;
        wc.network_hdr_type = if route.ipv4 {
            sys::rdma_network_type_RDMA_NETWORK_IPV4
        } else {
            sys::rdma_network_type_RDMA_NETWORK_IPV6
        } as u8;
    }
    match done.extra {
        Extra::None => {}
        Extra::Imm(imm) => {
            wc.wc_flags |= sys::ib_wc_flags_IB_WC_WITH_IMM as c_int;
            // SAFETY: as above.
            unsafe { *wc.ex.imm_data.as_mut() = imm };
        }
        Extra::Invalidated(key) => {
            wc.wc_flags |= sys::ib_wc_flags_IB_WC_WITH_INVALIDATE as c_int;
            // SAFETY: as above.
            unsafe { *wc.ex.invalidate_rkey.as_mut() = key };
        }
    }
    wc
}

pub(super) unsafe extern "C" fn req_notify_cq(
    cq: *mut sys::ib_cq,
    flags: sys::ib_cq_notify_flags,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    let queue = unsafe { cq_of(cq) };
    let solicited_only = flags & sys::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
        == sys::ib_cq_notify_flags_IB_CQ_SOLICITED;
    let not_empty = queue.arm(solicited_only);
    c_int::from(not_empty && flags & sys::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0)
}
