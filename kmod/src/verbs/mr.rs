// SPDX-License-Identifier: GPL-2.0-only
//! Memory regions, and the one place where access to memory is decided.

use super::fast_mr::FastMemory;
use super::{Hca, LIMITS};
use crate::errno::not_supported;
use crate::proto::rc::{AtomicOp, ATOMIC_LEN};
use crate::rdma::details::Detail;
use crate::rdma::gate::Gate;
use crate::rdma::memory::{DmaBuf, KernelMemory, Pinned};
use crate::rdma::page_list::PageList;
use crate::rdma::{random_u32, Sge};
use crate::sys;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{Arc, ArcBorrow};

/// What a region may be used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Receives and READ responses may be placed.
    pub(crate) local_write: bool,
    /// A peer may write.
    pub(crate) remote_write: bool,
    /// A peer may read.
    pub(crate) remote_read: bool,
    /// A peer may execute atomics.
    pub(crate) remote_atomic: bool,
    pub(crate) raw: u32,
}

impl Access {
    /// From `enum ib_access_flags`. EOPNOTSUPP for what the device does not have.
    pub(crate) fn from_raw(raw: u32) -> Result<Self> {
        let known = sys::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | sys::ib_access_flags_IB_ACCESS_REMOTE_WRITE
            | sys::ib_access_flags_IB_ACCESS_REMOTE_READ
            | sys::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC
            | sys::ib_access_flags_IB_ACCESS_OPTIONAL;
        if raw & !known != 0 {
            return Err(not_supported());
        }
        Ok(Self::of_known(raw))
    }

    /// From flags that the device has.
    fn of_known(raw: u32) -> Self {
        Self {
            local_write: raw & sys::ib_access_flags_IB_ACCESS_LOCAL_WRITE != 0,
            remote_write: raw & sys::ib_access_flags_IB_ACCESS_REMOTE_WRITE != 0,
            remote_read: raw & sys::ib_access_flags_IB_ACCESS_REMOTE_READ != 0,
            remote_atomic: raw & sys::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC != 0,
            raw,
        }
    }

    /// A peer may do something.
    pub(crate) fn is_remote(self) -> bool {
        self.remote_write || self.remote_read || self.remote_atomic
    }

    /// The region may be used for this.
    pub(crate) fn allows(self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::LocalRead => true,
            Purpose::LocalWrite => self.local_write,
            Purpose::RemoteRead => self.remote_read,
            Purpose::RemoteWrite => self.remote_write,
            Purpose::RemoteAtomic => self.remote_atomic,
        }
    }

    /// Somebody may change the memory.
    pub(crate) fn writes(self) -> bool {
        self.local_write || self.remote_write || self.remote_atomic
    }
}

/// Why memory is about to be touched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Gather data to send.
    LocalRead,
    /// Place a receive or a READ response.
    LocalWrite,
    /// A peer's RDMA READ.
    RemoteRead,
    /// A peer's RDMA WRITE.
    RemoteWrite,
    /// A peer's atomic.
    RemoteAtomic,
}

/// What a region consists of.
enum Memory {
    /// A range of a user's memory.
    User(Pinned),
    /// A part of a dma-buf.
    DmaBuf(DmaBuf),
    /// All of the kernel's, by its own addresses.
    Kernel(KernelMemory),
    /// What work requests of a consumer in the kernel put in. It has a key, an address, a length and
    /// rights of its own.
    Fast(Pin<KBox<FastMemory>>),
}

impl Memory {
    fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        match self {
            Self::User(pinned) => pinned.read(offset, to),
            Self::DmaBuf(buf) => buf.read(offset, to),
            Self::Kernel(all) => all.read(offset, to),
            Self::Fast(_) => Err(EACCES),
        }
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result {
        match self {
            Self::User(pinned) => pinned.write(offset, from),
            Self::DmaBuf(buf) => buf.write(offset, from),
            Self::Kernel(all) => all.write(offset, from),
            Self::Fast(_) => Err(EACCES),
        }
    }

    fn atomic(&self, offset: usize, change: impl Fn(u64) -> Option<u64>) -> Result<u64> {
        match self {
            Self::User(pinned) => pinned.atomic(offset, change),
            Self::DmaBuf(buf) => buf.atomic(offset, change),
            // Peers are never let there.
            Self::Kernel(_) | Self::Fast(_) => Err(EACCES),
        }
    }
}

