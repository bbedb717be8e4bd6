// SPDX-License-Identifier: GPL-2.0-only
//! The USB4 routers of this machine, and who the machine is without one.

use crate::sys;
use kernel::prelude::*;

/// The lowest UUID of this machine's host routers, in the byte order of its text form; `None`
/// without a router.
///
/// The Thunderbolt core exports no list of routers, nor the bus they are on; the shim reads each
/// host router's `unique_id` attribute, as a reader of sysfs does.
pub(crate) fn lowest_uuid() -> Result<Option<[u8; 16]>> {
    let mut uuid = [0u8; 16];
    // SAFETY: the shim writes 16 bytes to a buffer of 16.
    let found = unsafe { sys::tbrdma_lowest_router_uuid(uuid.as_mut_ptr()) };
    match found {
        0 => Ok(None),
        1 => Ok(Some(uuid)),
        e => Err(Error::from_errno(e)),
    }
}

/// An identity for a machine without a USB4 router: the firmware's product UUID, otherwise random
/// (then it changes with every load of the module).
pub(crate) fn machine_uuid() -> [u8; 16] {
    let mut uuid = [0u8; 16];
    // SAFETY: the shim writes 16 bytes to a buffer of 16.
    if unsafe { sys::tbrdma_product_uuid(uuid.as_mut_ptr()) } {
        return uuid;
    }
    // SAFETY: fills the given number of bytes of a buffer of that size.
    unsafe { sys::get_random_bytes(uuid.as_mut_ptr().cast(), uuid.len()) };
    uuid
}
