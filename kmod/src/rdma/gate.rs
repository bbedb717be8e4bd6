// SPDX-License-Identifier: GPL-2.0-only
//! Lets the destruction of an object wait for those who are using it.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Completion;

const CLOSED: u32 = 1 << 31;

/// Counts users until it is closed; closing waits until the last one has left.
///
/// A reference count alone does not do: the memory of a user, a completion queue of the core or a
/// page array must be given back in the destroy call, not by whoever drops the last reference.
#[pin_data]
pub(crate) struct Gate {
    state: Atomic<u32>,
    #[pin]
    empty: Completion,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state: Atomic::new(0),
            empty <- Completion::new(),
        })
    }

    /// Goes in; `None` once the gate is closed.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let mut seen = self.state.load(Relaxed);
        loop {
            if seen & CLOSED != 0 {
                return None;
            }
            match self.state.cmpxchg(seen, seen + 1, Full) {
                Ok(_) => return Some(Inside(self)),
                Err(now) => seen = now,
            }
        }
    }

    /// Lets nobody in any more and waits until everybody has left. Sleeps. Once only.
    pub(crate) fn close(&self) {
        if self.state.fetch_add(CLOSED, Full) != 0 {
            self.empty.wait_for_completion();
        }
    }
}

/// Somebody inside a [`Gate`].
pub(crate) struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.state.fetch_sub(1, Full) == CLOSED | 1 {
            self.0.empty.complete_all();
        }
    }
}