/// A key is the number of its region and, in its lower 8 bits, a tag, which consumers in the kernel
/// change with each fast registration.
const TAG_BITS: u32 = 8;
const TAG: u32 = (1 << TAG_BITS) - 1;
/// Numbers of regions.
pub(super) const NUMBERS: u32 = u32::MAX >> TAG_BITS;

fn rights(pd: u32, access: Access) -> u64 {
    u64::from(pd) << 32 | u64::from(access.raw)
}

/// A registered range of memory.
#[pin_data(PinnedDrop)]
pub(crate) struct Mr {
    hca: Arc<Hca>,
    key: u32,
    /// Address of the first byte as work requests name it.
    virt: u64,
    length: u64,
    /// Protection domain in the upper half, `enum ib_access_flags` in the lower: both change at
    /// once.
    rights: Atomic<u64>,
    memory: Memory,
    #[pin]
    gate: Gate,
}

impl Mr {
    /// Pins `length` bytes at `start` of the calling process and gives them a random key.
    pub(crate) fn register(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        start: u64,
        length: u64,
        virt: u64,
        access: Access,
    ) -> Result<Arc<Self>> {
        let size = usize::try_from(length).map_err(|_| EINVAL)?;
        if size == 0 || virt.checked_add(length).is_none() {
            return Err(EINVAL);
        }
        let memory = Pinned::new(&hca.device, start, size, access)?;
        Self::new(hca, pd, virt, length, access, Memory::User(memory))
    }

    /// `length` bytes of the dma-buf that the calling process has open as `fd`, from `offset` on.
    ///
    /// EOPNOTSUPP: this processor cannot access its memory.
    pub(crate) fn of_dma_buf(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        fd: c_int,
        (offset, length): (u64, u64),
        virt: u64,
        access: Access,
    ) -> Result<Arc<Self>> {
        if length == 0 || virt.checked_add(length).is_none() {
            return Err(EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| EINVAL)?;
        let size = usize::try_from(length).map_err(|_| EINVAL)?;
        let memory = DmaBuf::new(fd, offset, size)?;
        Self::new(hca, pd, virt, length, access, Memory::DmaBuf(memory))
    }

    /// Registers the same memory, or other of the calling process (`place`: start, length, address
    /// for work requests), with other rights. The region changes, unless that cannot be: then there
    /// is a new one with another key, and this one goes on until the caller ends it. If it fails
    /// nothing has changed.
    ///
    /// EINVAL: the memory is not one that could be registered anew.
    pub(crate) fn reregister(
        &self,
        pd: u32,
        access: Option<Access>,
        place: Option<(u64, u64, u64)>,
    ) -> Result<Option<Arc<Self>>> {
        let access = match access {
            Some(access) => access,
            None => self.access(),
        };
        let (start, length, virt) = match (place, &self.memory) {
            (Some(place), _) => place,
            // What was pinned for reading may be memory that nobody may write.
            (None, Memory::User(pinned)) if access.writes() && !pinned.writable() => {
                (pinned.start(), self.length, self.virt)
            }
            (None, Memory::Kernel(_) | Memory::Fast(_)) => return Err(EINVAL),
            (None, _) => {
                self.rights.store(rights(pd, access), Relaxed);
                return Ok(None);
            }
        };
        Self::register(self.hca.as_arc_borrow(), pd, start, length, virt, access).map(Some)
    }

    /// What `rdma resource` tells of it: `enum ib_access_flags`, and whether it is a dma-buf.
    pub(crate) fn details(&self) -> [Detail; 2] {
        let dma_buf = matches!(self.memory, Memory::DmaBuf(_));
        let access = match &self.memory {
            Memory::Fast(fast) => fast.raw_access(),
            _ => self.access().raw,
        };
        [(c"access_flags", access), (c"dma_buf", dma_buf.into())]
    }

    fn access(&self) -> Access {
        Access::of_known(self.rights.load(Relaxed) as u32)
    }

    /// Address of the first byte as work requests name it, and bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.virt, self.length)
    }

    /// All memory of the kernel, for a protection domain of the kernel.
    pub(crate) fn of_kernel(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        access: Access,
        memory: KernelMemory,
    ) -> Result<Arc<Self>> {
        if access.is_remote() {
            return Err(not_supported());
        }
        Self::new(hca, pd, 0, u64::MAX, access, Memory::Kernel(memory))
    }

