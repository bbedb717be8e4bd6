//! Parts of libibverbs' public structures (`infiniband/verbs.h`), which never change.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use tbrdma_uapi::Sge;

/// `struct ibv_context`, to its descriptor.
#[repr(C)]
pub(crate) struct Context {
    device: *mut c_void,
    ops: [usize; 32],
    pub(crate) cmd_fd: c_int,
}

/// `struct ibv_cq`, to its size.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    channel: *mut c_void,
    cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqEx {
    cq: Cq,
    /// `pthread_mutex_t` and `pthread_cond_t`.
    waiting: [u64; 11],
    events_completed: [u32; 2],
    comp_mask: u32,
    pub(crate) status: u32,
    pub(crate) wr_id: u64,
    pub(crate) start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void) -> c_int>,
    pub(crate) next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub(crate) end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub(crate) read_opcode: Option<ReadWord>,
    pub(crate) read_vendor_err: Option<ReadWord>,
    pub(crate) read_byte_len: Option<ReadWord>,
    pub(crate) read_imm_data: Option<ReadWord>,
    pub(crate) read_qp_num: Option<ReadWord>,
    pub(crate) read_src_qp: Option<ReadWord>,
    pub(crate) read_wc_flags: Option<ReadWord>,
    pub(crate) read_slid: Option<ReadWord>,
    pub(crate) read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(crate) read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub(crate) read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    /// VLAN, flow tag, tag matching, wall clock: nothing that we have.
    others: [usize; 4],
}

type ReadWord = unsafe extern "C" fn(*mut CqEx) -> u32;

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    cq_context: *mut c_void,
    pub(crate) channel: *mut c_void,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    parent_domain: *mut c_void,
}

/// `struct ibv_qp`, to its type.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    srq: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) number: u32,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
}

/// `struct ibv_qp_ex` of rdma-core 45 and later; what came with 44 and 45 is named. Behind it comes
/// libibverbs' own mask, whose place tells which of them there are.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) qp: Qp,
    /// Counters, `pthread_mutex_t` and `pthread_cond_t`.
    waiting: [u64; 12],
    comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: u32,
    pub(crate) wr: WrFunctions,
    /// Since 44.
    pub(crate) atomic_write: usize,
    /// Since 45.
    pub(crate) flush: usize,
}

type Remote = unsafe extern "C" fn(*mut QpEx, u32, u64);
type RemoteWord = unsafe extern "C" fn(*mut QpEx, u32, u64, u32);
type Plain = unsafe extern "C" fn(*mut QpEx);
type Word = unsafe extern "C" fn(*mut QpEx, u32);

/// The functions with which a program puts requests together (`ibv_wr_post(3)`), in order.
#[repr(C)]
pub(crate) struct WrFunctions {
    pub(crate) atomic_cmp_swp: unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64),
    pub(crate) atomic_fetch_add: unsafe extern "C" fn(*mut QpEx, u32, u64, u64),
    pub(crate) bind_mw: unsafe extern "C" fn(*mut QpEx, *mut c_void, u32, *const c_void),
    pub(crate) local_inv: Word,
    pub(crate) rdma_read: Remote,
    pub(crate) rdma_write: Remote,
    pub(crate) rdma_write_imm: RemoteWord,
    pub(crate) send: Plain,
    pub(crate) send_imm: Word,
    pub(crate) send_inv: Word,
    pub(crate) send_tso: unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16),
    pub(crate) set_ud_addr: unsafe extern "C" fn(*mut QpEx, *mut c_void, u32, u32),
    pub(crate) set_xrc_srqn: Word,
    pub(crate) set_inline_data: unsafe extern "C" fn(*mut QpEx, *mut c_void, usize),
    pub(crate) set_inline_data_list: unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf),
    pub(crate) set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub(crate) set_sge_list: unsafe extern "C" fn(*mut QpEx, usize, *const Sge),
    pub(crate) start: Plain,
    pub(crate) complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    pub(crate) abort: Plain,
}

/// `struct ibv_data_buf`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) addr: *const u8,
    pub(crate) length: usize,
}

/// `struct ibv_pd`, to its context.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    srq: *mut c_void,
    max_send_wr: u32,
    max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) qp_type: u32,
    sq_sig_all: c_int,
    /// Of the extended form only.
    pub(crate) comp_mask: u32,
}

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    /// Its padding is `comp_mask`.
    pub(crate) basic: QpInitAttr,
    pub(crate) pd: *mut Pd,
    xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    max_tso_header: u16,
    rwq_ind_tbl: *mut c_void,
    rx_hash_conf: [u64; 3],
    source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}

