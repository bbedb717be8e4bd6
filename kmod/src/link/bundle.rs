// SPDX-License-Identifier: GPL-2.0-only
//! What all rails to one host have in common: numbers for the frames that go out, the order of those
//! that come in, and frames that rails have left behind. `proto::bundle` has the rules.

use super::fifo::Fifo;
use crate::proto::bundle::{Epoch, Receiver, Rx, Sender, Stats, ACK_SPAN, SPAN};
use crate::thunderbolt::os::{random_u64, PageBuf};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{new_mutex, new_spinlock, Mutex, MutexGuard, SpinLock, SpinLockGuard};

/// A copy of a frame.
pub(super) struct Orphan {
    page: PageBuf,
    len: usize,
}

impl Orphan {
    /// Sleeps.
    pub(super) fn of(frame: &[u8]) -> Result<Self> {
        let mut page = PageBuf::new()?;
        let to = page.as_mut_slice().get_mut(..frame.len()).ok_or(EINVAL)?;
        to.copy_from_slice(frame);
        Ok(Self {
            page,
            len: frame.len(),
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.page.as_slice().get(..self.len).unwrap_or_default()
    }
}

/// What is sent.
pub(super) struct Tx {
    pub(super) sender: Sender,
    /// Frames of rails that have gone.
    orphans: Fifo<Orphan>,
}

/// The order of what comes in.
pub(super) struct Order {
    receiver: Receiver,
    /// Frames that have come early, at the place of their number modulo the length, which is
    /// [`SPAN`], or 0 as long as there has been one rail only.
    pool: KVec<Orphan>,
    /// The number when acknowledgements were hastened last.
    hastened: u32,
}

/// What all rails to one host have in common.
#[pin_data]
pub(super) struct Bundle {
    mine: u64,
    /// 0: it has not begun.
    yours: Atomic<u64>,
    #[pin]
    tx: SpinLock<Tx>,
    #[pin]
    order: Mutex<Order>,
}

impl Bundle {
    pub(super) fn new() -> impl PinInit<Self> {
        let tx = Tx {
            sender: Sender::new(),
            orphans: Fifo::empty(),
        };
        let order = Order {
            receiver: Receiver::new(),
            pool: KVec::new(),
            hastened: 0,
        };
        pin_init!(Self {
            mine: random_u64().max(1),
            yours: Atomic::new(0),
            tx <- new_spinlock!(tx, "tbrdma_bundle_tx"),
            order <- new_mutex!(order, "tbrdma_bundle_order"),
        })
    }

    /// Allocates what more than one rail needs, before there is a second. Sleeps.
    pub(super) fn expect_more_rails(&self) -> Result {
        if !self.order.lock().pool.is_empty() {
            return Ok(());
        }
        let mut pool = KVec::with_capacity(SPAN as usize, GFP_KERNEL)?;
        for _ in 0..SPAN {
            pool.push(Orphan::of(&[])?, GFP_KERNEL)?;
        }
        // A number is in one place only, so that there are no more orphans than the span.
        let orphans = Fifo::new(SPAN as usize)?;
        self.tx.lock().orphans = orphans;
        self.order.lock().pool = pool;
        Ok(())
    }

    /// What this end says of the bundle.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch {
            mine: self.mine,
            yours: self.yours.load(Acquire),
        }
    }

    /// It begins with the other end's nonce, unless it has begun.
    pub(super) fn begin(&self, yours: u64) {
        if self.yours.load(Acquire) == 0 {
            self.yours.store(yours, Release);
        }
    }

    /// Behind its lock, the innermost but that of the ring.
    pub(super) fn tx(&self) -> SpinLockGuard<'_, Tx> {
        self.tx.lock()
    }

    /// Behind the lock that keeps frames in order. To be taken before a rail is told of a frame: it
    /// may acknowledge that at once, and other rails' frames must not be looked at before this one.
    pub(super) fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock()
    }

    /// As [`Self::order`], unless somebody else delivers.
    pub(super) fn try_order(&self) -> Option<MutexGuard<'_, Order>> {
        self.order.try_lock()
    }

    /// A frame that a rail has left behind.
    pub(super) fn add_orphan(&self, orphan: Orphan) -> Result {
        let refused = self.tx.lock().orphans.push(orphan);
        refused.map_err(|_| ENOSPC)
    }

    /// The next frame that a rail has left behind, which will be sent now.
    pub(super) fn take_orphan(&self) -> Option<Orphan> {
        let mut tx = self.tx.lock();
        let orphan = tx.orphans.pop()?;
        tx.sender.orphan_sent();
        Some(orphan)
    }

    /// What was counted.
    pub(super) fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        self.tx.lock().sender.stats(&mut stats);
        self.order.lock().receiver.stats(&mut stats);
        stats
    }
}

impl Order {
    /// A rail has delivered `frame` with this number. Returns whether it is to be handed up now;
    /// then [`Self::next_held`] is to be asked.
    pub(super) fn on_frame(&mut self, number: u32, frame: &[u8]) -> bool {
        if self.pool.is_empty() && number != self.receiver.expected() {
            self.receiver.refuse();
            return false;
        }
        match self.receiver.on_frame(number) {
            Rx::Deliver => true,
            Rx::Hold => {
                let place = self.pool.get_mut((number % SPAN) as usize);
                if let Some(place) = place {
                    place.len = frame.len();
                    if let Some(to) = place.page.as_mut_slice().get_mut(..frame.len()) {
                        to.copy_from_slice(frame);
                    }
                }
                false
            }
            Rx::Duplicate | Rx::Beyond => false,
        }
    }

    /// The next frame that had to wait for the one before it.
    pub(super) fn next_held(&mut self) -> Option<&[u8]> {
        let number = self.receiver.next_held()?;
        self.pool
            .get((number % SPAN) as usize)
            .map(|place| place.bytes())
    }

    /// So many frames have come since the last time that rails which still owe acknowledgements may
    /// hold up the others.
    pub(super) fn acks_are_due(&mut self) -> bool {
        let expected = self.receiver.expected();
        let due = expected.wrapping_sub(self.hastened) >= ACK_SPAN;
        if due {
            self.hastened = expected;
        }
        due
    }
}
