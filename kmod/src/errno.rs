// SPDX-License-Identifier: GPL-2.0-only
//! Error numbers that `kernel::error::code` lacks before 7.3.

use crate::sys;
use kernel::error::Error;

/// What was asked for does not exist here.
pub(crate) fn not_supported() -> Error {
    Error::from_errno(-(sys::EOPNOTSUPP as i32))
}

/// There is no way to that peer at present.
pub(crate) fn unreachable_host() -> Error {
    Error::from_errno(-(sys::EHOSTUNREACH as i32))
}
