// SPDX-License-Identifier: GPL-2.0-only
//! What the device has of everything; `ibv_devinfo -v` shows it.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};

/// Limits of the device.
pub(crate) struct Limits {
    /// QPs.
    pub(crate) qps: u32,
    /// Work requests in a send or receive queue.
    pub(crate) work_requests: u32,
    /// Scatter/gather elements of a work request.
    pub(crate) sges: u32,
    /// Inline bytes of a send.
    pub(crate) inline: u32,
    /// Completion queues.
    pub(crate) cqs: u32,
    /// Entries of a completion queue.
    pub(crate) cqes: u32,
    /// Memory regions.
    pub(crate) mrs: u32,
    /// Pages of a fast registration.
    pub(crate) fast_pages: u32,
    /// Shared receive queues.
    pub(crate) srqs: u32,
    /// Address handles.
    pub(crate) ahs: u32,
    /// Protection domains.
    pub(crate) pds: u32,
    /// READs in flight per QP and direction.
    pub(crate) reads: u32,
}

/// The limits. Any user may create objects, so all of them bound kernel memory.
pub(crate) const LIMITS: Limits = Limits {
    qps: 4096,
    work_requests: 16384,
    sges: 16,
    inline: 256,
    cqs: 8192,
    cqes: 1 << 20,
    mrs: 1 << 20,
    fast_pages: 1024,
    srqs: 4096,
    ahs: 1 << 16,
    pds: 8192,
    reads: crate::proto::rc::MAX_READS as u32,
};

/// How many objects of a kind there are.
pub(crate) struct Count(Atomic<u32>);

impl Count {
    pub(super) fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// One more; ENOMEM if that would be more than `limit`.
    pub(super) fn take(&self, limit: u32) -> Result {
        if self.0.fetch_add(1, Full) >= limit {
            self.0.fetch_sub(1, Full);
            return Err(ENOMEM);
        }
        Ok(())
    }

    /// One less.
    pub(super) fn give(&self) {
        self.0.fetch_sub(1, Full);
    }

    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
