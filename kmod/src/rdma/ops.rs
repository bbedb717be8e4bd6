// SPDX-License-Identifier: GPL-2.0-only
//! The operations table of the `ib_device`: C functions that turn pointers into values.
//!
//! Common ground of the SAFETY comments: the core calls an operation only with valid pointers to
//! objects of our device, an object's create operation before any other, and its destroy operation
//! last and alone (Documentation/infiniband/core_locking.rst).

use super::details;
use super::device::Device;
use super::event::{CoreCq, CoreQp, CoreSrq};
use super::memory::KernelMemory;
use super::queue::Owner;
use super::Sge;
use crate::errno::not_supported;
use crate::sys;
use crate::uapi::{send_flags, CreateAhResp, SendEntry};
use crate::verbs::{
    ah::Ah,
    cq::{Cq, WorkCompletion},
    mr::{Access, Mr},
    qp::{Qp, QpAttributes, QpCaps, QpKind, QpMask, QpNew, QpState},
    srq::Srq,
    Hca,
};
use core::mem::size_of;
use core::ptr::{self, NonNull};
use kernel::error::from_result;
use kernel::ffi::{c_int, c_uint};
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

#[repr(C)]
struct Ucontext {
    ib: sys::ib_ucontext,
}

#[repr(C)]
struct Pd {
    ib: sys::ib_pd,
    number: u32,
}

#[repr(C)]
struct CqObject {
    ib: sys::ib_cq,
    cq: *const Cq,
}

#[repr(C)]
struct QpObject {
    ib: sys::ib_qp,
    qp: *const Qp,
}

#[repr(C)]
struct AhObject {
    ib: sys::ib_ah,
    ah: *const Ah,
}

#[repr(C)]
struct SrqObject {
    ib: sys::ib_srq,
    srq: *const Srq,
}

#[repr(C)]
struct MrObject {
    ib: sys::ib_mr,
    mr: Arc<Mr>,
}

/// The table for `ib_set_device_ops`.
pub(super) fn table(owner: *mut sys::module, driver_id: u32) -> sys::ib_device_ops {
    sys::ib_device_ops {
        owner,
        driver_id,
        uverbs_abi_ver: crate::uapi::ABI_VERSION,
        query_device: Some(query_device),
        query_port: Some(query_port),
        get_port_immutable: Some(get_port_immutable),
        get_link_layer: Some(get_link_layer),
        query_pkey: Some(query_pkey),
        alloc_hw_port_stats: Some(alloc_hw_port_stats),
        get_hw_stats: Some(get_hw_stats),
        fill_res_qp_entry: Some(fill_res_qp_entry),
        fill_res_cq_entry: Some(fill_res_cq_entry),
        fill_res_mr_entry: Some(fill_res_mr_entry),
        alloc_ucontext: Some(alloc_ucontext),
        dealloc_ucontext: Some(dealloc_ucontext),
        disassociate_ucontext: Some(disassociate_ucontext),
        mmap: Some(mmap),
        mmap_free: Some(mmap_free),
        alloc_pd: Some(alloc_pd),
        dealloc_pd: Some(dealloc_pd),
        create_cq: Some(create_cq),
        destroy_cq: Some(destroy_cq),
        resize_user_cq: Some(resize_cq),
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        create_qp: Some(create_qp),
        modify_qp: Some(modify_qp),
        query_qp: Some(query_qp),
        destroy_qp: Some(destroy_qp),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        create_srq: Some(create_srq),
        modify_srq: Some(modify_srq),
        query_srq: Some(query_srq),
        destroy_srq: Some(destroy_srq),
        post_srq_recv: Some(post_srq_recv),
        create_ah: Some(create_ah),
        create_user_ah: Some(create_ah),
        destroy_ah: Some(destroy_ah),
        get_dma_mr: Some(get_dma_mr),
        reg_user_mr: Some(reg_user_mr),
        reg_user_mr_dmabuf: Some(reg_user_mr_dmabuf),
        rereg_user_mr: Some(rereg_user_mr),
        dereg_mr: Some(dereg_mr),
        size_ib_ucontext: size_of::<Ucontext>(),
        size_ib_pd: size_of::<Pd>(),
        size_ib_cq: size_of::<CqObject>(),
        size_ib_qp: size_of::<QpObject>(),
        size_ib_ah: size_of::<AhObject>(),
        size_ib_srq: size_of::<SrqObject>(),
        ..Default::default()
    }
}

