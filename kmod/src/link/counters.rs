// SPDX-License-Identifier: GPL-2.0-only
//! What all rails of this host have counted, those that are gone included.

use super::bundle::Bundle;
use super::rail::Rail;
use crate::proto::bundle::Stats;
use kernel::str::CStr;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Names of the counters, as `rdma statistic` shows them.
pub(crate) const NAMES: [&CStr; COUNT] = [
    c"tx_frames",
    c"tx_retransmits",
    c"tx_timeouts",
    c"tx_credit_stalls",
    c"tx_control_frames",
    c"rx_frames",
    c"rx_duplicates",
    c"rx_out_of_order",
    c"rx_beyond_credit",
    c"rx_damaged",
    c"rx_malformed",
    c"naks_sent",
    c"naks_received",
    c"tx_moved_frames",
    c"tx_span_stalls",
    c"rx_reordered_frames",
];

/// How many there are.
pub(crate) const COUNT: usize = 16;

/// So many of them, the last ones, are of bundles.
const OF_BUNDLE: usize = 3;

/// One number for each of [`NAMES`].
pub(crate) type Counts = [u64; COUNT];

/// What the rails to one host have counted together.
pub(super) fn of_bundle(stats: &Stats) -> Counts {
    let mut counts = [0; COUNT];
    let (_, together) = counts.split_at_mut(COUNT - OF_BUNDLE);
    together.copy_from_slice(&[stats.orphans, stats.stalls, stats.held]);
    counts
}

/// Adds `from` to `to`.
pub(super) fn add(to: &mut Counts, from: &Counts) {
    for (sum, value) in to.iter_mut().zip(from) {
        *sum = sum.wrapping_add(*value);
    }
}

/// Counts of rails that are gone.
pub(super) struct Retired([Atomic<u64>; COUNT]);

impl Retired {
    pub(super) fn new() -> Self {
        Self([const { Atomic::new(0) }; COUNT])
    }

    /// Takes over what a rail has counted, which has stopped.
    pub(super) fn take(&self, rail: &Rail) {
        self.add(&rail.counts());
    }

    /// Takes over what the rails to a host that is gone have counted together.
    pub(super) fn take_bundle(&self, bundle: &Bundle) {
        self.add(&of_bundle(&bundle.stats()));
    }

    fn add(&self, counts: &Counts) {
        for (sum, value) in self.0.iter().zip(counts) {
            sum.fetch_add(*value, Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = [0; COUNT];
        for (value, sum) in counts.iter_mut().zip(&self.0) {
            *value = sum.load(Relaxed);
        }
        counts
    }
}
