//! Completion queues.

use super::kit::{pair, sge, Device, Memory, QpPlan, Region};
use crate::ffi;
use anyhow::{anyhow, ensure, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RC: QpPlan = QpPlan {
    kind: ffi::QPT_RC,
    srq: None,
    extended: None,
};

pub fn resize(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let (a, _b) = pair(&pd, &cq, RC)?;
    let memory = Memory::zeroed(4096)?;
    let region = Region::new(&pd, &memory, 3).map_err(|e| anyhow!("reg_mr: {e}"))?;
    let write = |wr_id| {
        let to = (memory.addr as u64 + 2048, region.key());
        a.send(wr_id, ffi::WR_WRITE, &sge(&memory, 0, 64, &region), to)
    };
    // One that is taken, so that indices do not begin with 0; then some that wait.
    write(0)?;
    cq.expect(0)?;
    for wr_id in 1..=20 {
        write(wr_id)?;
    }
    std::thread::sleep(Duration::from_millis(500));
    for (size, wanted) in [
        (0, libc::EINVAL),
        (16, libc::EINVAL),
        (1 << 24, libc::EINVAL),
    ] {
        let failed = cq.resize(size);
        ensure!(failed == wanted, "resize to {size}: errno {failed}");
    }
    ensure!(cq.entries() == 64, "it has {} entries", cq.entries());
    ensure!(cq.resize(500) == 0 && cq.entries() >= 500);
    for wr_id in 1..=10 {
        cq.expect(wr_id)?;
    }
    // Smaller, with some still there, and a request for an event that survives.
    ensure!(cq.resize(16) == 0 && (16..64).contains(&cq.entries()));
    for wr_id in 11..=20 {
        cq.expect(wr_id)?;
    }
    cq.arm()?;
    ensure!(cq.resize(128) == 0);
    write(21)?;
    cq.wait()?;
    cq.expect(21).map(drop)
}

pub fn resize_under_traffic(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let (a, _b) = pair(&pd, &cq, RC)?;
    let memory = Memory::zeroed(4096)?;
    let region = Region::new(&pd, &memory, 3).map_err(|e| anyhow!("reg_mr: {e}"))?;
    let to = (memory.addr as u64 + 2048, region.key());
    let element = sge(&memory, 0, 64, &region);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let resizer = scope.spawn(|| {
            let mut resized = 0u32;
            for size in [1000, 64].into_iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                match cq.resize(size) {
                    0 => resized += 1,
                    failed => return Err(anyhow!("resize to {size}: errno {failed}")),
                }
                std::thread::yield_now();
            }
            Ok(resized)
        });
        let traffic = || {
            let (start, mut posted, mut done) = (Instant::now(), 0u64, 0u64);
            while start.elapsed() < Duration::from_secs(3) || done < posted {
                while start.elapsed() < Duration::from_secs(3) && posted - done < 32 {
                    a.send(posted, ffi::WR_WRITE, &element, to)?;
                    posted += 1;
                }
                cq.expect(done)?;
                done += 1;
            }
            ensure!(cq.poll()?.is_none(), "a completion too many");
            Ok(done)
        };
        let moved = traffic();
        over.store(true, Ordering::Relaxed);
        let resized = resizer
            .join()
            .map_err(|_| anyhow!("the thread panicked"))??;
        let moved = moved?;
        ensure!(
            resized > 4 && moved > 50,
            "{resized} resizes, {moved} WRITEs"
        );
        Ok(())
    })
}