/// # Safety
///
/// `device` is our registered device (or being registered), for the lifetime chosen.
unsafe fn hca<'a>(device: *mut sys::ib_device) -> ArcBorrow<'a, Hca> {
    // SAFETY: our devices are `Device`s, whose `hca` is set before registration and stays until
    // after unregistration.
    unsafe { ArcBorrow::from_raw((*device.cast::<Device>()).hca) }
}

/// # Safety
///
/// `cq` was created by [`create_cq`] and is not destroyed, for the lifetime chosen.
unsafe fn cq_of<'a>(cq: *mut sys::ib_cq) -> ArcBorrow<'a, Cq> {
    // SAFETY: `create_cq` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*cq.cast::<CqObject>()).cq) }
}

/// # Safety
///
/// `srq` was created by [`create_srq`] and is not destroyed, for the lifetime chosen.
unsafe fn srq_of<'a>(srq: *mut sys::ib_srq) -> ArcBorrow<'a, Srq> {
    // SAFETY: `create_srq` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*srq.cast::<SrqObject>()).srq) }
}

/// # Safety
///
/// `ah` was created by [`create_ah`] and is not destroyed, for the lifetime chosen.
unsafe fn ah_of<'a>(ah: *mut sys::ib_ah) -> ArcBorrow<'a, Ah> {
    // SAFETY: `create_ah` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*ah.cast::<AhObject>()).ah) }
}

/// # Safety
///
/// `qp` was created by [`create_qp`] and is not destroyed, for the lifetime chosen.
unsafe fn qp_of<'a>(qp: *mut sys::ib_qp) -> ArcBorrow<'a, Qp> {
    // SAFETY: `create_qp` put the counted pointer there.
    unsafe { ArcBorrow::from_raw((*qp.cast::<QpObject>()).qp) }
}

/// No private data is expected from or for the user.
///
/// # Safety
///
/// `udata` is null or valid.
unsafe fn no_udata(udata: *mut sys::ib_udata) -> Result {
    // SAFETY: as required.
    match unsafe { udata.as_ref() } {
        Some(data) if data.inlen != 0 || data.outlen != 0 => Err(EINVAL),
        _ => Ok(()),
    }
}

unsafe extern "C" fn query_device(
    device: *mut sys::ib_device,
    attr: *mut sys::ib_device_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
        let (hca, attr) = unsafe {
            no_udata(udata)?;
            (hca(device), &mut *attr)
        };
        // The fields are signed up to 7.2, unsigned later; our limits fit both.
        let limits = &crate::verbs::LIMITS;
        *attr = sys::ib_device_attr {
            sys_image_guid: hca.node_guid(),
            max_mr_size: u64::MAX,
            page_size_cap: 4096,
            hw_ver: 1,
            max_qp: limits.qps as _,
            max_qp_wr: limits.work_requests as _,
            max_send_sge: limits.sges as _,
            max_recv_sge: limits.sges as _,
            max_sge_rd: limits.sges as _,
            max_cq: limits.cqs as _,
            max_cqe: limits.cqes as _,
            max_mr: limits.mrs as _,
            max_ah: limits.ahs as _,
            max_srq: limits.srqs as _,
            max_srq_wr: limits.work_requests as _,
            max_srq_sge: limits.sges as _,
            max_pd: limits.pds as _,
            max_qp_rd_atom: limits.reads as _,
            max_qp_init_rd_atom: limits.reads as _,
            max_res_rd_atom: (limits.reads * limits.qps) as _,
            atomic_cap: sys::ib_atomic_cap_IB_ATOMIC_GLOB,
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            // Completions carry nanoseconds; the clock's rate is in kHz.
            timestamp_mask: u64::MAX,
            hca_core_clock: 1_000_000,
            device_cap_flags: sys::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_RC_RNR_NAK_GEN
                as u64,
            ..Default::default()
        };
        Ok(0)
    })
}

unsafe extern "C" fn query_port(
    device: *mut sys::ib_device,
    _port: u32,
    attr: *mut sys::ib_port_attr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let (hca, attr) = unsafe { (hca(device), &mut *attr) };
    let port = hca.port();
    let (speed, width) = port.ib_speed_and_width();
    *attr = sys::ib_port_attr {
        state: if port.active {
            sys::ib_port_state_IB_PORT_ACTIVE
        } else {
            sys::ib_port_state_IB_PORT_DOWN
        },
        phys_state: if port.active {
            sys::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8
        } else {
            sys::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8
        },
        max_mtu: sys::ib_mtu_IB_MTU_4096,
        // What a datagram may have, and what the network device's MTU of 4000 bytes makes of it;
        // connected QPs send frames of their own size.
        active_mtu: sys::ib_mtu_IB_MTU_2048,
        phys_mtu: 4096,
        gid_tbl_len: GID_TABLE,
        pkey_tbl_len: 1,
        max_msg_sz: crate::proto::rc::MAX_MESSAGE,
        max_vl_num: 1,
        active_width: width,
        active_speed: speed,
        ..Default::default()
    };
    attr.set_ip_gids(1);
    0
}

