// SPDX-License-Identifier: GPL-2.0-only
//! Address handles.

use super::context::Pd;
use super::{hca, respond};
use crate::sys;
use crate::uapi::CreateAhResp;
use crate::verbs::ah::Ah;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

#[repr(C)]
pub(super) struct AhObject {
    ib: sys::ib_ah,
    ah: *const Ah,
}

/// # Safety
///
/// `ah` was created by [`create_ah`] and is not destroyed, for the lifetime chosen.
pub(super) unsafe fn ah_of<'a>(ah: *mut sys::ib_ah) -> ArcBorrow<'a, Ah> {
    // SAFETY: `create_ah` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*ah.cast::<AhObject>()).ah) }
}

pub(super) unsafe extern "C" fn create_ah(
    ah: *mut sys::ib_ah,
    init: *mut sys::rdma_ah_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
        let (hca, pd, attr) = unsafe {
            let pd = (*ah).pd;
            (
                hca((*ah).device),
                (*pd.cast::<Pd>()).number,
                &*(*init).ah_attr,
            )
        };
        if attr.type_ != sys::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || attr.grh.sgid_attr.is_null()
        {
            return Err(EINVAL);
        }
        // SAFETY: the type says that the RoCE member is the valid one; GIDs are bytes; the core
        // holds the attributes of the source GID.
        let (mac, sgid, dgid) = unsafe {
            (
                attr.__bindgen_anon_1.roce.as_ref().dmac,
                *(*attr.grh.sgid_attr).gid.raw.as_ref(),
                *attr.grh.dgid.raw.as_ref(),
            )
        };
        let new = Ah::new(hca, pd, mac, sgid, dgid)?;
        let response = CreateAhResp {
            number: new.number(),
            reserved: 0,
        };
        // SAFETY: see the common ground in `super`; a structure of `uapi`.
        if let Err(error) = unsafe { respond(udata, &response) } {
            new.destroy();
            return Err(error);
        }
        // SAFETY: the core allocated `size_ib_ah` bytes.
        unsafe { (*ah.cast::<AhObject>()).ah = Arc::into_raw(new) };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut sys::ib_ah, _flags: u32) -> c_int {
    // SAFETY: created by `create_ah`; last use of the counted pointer.
    unsafe { Arc::from_raw((*ah.cast::<AhObject>()).ah) }.destroy();
    0
}
