// SPDX-License-Identifier: GPL-2.0-only
//! Safe forms of what the RDMA core offers and asks for. All `unsafe` of the verbs layer is here.
//!
//! - [`device`]: the `ib_device` and its operations table
//! - `ops`: the C functions of that table; they turn pointers into values and call `crate::verbs`
//! - [`memory`]: pinned memory of a user
//! - [`page_list`]: pages that consumers in the kernel register fast
//! - [`queue`]: queues that a user's process maps
//! - [`details`]: what `rdma resource` tells of an object
//! - `statistics`: counters for `rdma statistic`
//! - [`gate`]: lets destroying an object wait for those who use it
//! - [`event`]: completion and port events to the core

pub(crate) mod details;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod gate;
pub(crate) mod memory;
mod ops;
pub(crate) mod page_list;
pub(crate) mod queue;
mod statistics;

use crate::sys;

pub(crate) use crate::uapi::Sge;

// The core's requests are read as ours.
const _: () = {
    assert!(core::mem::size_of::<Sge>() == core::mem::size_of::<sys::ib_sge>());
    assert!(core::mem::offset_of!(Sge, addr) == core::mem::offset_of!(sys::ib_sge, addr));
    assert!(core::mem::offset_of!(Sge, length) == core::mem::offset_of!(sys::ib_sge, length));
    assert!(core::mem::offset_of!(Sge, lkey) == core::mem::offset_of!(sys::ib_sge, lkey));
};

/// A random number.
pub(crate) fn random_u32() -> u32 {
    // SAFETY: no preconditions.
    unsafe { sys::tbrdma_random() }
}