/// Entries of the GID table, which the core keeps.
const GID_TABLE: c_int = 64;

unsafe extern "C" fn get_port_immutable(
    _device: *mut sys::ib_device,
    _port: u32,
    immutable: *mut sys::ib_port_immutable,
) -> c_int {
    // SAFETY: see the module's common ground.
    let immutable = unsafe { &mut *immutable };
    immutable.pkey_tbl_len = 1;
    immutable.gid_tbl_len = GID_TABLE;
    // RoCE v2 with management datagrams for the connection managers.
    immutable.core_cap_flags = sys::RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP
        | sys::RDMA_CORE_CAP_IB_MAD
        | sys::RDMA_CORE_CAP_IB_CM
        | sys::RDMA_CORE_CAP_ETH_AH
        | sys::RDMA_CORE_CAP_AF_IB;
    immutable.max_mad_size = sys::IB_MGMT_MAD_SIZE;
    0
}

unsafe extern "C" fn get_link_layer(_: *mut sys::ib_device, _port: u32) -> sys::rdma_link_layer {
    sys::rdma_link_layer_IB_LINK_LAYER_ETHERNET
}

unsafe extern "C" fn query_pkey(
    _device: *mut sys::ib_device,
    _port: u32,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    if index != 0 {
        return EINVAL.to_errno();
    }
    // SAFETY: see the module's common ground. The default partition, full member (IBTA 10.9.1.2).
    unsafe { *pkey = 0xffff };
    0
}

unsafe extern "C" fn alloc_hw_port_stats(
    _device: *mut sys::ib_device,
    _port: u32,
) -> *mut sys::rdma_hw_stats {
    super::statistics::allocate()
}

unsafe extern "C" fn get_hw_stats(
    device: *mut sys::ib_device,
    stats: *mut sys::rdma_hw_stats,
    _port: u32,
    _index: c_int,
) -> c_int {
    // SAFETY: see the module's common ground; the core gives what `alloc_hw_port_stats` returned.
    unsafe { super::statistics::fill(stats, &hca(device).statistics()) }
}

unsafe extern "C" fn fill_res_qp_entry(msg: *mut sys::sk_buff, qp: *mut sys::ib_qp) -> c_int {
    // SAFETY: see the module's common ground, here and below; the core holds the object.
    unsafe { details::put(msg, &qp_of(qp).details()) }
}

unsafe extern "C" fn fill_res_cq_entry(msg: *mut sys::sk_buff, cq: *mut sys::ib_cq) -> c_int {
    // SAFETY: as above.
    unsafe { details::put(msg, &cq_of(cq).details()) }
}

unsafe extern "C" fn fill_res_mr_entry(msg: *mut sys::sk_buff, mr: *mut sys::ib_mr) -> c_int {
    // SAFETY: as above.
    unsafe { details::put(msg, &(*mr.cast::<MrObject>()).mr.details()) }
}

unsafe extern "C" fn alloc_ucontext(
    _context: *mut sys::ib_ucontext,
    udata: *mut sys::ib_udata,
) -> c_int {
    // SAFETY: see the module's common ground; a structure of `uapi`.
    from_result(|| unsafe { respond(udata, &crate::verbs::ucontext_response()).map(|()| 0) })
}

unsafe extern "C" fn dealloc_ucontext(_context: *mut sys::ib_ucontext) {}

/// The processes keep the pages of their queues, which say that the device is gone; see
/// `Cq::destroy`.
unsafe extern "C" fn disassociate_ucontext(_context: *mut sys::ib_ucontext) {}

unsafe extern "C" fn mmap(context: *mut sys::ib_ucontext, area: *mut sys::vm_area_struct) -> c_int {
    // SAFETY: see the module's common ground; only memory of queues is known to the core.
    unsafe { sys::tbrdma_memory_mmap(context, area) }
}

unsafe extern "C" fn mmap_free(entry: *mut sys::rdma_user_mmap_entry) {
    // SAFETY: as above; the last reference is gone.
    unsafe { sys::tbrdma_memory_mmap_free(entry) }
}

