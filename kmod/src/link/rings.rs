// SPDX-License-Identifier: GPL-2.0-only
//! The rings of a rail with their buffers, before anything is known about the other side.

use super::pump::Pump;
use super::rail::Rail;
use crate::proto::rail as proto;
use crate::thunderbolt::os::Workqueue;
use crate::thunderbolt::ring::{RxRing, TxBuf, TxRing};
use crate::thunderbolt::xdomain::{Ends, XDomain};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Buffers that only control frames may use.
pub(super) const CONTROL: usize = 16;

/// RX descriptors that are not promised to the other side as credit: for control frames and
/// frames that are sent again without need.
const RX_SPARE: u32 = 32;

/// Smallest ring: leaves as many data buffers as control ones.
pub(super) const RING_MIN: u32 = 32;
/// Largest ring that NHIs have.
pub(super) const RING_MAX: u32 = 4096;

/// What a rail is made of.
pub(super) struct Rings {
    pub(super) tx: TxRing,
    pub(super) rx: RxRing,
    pub(super) bufs: KVec<KBox<TxBuf>>,
    pub(super) pump: Arc<Pump<Rail>>,
    size: u32,
}

impl Rings {
    /// Allocates both rings with their buffers. Halves the size as long as memory is short, down
    /// to [`RING_MIN`].
    pub(super) fn new(xd: &XDomain, asked: u32, queue: &Arc<Workqueue>) -> Result<Self> {
        let mut size = asked.clamp(RING_MIN, RING_MAX);
        loop {
            match Self::of_size(xd, size, queue) {
                Err(e) if e == ENOMEM && size / 2 >= RING_MIN => size /= 2,
                result => return result,
            }
        }
    }

    /// Descriptors in each ring.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Frames in flight at most that these rings can keep.
    pub(super) fn window(&self) -> u16 {
        let window = (self.size - 1 - CONTROL as u32).min(proto::MAX_WINDOW);
        // `MAX_WINDOW` is far below.
        window as u16
    }

    /// Receive descriptors that data frames may use.
    pub(super) fn rx_capacity(&self) -> u16 {
        // `RING_MAX` is far below.
        (self.size - 1 - RX_SPARE.min(self.size / 4)) as u16
    }

    /// For [`XDomain::enable_paths`].
    pub(super) fn ends(&self) -> Ends {
        Ends::of(&self.tx, &self.rx)
    }

    fn of_size(xd: &XDomain, size: u32, queue: &Arc<Workqueue>) -> Result<Self> {
        let pump = Pump::new(queue.clone())?;
        let tx = TxRing::new(xd, size)?;
        let rx = RxRing::new(xd, size, pump.clone())?;
        // At most one less than descriptors: see `TxRing::submit`. Some more than the window has,
        // for frames that are acknowledged before the hardware says that it is done with them.
        let most = proto::MAX_WINDOW as usize + 4 * CONTROL;
        let count = (size as usize).saturating_sub(1).min(most);
        let mut bufs = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            bufs.push(tx.new_buf()?, GFP_KERNEL)?;
        }
        Ok(Self {
            tx,
            rx,
            bufs,
            pump,
            size,
        })
    }
}
