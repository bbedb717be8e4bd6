// SPDX-License-Identifier: GPL-2.0-only
//! Work requests of consumers in the kernel.

use super::ah::ah_of;
use super::hca;
use super::qp::qp_of;
use super::srq::srq_of;
use crate::rdma::Sge;
use crate::sys;
use crate::uapi::{send_flags, SendEntry};
use crate::verbs::qp::{Qp, QpKind};
use core::ptr;
use core::ptr::NonNull;
use kernel::ffi::c_int;
use kernel::prelude::*;

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
        sys::ib_wr_opcode_IB_WR_REG_MR => {
            // SAFETY: this opcode comes in a `struct ib_reg_wr`, likewise; the region is alive while
            // it is posted. Its address may have been changed after the pages were put in.
            let (registration, place) = unsafe {
                let registration = &*wr.cast::<sys::ib_reg_wr>();
                (
                    registration,
                    NonNull::new(registration.mr).ok_or(EINVAL)?.as_ref(),
                )
            };
            // Of another region the number would be another one.
            if registration.key >> 8 != place.rkey >> 8 {
                return Err(EINVAL);
            }
            entry.raddr = place.iova;
            entry.rkey = registration.key;
            entry.imm = registration.access as u32;
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

pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ib_qp,
    mut wr: *const sys::ib_send_wr,
    bad: *mut *const sys::ib_send_wr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
    let queue = unsafe { qp_of(qp) };
    if queue.is_user() && wr.is_null() {
        // It gives no list, but has written into its queue.
        // SAFETY: see the common ground in `super`.
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

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ib_qp,
    mut wr: *const sys::ib_recv_wr,
    bad: *mut *const sys::ib_recv_wr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
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

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ib_srq,
    mut wr: *const sys::ib_recv_wr,
    bad: *mut *const sys::ib_recv_wr,
) -> c_int {
    // SAFETY: see the common ground in `super`.
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