/// Gives a structure of `uapi` to the user who has asked for an object.
///
/// # Safety
///
/// `udata` is null or valid, and `T` is plain data without padding.
unsafe fn respond<T>(udata: *mut sys::ib_udata, response: &T) -> Result {
    if udata.is_null() {
        return Ok(());
    }
    // SAFETY: as required.
    kernel::error::to_result(unsafe {
        sys::tbrdma_copy_to_udata(udata, ptr::from_ref(response).cast(), size_of::<T>())
    })
}

unsafe extern "C" fn alloc_pd(pd: *mut sys::ib_pd, udata: *mut sys::ib_udata) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground; the core allocated `size_ib_pd` bytes.
        unsafe {
            no_udata(udata)?;
            (*pd.cast::<Pd>()).number = hca((*pd).device).new_pd()?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn dealloc_pd(pd: *mut sys::ib_pd, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: see the module's common ground.
    unsafe { hca((*pd).device) }.drop_pd();
    0
}

unsafe extern "C" fn create_cq(
    cq: *mut sys::ib_cq,
    attr: *const sys::ib_cq_init_attr,
    attrs: *mut sys::uverbs_attr_bundle,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
        let (hca, attr) = unsafe { (hca((*cq).device), &*attr) };
        if attr.flags != 0 {
            return Err(not_supported());
        }
        // SAFETY: valid until `destroy_cq` returns, which closes the gate.
        let core = unsafe { CoreCq::new(NonNull::new(cq).ok_or(EINVAL)?) };
        // SAFETY: null or valid.
        let udata = unsafe { sys::tbrdma_udata_of(attrs) };
        // SAFETY: as above.
        let new = Cq::new(hca, core, attr.cqe, unsafe { Owner::new(udata) })?;
        // SAFETY: as above; a structure of `uapi`.
        if let Err(error) = unsafe { respond(udata, &new.response()) } {
            new.destroy();
            return Err(error);
        }
        // SAFETY: the core allocated `size_ib_cq` bytes.
        unsafe {
            (*cq).cqe = new.entries() as c_int;
            (*cq.cast::<CqObject>()).cq = Arc::into_raw(new);
        }
        Ok(0)
    })
}

unsafe extern "C" fn destroy_cq(cq: *mut sys::ib_cq, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: created by `create_cq`; last use of the counted pointer.
    unsafe { Arc::from_raw((*cq.cast::<CqObject>()).cq) }.destroy();
    0
}

unsafe extern "C" fn resize_cq(
    cq: *mut sys::ib_cq,
    entries: c_uint,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground; a structure of `uapi`.
        unsafe {
            let queue = cq_of(cq);
            queue.resize(entries, Owner::new(udata), |place| respond(udata, place))?;
            (*cq).cqe = queue.entries() as c_int;
        }
        Ok(0)
    })
}

unsafe extern "C" fn poll_cq(cq: *mut sys::ib_cq, num: c_int, wc: *mut sys::ib_wc) -> c_int {
    // SAFETY: see the module's common ground.
    let queue = unsafe { cq_of(cq) };
    if queue.is_user() {
        // A process takes its completions by itself; it calls when there are none.
        // SAFETY: see the module's common ground.
        unsafe { hca((*cq).device) }.poll(&queue);
        return 0;
    }
    let mut n = 0;
    while n < num {
        let Some(done) = queue.poll() else { break };
        // SAFETY: the caller gives room for `num` entries.
        unsafe { wc.add(n as usize).write(wc_of(&done)) };
        n += 1;
    }
    n
}

fn wc_of(done: &WorkCompletion) -> sys::ib_wc {
    let mut wc = sys::ib_wc {
        status: done.status as sys::ib_wc_status,
        opcode: done.opcode as sys::ib_wc_opcode,
        byte_len: done.byte_len,
        qp: done.qp.as_ptr(),
        src_qp: done.src_qp,
        port_num: 1,
        ..Default::default()
    };
    // SAFETY: both members of the union are plain numbers.
    unsafe { *wc.__bindgen_anon_1.wr_id.as_mut() = done.wr_id };
    if let Some(route) = &done.route {
        wc.wc_flags |= (sys::ib_wc_flags_IB_WC_GRH
            | sys::ib_wc_flags_IB_WC_WITH_SMAC
            | sys::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE) as c_int;
        wc.smac = route.mac;
        wc.network_hdr_type = if route.ipv4 {
            sys::rdma_network_type_RDMA_NETWORK_IPV4
        } else {
            sys::rdma_network_type_RDMA_NETWORK_IPV6
        } as u8;
    }
    if let Some(imm) = done.imm {
        wc.wc_flags |= sys::ib_wc_flags_IB_WC_WITH_IMM as c_int;
        // SAFETY: as above.
        unsafe { *wc.ex.imm_data.as_mut() = imm };
    }
    wc
}

