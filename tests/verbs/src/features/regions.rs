//! Memory regions.

use super::kit::{errno, pair, sge, Cq, Device, Memory, Pd, Qp, QpPlan, Region};
use crate::ffi;
use anyhow::{anyhow, ensure, Context, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const LOCAL_WRITE: i32 = 1;
const REMOTE_WRITE: i32 = 2;
const ON_DEMAND: i32 = 1 << 6;
/// `enum ibv_rereg_mr_flags`.
const TRANSLATION: i32 = 1;
const DOMAIN: i32 = 2;
const ACCESS: i32 = 4;
/// `IBV_WC_SUCCESS`, `IBV_WC_REM_ACCESS_ERR`.
const DONE: u32 = 0;
const REFUSED: u32 = 10;

fn register<'d>(pd: &Pd<'d>, memory: &Memory, access: i32) -> Result<Region<'d>> {
    Region::new(pd, memory, access).map_err(|error| anyhow!("reg_mr: errno {error}"))
}

/// Writes 64 bytes, each `byte`, to `to` over QPs of `pd`. Returns the status.
fn write(pd: &Pd<'_>, byte: u8, to: (u64, u32)) -> Result<u32> {
    let cq: Cq<'_> = pd.device.cq(16)?;
    let plan = QpPlan {
        kind: ffi::QPT_RC,
        ..QpPlan::default()
    };
    let (a, _b): (Qp<'_>, _) = pair(pd, &cq, plan)?;
    let from = Memory::zeroed(4096)?;
    let region = register(pd, &from, 0)?;
    from.fill(byte);
    a.send(1, ffi::WR_WRITE, &sge(&from, 0, 64, &region), to)?;
    Ok(cq.next()?.status)
}

/// Rights and protection domain change in place.
pub fn rights(device: &Device) -> Result<()> {
    let (pd, other) = (device.pd()?, device.pd()?);
    let memory = Memory::zeroed(4096)?;
    let region = register(&pd, &memory, LOCAL_WRITE)?;
    let key = region.key();
    let to = (memory.addr as u64, key);
    ensure!(write(&pd, 1, to)? == REFUSED, "written without the right");
    let both = LOCAL_WRITE | REMOTE_WRITE;
    ensure!(region.again(ACCESS, &pd, None, both) == 0 && region.key() == key);
    ensure!(write(&pd, 2, to)? == DONE && memory.at(63) == 2);
    ensure!(region.again(DOMAIN, &other, None, 0) == 0 && region.key() == key);
    ensure!(write(&pd, 3, to)? == REFUSED, "written from the old domain");
    ensure!(write(&other, 4, to)? == DONE && memory.at(63) == 4);
    ensure!(region.again(ACCESS, &other, None, LOCAL_WRITE) == 0);
    ensure!(
        write(&other, 5, to)? == REFUSED,
        "written without the right"
    );
    let failed = region.again(ACCESS, &other, None, both | ON_DEMAND);
    ensure!(failed != 0, "on-demand paging was promised");
    ensure!(memory.at(63) == 4);
    Ok(())
}

/// Other memory gets another key; what fails changes nothing.
pub fn translation(device: &Device) -> Result<()> {
    let pd = device.pd()?;
    let (first, second) = (Memory::zeroed(4096)?, Memory::zeroed(8192)?);
    let both = LOCAL_WRITE | REMOTE_WRITE;
    let region = register(&pd, &first, both)?;
    let old = (first.addr as u64, region.key());
    // Memory that may not be written.
    let constant = Memory::new(4096, libc::PROT_READ, -1)?;
    let failed = region.again(TRANSLATION, &pd, Some(&constant), 0);
    ensure!(failed != 0, "constant memory was registered to be written");
    ensure!(
        write(&pd, 1, old)? == DONE && first.at(0) == 1,
        "after a failure"
    );
    ensure!(region.again(TRANSLATION, &pd, Some(&second), 0) == 0);
    let new = (second.addr as u64 + 4096, region.key());
    ensure!(write(&pd, 2, new)? == DONE && second.at(4096) == 2);
    ensure!(
        write(&pd, 3, old)? == REFUSED && first.at(0) == 1,
        "the old key"
    );
    // Pinned for reading only: to be written it has to be pinned again.
    let readable = register(&pd, &constant, 0)?;
    let key = readable.key();
    let failed = readable.again(ACCESS, &pd, None, both);
    ensure!(failed != 0, "constant memory may be written now");
    let to = (constant.addr as u64, key);
    ensure!(write(&pd, 4, to)? == REFUSED && constant.at(0) == 0);
    drop(readable);
    let readable = register(&pd, &first, 0)?;
    ensure!(readable.again(ACCESS, &pd, None, both) == 0);
    ensure!(write(&pd, 5, (first.addr as u64, readable.key()))? == DONE && first.at(0) == 5);
    Ok(())
}

/// `struct udmabuf_create`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`.
const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;

/// A dma-buf of this many bytes, and the memory behind it.
fn udmabuf(len: usize) -> Result<(OwnedFd, Memory)> {
    // SAFETY: plain system calls with valid arguments; each descriptor is new and ours.
    unsafe {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let memfd = libc::memfd_create(c"tbrdma".as_ptr(), flags);
        ensure!(memfd >= 0, "memfd_create: errno {}", errno());
        let memfd = OwnedFd::from_raw_fd(memfd);
        let sized = libc::ftruncate(memfd.as_raw_fd(), libc::off_t::try_from(len)?);
        ensure!(sized == 0, "ftruncate: errno {}", errno());
        let sealed = libc::fcntl(memfd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        ensure!(sealed == 0, "F_ADD_SEALS: errno {}", errno());
        let memory = Memory::new(len, libc::PROT_READ | libc::PROT_WRITE, memfd.as_raw_fd())?;
        let maker = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/udmabuf")
            .context("/dev/udmabuf")?;
        let create = UdmabufCreate {
            memfd: memfd.as_raw_fd() as u32,
            flags: 1,
            offset: 0,
            size: len as u64,
        };
        let fd = libc::ioctl(maker.as_raw_fd(), UDMABUF_CREATE as _, &create);
        ensure!(fd >= 0, "UDMABUF_CREATE: errno {}", errno());
        Ok((OwnedFd::from_raw_fd(fd), memory))
    }
}

pub fn dma_buf(device: &Device) -> Result<()> {
    let pd = device.pd()?;
    let (buf, memory) = udmabuf(4 * 4096)?;
    let both = LOCAL_WRITE | REMOTE_WRITE;
    let fd = buf.as_raw_fd();
    let virt = 0x7000_0000_0000 + 100;
    let region = Region::of_dma_buf(&pd, fd, (4096 + 100, 8192), virt, both)
        .map_err(|e| anyhow!("reg_dmabuf_mr: errno {e}"))?;
    // Over the border of two pages.
    ensure!(write(&pd, 9, (virt + 3964, region.key()))? == DONE);
    let at = 4096 + 100 + 3964;
    ensure!(memory.at(at) == 9 && memory.at(at + 63) == 9);
    ensure!(memory.at(at - 1) == 0 && memory.at(at + 64) == 0);
    ensure!(
        write(&pd, 8, (virt + 8129, region.key()))? == REFUSED,
        "beyond the end"
    );
    ensure!(
        write(&pd, 8, (virt - 1, region.key()))? == REFUSED,
        "before the start"
    );
    // It stays when its descriptor is closed.
    drop(buf);
    ensure!(write(&pd, 7, (virt, region.key()))? == DONE && memory.at(4196) == 7);
    // libibverbs itself does not re-register such regions.
    ensure!(region.again(ACCESS, &pd, None, LOCAL_WRITE) != 0);
    drop(region);

    let (buf, _memory) = udmabuf(4096)?;
    let make = |fd, place, access| Region::of_dma_buf(&pd, fd, place, 0, access).map(drop);
    let fd = buf.as_raw_fd();
    ensure!(
        make(fd, (0, 8192), both) == Err(libc::EINVAL),
        "longer than it is"
    );
    ensure!(make(fd, (0, 0), both).is_err(), "nothing");
    let refused = make(fd, (0, 4096), both | ON_DEMAND);
    ensure!(refused.is_err(), "on demand");
    let file = std::fs::File::open("/dev/null")?;
    ensure!(
        make(file.as_raw_fd(), (0, 4096), both) == Err(libc::EINVAL),
        "no dma-buf"
    );
    Ok(())
}

/// What the device does not have it says that it does not have.
pub fn no_on_demand(device: &Device) -> Result<()> {
    let pd = device.pd()?;
    let memory = Memory::zeroed(4096)?;
    let refused = Region::new(&pd, &memory, LOCAL_WRITE | ON_DEMAND).map(drop);
    ensure!(refused == Err(libc::EOPNOTSUPP), "on demand: {refused:?}");
    type Query = unsafe extern "C" fn(
        *mut ffi::Context,
        *const u8,
        *mut ffi::DeviceAttrEx,
        usize,
    ) -> std::ffi::c_int;
    // SAFETY: zeros are a value; the context has the function.
    let (failed, attr) = unsafe {
        let mut attr: ffi::DeviceAttrEx = std::mem::zeroed();
        attr.odp_general_caps = u64::MAX;
        attr.odp_caps = [u32::MAX; 3];
        let query = device.context.cast::<Query>();
        let query = query.sub(ffi::QUERY_DEVICE_EX).read();
        let size = std::mem::size_of::<ffi::DeviceAttrEx>();
        let failed = query(device.context, std::ptr::null(), &mut attr, size);
        (failed, attr)
    };
    ensure!(failed == 0, "query_device_ex: {failed}");
    ensure!(
        attr.odp_general_caps == 0 && attr.odp_caps == [0; 3],
        "it says that it has on-demand paging"
    );
    ensure!(
        attr.timestamp_mask == u64::MAX && attr.core_clock_khz == 1_000_000,
        "timestamps: mask {:#x}, {} kHz",
        attr.timestamp_mask,
        attr.core_clock_khz
    );
    Ok(())
}
