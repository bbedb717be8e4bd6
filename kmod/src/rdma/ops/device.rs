// SPDX-License-Identifier: GPL-2.0-only
//! The device and its port.

use super::{hca, no_udata};
use crate::sys;
use kernel::error::from_result;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// Programs take 0 for a device that could not be asked. There is no vendor, so this is none of IEEE's
/// OUIs: the bit of locally administered ones is set (IEEE 802, 8.2.2), and the rest is "tb".
const VENDOR_ID: u32 = 0x02_7462;
/// The first kind of device under that number.
const VENDOR_PART_ID: u32 = 1;

pub(super) unsafe extern "C" fn query_device(
    device: *mut sys::ib_device,
    attr: *mut sys::ib_device_attr,
    udata: *mut sys::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: see the common ground in `super`.
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
            vendor_id: VENDOR_ID,
            vendor_part_id: VENDOR_PART_ID,
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
            max_fast_reg_page_list_len: limits.fast_pages,
            device_cap_flags: (sys::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_RC_RNR_NAK_GEN
                | sys::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS)
                as u64,
            ..Default::default()
        };
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn query_port(
    device: *mut sys::ib_device,
    _port: u32,
    attr: *mut sys::ib_port_attr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
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

pub(super) unsafe extern "C" fn get_port_immutable(
    _device: *mut sys::ib_device,
    _port: u32,
    immutable: *mut sys::ib_port_immutable,
) -> c_int {
    // SAFETY: see the common ground in `super`.
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

pub(super) unsafe extern "C" fn get_link_layer(
    _: *mut sys::ib_device,
    _port: u32,
) -> sys::rdma_link_layer {
    sys::rdma_link_layer_IB_LINK_LAYER_ETHERNET
}

pub(super) unsafe extern "C" fn query_pkey(
    _device: *mut sys::ib_device,
    _port: u32,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    if index != 0 {
        return EINVAL.to_errno();
    }
    // SAFETY: see the common ground in `super`. The default partition, full member (IBTA 10.9.1.2).
    unsafe { *pkey = 0xffff };
    0
}

pub(super) unsafe extern "C" fn alloc_hw_port_stats(
    _device: *mut sys::ib_device,
    _port: u32,
) -> *mut sys::rdma_hw_stats {
    crate::rdma::statistics::allocate()
}

pub(super) unsafe extern "C" fn get_hw_stats(
    device: *mut sys::ib_device,
    stats: *mut sys::rdma_hw_stats,
    _port: u32,
    _index: c_int,
) -> c_int {
    // SAFETY: see the common ground in `super`; the core gives what `alloc_hw_port_stats` returned.
    unsafe { crate::rdma::statistics::fill(stats, &hca(device).statistics()) }
}