unsafe extern "C" fn req_notify_cq(cq: *mut sys::ib_cq, flags: sys::ib_cq_notify_flags) -> c_int {
    // SAFETY: see the module's common ground.
    let queue = unsafe { cq_of(cq) };
    let solicited_only = flags & sys::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
        == sys::ib_cq_notify_flags_IB_CQ_SOLICITED;
    let not_empty = queue.arm(solicited_only);
    c_int::from(not_empty && flags & sys::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0)
}

fn set_caps(cap: &mut sys::ib_qp_cap, caps: &QpCaps) {
    cap.max_send_wr = caps.send_wr;
    cap.max_recv_wr = caps.recv_wr;
    cap.max_send_sge = caps.send_sge;
    cap.max_recv_sge = caps.recv_sge;
    cap.max_inline_data = caps.inline;
}

unsafe extern "C" fn create_qp(
    qp: *mut sys::ib_qp,
    init: *mut sys::ib_qp_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
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
            // SAFETY: see the module's common ground.
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

unsafe extern "C" fn modify_qp(
    qp: *mut sys::ib_qp,
    attr: *mut sys::ib_qp_attr,
    mask: c_int,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
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
        let mac = if given(sys::ib_qp_attr_mask_IB_QP_AV) {
            if attr.ah_attr.type_ != sys::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE {
                return Err(EINVAL);
            }
            // SAFETY: the type says that the RoCE member is the valid one.
            Some(unsafe { attr.ah_attr.__bindgen_anon_1.roce.as_ref().dmac })
        } else {
            None
        };
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
            mac,
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

unsafe extern "C" fn query_qp(
    qp: *mut sys::ib_qp,
    attr: *mut sys::ib_qp_attr,
    _mask: c_int,
    init: *mut sys::ib_qp_init_attr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let (queue, attr, init) = unsafe { (qp_of(qp), &mut *attr, &mut *init) };
    let (state, now): (QpState, QpAttributes) = queue.query();
    let caps = queue.caps();
    attr.qp_state = state as sys::ib_qp_state;
    attr.cur_qp_state = state as sys::ib_qp_state;
    attr.path_mtu = now.path_mtu;
    attr.path_mig_state = sys::ib_mig_state_IB_MIG_MIGRATED;
    attr.rq_psn = now.rq_psn;
    attr.sq_psn = now.sq_psn;
    attr.dest_qp_num = now.dest_qpn;
    attr.qkey = now.qkey;
    attr.qp_access_flags = now.access as c_int;
    attr.max_rd_atomic = now.max_rd_atomic as u8;
    attr.max_dest_rd_atomic = now.max_dest_rd_atomic as u8;
    attr.min_rnr_timer = now.min_rnr_timer as u8;
    attr.port_num = 1;
    attr.sq_draining = queue.is_draining().into();
    attr.timeout = now.timeout as u8;
    attr.retry_cnt = now.retry_cnt as u8;
    attr.rnr_retry = now.rnr_retry as u8;
    set_caps(&mut attr.cap, &caps);
    set_caps(&mut init.cap, &caps);
    init.sq_sig_type = if queue.signals_all() {
        sys::ib_sig_type_IB_SIGNAL_ALL_WR
    } else {
        sys::ib_sig_type_IB_SIGNAL_REQ_WR
    };
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut sys::ib_qp, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: created by `create_qp`; last use of the counted pointer.
    unsafe { Arc::from_raw((*qp.cast::<QpObject>()).qp) }.destroy();
    0
}

/// # Safety
///
/// `list` points at `num` elements, for the lifetime chosen.
unsafe fn sges<'a>(list: *const sys::ib_sge, num: c_int) -> Result<&'a [Sge]> {
    let num = usize::try_from(num).map_err(|_| EINVAL)?;
    if num == 0 {
        return Ok(&[]);
    }
    // SAFETY: `Sge` has the layout of `ib_sge` (asserted beside it).
    Ok(unsafe { core::slice::from_raw_parts(list.cast::<Sge>(), num) })
}

/// What a user's process would have written into its queue for this request.
///
/// # Safety
///
/// `wr` is a valid work request for a QP of this type.
unsafe fn send_entry(wr: *const sys::ib_send_wr, kind: QpKind) -> Result<SendEntry> {
    // SAFETY: as required; the unions are plain data.
    let (request, imm, wr_id) = unsafe {
        (
            &*wr,
            *(*wr).ex.imm_data.as_ref(),
            *(*wr).__bindgen_anon_1.wr_id.as_ref(),
        )
    };
    let flag = |bit: sys::ib_send_flags, flag: u16| match request.send_flags & bit as c_int {
        0 => 0,
        _ => flag,
    };
    let mut entry = SendEntry {
        wr_id,
        opcode: u16::try_from(request.opcode).map_err(|_| EINVAL)?,
        flags: flag(sys::ib_send_flags_IB_SEND_SIGNALED, send_flags::SIGNALED)
            | flag(sys::ib_send_flags_IB_SEND_SOLICITED, send_flags::SOLICITED)
            | flag(sys::ib_send_flags_IB_SEND_FENCE, send_flags::FENCE)
            | flag(sys::ib_send_flags_IB_SEND_INLINE, send_flags::INLINE),
        // The key to invalidate is in the same place.
        imm,
        ..SendEntry::default()
    };
    match request.opcode {
        sys::ib_wr_opcode_IB_WR_RDMA_WRITE
        | sys::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM
        | sys::ib_wr_opcode_IB_WR_RDMA_READ => {
            // SAFETY: these opcodes come in a `struct ib_rdma_wr`, whose first field is the request.
            let rdma = unsafe { &*wr.cast::<sys::ib_rdma_wr>() };
            entry.raddr = rdma.remote_addr;
            entry.rkey = rdma.rkey;
        }
        sys::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP
        | sys::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: these opcodes come in a `struct ib_atomic_wr`, likewise.
            let atomic = unsafe { &*wr.cast::<sys::ib_atomic_wr>() };
            entry.raddr = atomic.remote_addr;
            entry.rkey = atomic.rkey;
            entry.compare_add = atomic.compare_add;
            entry.swap = atomic.swap;
        }
        _ if kind.is_datagram() => {
            // SAFETY: requests for such QPs come in a `struct ib_ud_wr`, likewise; the handle is
            // alive while it is posted.
            unsafe {
                let ud = &*wr.cast::<sys::ib_ud_wr>();
                let ah = NonNull::new(ud.ah).ok_or(EINVAL)?;
                entry.ah = ah_of(ah.as_ptr()).number();
                entry.dqpn = ud.remote_qpn;
                entry.qkey = ud.remote_qkey;
            }
        }
        _ => {}
    }
    Ok(entry)
}

unsafe extern "C" fn post_send(
    qp: *mut sys::ib_qp,
    mut wr: *const sys::ib_send_wr,
    bad: *mut *const sys::ib_send_wr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let queue = unsafe { qp_of(qp) };
    if queue.is_user() && wr.is_null() {
        // It gives no list, but has written into its queue.
        // SAFETY: see the module's common ground.
        unsafe { hca((*qp).device) }.attend(|| Qp::transmit(&queue.into()));
        return 0;
    }
    while !wr.is_null() {
        // SAFETY: an element of the caller's list.
        let posted = unsafe {
            send_entry(wr, queue.kind()).and_then(|entry| {
                queue.post_send(&entry, sges((*wr).sg_list, (*wr).num_sge)?, copy_inline)
            })
        };
        if let Err(error) = posted {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            return error.to_errno();
        }
        // SAFETY: an element of the caller's list.
        wr = unsafe { (*wr).next };
    }
    0
}

/// Copies inline data of a consumer in the kernel.
fn copy_inline(addr: u64, to: &mut [u8]) {
    // SAFETY: such a consumer gives the kernel address of readable bytes (ib_verbs.h,
    // IB_SEND_INLINE), and the QPs of users do not come here.
    unsafe { ptr::copy_nonoverlapping(addr as *const u8, to.as_mut_ptr(), to.len()) };
}

unsafe extern "C" fn post_recv(
    qp: *mut sys::ib_qp,
    mut wr: *const sys::ib_recv_wr,
    bad: *mut *const sys::ib_recv_wr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let queue = unsafe { qp_of(qp) };
    if queue.is_user() && wr.is_null() {
        // It gives no list, but has written into its queue.
        Qp::posted(&queue.into());
        return 0;
    }
    while !wr.is_null() {
        // SAFETY: an element of the caller's list.
        let posted = unsafe {
            sges((*wr).sg_list, (*wr).num_sge)
                .and_then(|sges| queue.post_recv(*(*wr).__bindgen_anon_1.wr_id.as_ref(), sges))
        };
        if let Err(error) = posted {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            return error.to_errno();
        }
        // SAFETY: an element of the caller's list.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn create_srq(
    srq: *mut sys::ib_srq,
    init: *mut sys::ib_srq_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
        let (hca, pd, init) = unsafe {
            let pd = (*srq).pd;
            (hca((*srq).device), (*pd.cast::<Pd>()).number, &mut *init)
        };
        if init.srq_type != sys::ib_srq_type_IB_SRQT_BASIC {
            return Err(not_supported());
        }
        // SAFETY: valid until `destroy_srq` returns.
        let core = unsafe { CoreSrq::new(NonNull::new(srq).ok_or(EINVAL)?) };
        let (entries, sges) = (init.attr.max_wr, init.attr.max_sge);
        // SAFETY: see the module's common ground.
        let new = Srq::new(hca, core, pd, entries, sges, unsafe { Owner::new(udata) })?;
        let ready = new.set_limit(init.attr.srq_limit).and_then(|()| {
            // SAFETY: as above; a structure of `uapi`.
            unsafe { respond(udata, &new.response()) }
        });
        if let Err(error) = ready {
            new.destroy();
            return Err(error);
        }
        (init.attr.max_wr, init.attr.max_sge, _) = new.attributes();
        // SAFETY: the core allocated `size_ib_srq` bytes.
        unsafe { (*srq.cast::<SrqObject>()).srq = Arc::into_raw(new) };
        Ok(0)
    })
}

