// SPDX-License-Identifier: GPL-2.0-only
//! Spinlocks for what may be reached from any context, interrupts included.
//!
//! `kernel::sync::SpinLock` leaves interrupts alone, and the crate's own variant with interrupts off
//! needs functions that modules may not use.

use crate::sys;
use kernel::ffi::{c_char, c_ulong};
use kernel::sync::lock::{Backend, Lock};

/// A spinlock with the interrupts of its processor off while it is held: hold it shortly, and give
/// several of them back in the reverse order.
pub(crate) type IrqLock<T> = Lock<T, IrqBackend>;

/// Makes an [`IrqLock`]; like `new_spinlock!`.
macro_rules! new_irq_lock {
    ($inner:expr, $name:literal) => {
        $crate::thunderbolt::irq_lock::IrqLock::new(
            $inner,
            kernel::optional_name!($name),
            kernel::static_lock_class!(),
        )
    };
}
pub(crate) use new_irq_lock;

/// How an [`IrqLock`] is locked.
pub(crate) struct IrqBackend;

// SAFETY: a spinlock gives exclusive access; what `lock` returns is handed to `unlock`, and tells it
// whether interrupts were on.
unsafe impl Backend for IrqBackend {
    type State = sys::spinlock_t;
    type GuardState = c_ulong;

    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut sys::lock_class_key) {
        // SAFETY: the caller promises memory for the lock, and a name and a key that stay.
        unsafe { sys::__spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: the caller promises an initialised lock.
        unsafe { sys::tbrdma_spin_lock_irqsave(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: as in `lock`.
        unsafe { sys::tbrdma_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: the caller promises that the lock is held, and the flags that `lock` gave.
        unsafe { sys::tbrdma_spin_unlock_irqrestore(ptr, *flags) }
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: as in `lock`.
        unsafe { sys::spin_assert_is_held(ptr) }
    }
}
