// SPDX-License-Identifier: GPL-2.0-only
//! Module parameters (`shims/params.c`, `docs/parameters.md`). They do not change after loading.

/// Descriptors asked for per ring.
pub(crate) fn ring_size() -> u32 {
    // SAFETY: Reads a number that is constant after loading.
    unsafe { crate::sys::tbrdma_param_ring_size() }
}

/// Whether the port is active without a cable.
pub(crate) fn loopback() -> bool {
    // SAFETY: Reads a flag that is constant after loading.
    unsafe { crate::sys::tbrdma_param_loopback() }
}