unsafe extern "C" fn modify_srq(
    srq: *mut sys::ib_srq,
    attr: *mut sys::ib_srq_attr,
    mask: sys::ib_srq_attr_mask,
    _udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        if mask & sys::ib_srq_attr_mask_IB_SRQ_MAX_WR != 0 {
            return Err(not_supported());
        }
        if mask & sys::ib_srq_attr_mask_IB_SRQ_LIMIT != 0 {
            // SAFETY: see the module's common ground.
            unsafe { srq_of(srq).set_limit((*attr).srq_limit)? };
        }
        Ok(0)
    })
}

unsafe extern "C" fn query_srq(srq: *mut sys::ib_srq, attr: *mut sys::ib_srq_attr) -> c_int {
    // SAFETY: see the module's common ground.
    let (srq, attr) = unsafe { (srq_of(srq), &mut *attr) };
    (attr.max_wr, attr.max_sge, attr.srq_limit) = srq.attributes();
    0
}

unsafe extern "C" fn destroy_srq(srq: *mut sys::ib_srq, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: created by `create_srq`; last use of the counted pointer.
    unsafe { Arc::from_raw((*srq.cast::<SrqObject>()).srq) }.destroy();
    0
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ib_srq,
    mut wr: *const sys::ib_recv_wr,
    bad: *mut *const sys::ib_recv_wr,
) -> c_int {
    // SAFETY: see the module's common ground.
    let queue = unsafe { srq_of(srq) };
    while !wr.is_null() {
        // SAFETY: an element of the caller's list.
        let posted = unsafe {
            sges((*wr).sg_list, (*wr).num_sge)
                .and_then(|sges| queue.post(*(*wr).__bindgen_anon_1.wr_id.as_ref(), sges))
        };
        if let Err(error) = posted {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            return error.to_errno();
        }
        // SAFETY: an element of the caller's list.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn create_ah(
    ah: *mut sys::ib_ah,
    init: *mut sys::rdma_ah_init_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the module's common ground.
        let (hca, pd, attr) = unsafe {
            let pd = (*ah).pd;
            (
                hca((*ah).device),
                (*pd.cast::<Pd>()).number,
                &*(*init).ah_attr,
            )
        };
        if attr.type_ != sys::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || attr.grh.sgid_attr.is_null()
        {
            return Err(EINVAL);
        }
        // SAFETY: the type says that the RoCE member is the valid one; GIDs are bytes; the core
        // holds the attributes of the source GID.
        let (mac, sgid, dgid) = unsafe {
            (
                attr.__bindgen_anon_1.roce.as_ref().dmac,
                *(*attr.grh.sgid_attr).gid.raw.as_ref(),
                *attr.grh.dgid.raw.as_ref(),
            )
        };
        let new = Ah::new(hca, pd, mac, sgid, dgid)?;
        let response = CreateAhResp {
            number: new.number(),
            reserved: 0,
        };
        // SAFETY: see the module's common ground; a structure of `uapi`.
        if let Err(error) = unsafe { respond(udata, &response) } {
            new.destroy();
            return Err(error);
        }
        // SAFETY: the core allocated `size_ib_ah` bytes.
        unsafe { (*ah.cast::<AhObject>()).ah = Arc::into_raw(new) };
        Ok(0)
    })
}

