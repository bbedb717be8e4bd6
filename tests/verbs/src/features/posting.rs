//! Extended QPs: `ibv_wr_post(3)`.

use super::kit::{errno, pair, sge, Device, Memory, Qp, QpPlan, Region};
use crate::ffi::{self, DataBuf, QpEx};
use anyhow::{anyhow, ensure, Context, Result};

/// Everything an RC QP has: WRITE and SEND with and without immediate data, READ, atomics, and
/// SEND with invalidation.
const ALL_RC: u64 = 0x7f | 1 << 9;

fn begin(qp: *mut QpEx, wr_id: u64) {
    // SAFETY: an extended QP, between start and completion.
    unsafe {
        (*qp).wr_id = wr_id;
        (*qp).wr_flags = ffi::SEND_SIGNALED;
    }
}

pub fn extended_sends(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(256)?);
    let plan = QpPlan {
        kind: ffi::QPT_RC,
        extended: Some(ALL_RC),
        ..QpPlan::default()
    };
    let (a, b) = pair(&pd, &cq, plan)?;
    let (from, to) = (Memory::zeroed(8192)?, Memory::zeroed(8192)?);
    let region = |memory| Region::new(&pd, memory, 15).map_err(|e| anyhow!("reg_mr: {e}"));
    let (from_mr, to_mr) = (region(&from)?, region(&to)?);
    from.fill(7);
    b.receive(100, &sge(&to, 4096, 64, &to_mr))?;
    b.receive(101, &sge(&to, 4160, 0, &to_mr))?;
    let qp = a.extended()?;
    let (here, there) = (from.addr as u64, to.addr as u64);
    let text = *b"two pieces";
    let pieces = [
        DataBuf {
            addr: text.as_ptr(),
            length: 4,
        },
        DataBuf {
            addr: text[4..].as_ptr(),
            length: 6,
        },
    ];
    let both = [sge(&from, 0, 100, &from_mr), sge(&from, 200, 28, &from_mr)];
    // SAFETY: an extended QP, over registered memory.
    let failed = unsafe {
        ((*qp).start)(qp);
        begin(qp, 1);
        ((*qp).rdma_write)(qp, to_mr.key(), there);
        ((*qp).set_sge_list)(qp, 2, both.as_ptr());
        begin(qp, 2);
        ((*qp).send_imm)(qp, 55);
        ((*qp).set_inline_data_list)(qp, 2, pieces.as_ptr());
        begin(qp, 3);
        ((*qp).rdma_write_imm)(qp, to_mr.key(), there + 1024, 56);
        ((*qp).set_inline_data)(qp, text.as_ptr(), 10);
        begin(qp, 4);
        ((*qp).rdma_read)(qp, to_mr.key(), there + 1024);
        ((*qp).set_sge)(qp, from_mr.key(), here + 4096, 10);
        begin(qp, 5);
        ((*qp).fetch_add)(qp, to_mr.key(), there + 2048, 40);
        ((*qp).set_sge)(qp, from_mr.key(), here + 4200, 8);
        begin(qp, 6);
        ((*qp).cmp_swp)(qp, to_mr.key(), there + 2048, 40, 42);
        ((*qp).set_sge)(qp, from_mr.key(), here + 4208, 8);
        ((*qp).complete)(qp)
    };
    ensure!(failed == 0, "wr_complete: {failed}");
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    while sent.len() < 6 || received.len() < 2 {
        let wc = cq.next()?;
        ensure!(wc.status == 0, "{}: {}", wc.wr_id, device.status(wc.status));
        if wc.opcode & ffi::WC_RECV != 0 {
            received.push((wc.wr_id, wc.imm_data, wc.byte_len));
        } else {
            sent.push(wc.wr_id);
        }
    }
    ensure!(sent == [1, 2, 3, 4, 5, 6], "sends completed as {sent:?}");
    ensure!(received == [(100, 55, 10), (101, 56, 10)], "{received:?}");
    ensure!(to.at(127) == 7 && to.at(128) == 0, "WRITE of two elements");
    let bytes = |memory: &Memory, at: usize| (0..10).map(|n| memory.at(at + n)).collect::<Vec<_>>();
    ensure!(bytes(&to, 4096) == text && bytes(&from, 4096) == text);
    ensure!(to.word(2048) == 42 && from.word(4208) == 40, "atomics");

    // What is aborted was never there; what fails takes the others with it.
    // SAFETY: as above.
    let failed = unsafe {
        ((*qp).start)(qp);
        begin(qp, 7);
        ((*qp).send)(qp);
        ((*qp).abort)(qp);
        ((*qp).start)(qp);
        begin(qp, 8);
        ((*qp).rdma_write)(qp, to_mr.key(), there);
        begin(qp, 9);
        ((*qp).local_inv)(qp, 1);
        ((*qp).complete)(qp)
    };
    ensure!(failed == libc::EOPNOTSUPP, "wr_complete: {failed}");
    a.send(10, ffi::WR_WRITE, &both[0], (there, to_mr.key()))?;
    cq.expect(10).map(drop)
}

