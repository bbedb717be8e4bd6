// SPDX-License-Identifier: GPL-2.0-only
//! Objects by number.

use crate::rdma::random_u32;
use crate::thunderbolt::irq_lock::{new_irq_lock, IrqBackend};
use kernel::alloc::Flags;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::lock::spinlock::SpinLockBackend;
use kernel::sync::lock::{Backend, Lock};
use kernel::sync::{new_spinlock, Arc};

/// Objects found by a random number: QPs by QP number, memory regions by key.
///
/// Random numbers make a key hard to guess, and make it unlikely that a late frame for an object
/// that is gone meets a new one.
#[pin_data]
pub(crate) struct Table<T, B: Backend = SpinLockBackend> {
    #[pin]
    objects: Lock<RBTree<u32, Arc<T>>, B>,
    /// Numbers are within this mask.
    mask: u32,
    /// Numbers below are not given.
    lowest: u32,
}

/// A [`Table`] for any context.
pub(crate) type IrqTable<T> = Table<T, IrqBackend>;

impl<T> Table<T> {
    /// An empty table.
    pub(crate) fn new(mask: u32, lowest: u32) -> impl PinInit<Self> {
        pin_init!(Self {
            objects <- new_spinlock!(RBTree::new(), "tbrdma_table"),
            mask,
            lowest,
        })
    }
}

impl<T> IrqTable<T> {
    /// An empty table.
    pub(crate) fn for_any_context(mask: u32, lowest: u32) -> impl PinInit<Self> {
        pin_init!(Self {
            objects <- new_irq_lock!(RBTree::new(), "tbrdma_irq_table"),
            mask,
            lowest,
        })
    }
}

impl<T, B: Backend> Table<T, B> {
    /// A number that is not in use at this moment; `insert` settles races.
    fn propose(&self) -> u32 {
        loop {
            let number = random_u32() & self.mask;
            if number >= self.lowest {
                return number;
            }
        }
    }

    /// Makes an object with a number of its own and puts it in.
    pub(crate) fn insert(&self, make: impl FnOnce(u32) -> Result<Arc<T>>) -> Result<Arc<T>> {
        self.insert_with(GFP_KERNEL, make)
    }

    /// The same with memory from elsewhere, where one may not sleep.
    pub(crate) fn insert_with(
        &self,
        flags: Flags,
        make: impl FnOnce(u32) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let mut number = self.propose();
        while self.objects.lock().get(&number).is_some() {
            number = self.propose();
        }
        self.insert_at(number, flags, make)
    }

    /// Makes an object with this number and puts it in. EAGAIN: the number is in use.
    pub(crate) fn insert_at(
        &self,
        number: u32,
        flags: Flags,
        make: impl FnOnce(u32) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let object = make(number)?;
        let node = RBTreeNode::new(number, object.clone(), flags)?;
        let mut objects = self.objects.lock();
        if objects.get(&number).is_some() {
            // Of a random number: somebody took it meanwhile, one chance in millions.
            drop(objects);
            return Err(EAGAIN);
        }
        objects.insert(node);
        Ok(object)
    }

    /// The object of this number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<T>> {
        self.objects.lock().get(&number).cloned()
    }

    /// Takes the object of this number out.
    pub(crate) fn remove(&self, number: u32) {
        let node = self.objects.lock().remove_node(&number);
        drop(node);
    }

    /// Calls `look` with each object, in order of numbers and without a lock held; objects that
    /// come or go meanwhile may be missed.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&Arc<T>)) {
        let mut from = 0;
        loop {
            let found = {
                let objects = self.objects.lock();
                let cursor = objects.cursor_lower_bound(&from);
                cursor.map(|c| (*c.current().0, c.current().1.clone()))
            };
            let Some((number, object)) = found else {
                return;
            };
            look(&object);
            let Some(next) = number.checked_add(1) else {
                return;
            };
            from = next;
        }
    }
}
