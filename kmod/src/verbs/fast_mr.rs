// SPDX-License-Identifier: GPL-2.0-only
//! Fast registration (IBTA 1.7, 10.6.3): regions whose pages a work request puts in, and another
//! takes out. Consumers in the kernel have one for each transfer under way.
//!
//! The consumer fills a list of pages (`map_mr_sg`, any context), which nobody looks at until its
//! work request makes them accessible. It gives the region a new key each time, of which only the
//! lower 8 bits change (`ib_update_fast_reg_key`).

use super::mr::{Access, Copy, Purpose};
use crate::proto::rc::AtomicOp;
use crate::rdma::page_list::PageList;
use crate::thunderbolt::irq_lock::{new_irq_lock, IrqLock};
use kernel::prelude::*;
use kernel::sync::{new_spinlock, SpinLock};

/// Pages that are accessible, and how.
struct Active {
    /// `None`: the region is free (IBTA 1.7, 10.6.1), and there are none.
    registered: Option<Registered>,
    pages: PageList,
}

#[derive(Clone, Copy)]
struct Registered {
    key: u32,
    /// Address of the first byte as work requests and peers name it.
    virt: u64,
    access: Access,
}

impl Active {
    /// Offset of an allowed access in the pages.
    fn check(&self, key: u32, addr: u64, len: usize, purpose: Purpose) -> Result<usize> {
        let now = self.registered.filter(|now| now.key == key).ok_or(EACCES)?;
        let offset = addr.checked_sub(now.virt).ok_or(EACCES)?;
        let end = offset.checked_add(len as u64).ok_or(EACCES)?;
        if !now.access.allows(purpose) || end > self.pages.length() as u64 {
            return Err(EACCES);
        }
        usize::try_from(offset).map_err(|_| EACCES)
    }
}

/// The memory of a region for fast registration.
///
/// Lock order: `active`, which is held for as long as bytes are copied, then `staged`.
#[pin_data]
pub(super) struct FastMemory {
    /// What the consumer has put in for its next registration.
    #[pin]
    staged: IrqLock<PageList>,
    #[pin]
    active: SpinLock<Active>,
}

impl FastMemory {
    /// A free region, whose lists have room for the same number of pages.
    pub(super) fn new(staged: PageList, pages: PageList) -> Result<Pin<KBox<Self>>> {
        let active = Active {
            registered: None,
            pages,
        };
        KBox::pin_init(
            pin_init!(Self {
                staged <- new_irq_lock!(staged, "tbrdma_mr_staged"),
                active <- new_spinlock!(active, "tbrdma_mr_active"),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `change` with the list for the next registration; any context.
    pub(super) fn stage<R>(&self, change: impl FnOnce(&mut PageList) -> R) -> R {
        change(&mut self.staged.lock())
    }

    /// Makes the pages that were put in accessible. EINVAL: the region is not free, there are no
    /// pages, or the address space ends before they do.
    pub(super) fn register(&self, key: u32, virt: u64, access: Access) -> Result {
        let mut active = self.active.lock();
        let mut staged = self.staged.lock();
        let length = staged.length() as u64;
        if active.registered.is_some() || length == 0 || virt.checked_add(length).is_none() {
            return Err(EINVAL);
        }
        active.pages.exchange(&mut staged);
        staged.clear();
        active.registered = Some(Registered { key, virt, access });
        Ok(())
    }

    /// Makes the region free: no access begins after this, none is under way when it returns. It may
    /// be so already. EACCES: it is registered with another key.
    pub(super) fn invalidate(&self, key: u32) -> Result {
        let mut active = self.active.lock();
        if active.registered.is_some_and(|now| now.key != key) {
            return Err(EACCES);
        }
        active.registered = None;
        active.pages.clear();
        Ok(())
    }

    /// The same on behalf of a peer. EACCES also if it is free, or if no peer has a right to it.
    pub(super) fn invalidate_remotely(&self, key: u32) -> Result {
        let mut active = self.active.lock();
        active
            .registered
            .take_if(|now| now.key == key && now.access.is_remote())
            .ok_or(EACCES)?;
        active.pages.clear();
        Ok(())
    }

    /// As [`Hca::access`](super::Hca::access), within the protection domain.
    pub(super) fn access(&self, key: u32, addr: u64, purpose: Purpose, copy: Copy<'_>) -> Result {
        let active = self.active.lock();
        let offset = active.check(key, addr, copy.len(), purpose)?;
        match copy {
            Copy::Out(to) => active.pages.read(offset, to),
            Copy::In(from) => active.pages.write(offset, from),
            Copy::Check(_) => Ok(()),
        }
    }

    /// As [`Hca::atomic`](super::Hca::atomic), within the protection domain.
    pub(super) fn atomic(&self, key: u32, addr: u64, op: AtomicOp) -> Result<u64> {
        let active = self.active.lock();
        let offset = active.check(key, addr, 8, Purpose::RemoteAtomic)?;
        active.pages.atomic(offset, |original| op.apply(original))
    }

    /// `enum ib_access_flags` of the registration; 0 if there is none.
    pub(super) fn raw_access(&self) -> u32 {
        let registered = self.active.lock().registered;
        registered.map_or(0, |now| now.access.raw)
    }

    /// Ends it, where one may sleep.
    pub(super) fn release(&self) {
        let active = {
            let mut active = self.active.lock();
            active.registered = None;
            active.pages.take()
        };
        let staged = self.staged.lock().take();
        drop((active, staged));
    }
}
