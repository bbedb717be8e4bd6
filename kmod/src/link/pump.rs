// SPDX-License-Identifier: GPL-2.0-only
//! From the ring's interrupt to the work item that empties the ring.

use crate::thunderbolt::os::{self, Workqueue};
use crate::thunderbolt::ring::Wake;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Release};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// What a pump drives.
pub(super) trait Target: Send + Sync + 'static {
    /// Takes what has come; returns whether more is likely to be there.
    fn pump(this: &Arc<Self>) -> bool;
    /// Lets the interrupt come again.
    fn unmask(this: &Arc<Self>);
}

/// Runs [`Target::pump`] whenever the interrupt, or somebody else, asks for it; never twice at
/// the same time, so frames stay in order.
///
/// The ring is made before the rail that it belongs to, and its interrupt needs something to
/// call: the pump, which is given its target afterwards and loses it again when the rail goes.
#[pin_data]
pub(super) struct Pump<T: Target> {
    queue: Arc<Workqueue>,
    /// The interrupt has come and waits for [`Target::unmask`], which costs several accesses to
    /// the hardware: runs that others asked for do without.
    masked: Atomic<u32>,
    #[pin]
    target: Mutex<Option<Arc<T>>>,
    #[pin]
    work: DelayedWork<Pump<T>>,
}

impl_has_delayed_work! {
    impl{T: Target} HasDelayedWork<Pump<T>> for Pump<T> { self.work }
}

impl<T: Target> Pump<T> {
    pub(super) fn new(queue: Arc<Workqueue>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queue,
                masked: Atomic::new(0),
                target <- new_mutex!(None, "tbrdma_pump"),
                work <- new_delayed_work!("tbrdma_pump"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets what is pumped.
    pub(super) fn connect(&self, target: Arc<T>) {
        *self.target.lock() = Some(target);
    }

    /// Asks for a run. Any context.
    pub(super) fn ask(this: &Arc<Self>) {
        // Already queued is as good.
        let _ = this.queue.queue().enqueue::<_, 0>(this.clone());
    }

    /// Waits for a run in progress; afterwards the target is not touched any more. Sleeps.
    pub(super) fn disconnect(this: &Arc<Self>) {
        // Runs that are asked for from now on find nothing.
        let target = this.target.lock().take();
        os::cancel_sync::<_, 0>(this);
        drop(target);
    }
}

impl<T: Target> WorkItem for Pump<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let target = this.target.lock().clone();
        let Some(target) = target else { return };
        if T::pump(&target) {
            Self::ask(&this);
        } else if this.masked.xchg(0, Full) != 0 {
            T::unmask(&target);
        }
    }
}

impl<T: Target> Wake for Pump<T> {
    fn wake(this: &Arc<Self>) {
        this.masked.store(1, Release);
        Self::ask(this);
    }
}
