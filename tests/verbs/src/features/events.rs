//! Asynchronous events of QPs and shared receive queues (IBTA 1.7, 11.6.3).

use super::kit::{pair, sge, Device, Memory, Qp, QpPlan, Region, Srq};
use crate::ffi::{self, QpAttr, SrqAttr};
use anyhow::{anyhow, ensure, Result};
use std::time::Duration;

/// `enum ibv_event_type`.
const ACCESS_ERR: u32 = 3;
const COMM_EST: u32 = 4;
const SQ_DRAINED: u32 = 5;
const SRQ_LIMIT_REACHED: u32 = 15;
const LAST_WQE_REACHED: u32 = 16;

const RC: QpPlan = QpPlan {
    kind: ffi::QPT_RC,
    srq: None,
    extended: None,
};

/// Long enough for an event that is not to come.
const SHORT: Duration = Duration::from_millis(300);

fn register<'d>(pd: &super::kit::Pd<'d>, memory: &Memory) -> Result<Region<'d>> {
    Region::new(pd, memory, 3).map_err(|error| anyhow!("reg_mr: errno {error}"))
}

/// A message comes while the QP is not ready to send yet.
pub fn established(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(32)?);
    let make = || Qp::new(&pd, &cq, RC).map_err(|e| anyhow!("create_qp: {e}"));
    let (a, b) = (make()?, make()?);
    let memory = Memory::zeroed(4096)?;
    let region = register(&pd, &memory)?;
    let part = sge(&memory, 0, 64, &region);
    a.init()?;
    b.init()?;
    a.ready_to_receive(&b)?;
    b.ready_to_receive(&a)?;
    a.ready_to_send()?;
    for wr_id in [1, 2] {
        b.receive(wr_id, &part)?;
        a.send(wr_id, ffi::WR_SEND, &part, (0, 0))?;
        cq.expect(wr_id)?;
        cq.expect(wr_id)?;
    }
    device.expect_event(COMM_EST, b.raw.cast())?;
    let more = device.event(SHORT)?;
    ensure!(more.is_none(), "one more event: {more:?}");
    b.ready_to_send()
}

pub fn drained(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let (a, b) = pair(&pd, &cq, RC)?;
    let memory = Memory::zeroed(1 << 20)?;
    let region = register(&pd, &memory)?;
    let whole = sge(&memory, 0, 1 << 20, &region);
    let to = (memory.addr as u64, region.key());
    for wr_id in 0..4 {
        a.send(wr_id, ffi::WR_WRITE, &whole, to)?;
    }
    let drain = QpAttr {
        qp_state: ffi::STATE_SQD,
        en_sqd_async_notify: 1,
        ..QpAttr::default()
    };
    a.modify(drain, ffi::MASK_STATE | ffi::MASK_SQD_NOTIFY)?;
    // What had begun ends, and nothing new begins.
    device.expect_event(SQ_DRAINED, a.raw.cast())?;
    let mut done = 0;
    while cq.poll()?.is_some() {
        done += 1;
    }
    a.send(4, ffi::WR_WRITE, &sge(&memory, 0, 64, &region), to)?;
    std::thread::sleep(SHORT);
    ensure!(cq.poll()?.is_none(), "a request began in the SQD state");
    let back = QpAttr {
        qp_state: ffi::STATE_RTS,
        ..QpAttr::default()
    };
    a.modify(back, ffi::MASK_STATE)?;
    for wr_id in done..5 {
        cq.expect(wr_id)?;
    }
    drop(b);
    Ok(())
}

/// A QP that shares its receives takes no more of them.
pub fn last_receive(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(32)?);
    let srq = Srq::new(&pd, 16)?;
    let plan = QpPlan {
        srq: Some(srq.raw),
        ..RC
    };
    let (a, _b) = pair(&pd, &cq, plan)?;
    let broken = QpAttr {
        qp_state: ffi::STATE_ERR,
        ..QpAttr::default()
    };
    a.modify(broken, ffi::MASK_STATE)?;
    device.expect_event(LAST_WQE_REACHED, a.raw.cast())?;
    let more = device.event(SHORT)?;
    ensure!(more.is_none(), "one more event: {more:?}");
    Ok(())
}

pub fn srq_limit(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let srq = Srq::new(&pd, 16)?;
    let plan = QpPlan {
        srq: Some(srq.raw),
        ..RC
    };
    let (a, _b) = pair(&pd, &cq, plan)?;
    let memory = Memory::zeroed(4096)?;
    let region = register(&pd, &memory)?;
    let part = sge(&memory, 0, 64, &region);
    let limit = |limit| SrqAttr {
        limit,
        ..SrqAttr::default()
    };
    ensure!(
        srq.modify(limit(1000), 2) == libc::EINVAL,
        "more than it has"
    );
    let bigger = SrqAttr {
        max_wr: 32,
        ..SrqAttr::default()
    };
    ensure!(srq.modify(bigger, 1) == libc::EOPNOTSUPP, "resizing");
    for wr_id in 0..6 {
        srq.receive(wr_id, &part)?;
    }
    ensure!(srq.modify(limit(4), 2) == 0 && srq.query()?.limit == 4);
    let send = |wr_id| {
        a.send(wr_id, ffi::WR_SEND, &part, (0, 0))?;
        cq.next()?;
        cq.next()
    };
    // Four are left: not fewer than the limit.
    send(100)?;
    send(101)?;
    let early = device.event(SHORT)?;
    ensure!(
        early.is_none(),
        "an event with as many receives as the limit: {early:?}"
    );
    send(102)?;
    device.expect_event(SRQ_LIMIT_REACHED, srq.raw)?;
    ensure!(srq.query()?.limit == 0, "the limit is still set");
    send(103)?;
    let again = device.event(SHORT)?;
    ensure!(again.is_none(), "the event came twice: {again:?}");
    Ok(())
}

/// A peer wants what it may not.
pub fn access(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(32)?);
    let (a, b) = pair(&pd, &cq, RC)?;
    let memory = Memory::zeroed(4096)?;
    let region = register(&pd, &memory)?;
    let nowhere = (memory.addr as u64, region.key() ^ 1);
    a.send(1, ffi::WR_WRITE, &sge(&memory, 0, 64, &region), nowhere)?;
    let wc = cq.next()?;
    ensure!(wc.status == 10, "{}", device.status(wc.status));
    device.expect_event(ACCESS_ERR, b.raw.cast())
}
