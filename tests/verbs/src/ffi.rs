//! The public C interface of libibverbs, as far as it is used here (`infiniband/verbs.h`).
//!
//! The library is opened at run time, so that the program is built without its headers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

pub type Ptr = *mut c_void;

/// `struct ibv_context`, to the end of its operations.
#[repr(C)]
pub struct Context {
    pub device: Ptr,
    pub before_poll: [Ptr; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    pub before_srq_recv: [Ptr; 7],
    pub post_srq_recv: unsafe extern "C" fn(Ptr, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub before_post: [Ptr; 4],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    pub after_post: [Ptr; 5],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// Where `struct verbs_context`, whose end the public part is, has these functions: words before
/// the public part.
pub const CREATE_QP_EX: usize = 7;
pub const QUERY_DEVICE_EX: usize = 13;
/// And its size, by which the header's functions know that they are there.
pub const CONTEXT_SIZE: usize = 1;

/// `struct ibv_cq`, to its size.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    unused: [u64; 2],
    pub handle: u32,
    pub cqe: c_int,
}

/// `struct ibv_qp_ex`, to the last function of rdma-core 34; see `ibv_wr_post(3)`.
#[repr(C)]
pub struct QpEx {
    pub qp: [u8; 160],
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub cmp_swp: unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64),
    pub fetch_add: unsafe extern "C" fn(*mut QpEx, u32, u64, u64),
    pub bind_mw: Ptr,
    pub local_inv: unsafe extern "C" fn(*mut QpEx, u32),
    pub rdma_read: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub rdma_write: unsafe extern "C" fn(*mut QpEx, u32, u64),
    pub rdma_write_imm: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub send: unsafe extern "C" fn(*mut QpEx),
    pub send_imm: unsafe extern "C" fn(*mut QpEx, u32),
    pub send_inv: unsafe extern "C" fn(*mut QpEx, u32),
    pub send_tso: Ptr,
    pub set_ud_addr: unsafe extern "C" fn(*mut QpEx, Ptr, u32, u32),
    pub set_xrc_srqn: Ptr,
    pub set_inline_data: unsafe extern "C" fn(*mut QpEx, *const u8, usize),
    pub set_inline_data_list: unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf),
    pub set_sge: unsafe extern "C" fn(*mut QpEx, u32, u64, u32),
    pub set_sge_list: unsafe extern "C" fn(*mut QpEx, usize, *const Sge),
    pub start: unsafe extern "C" fn(*mut QpEx),
    pub complete: unsafe extern "C" fn(*mut QpEx) -> c_int,
    pub abort: unsafe extern "C" fn(*mut QpEx),
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DataBuf {
    pub addr: *const u8,
    pub length: usize,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub struct AsyncEvent {
    pub element: Ptr,
    pub kind: c_uint,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: Ptr,
    pub attr: SrqAttr,
}

/// `struct ibv_device_attr_ex`, to the mask of timestamps; what is between is not looked at.
#[repr(C)]
pub struct DeviceAttrEx {
    pub basic: [u64; 29],
    pub comp_mask: u32,
    pub odp_general_caps: u64,
    pub odp_caps: [u32; 3],
    pub timestamp_mask: u64,
    pub core_clock_khz: u64,
    pub rest: [u64; 64],
}

/// `struct ibv_qp`, to its number.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    unused: [u8; 44],
    pub qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    unused: [u8; 36],
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`, to its descriptor.
#[repr(C)]
pub struct Channel {
    pub context: *mut Context,
    pub fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest: [u8; 76],
}

impl SendWr {
    /// `wr.atomic` of the union: the operand is where `wr.rdma` has the key, the key comes after
    /// the operand for swapping.
    pub fn make_atomic(&mut self, operand: u64, rkey: u32) {
        let [low, high] = [operand as u32, (operand >> 32) as u32];
        self.rkey = low;
        self.rest[..4].copy_from_slice(&high.to_ne_bytes());
        self.rest[12..16].copy_from_slice(&rkey.to_ne_bytes());
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub rest: [u8; 8],
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: Ptr,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: Ptr,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
    /// Of the extended form, `struct ibv_qp_init_attr_ex`, like what follows.
    pub comp_mask: u32,
    pub pd: Ptr,
    pub unused: [u64; 7],
    pub send_ops_flags: u64,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: [u32; 5],
    pub ah: AhAttr,
    pub alt_ah: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
    pub end: u32,
}

/// `struct ibv_ah_attr` with its `ibv_global_route`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub pad: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

const _: () = {
    assert!(offset_of!(Context, poll_cq) == 8 + 88);
    assert!(offset_of!(Context, post_send) == 8 + 200);
    assert!(offset_of!(Context, post_recv) == 8 + 208);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, imm_data) == 36);
    assert!(offset_of!(SendWr, remote_addr) == 40);
    assert!(size_of::<RecvWr>() == 32);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, wc_flags) == 36);
    assert!(size_of::<QpInitAttr>() == 136 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(offset_of!(QpInitAttr, pd) == 64);
    assert!(offset_of!(Context, async_fd) == 268 && offset_of!(Cq, cqe) == 28);
    assert!(offset_of!(QpEx, cmp_swp) == 184 && size_of::<QpEx>() == 344);
    assert!(offset_of!(DeviceAttrEx, odp_general_caps) == 240);
    assert!(offset_of!(DeviceAttrEx, timestamp_mask) == 264);
    assert!(size_of::<SrqInitAttr>() == 24 && size_of::<AsyncEvent>() == 16);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, is_global) == 29);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rnr_retry) == 132);
};

pub const WR_WRITE: c_uint = 0;
pub const WR_WRITE_IMM: c_uint = 1;
pub const WR_SEND: c_uint = 2;
pub const WR_SEND_IMM: c_uint = 3;
pub const WR_READ: c_uint = 4;
pub const WR_FETCH_ADD: c_uint = 6;
pub const SEND_SIGNALED: c_uint = 2;
pub const WC_WITH_IMM: c_uint = 2;
/// Completion opcodes of receives have this bit.
pub const WC_RECV: c_uint = 128;
pub const QPT_RC: c_uint = 2;
pub const QPT_UC: c_uint = 3;
pub const QPT_UD: c_uint = 4;
pub const MTU_4096: c_uint = 5;
pub const STATE_RESET: c_uint = 0;
pub const STATE_INIT: c_uint = 1;
pub const STATE_RTR: c_uint = 2;
pub const STATE_RTS: c_uint = 3;
pub const STATE_SQD: c_uint = 4;
pub const STATE_ERR: c_uint = 6;
/// Every attribute that can be asked for.
pub const MASK_ALL: c_int = 0x1f_ffff;
pub const MASK_STATE: c_int = 1;
pub const MASK_SQD_NOTIFY: c_int = 4;
pub const MASK_INIT: c_int = 57;
pub const MASK_RTR: c_int = 1_216_897;
pub const MASK_RTS: c_int = 77_313;
/// Local write, remote write, remote read, remote atomics.
pub const ACCESS_ALL: c_int = 1 | 2 | 4 | 8;

macro_rules! library {
    ($($field:ident: fn($($arg:ty),*) -> $ret:ty = $name:literal;)*) => {
        /// The functions of the library.
        pub struct Library {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
            _library: libloading::Library,
        }

        impl Library {
            /// Opens the library.
            pub fn open() -> Result<Self, libloading::Error> {
                // SAFETY: libibverbs has no initialisation that could do harm; the signatures are
                // those of its header.
                unsafe {
                    let library = libloading::Library::new("libibverbs.so.1")?;
                    Ok(Self {
                        $($field: *library.get($name)?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

library! {
    get_device_list: fn(*mut c_int) -> *mut Ptr = b"ibv_get_device_list";
    free_device_list: fn(*mut Ptr) -> () = b"ibv_free_device_list";
    get_device_name: fn(Ptr) -> *const c_char = b"ibv_get_device_name";
    open_device: fn(Ptr) -> *mut Context = b"ibv_open_device";
    close_device: fn(*mut Context) -> c_int = b"ibv_close_device";
    query_gid: fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int = b"ibv_query_gid";
    alloc_pd: fn(*mut Context) -> Ptr = b"ibv_alloc_pd";
    dealloc_pd: fn(Ptr) -> c_int = b"ibv_dealloc_pd";
    reg_mr: fn(Ptr, Ptr, usize, c_int) -> *mut Mr = b"ibv_reg_mr";
    dereg_mr: fn(*mut Mr) -> c_int = b"ibv_dereg_mr";
    create_channel: fn(*mut Context) -> *mut Channel = b"ibv_create_comp_channel";
    destroy_channel: fn(*mut Channel) -> c_int = b"ibv_destroy_comp_channel";
    create_cq: fn(*mut Context, c_int, Ptr, *mut Channel, c_int) -> *mut Cq = b"ibv_create_cq";
    destroy_cq: fn(*mut Cq) -> c_int = b"ibv_destroy_cq";
    get_cq_event: fn(*mut Channel, *mut *mut Cq, *mut Ptr) -> c_int = b"ibv_get_cq_event";
    ack_cq_events: fn(*mut Cq, c_uint) -> () = b"ibv_ack_cq_events";
    resize_cq: fn(*mut Cq, c_int) -> c_int = b"ibv_resize_cq";
    rereg_mr: fn(*mut Mr, c_int, Ptr, Ptr, usize, c_int) -> c_int = b"ibv_rereg_mr";
    reg_dmabuf_mr: fn(Ptr, u64, usize, u64, c_int, c_int) -> *mut Mr = b"ibv_reg_dmabuf_mr";
    get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int = b"ibv_get_async_event";
    ack_async_event: fn(*mut AsyncEvent) -> () = b"ibv_ack_async_event";
    create_srq: fn(Ptr, *mut SrqInitAttr) -> Ptr = b"ibv_create_srq";
    modify_srq: fn(Ptr, *mut SrqAttr, c_int) -> c_int = b"ibv_modify_srq";
    query_srq: fn(Ptr, *mut SrqAttr) -> c_int = b"ibv_query_srq";
    destroy_srq: fn(Ptr) -> c_int = b"ibv_destroy_srq";
    create_ah: fn(Ptr, *mut AhAttr) -> Ptr = b"ibv_create_ah";
    destroy_ah: fn(Ptr) -> c_int = b"ibv_destroy_ah";
    qp_to_qp_ex: fn(*mut Qp) -> *mut QpEx = b"ibv_qp_to_qp_ex";
    create_qp: fn(Ptr, *mut QpInitAttr) -> *mut Qp = b"ibv_create_qp";
    modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int = b"ibv_modify_qp";
    query_qp: fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int = b"ibv_query_qp";
    destroy_qp: fn(*mut Qp) -> c_int = b"ibv_destroy_qp";
    wc_status_str: fn(c_uint) -> *const c_char = b"ibv_wc_status_str";
}