    /// A region for fast registration, which is free.
    pub(crate) fn fast(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        staged: PageList,
        pages: PageList,
    ) -> Result<Arc<Self>> {
        let memory = Memory::Fast(FastMemory::new(staged, pages)?);
        Self::new(hca, pd, 0, 0, Access::of_known(0), memory)
    }

    fn as_fast(&self) -> Option<&FastMemory> {
        match &self.memory {
            Memory::Fast(fast) => Some(fast),
            _ => None,
        }
    }

    /// Calls `change` with the list of pages for the next registration; any context. EINVAL: the
    /// region is not for fast registration.
    pub(crate) fn stage<R>(&self, change: impl FnOnce(&mut PageList) -> R) -> Result<R> {
        Ok(self.as_fast().ok_or(EINVAL)?.stage(change))
    }

    fn new(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        virt: u64,
        length: u64,
        access: Access,
        memory: Memory,
    ) -> Result<Arc<Self>> {
        hca.mr_count.take(LIMITS.mrs)?;
        // From here on the region gives the count back, if there is one.
        let mut region = false;
        let made = hca.mrs.insert(|number| {
            let made = Arc::pin_init(
                pin_init!(Self {
                    hca: hca.into(),
                    key: number << TAG_BITS | random_u32() & TAG,
                    virt,
                    length,
                    rights: Atomic::new(rights(pd, access)),
                    memory,
                    gate <- Gate::new(),
                }),
                GFP_KERNEL,
            );
            region = made.is_ok();
            made
        });
        if !region {
            hca.mr_count.give();
        }
        made
    }

    /// Key, local and remote; of a region for fast registration the one before the first.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Ends the region: no access begins after this, none is under way when it returns.
    pub(crate) fn deregister(&self) {
        self.hca.mrs.remove(self.key >> TAG_BITS);
        self.gate.close();
        self.give_back();
    }

    fn give_back(&self) {
        // SAFETY: every access is made inside the gate, which is closed; or nobody knows of the
        // region yet (`drop`).
        unsafe {
            match &self.memory {
                Memory::User(pinned) => pinned.release(),
                Memory::DmaBuf(buf) => buf.release(),
                Memory::Kernel(_) => {}
                Memory::Fast(fast) => fast.release(),
            }
        }
    }

    /// Offset of an allowed access in the region.
    fn check(&self, pd: u32, addr: u64, len: usize, purpose: Purpose) -> Result<usize> {
        let rights = self.rights.load(Relaxed);
        let allowed = Access::of_known(rights as u32).allows(purpose);
        let offset = addr.checked_sub(self.virt).ok_or(EACCES)?;
        let end = offset.checked_add(len as u64).ok_or(EACCES)?;
        if !allowed || u64::from(pd) != rights >> 32 || end > self.length {
            return Err(EACCES);
        }
        usize::try_from(offset).map_err(|_| EACCES)
    }

    fn is_of(&self, pd: u32) -> bool {
        u64::from(pd) == self.rights.load(Relaxed) >> 32
    }
}

#[pinned_drop]
impl PinnedDrop for Mr {
    fn drop(self: Pin<&mut Self>) {
        self.hca.mr_count.give();
    }
}

/// What to do with a piece of memory.
pub(crate) enum Copy<'a> {
    /// Memory to buffer.
    Out(&'a mut [u8]),
    /// Buffer to memory.
    In(&'a [u8]),
    /// Nothing: only find out whether it would be allowed.
    Check(usize),
}

impl Copy<'_> {
    /// Bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Out(to) => to.len(),
            Self::In(from) => from.len(),
            Self::Check(len) => *len,
        }
    }
}

impl Hca {
    /// The region that a key names, unless it is one for fast registration: its key changes, and has
    /// to be compared by whoever has its lock.
    fn region(&self, key: u32) -> Result<Arc<Mr>> {
        let mr = self.mrs.get(key >> TAG_BITS).ok_or(EACCES)?;
        if mr.as_fast().is_none() && mr.key != key {
            return Err(EACCES);
        }
        Ok(mr)
    }

    /// Calls `change` with the region for fast registration that a key of this protection domain
    /// names. EACCES: there is none.
    fn with_fast(&self, pd: u32, key: u32, change: impl FnOnce(&FastMemory) -> Result) -> Result {
        let mr = self.region(key)?;
        let _inside = mr.gate.enter().ok_or(EACCES)?;
        change(mr.as_fast().filter(|_| mr.is_of(pd)).ok_or(EACCES)?)
    }