unsafe extern "C" fn destroy_ah(ah: *mut sys::ib_ah, _flags: u32) -> c_int {
    // SAFETY: created by `create_ah`; last use of the counted pointer.
    unsafe { Arc::from_raw((*ah.cast::<AhObject>()).ah) }.destroy();
    0
}

unsafe extern "C" fn get_dma_mr(pd: *mut sys::ib_pd, access: c_int) -> *mut sys::ib_mr {
    let make = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the module's common ground.
        let (hca, pd_number) = unsafe { (hca((*pd).device), (*pd.cast::<Pd>()).number) };
        // SAFETY: the core calls this for protection domains of consumers in the kernel only.
        let all = unsafe { KernelMemory::new() };
        mr_object(Mr::of_kernel(
            hca,
            pd_number,
            Access::from_raw(access as u32)?,
            all,
        )?)
    };
    make().unwrap_or_else(Error::to_ptr)
}

/// The core's object of a region.
fn mr_object(mr: Arc<Mr>) -> Result<*mut sys::ib_mr> {
    let key = mr.key();
    let (virt, length) = mr.place();
    let Ok(mut object) = KBox::<MrObject>::new_uninit(GFP_KERNEL) else {
        mr.deregister();
        return Err(ENOMEM);
    };
    let raw = object.as_mut_ptr();
    // SAFETY: room for the object; an all-zero `ib_mr` is what the core expects.
    unsafe {
        (&raw mut (*raw).ib).write_bytes(0, 1);
        (&raw mut (*raw).mr).write(mr);
        (*raw).ib.lkey = key;
        (*raw).ib.rkey = key;
        (*raw).ib.iova = virt;
        (*raw).ib.length = length;
    }
    // SAFETY: both fields were written.
    let object = unsafe { object.assume_init() };
    Ok(KBox::into_raw(object).cast())
}

