//! Structures of libibverbs' private interface that have not changed in any release known
//! (rdma-core 34 to 65, `libibverbs/driver.h`, LP64).

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use tbrdma_uapi::{AllocUcontextResp, CreateAhResp, CreateQpResp, QueueResp};

/// `struct verbs_match_ent`.
#[repr(C)]
pub(crate) struct MatchEntry {
    pub(crate) driver_data: *const c_void,
    /// A modalias pattern or a driver id, by `kind`.
    pub(crate) value: MatchValue,
    pub(crate) vendor: u16,
    pub(crate) device: u16,
    pub(crate) kind: u8,
}

#[repr(C)]
pub(crate) union MatchValue {
    pub(crate) modalias: *const c_char,
    pub(crate) driver_id: u64,
}

/// `kind`: end of the table.
pub(crate) const MATCH_END: u8 = 0;
/// `kind`: modalias pattern.
pub(crate) const MATCH_MODALIAS: u8 = 2;
/// `kind`: driver id.
pub(crate) const MATCH_DRIVER_ID: u8 = 3;

/// `struct verbs_device_ops`.
#[repr(C)]
pub(crate) struct DeviceOps {
    pub(crate) name: *const c_char,
    pub(crate) match_min_abi_version: u32,
    pub(crate) match_max_abi_version: u32,
    pub(crate) match_table: *const MatchEntry,
    pub(crate) static_providers: *const c_void,
    pub(crate) match_device: Option<unsafe extern "C" fn(*mut c_void) -> bool>,
    pub(crate) alloc_context:
        Option<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> *mut c_void>,
    pub(crate) import_context: Option<unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void>,
    pub(crate) alloc_device: Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>,
    pub(crate) uninit_device: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the pointers are to constants.
unsafe impl Sync for DeviceOps {}
// SAFETY: the pointers are to constants.
unsafe impl Sync for MatchEntry {}

const _: () = {
    assert!(size_of::<DeviceOps>() == 72);
    assert!(offset_of!(DeviceOps, match_table) == 16);
    assert!(offset_of!(DeviceOps, alloc_context) == 40);
    assert!(offset_of!(DeviceOps, uninit_device) == 64);
    assert!(size_of::<MatchEntry>() == 24);
    assert!(offset_of!(MatchEntry, kind) == 20);
};

/// Bytes of `struct verbs_device` (712), and some.
pub(crate) const DEVICE_SIZE: usize = 1024;
/// Bytes of `struct ibv_context`.
pub(crate) const CONTEXT_SIZE: usize = 328;
/// Room for a `struct verbs_context` of any release, public part included.
pub(crate) const VERBS_CONTEXT_ROOM: usize = 4096;
/// Bytes of `struct ibv_pd` (16), and some.
pub(crate) const PD_SIZE: usize = 64;
/// Bytes of `struct verbs_mr` (56), and some.
pub(crate) const MR_SIZE: usize = 128;
/// Bytes of `struct verbs_srq` (at most 168), and some.
pub(crate) const SRQ_SIZE: usize = 512;
/// Bytes of `struct ibv_ah` (24), and some.
pub(crate) const AH_SIZE: usize = 64;
/// Bytes of `struct verbs_cq` (288), and some.
pub(crate) const CQ_SIZE: usize = 512;
/// Bytes of `struct verbs_qp` (at most 376), and some.
pub(crate) const QP_SIZE: usize = 768;
/// Where `struct verbs_qp` has its `comp_mask`, bytes, since these releases: after the functions of
/// `struct ibv_qp_ex`.
pub(crate) const QP_MASK_34: usize = 344;
pub(crate) const QP_MASK_44: usize = 352;
pub(crate) const QP_MASK_45: usize = 360;
/// `VERBS_QP_EX` in there.
pub(crate) const QP_MASK_EXTENDED: u32 = 1 << 1;

/// A command buffer: header (8 bytes) and `struct ib_uverbs_*`, in all `SIZE` bytes, which has to be
/// exact, because the kernel takes what is beyond for the driver's own data.
#[repr(C, align(8))]
pub(crate) struct Buffer<const SIZE: usize>(pub(crate) [u8; SIZE]);

impl<const SIZE: usize> Buffer<SIZE> {
    pub(crate) const fn new() -> Self {
        Self([0; SIZE])
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The structure of `uapi` that begins at `at`.
    pub(crate) fn get<T: Response>(&self, at: usize) -> T {
        assert!(at + size_of::<T>() <= SIZE, "beyond the buffer");
        // SAFETY: within the buffer; any bytes are a value.
        unsafe { self.0.as_ptr().add(at).cast::<T>().read_unaligned() }
    }
}

/// Sizes of commands (with their header) and responses, `rdma/ib_user_verbs.h`.
pub(crate) mod sizes {
    pub(crate) const GET_CONTEXT: usize = 8 + 8;
    pub(crate) const GET_CONTEXT_RESP: usize = 8;
    pub(crate) const QUERY_PORT: usize = 8 + 16;
    pub(crate) const ALLOC_PD: usize = 8 + 8;
    pub(crate) const ALLOC_PD_RESP: usize = 4;
    pub(crate) const REG_MR: usize = 8 + 40;
    pub(crate) const REG_MR_RESP: usize = 12;
    pub(crate) const REREG_MR: usize = 8 + 48;
    pub(crate) const REREG_MR_RESP: usize = 8;
    pub(crate) const CREATE_CQ: usize = 8 + 32;
    pub(crate) const CREATE_CQ_RESP: usize = 8;
    pub(crate) const RESIZE_CQ: usize = 8 + 16;
    pub(crate) const RESIZE_CQ_RESP: usize = 8;
    pub(crate) const CREATE_SRQ: usize = 8 + 32;
    pub(crate) const CREATE_SRQ_RESP: usize = 16;
    pub(crate) const MODIFY_SRQ: usize = 8 + 16;
    pub(crate) const QUERY_SRQ: usize = 8 + 16;
    pub(crate) const CREATE_AH_RESP: usize = 4;
    pub(crate) const CREATE_QP: usize = 8 + 56;
    pub(crate) const CREATE_QP_RESP: usize = 32;
    pub(crate) const MODIFY_QP: usize = 8 + 112;
    pub(crate) const QUERY_QP: usize = 8 + 16;
}

/// Structures of integers that the kernel adds to its responses.
///
/// # Safety
///
/// Every pattern of bits is a value.
pub(crate) unsafe trait Response: Copy {}

// SAFETY: integers only.
unsafe impl Response for AllocUcontextResp {}
// SAFETY: as above.
unsafe impl Response for QueueResp {}
// SAFETY: as above.
unsafe impl Response for CreateQpResp {}
// SAFETY: as above.
unsafe impl Response for CreateAhResp {}
