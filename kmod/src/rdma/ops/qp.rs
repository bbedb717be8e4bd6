// SPDX-License-Identifier: GPL-2.0-only
//! Queue pairs, but for posting to them.

use super::context::Pd;
use super::cq::cq_of;
use super::srq::srq_of;
use super::{hca, no_udata, respond};
use crate::errno::not_supported;
use crate::rdma::details;
use crate::rdma::event::CoreQp;
use crate::rdma::queue::Owner;
use crate::sys;
use crate::verbs::qp::{Path, Qp, QpAttributes, QpCaps, QpKind, QpMask, QpNew, QpState};
use core::ptr::NonNull;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

#[repr(C)]
pub(super) struct QpObject {
    ib: sys::ib_qp,
    qp: *const Qp,
}

/// # Safety
///
/// `qp` was created by [`create_qp`] and is not destroyed, for the lifetime chosen.
pub(super) unsafe fn qp_of<'a>(qp: *mut sys::ib_qp) -> ArcBorrow<'a, Qp> {
    // SAFETY: `create_qp` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*qp.cast::<QpObject>()).qp) }
}

pub(super) unsafe extern "C" fn fill_res_qp_entry(
    msg: *mut sys::sk_buff,
    qp: *mut sys::ib_qp,
) -> c_int {
    // SAFETY: see the common ground in `super`, here and below; the core holds the object.
    unsafe { details::put(msg, &qp_of(qp).details()) }
}

fn set_caps(cap: &mut sys::ib_qp_cap, caps: &QpCaps) {
    cap.max_send_wr = caps.send_wr;
    cap.max_recv_wr = caps.recv_wr;
    cap.max_send_sge = caps.send_sge;
    cap.max_recv_sge = caps.recv_sge;
    cap.max_inline_data = caps.inline;
}

pub(super) unsafe extern "C" fn create_qp(
    qp: *mut sys::ib_qp,
    init: *mut sys::ib_qp_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
        let (hca, init, pd) = unsafe { (hca((*qp).device), &mut *init, (*qp).pd) };
        let kind = QpKind::from_raw(init.qp_type)
            .filter(|kind| *kind != QpKind::Gsi || udata.is_null())
            .ok_or_else(not_supported)?;
        if init.create_flags != 0 {
            return Err(not_supported());
        }
        if init.send_cq.is_null() || init.recv_cq.is_null() || pd.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the queues are alive; the PD is one of ours.
        let (send_cq, recv_cq, pd) = unsafe {
            (
                Arc::from(cq_of(init.send_cq)),
                Arc::from(cq_of(init.recv_cq)),
                (*pd.cast::<Pd>()).number,
            )
        };
        let srq = NonNull::new(init.srq).map(|srq| {
            // SAFETY: the queue is alive, and stays so longer than the QP.
            unsafe { Arc::from(srq_of(srq.as_ptr())) }
        });
        // SAFETY: valid until `destroy_qp` returns.
        let core = unsafe { CoreQp::new(NonNull::new(qp).ok_or(EINVAL)?) };
        let caps = QpCaps {
            send_wr: init.cap.max_send_wr,
            recv_wr: init.cap.max_recv_wr,
            send_sge: init.cap.max_send_sge,
            recv_sge: init.cap.max_recv_sge,
            inline: init.cap.max_inline_data,
        };
        let new = Qp::new(QpNew {
            hca: hca.into(),
            kind,
            core,
            pd,
            send_cq,
            recv_cq,
            srq,
            caps,
            signal_all: init.sq_sig_type == sys::ib_sig_type_IB_SIGNAL_ALL_WR,
            // SAFETY: see the common ground in `super`.
            owner: unsafe { Owner::new(udata) },
        })?;
        // SAFETY: as above; a structure of `uapi`.
        if let Err(error) = unsafe { respond(udata, &new.response()) } {
            new.destroy();
            return Err(error);
        }
        set_caps(&mut init.cap, &new.caps());
        // SAFETY: the core allocated `size_ib_qp` bytes.
        unsafe {
            (*qp).qp_num = new.number();
            (*qp.cast::<QpObject>()).qp = Arc::into_raw(new);
        }
        Ok(0)
    })
}

/// EINVAL: an address that is none of RoCE.
fn path_of(attr: &sys::rdma_ah_attr) -> Result<Path> {
    if attr.type_ != sys::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE {
        return Err(EINVAL);
    }
    // SAFETY: the type says that the RoCE member is the valid one; GIDs are bytes.
    let (mac, dgid) = unsafe {
        (
            attr.__bindgen_anon_1.roce.as_ref().dmac,
            *attr.grh.dgid.raw.as_ref(),
        )
    };
    Ok(Path {
        mac,
        dgid,
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        static_rate: attr.static_rate,
    })
}

fn address_of(path: &Path) -> sys::rdma_ah_attr {
    let mut attr = sys::rdma_ah_attr {
        grh: sys::ib_global_route {
            flow_label: path.flow_label,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            ..Default::default()
        },
        sl: path.sl,
        static_rate: path.static_rate,
        port_num: 1,
        ah_flags: sys::ib_ah_flags_IB_AH_GRH as u8,
        type_: sys::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE,
        ..Default::default()
    };
    // SAFETY: plain bytes; the type says that the RoCE member is the valid one.
    unsafe {
        *attr.grh.dgid.raw.as_mut() = path.dgid;
        attr.__bindgen_anon_1.roce.as_mut().dmac = path.mac;
    }
    attr
}

