// SPDX-License-Identifier: GPL-2.0-only
//! What `rdma resource show` tells of an object with `-d`, beside what the core knows.

use crate::sys;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::str::CStr;

/// A number and what it is called.
pub(crate) type Detail = (&'static CStr, u32);

/// Puts the details into a netlink message. EMSGSIZE: there is no room.
///
/// # Safety
///
/// `msg` is a message that the core makes at present.
pub(super) unsafe fn put(msg: *mut sys::sk_buff, details: &[Detail]) -> c_int {
    // SAFETY: as required.
    let Some(nest) = NonNull::new(unsafe { sys::tbrdma_details_begin(msg) }) else {
        return EMSGSIZE.to_errno();
    };
    for (name, value) in details {
        // SAFETY: as required; a C string.
        let failed = unsafe { sys::rdma_nl_put_driver_u32(msg, name.as_ptr().cast(), *value) };
        if failed != 0 {
            // SAFETY: begun above.
            unsafe { sys::tbrdma_details_cancel(msg, nest.as_ptr()) };
            return EMSGSIZE.to_errno();
        }
    }
    // SAFETY: begun above.
    unsafe { sys::tbrdma_details_end(msg, nest.as_ptr()) };
    0
}
