// SPDX-License-Identifier: GPL-2.0-only
//! A queue of fixed capacity that never allocates after it was made.

use kernel::prelude::*;

/// First in, first out; at most as many as it was made for.
pub(super) struct Fifo<T> {
    slots: KVec<Option<T>>,
    head: usize,
    len: usize,
}

impl<T> Fifo<T> {
    /// Room for `capacity` entries.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        let mut slots = KVec::with_capacity(capacity, GFP_KERNEL)?;
        for _ in 0..capacity {
            slots.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            slots,
            head: 0,
            len: 0,
        })
    }

    /// Room for none.
    pub(super) fn empty() -> Self {
        Self {
            slots: KVec::new(),
            head: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Appends; gives the value back if the queue is full.
    pub(super) fn push(&mut self, value: T) -> Result<(), T> {
        if self.len >= self.slots.len() {
            return Err(value);
        }
        let at = (self.head + self.len) % self.slots.len();
        let Some(slot) = self.slots.get_mut(at) else {
            return Err(value);
        };
        *slot = Some(value);
        self.len += 1;
        Ok(())
    }

    pub(super) fn front(&self) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        self.slots.get(self.head)?.as_ref()
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = self.slots.get_mut(self.head)?.take();
        self.head = (self.head + 1) % self.slots.len();
        self.len -= 1;
        value
    }
}