    /// Makes the pages that a consumer has put into a region accessible with a new key, and by
    /// addresses from `virt` on (IBTA 1.7, 10.6.3).
    ///
    /// EACCES: no region of the protection domain; EINVAL: it is not free, or has no pages;
    /// EOPNOTSUPP: rights that the device does not have.
    pub(crate) fn register_fast(&self, pd: u32, key: u32, virt: u64, access: u32) -> Result {
        let access = Access::from_raw(access)?;
        self.with_fast(pd, key, |fast| fast.register(key, virt, access))
    }

    /// Makes a region free for the next registration (IBTA 1.7, 10.6.5). EACCES: there is none of
    /// this protection domain with this key.
    pub(crate) fn invalidate(&self, pd: u32, key: u32) -> Result {
        self.with_fast(pd, key, |fast| fast.invalidate(key))
    }

    /// The same for a peer that is connected to a QP of this protection domain. EACCES also if the
    /// region is free, or no peer has a right to it.
    pub(crate) fn invalidate_remotely(&self, pd: u32, key: u32) -> Result {
        self.with_fast(pd, key, |fast| fast.invalidate_remotely(key))
    }

    /// Accesses memory by key. EACCES: key, range, permission or protection domain do not allow it.
    pub(crate) fn access(
        &self,
        pd: u32,
        key: u32,
        addr: u64,
        purpose: Purpose,
        copy: Copy<'_>,
    ) -> Result {
        let mr = self.region(key)?;
        let _inside = mr.gate.enter().ok_or(EACCES)?;
        if let Some(fast) = mr.as_fast().filter(|_| mr.is_of(pd)) {
            return fast.access(key, addr, purpose, copy);
        }
        match copy {
            Copy::Out(to) => mr.memory.read(mr.check(pd, addr, to.len(), purpose)?, to),
            Copy::In(from) => mr
                .memory
                .write(mr.check(pd, addr, from.len(), purpose)?, from),
            Copy::Check(len) => mr.check(pd, addr, len, purpose).map(drop),
        }
    }

    /// Executes an atomic on 8 bytes of memory, and tells what was there before. It is atomic
    /// towards everything that this host's processors do, too. EACCES as for
    /// [`access`](Self::access).
    pub(crate) fn atomic(&self, pd: u32, key: u32, addr: u64, op: AtomicOp) -> Result<u64> {
        let mr = self.region(key)?;
        let _inside = mr.gate.enter().ok_or(EACCES)?;
        if let Some(fast) = mr.as_fast().filter(|_| mr.is_of(pd)) {
            return fast.atomic(key, addr, op);
        }
        let offset = mr.check(pd, addr, ATOMIC_LEN as usize, Purpose::RemoteAtomic)?;
        mr.memory.atomic(offset, |original| op.apply(original))
    }

    /// Gathers `to.len()` bytes from `offset` of the message that `sges` describe.
    pub(crate) fn gather(&self, pd: u32, sges: &[Sge], offset: usize, to: &mut [u8]) -> Result {
        let mut rest = to;
        walk(sges, offset, rest.len(), |key, addr, len| {
            let (piece, tail) = core::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            self.access(pd, key, addr, Purpose::LocalRead, Copy::Out(piece))
        })
    }

    /// Scatters `from` to `offset` of the message that `sges` describe.
    pub(crate) fn scatter(&self, pd: u32, sges: &[Sge], offset: usize, from: &[u8]) -> Result {
        let mut rest = from;
        walk(sges, offset, rest.len(), |key, addr, len| {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            self.access(pd, key, addr, Purpose::LocalWrite, Copy::In(piece))
        })
    }
}

/// Calls `each(key, address, bytes)` for the pieces of [offset, offset + length) of a message.
fn walk(
    sges: &[Sge],
    offset: usize,
    length: usize,
    mut each: impl FnMut(u32, u64, usize) -> Result,
) -> Result {
    let mut skip = offset;
    let mut left = length;
    for sge in sges {
        if left == 0 {
            break;
        }
        let size = sge.length as usize;
        if skip >= size {
            skip -= size;
            continue;
        }
        let len = (size - skip).min(left);
        let addr = sge.addr.checked_add(skip as u64).ok_or(EACCES)?;
        each(sge.lkey, addr, len)?;
        left -= len;
        skip = 0;
    }
    if left > 0 {
        return Err(EMSGSIZE);
    }
    Ok(())
}