unsafe extern "C" fn reg_user_mr(
    pd: *mut sys::ib_pd,
    start: u64,
    length: u64,
    virt: u64,
    access: c_int,
    dmah: *mut sys::ib_dmah,
    udata: *mut sys::ib_udata,
) -> *mut sys::ib_mr {
    let register = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the module's common ground.
        let (hca, pd_number) = unsafe {
            no_udata(udata)?;
            (hca((*pd).device), (*pd.cast::<Pd>()).number)
        };
        if !dmah.is_null() {
            return Err(not_supported());
        }
        let access = Access::from_raw(access as u32)?;
        mr_object(Mr::register(hca, pd_number, start, length, virt, access)?)
    };
    register().unwrap_or_else(Error::to_ptr)
}

unsafe extern "C" fn reg_user_mr_dmabuf(
    pd: *mut sys::ib_pd,
    offset: u64,
    length: u64,
    virt: u64,
    fd: c_int,
    access: c_int,
    dmah: *mut sys::ib_dmah,
    _attrs: *mut sys::uverbs_attr_bundle,
) -> *mut sys::ib_mr {
    let register = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the module's common ground.
        let (hca, pd) = unsafe { (hca((*pd).device), (*pd.cast::<Pd>()).number) };
        if !dmah.is_null() {
            return Err(not_supported());
        }
        let access = Access::from_raw(access as u32)?;
        mr_object(Mr::of_dma_buf(hca, pd, fd, (offset, length), virt, access)?)
    };
    register().unwrap_or_else(Error::to_ptr)
}

/// Null: the region itself has changed. Otherwise a new one, in whose favour the core ends it.
unsafe extern "C" fn rereg_user_mr(
    mr: *mut sys::ib_mr,
    flags: c_int,
    start: u64,
    length: u64,
    virt: u64,
    access: c_int,
    pd: *mut sys::ib_pd,
    udata: *mut sys::ib_udata,
) -> *mut sys::ib_mr {
    let change = || -> Result<*mut sys::ib_mr> {
        // SAFETY: see the module's common ground; without a new PD the core gives the old one.
        let (region, pd) = unsafe {
            no_udata(udata)?;
            (&(*mr.cast::<MrObject>()).mr, (*pd.cast::<Pd>()).number)
        };
        let given = |bit: sys::ib_mr_rereg_flags| flags as u32 & bit != 0;
        let access = given(sys::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
            .then(|| Access::from_raw(access as u32))
            .transpose()?;
        let place =
            given(sys::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some((start, length, virt));
        match region.reregister(pd, access, place)? {
            Some(new) => mr_object(new),
            None => Ok(ptr::null_mut()),
        }
    };
    change().unwrap_or_else(Error::to_ptr)
}

unsafe extern "C" fn dereg_mr(mr: *mut sys::ib_mr, _udata: *mut sys::ib_udata) -> c_int {
    // SAFETY: from `reg_user_mr`; last use.
    let object = unsafe { KBox::from_raw(mr.cast::<MrObject>()) };
    object.mr.deregister();
    0
}
