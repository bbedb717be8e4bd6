//! Where QPs send.

use super::kit::{pair, sge, Device, Memory, Qp, QpPlan, Region};
use crate::ffi::{self, AhAttr, QpAttr};
use anyhow::{anyhow, ensure, Result};

const RC: QpPlan = QpPlan {
    kind: ffi::QPT_RC,
    srq: None,
    extended: None,
};

fn reset(qp: &Qp<'_>) -> Result<()> {
    let attr = QpAttr {
        qp_state: ffi::STATE_RESET,
        ..QpAttr::default()
    };
    qp.modify(attr, ffi::MASK_STATE)
}

/// What was set is told, and nothing else.
pub fn told(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let fresh = Qp::new(&pd, &cq, RC).map_err(|e| anyhow!("create_qp: errno {e}"))?;
    let nothing = AhAttr::default();
    let nowhere = |qp: &Qp<'_>| -> Result<()> {
        let attr = qp.query()?;
        for path in [attr.ah, attr.alt_ah] {
            // The library may fill in the port.
            let path = AhAttr {
                port_num: 0,
                is_global: 0,
                ..path
            };
            ensure!(path == nothing, "a QP in RESET sends to {path:?}");
        }
        Ok(())
    };
    nowhere(&fresh)?;

    fresh.init()?;
    // Hops are the core's business.
    let path = AhAttr {
        flow_label: 0x1_2345,
        traffic_class: 32,
        sl: 3,
        ..device.address()
    };
    let mut attr = QpAttr {
        qp_state: ffi::STATE_RTR,
        path_mtu: ffi::MTU_4096,
        dest_qp_num: 77,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..QpAttr::default()
    };
    attr.ah = path;
    fresh.modify(attr, ffi::MASK_RTR)?;
    let attr = fresh.query()?;
    ensure!(attr.ah == path, "set {path:?}, told {:?}", attr.ah);
    ensure!(attr.alt_ah.dgid == nothing.dgid && attr.alt_pkey_index == 0);
    ensure!(attr.pkey_index == 0 && attr.alt_timeout == 0 && attr.en_sqd_async_notify == 0);
    ensure!(attr.dest_qp_num == 77 && attr.path_mtu == ffi::MTU_4096);

    reset(&fresh)?;
    nowhere(&fresh)
}

/// A QP goes through RESET and to where it was by what was told of it.
pub fn again(device: &Device) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(64)?);
    let (a, b) = pair(&pd, &cq, RC)?;
    let memory = Memory::zeroed(4096)?;
    let region = Region::new(&pd, &memory, 3).map_err(|e| anyhow!("reg_mr: {e}"))?;
    let before = [a.query()?, b.query()?];
    for (qp, told) in [&a, &b].into_iter().zip(before) {
        reset(qp)?;
        for (state, mask) in [
            (ffi::STATE_INIT, ffi::MASK_INIT),
            (ffi::STATE_RTR, ffi::MASK_RTR),
            (ffi::STATE_RTS, ffi::MASK_RTS),
        ] {
            let attr = QpAttr {
                qp_state: state,
                ..told
            };
            qp.modify(attr, mask)?;
        }
    }
    let to = (memory.addr as u64 + 2048, region.key());
    a.send(1, ffi::WR_WRITE, &sge(&memory, 0, 64, &region), to)?;
    cq.expect(1).map(drop)
}
