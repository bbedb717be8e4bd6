// SPDX-License-Identifier: GPL-2.0-only
//! What this host announces over its cables: the service's property directory.

use crate::sys;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;

/// Name of the service on the wire; also the key in `tbsvc:` module aliases.
const KEY: &CStr = c"tbrdma";

/// UUID of the directory, b3d7c8e4-5af2-4211-ad46-2c344288542e in text form, as the core stores
/// UUIDs.
const DIR_UUID: [u8; 16] = [
    0xb3, 0xd7, 0xc8, 0xe4, 0x5a, 0xf2, 0x42, 0x11, 0xad, 0x46, 0x2c, 0x34, 0x42, 0x88, 0x54, 0x2e,
];

/// Values of the directory: protocol, its version, its revision, its settings mask.
const VALUES: [(&CStr, u32); 4] = [
    (c"prtcid", 1),
    (c"prtcvers", 1),
    (c"prtcrevs", 1),
    (c"prtcstns", 0),
];

/// The announced directory. Dropping it withdraws the service; the peers are told.
///
/// # Invariants
///
/// `dir` is a property directory of ours, registered under [`KEY`].
pub(crate) struct Announcement {
    dir: NonNull<sys::tb_property_dir>,
}

// SAFETY: the core locks registration; the directory is not touched otherwise.
unsafe impl Send for Announcement {}
// SAFETY: no shared access.
unsafe impl Sync for Announcement {}

impl Announcement {
    /// Announces the service to all hosts, present and future.
    pub(crate) fn new() -> Result<Self> {
        let uuid = sys::uuid_t { b: DIR_UUID };
        // SAFETY: the core copies the UUID.
        let dir = unsafe { sys::tb_property_create_dir(&uuid) };
        let dir = NonNull::new(dir).ok_or(ENOMEM)?;
        let filled = VALUES.iter().try_for_each(|(key, value)| {
            // SAFETY: the directory is ours; the core copies the key, of at most 8 characters.
            to_result(unsafe {
                sys::tb_property_add_immediate(dir.as_ptr(), key.as_char_ptr(), *value)
            })
        });
        let registered = filled.and_then(|()| {
            // SAFETY: the directory is ours and lives until it is unregistered.
            to_result(unsafe { sys::tb_register_property_dir(KEY.as_char_ptr(), dir.as_ptr()) })
        });
        if let Err(e) = registered {
            // SAFETY: not registered, so nobody else knows it.
            unsafe { sys::tb_property_free_dir(dir.as_ptr()) };
            return Err(e);
        }
        // INVARIANT: registered just now.
        Ok(Self { dir })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // SAFETY: registered by the invariant; the core forgets it before the call returns, so
        // that it can be freed.
        unsafe {
            sys::tb_unregister_property_dir(KEY.as_char_ptr(), self.dir.as_ptr());
            sys::tb_property_free_dir(self.dir.as_ptr());
        }
    }
}