pub(super) unsafe extern "C" fn modify_qp(
    qp: *mut sys::ib_qp,
    attr: *mut sys::ib_qp_attr,
    mask: c_int,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
        let (queue, attr) = unsafe {
            no_udata(udata)?;
            (qp_of(qp), &*attr)
        };
        let mask = mask as u32;
        let given = |bit: sys::ib_qp_attr_mask| mask & bit != 0;
        if mask & !sys::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS != 0 {
            return Err(not_supported());
        }
        let next = given(sys::ib_qp_attr_mask_IB_QP_STATE)
            .then(|| QpState::from_raw(attr.qp_state).ok_or(EINVAL))
            .transpose()?;
        let assumed = given(sys::ib_qp_attr_mask_IB_QP_CUR_STATE)
            .then(|| QpState::from_raw(attr.cur_qp_state).ok_or(EINVAL))
            .transpose()?;
        let path = given(sys::ib_qp_attr_mask_IB_QP_AV)
            .then(|| path_of(&attr.ah_attr))
            .transpose()?;
        let kind = queue.kind().raw();
        let allowed = |from: QpState, to: QpState| {
            // SAFETY: plain values.
            unsafe {
                sys::ib_modify_qp_is_ok(
                    from as sys::ib_qp_state,
                    to as sys::ib_qp_state,
                    kind,
                    mask,
                )
            }
        };
        let some = |bit, value: u32| given(bit).then_some(value);
        let wanted = QpMask {
            state: next,
            assumed,
            tell_drained: given(sys::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY)
                && attr.en_sqd_async_notify != 0,
            path,
            access: some(
                sys::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
                attr.qp_access_flags as u32,
            ),
            qkey: some(sys::ib_qp_attr_mask_IB_QP_QKEY, attr.qkey),
            dest_qpn: some(sys::ib_qp_attr_mask_IB_QP_DEST_QPN, attr.dest_qp_num),
            path_mtu: some(sys::ib_qp_attr_mask_IB_QP_PATH_MTU, attr.path_mtu),
            rq_psn: some(sys::ib_qp_attr_mask_IB_QP_RQ_PSN, attr.rq_psn),
            sq_psn: some(sys::ib_qp_attr_mask_IB_QP_SQ_PSN, attr.sq_psn),
            max_rd_atomic: some(
                sys::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
                attr.max_rd_atomic.into(),
            ),
            max_dest_rd_atomic: some(
                sys::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
                attr.max_dest_rd_atomic.into(),
            ),
            min_rnr_timer: some(
                sys::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
                attr.min_rnr_timer.into(),
            ),
            timeout: some(sys::ib_qp_attr_mask_IB_QP_TIMEOUT, attr.timeout.into()),
            retry_cnt: some(sys::ib_qp_attr_mask_IB_QP_RETRY_CNT, attr.retry_cnt.into()),
            rnr_retry: some(sys::ib_qp_attr_mask_IB_QP_RNR_RETRY, attr.rnr_retry.into()),
        };
        queue.modify(&wanted, allowed)?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut sys::ib_qp,
    attr: *mut sys::ib_qp_attr,
    _mask: c_int,
    init: *mut sys::ib_qp_init_attr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    let (queue, attr, init, ib) = unsafe { (qp_of(qp), &mut *attr, &mut *init, &*qp) };
    let (state, now): (QpState, QpAttributes) = queue.query();
    let caps = queue.caps();
    // Programs see all of it, and the core does not clear it.
    *attr = sys::ib_qp_attr {
        qp_state: state as sys::ib_qp_state,
        cur_qp_state: state as sys::ib_qp_state,
        path_mtu: now.path_mtu,
        path_mig_state: sys::ib_mig_state_IB_MIG_MIGRATED,
        rq_psn: now.rq_psn,
        sq_psn: now.sq_psn,
        dest_qp_num: now.dest_qpn,
        qkey: now.qkey,
        qp_access_flags: now.access as c_int,
        max_rd_atomic: now.max_rd_atomic as u8,
        max_dest_rd_atomic: now.max_dest_rd_atomic as u8,
        min_rnr_timer: now.min_rnr_timer as u8,
        port_num: 1,
        sq_draining: queue.is_draining().into(),
        timeout: now.timeout as u8,
        retry_cnt: now.retry_cnt as u8,
        rnr_retry: now.rnr_retry as u8,
        ah_attr: now.path.as_ref().map(address_of).unwrap_or_default(),
        ..Default::default()
    };
    *init = sys::ib_qp_init_attr {
        event_handler: ib.event_handler,
        qp_context: ib.qp_context,
        send_cq: ib.send_cq,
        recv_cq: ib.recv_cq,
        srq: ib.srq,
        qp_type: ib.qp_type,
        port_num: 1,
        ..Default::default()
    };
    set_caps(&mut attr.cap, &caps);
    set_caps(&mut init.cap, &caps);
    init.sq_sig_type = if queue.signals_all() {
        sys::ib_sig_type_IB_SIGNAL_ALL_WR
    } else {
        sys::ib_sig_type_IB_SIGNAL_REQ_WR
    };
    0
}

pub(super) unsafe extern "C" fn destroy_qp(
    qp: *mut sys::ib_qp,
    _udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: created by `create_qp`; last use of the counted pointer.
    unsafe { Arc::from_raw((*qp.cast::<QpObject>()).qp) }.destroy();
    0
}