pub fn extended_datagrams(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(16)?);
    let plan = QpPlan {
        kind: ffi::QPT_UD,
        extended: Some(1 << 2 | 1 << 3),
        ..QpPlan::default()
    };
    let qp = Qp::new(&pd, &cq, plan).map_err(|e| anyhow!("create_qp_ex: {e}"))?;
    const MASK_INIT_UD: i32 = 1 | 1 << 4 | 1 << 5 | 1 << 6;
    const MASK_SQ_PSN: i32 = 1 << 16;
    let mut attr = ffi::QpAttr {
        port_num: 1,
        qkey: 0x1111,
        ..ffi::QpAttr::default()
    };
    for (state, mask) in [
        (ffi::STATE_INIT, MASK_INIT_UD),
        (ffi::STATE_RTR, ffi::MASK_STATE),
        (ffi::STATE_RTS, ffi::MASK_STATE | MASK_SQ_PSN),
    ] {
        attr.qp_state = state;
        qp.modify(attr, mask)?;
    }
    let memory = Memory::zeroed(4096)?;
    let region = Region::new(&pd, &memory, 1).map_err(|e| anyhow!("reg_mr: {e}"))?;
    qp.receive(1, &sge(&memory, 0, 1024, &region))?;
    let mut address = device.address();
    // SAFETY: a PD and an address of the device.
    let ah = unsafe { (device.library.create_ah)(pd.raw, &mut address) };
    ensure!(!ah.is_null(), "create_ah: errno {}", errno());
    let extended = qp.extended()?;
    // SAFETY: as above.
    let failed = unsafe {
        ((*extended).start)(extended);
        begin(extended, 2);
        ((*extended).send_imm)(extended, 77);
        ((*extended).set_ud_addr)(extended, ah, qp.number(), 0x1111);
        ((*extended).set_inline_data)(extended, b"datagram".as_ptr(), 8);
        ((*extended).complete)(extended)
    };
    let outcome = (|| {
        ensure!(failed == 0, "wr_complete: {failed}");
        for _ in 0..2 {
            let wc = cq.next()?;
            ensure!(wc.status == 0, "{}: {}", wc.wr_id, device.status(wc.status));
            ensure!(wc.wr_id == 2 || (wc.imm_data, wc.byte_len) == (77, 48));
        }
        ensure!(memory.at(40) == b'd' && memory.at(47) == b'm');
        Ok(())
    })();
    // SAFETY: ours; last use.
    unsafe { (device.library.destroy_ah)(ah) };
    outcome
}

/// What is not there is refused when the QP is made.
pub fn limits(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(16)?);
    let make = |kind, operations| {
        let plan = QpPlan {
            kind,
            extended: Some(operations),
            ..QpPlan::default()
        };
        Qp::new(&pd, &cq, plan).map(drop)
    };
    let refused = Err(libc::EOPNOTSUPP);
    ensure!(make(ffi::QPT_RC, 1 << 8) == refused, "memory windows");
    ensure!(make(ffi::QPT_UC, 1 << 4) == refused, "READ on UC");
    ensure!(make(ffi::QPT_UD, 1) == refused, "WRITE on UD");
    make(ffi::QPT_UC, 0xf)
        .map_err(|e| anyhow!("errno {e}"))
        .context("all of UC")
}