/// `enum ibv_qp_init_attr_mask`.
pub(crate) mod qp_init {
    pub(crate) const PD: u32 = 1;
    pub(crate) const CREATE_FLAGS: u32 = 1 << 2;
    pub(crate) const SEND_OPS_FLAGS: u32 = 1 << 6;
}

/// `enum ibv_qp_create_send_ops_flags`.
pub(crate) mod send_ops {
    pub(crate) const RDMA_WRITE: u64 = 1;
    pub(crate) const RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
    pub(crate) const SEND: u64 = 1 << 2;
    pub(crate) const SEND_WITH_IMM: u64 = 1 << 3;
    pub(crate) const RDMA_READ: u64 = 1 << 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    pub(crate) const SEND_WITH_INV: u64 = 1 << 9;
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInitAttr {
    srq_context: *mut c_void,
    max_wr: u32,
    pub(crate) max_sge: u32,
    srq_limit: u32,
}

/// `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: u32,
    pub(crate) send_flags: u32,
    /// Immediate data or a key to invalidate.
    pub(crate) imm: u32,
    /// RDMA and atomics: remote address; datagrams: address handle.
    pub(crate) remote: u64,
    /// By opcode, see [`Rdma`], [`Atomic`].
    pub(crate) rest: [u64; 3],
    pub(crate) xrc: u64,
    pub(crate) bind: [u64; 6],
}

impl SendWr {
    /// Remote key of READ and WRITE.
    pub(crate) fn rdma_rkey(&self) -> u32 {
        self.rest[0] as u32
    }

    /// Datagrams: number and Q_Key of the receiving QP.
    pub(crate) fn datagram(&self) -> (u32, u32) {
        (self.rest[0] as u32, (self.rest[0] >> 32) as u32)
    }

    /// Compare or add, swap, remote key.
    pub(crate) fn atomic(&self) -> (u64, u64, u32) {
        (self.rest[0], self.rest[1], self.rest[2] as u32)
    }
}

/// `struct ibv_recv_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *const Sge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `enum ibv_wr_opcode`.
pub(crate) mod wr {
    pub(crate) const RDMA_WRITE: u32 = 0;
    pub(crate) const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub(crate) const SEND: u32 = 2;
    pub(crate) const SEND_WITH_IMM: u32 = 3;
    pub(crate) const RDMA_READ: u32 = 4;
    pub(crate) const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub(crate) const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub(crate) const SEND_WITH_INV: u32 = 9;
}

/// `IBV_QPT_RC`.
pub(crate) const QPT_RC: u32 = 2;
/// `IBV_QPT_UC`.
pub(crate) const QPT_UC: u32 = 3;
/// `IBV_QPT_UD`.
pub(crate) const QPT_UD: u32 = 4;

/// `enum ibv_qp_state`.
pub(crate) mod state {
    pub(crate) const RESET: u32 = 0;
    pub(crate) const RTS: u32 = 3;
}

const _: () = {
    assert!(offset_of!(Context, cmd_fd) == 264);
    assert!(offset_of!(Cq, handle) == 24);
    assert!(offset_of!(CqEx, status) == 132);
    assert!(offset_of!(CqEx, start_poll) == 144);
    assert!(offset_of!(CqEx, read_completion_ts) == 144 + 13 * 8);
    assert!(size_of::<CqEx>() == 288);
    assert!(offset_of!(CqInitAttrEx, wc_flags) == 32);
    assert!(offset_of!(CqInitAttrEx, flags) == 44);
    assert!(offset_of!(Qp, handle) == 48);
    assert!(offset_of!(Qp, state) == 56);
    assert!(size_of::<Qp>() == 64 && offset_of!(QpEx, comp_mask) == 160);
    assert!(offset_of!(QpEx, wr_flags) == 176 && offset_of!(QpEx, wr) == 184);
    assert!(offset_of!(QpEx, atomic_write) == 344 && size_of::<QpEx>() == 360);
    assert!(offset_of!(QpInitAttrEx, pd) == 64 && offset_of!(QpInitAttrEx, create_flags) == 80);
    assert!(offset_of!(QpInitAttrEx, send_ops_flags) == 128);
    assert!(size_of::<QpInitAttrEx>() == 136 && size_of::<DataBuf>() == 16);
    assert!(offset_of!(QpInitAttr, max_send_sge) == 40);
    assert!(offset_of!(QpInitAttr, comp_mask) == 60);
    assert!(size_of::<QpInitAttr>() == 64);
    assert!(offset_of!(SrqInitAttr, max_sge) == 12);
    assert!(offset_of!(SendWr, imm) == 36);
    assert!(offset_of!(SendWr, remote) == 40);
    assert!(size_of::<SendWr>() == 128);
    assert!(size_of::<RecvWr>() == 32);
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, dlid_path_bits) == 45);
};
