// SPDX-License-Identifier: GPL-2.0-only
//! From the ring's interrupt to the work item that empties the ring.

use crate::thunderbolt::alarm::{Alarm, OnAlarm};
use crate::thunderbolt::os::{self, now_us, Workqueue};
use crate::thunderbolt::ring::Wake;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// What a run has found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Nothing was there.
    Nothing,
    /// It took all that was there.
    All,
    /// More is likely to be there.
    Part,
}

/// A program that has looked for frames less than this ago looks all the time, microseconds.
const HOLD_US: u64 = 200;
/// So often in a row the alarm finds that none has looked before that is believed: a program that had
/// no processor, and its alarm, come back at the same time.
const MISSES: u32 = 2;
/// After frames were found that no program had looked for although it was counted on, so many
/// interrupts pass until one is counted on again; the number doubles up to the second.
const DISTRUST: u32 = 16;
const DISTRUST_MAX: u32 = 1024;
/// Frames that programs have to take in a row for the first number to hold again.
const TRUST: u32 = 64;

/// What a pump drives.
pub(super) trait Target: Send + Sync + 'static {
    /// Takes what has come.
    fn pump(this: &Arc<Self>) -> Taken;
    /// Lets the interrupt come again.
    fn unmask(this: &Arc<Self>);
}

/// Runs [`Target::pump`] whenever the interrupt, or somebody else, asks for it; never twice at
/// the same time, so frames stay in order.
///
/// While a program looks for frames all the time ([`Pump::polled`]) the interrupt stays masked: it
/// would stop the very program that is about to find the frame, and costs accesses to the hardware.
/// An alarm looks whether the program still does.
///
/// The ring is made before the rail that it belongs to, and its interrupt needs something to
/// call: the pump, which is given its target afterwards and loses it again when the rail goes.
#[pin_data]
pub(super) struct Pump<T: Target> {
    queue: Arc<Workqueue>,
    /// The interrupt has come and waits for [`Target::unmask`], which costs several accesses to
    /// the hardware: runs that others asked for do without.
    masked: Atomic<u32>,
    /// A program has looked last, microseconds.
    polled_us: Atomic<u64>,
    /// Not 0: the interrupt is kept masked for the sake of a program. One more than the times that
    /// the alarm has missed it.
    held: Atomic<u32>,
    /// Interrupts until that is done again.
    distrust: Atomic<u32>,
    /// How many the next time, and what programs have taken since the last.
    penalty: Atomic<u32>,
    served: Atomic<u32>,
    #[pin]
    alarm: Mutex<Option<Alarm<Pump<T>>>>,
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
                polled_us: Atomic::new(0),
                held: Atomic::new(0),
                distrust: Atomic::new(0),
                penalty: Atomic::new(DISTRUST),
                served: Atomic::new(0),
                alarm <- new_mutex!(None, "tbrdma_pump_alarm"),
                target <- new_mutex!(None, "tbrdma_pump"),
                work <- new_delayed_work!("tbrdma_pump"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets what is pumped.
    pub(super) fn connect(this: &Arc<Self>, target: Arc<T>) -> Result {
        *this.alarm.lock() = Some(Alarm::new(this.clone())?);
        *this.target.lock() = Some(target);
        Ok(())
    }

    /// A program has looked for frames, and has taken some or not.
    pub(super) fn polled(&self, now_us: u64, found: bool) {
        self.polled_us.store(now_us, Relaxed);
        if found && self.held.load(Relaxed) != 0 {
            let served = self.served.fetch_add(1, Relaxed) + 1;
            if served >= TRUST {
                self.served.store(0, Relaxed);
                self.penalty.store(DISTRUST, Relaxed);
            }
        }
    }

    fn was_polled_just_now(&self) -> bool {
        now_us().saturating_sub(self.polled_us.load(Relaxed)) <= HOLD_US
    }

    /// Keeps the interrupt masked; the alarm will look.
    fn hold(&self) -> bool {
        let alarm = self.alarm.lock();
        let Some(alarm) = &*alarm else { return false };
        self.held.store(1, Relaxed);
        alarm.set(HOLD_US);
        true
    }

    /// The interrupt is kept masked, and a program still looks.
    fn is_attended(&self) -> bool {
        self.held.load(Relaxed) != 0 && self.was_polled_just_now()
    }

    /// All was taken, and the interrupt is masked: whether it is to stay so.
    fn may_hold(&self, taken: Taken) -> bool {
        if self.held.xchg(0, Full) != 0 {
            if taken != Taken::Nothing {
                // Nobody came for it in time.
                let penalty = self.penalty.load(Relaxed);
                self.penalty.store((penalty * 2).min(DISTRUST_MAX), Relaxed);
                self.distrust.store(penalty, Relaxed);
                self.served.store(0, Relaxed);
            }
            return false;
        }
        let distrust = self.distrust.load(Relaxed);
        if distrust > 0 {
            self.distrust.store(distrust - 1, Relaxed);
            return false;
        }
        self.was_polled_just_now() && self.hold()
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
        // Dropped with the lock released: it waits.
        let alarm = this.alarm.lock().take();
        drop(alarm);
        os::cancel_sync::<_, 0>(this);
        drop(target);
    }
}

impl<T: Target> WorkItem for Pump<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let target = this.target.lock().clone();
        let Some(target) = target else { return };
        if this.is_attended() {
            return;
        }
        let taken = T::pump(&target);
        if taken == Taken::Part {
            Self::ask(&this);
        } else if this.masked.load(Acquire) != 0 && !this.may_hold(taken) {
            this.masked.store(0, Release);
            T::unmask(&target);
        }
    }
}

/// The interrupt.
impl<T: Target> Wake for Pump<T> {
    fn wake(this: &Arc<Self>) {
        this.masked.store(1, Release);
        Self::ask(this);
    }
}

/// The alarm, which is set while the interrupt is kept masked. Nothing is woken as long as a program
/// looks.
impl<T: Target> OnAlarm for Pump<T> {
    fn on_alarm(this: &Arc<Self>) -> Option<u64> {
        let held = this.held.load(Relaxed);
        let misses = match this.was_polled_just_now() {
            true => 0,
            false => held,
        };
        // Not if a run has let the interrupt come again meanwhile.
        if held != 0 && misses < MISSES && this.held.cmpxchg(held, 1 + misses, Relaxed).is_ok() {
            return Some(HOLD_US);
        }
        Self::ask(this);
        None
    }
}
