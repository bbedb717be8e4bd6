// SPDX-License-Identifier: GPL-2.0-only
//! A timer of microseconds; the delayed work of the kernel counts in clock ticks of milliseconds.

use crate::sys;
use kernel::container_of;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::types::Opaque;

/// What is done when an alarm rings.
pub(crate) trait OnAlarm: Send + Sync + 'static {
    /// Runs in hard interrupt context: looks at atomics or queues work, nothing else. `Some`: the
    /// alarm rings again after so many microseconds.
    fn on_alarm(this: &Arc<Self>) -> Option<u64>;
}

/// Rings at the time that it was set to. Dropping it waits for a ring in progress.
pub(crate) struct Alarm<W: OnAlarm> {
    inner: Pin<KBox<Inner<W>>>,
}

#[pin_data]
struct Inner<W: OnAlarm> {
    #[pin]
    timer: Opaque<sys::hrtimer>,
    target: Arc<W>,
}

// SAFETY: the functions of the timer core may be called from any thread, and `target` may be sent.
unsafe impl<W: OnAlarm> Send for Inner<W> {}
// SAFETY: as above.
unsafe impl<W: OnAlarm> Sync for Inner<W> {}

/// Runs in hard interrupt context.
unsafe extern "C" fn ring<W: OnAlarm>(timer: *mut sys::hrtimer) -> sys::hrtimer_restart {
    let timer = timer.cast::<Opaque<sys::hrtimer>>();
    // SAFETY: every timer with this function is the `timer` of an `Inner<W>`, which is not freed
    // before the timer was cancelled.
    let target = unsafe { &(*container_of!(timer, Inner<W>, timer)).target };
    if let Some(us) = W::on_alarm(target) {
        // From within the function the timer may be started as from anywhere else: the core sees
        // then that it is queued, and does not take the answer below for its end.
        // SAFETY: made in `new`; the core locks it.
        unsafe { start(timer.cast(), us) };
    }
    // `HRTIMER_NORESTART`, which is a number up to 7.2 and a type of its own later.
    // SAFETY: 0 is a value of either.
    unsafe { core::mem::zeroed() }
}

/// # Safety
///
/// `timer` has been set up and is not freed before it was cancelled.
unsafe fn start(timer: *mut sys::hrtimer, us: u64) {
    let ns = i64::try_from(us.saturating_mul(1000)).unwrap_or(i64::MAX);
    // SAFETY: as promised.
    unsafe {
        sys::hrtimer_start_range_ns(timer, ns, 0, sys::hrtimer_mode_HRTIMER_MODE_REL);
    }
}

impl<W: OnAlarm> Alarm<W> {
    /// An alarm that is not set. Sleeps.
    pub(crate) fn new(target: Arc<W>) -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(Inner {
                timer <- Opaque::ffi_init(|timer| {
                    // SAFETY: memory for a timer, which stays where it is.
                    unsafe {
                        sys::hrtimer_setup(
                            timer,
                            Some(ring::<W>),
                            sys::CLOCK_MONOTONIC as sys::clockid_t,
                            sys::hrtimer_mode_HRTIMER_MODE_REL,
                        )
                    }
                }),
                target,
            }),
            GFP_KERNEL,
        )?;
        Ok(Self { inner })
    }

    /// Sets it to `us` microseconds from now, instead of what it was set to.
    pub(crate) fn set(&self, us: u64) {
        // SAFETY: made in `new`; the core locks it.
        unsafe { start(self.inner.timer.get(), us) };
    }

    /// Takes back what it was set to; waits for a ring in progress.
    pub(crate) fn cancel(&self) {
        // SAFETY: made in `new`; the core locks it.
        unsafe { sys::hrtimer_cancel(self.inner.timer.get()) };
    }
}

impl<W: OnAlarm> Drop for Alarm<W> {
    fn drop(&mut self) {
        // Afterwards the function does not run, and nobody sets it again.
        self.cancel();
    }
}
