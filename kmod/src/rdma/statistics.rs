// SPDX-License-Identifier: GPL-2.0-only
//! Counters for `rdma statistic`.

use crate::sys;
use crate::verbs::statistics::{COUNT, NAMES};
use core::ptr;
use kernel::ffi::{c_int, c_ulong};

/// Descriptions of the counters.
struct Descriptions([sys::rdma_stat_desc; COUNT]);

// SAFETY: pointers to constants only.
unsafe impl Sync for Descriptions {}

static DESCRIPTIONS: Descriptions = {
    let mut all = [const {
        sys::rdma_stat_desc {
            name: ptr::null(),
            flags: 0,
            priv_: ptr::null(),
        }
    }; COUNT];
    let mut at = 0;
    while at < COUNT {
        all[at].name = NAMES[at].as_ptr().cast();
        at += 1;
    }
    Descriptions(all)
};

/// The core does not ask again within this time, milliseconds (`RDMA_HW_STATS_DEFAULT_LIFESPAN`).
const LIFESPAN_MS: c_ulong = 10;

/// Room for the port's counters; null without memory.
pub(super) fn allocate() -> *mut sys::rdma_hw_stats {
    // SAFETY: the descriptions are constants, as many as told.
    unsafe { sys::rdma_alloc_hw_stats_struct(DESCRIPTIONS.0.as_ptr(), COUNT as c_int, LIFESPAN_MS) }
}

/// Fills in all counters.
///
/// # Safety
///
/// `stats` came from [`allocate`].
pub(super) unsafe fn fill(stats: *mut sys::rdma_hw_stats, counts: &[u64; COUNT]) -> c_int {
    // SAFETY: there is room for as many values as there are descriptions.
    unsafe {
        let values = (&raw mut (*stats).value).cast::<u64>();
        ptr::copy_nonoverlapping(counts.as_ptr(), values, COUNT);
    }
    COUNT as c_int
}
