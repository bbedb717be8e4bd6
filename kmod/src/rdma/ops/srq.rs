// SPDX-License-Identifier: GPL-2.0-only
//! Shared receive queues.

use super::context::Pd;
use super::{hca, respond};
use crate::errno::not_supported;
use crate::rdma::event::CoreSrq;
use crate::rdma::queue::Owner;
use crate::sys;
use crate::verbs::srq::Srq;
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

#[repr(C)]
pub(super) struct SrqObject {
    ib: sys::ib_srq,
    srq: *const Srq,
}

/// # Safety
///
/// `srq` was created by [`create_srq`] and is not destroyed, for the lifetime chosen.
pub(super) unsafe fn srq_of<'a>(srq: *mut sys::ib_srq) -> ArcBorrow<'a, Srq> {
    // SAFETY: `create_srq` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*srq.cast::<SrqObject>()).srq) }
}

pub(super) unsafe extern "C" fn create_srq(
    srq: *mut sys::ib_srq,
    init: *mut sys::ib_srq_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
        let (hca, pd, init) = unsafe {
            let pd = (*srq).pd;
            (hca((*srq).device), (*pd.cast::<Pd>()).number, &mut *init)
        };
        if init.srq_type != sys::ib_srq_type_IB_SRQT_BASIC {
            return Err(not_supported());
        }
        // SAFETY: valid until `destroy_srq` returns.
        let core = unsafe { CoreSrq::new(NonNull::new(srq).ok_or(EINVAL)?) };
        let (entries, sges) = (init.attr.max_wr, init.attr.max_sge);
        // SAFETY: see the common ground in `super`.
        let new = Srq::new(hca, core, pd, entries, sges, unsafe { Owner::new(udata) })?;
        let ready = new.set_limit(init.attr.srq_limit).and_then(|()| {
            // SAFETY: as above; a structure of `uapi`.
            unsafe { respond(udata, &new.response()) }
        });
        if let Err(error) = ready {
            new.destroy();
            return Err(error);
        }
        (init.attr.max_wr, init.attr.max_sge, _) = new.attributes();
        // SAFETY: the core allocated `size_ib_srq` bytes.
        unsafe { (*srq.cast::<SrqObject>()).srq = Arc::into_raw(new) };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut sys::ib_srq,
    attr: *mut sys::ib_srq_attr,
    mask: sys::ib_srq_attr_mask,
    _udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        if mask & sys::ib_srq_attr_mask_IB_SRQ_MAX_WR != 0 {
            return Err(not_supported());
        }
        if mask & sys::ib_srq_attr_mask_IB_SRQ_LIMIT != 0 {
            // SAFETY: see the common ground in `super`.
            unsafe { srq_of(srq).set_limit((*attr).srq_limit)? };
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn query_srq(
    srq: *mut sys::ib_srq,
    attr: *mut sys::ib_srq_attr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    let (srq, attr) = unsafe { (srq_of(srq), &mut *attr) };
    (attr.max_wr, attr.max_sge, attr.srq_limit) = srq.attributes();
    0
}

pub(super) unsafe extern "C" fn destroy_srq(
    srq: *mut sys::ib_srq,
    _udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: created by `create_srq`; last use of the counted pointer.
    unsafe { Arc::from_raw((*srq.cast::<SrqObject>()).srq) }.destroy();
    0
}
