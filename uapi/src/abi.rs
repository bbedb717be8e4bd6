//! The definitions; a file of its own because the module includes it by path.

use core::mem::{offset_of, size_of};

/// Driver id of the device ("TBRD"), far outside `enum rdma_driver_id` (rdma/ib_user_ioctl_verbs.h),
/// so that neither another provider nor another kernel driver takes the device for its own.
pub const DRIVER_ID: u32 = 0x5442_5244;

/// `uverbs_abi_ver` of the device. A provider refuses any other.
pub const ABI_VERSION: u32 = 2;

/// Grows with every compatible addition.
pub const ABI_MINOR: u32 = 0;

/// What the kernel adds to the response of `alloc_ucontext`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocUcontextResp {
    /// [`ABI_MINOR`] of the kernel module.
    pub abi_minor: u32,
    /// Features, one bit each; none are defined yet, unknown ones are to be ignored.
    pub features: u32,
    /// Inline bytes of a send at the most.
    pub max_inline: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<AllocUcontextResp>() == 16);
    assert!(offset_of!(AllocUcontextResp, abi_minor) == 0);
    assert!(offset_of!(AllocUcontextResp, features) == 4);
    assert!(offset_of!(AllocUcontextResp, max_inline) == 8);
    assert!(offset_of!(AllocUcontextResp, reserved) == 12);
};

/// Where a queue is mapped: what the kernel adds to the responses of `create_cq` and `resize_cq`,
/// and to that of `create_qp` twice, the send queue first. A queue that was resized goes on with the
/// indices that it had.
///
/// A queue is one range of shared memory: a head of [`queue::HEAD_LEN`] bytes and `entries` places
/// of `stride` bytes. Indices count for ever and wrap at 2^32; the place of index `i` is
/// `i % entries`, and `entries` is a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueueResp {
    /// Offset for mmap; 0 if there is no such queue.
    pub offset: u64,
    /// Bytes to map.
    pub bytes: u32,
    /// Places; a power of two.
    pub entries: u32,
    /// Bytes of a place.
    pub stride: u32,
    /// Zero.
    pub reserved: u32,
}

/// What the kernel adds to the response of `create_qp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CreateQpResp {
    /// The send queue, of [`SendEntry`]s.
    pub sq: QueueResp,
    /// The receive queue, of [`RecvEntry`]s; none if the QP uses a shared receive queue.
    pub rq: QueueResp,
}

/// What the kernel adds to the response of `create_ah`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CreateAhResp {
    /// The number by which a [`SendEntry`] names the handle.
    pub number: u32,
    /// Zero.
    pub reserved: u32,
}

/// Places of the fields in the head of a queue, bytes. Each is a `u32` in a cache line of its own.
pub mod queue {
    /// Index after the newest entry; only the producer writes it.
    pub const PRODUCER: usize = 0;
    /// Index of the oldest entry that is still needed; only the consumer writes it.
    pub const CONSUMER: usize = 64;
    /// Send and receive queues: not 0 if the kernel has to be called for new entries. Completion
    /// queues: which completion is to raise an event, see [`ARM_NONE`].
    pub const FLAG: usize = 128;
    /// Completion queues: not 0 once the queue is of no use any more; see [`DEAD_OVERRUN`].
    pub const DEAD: usize = 192;
    /// Bytes of the head.
    pub const HEAD_LEN: usize = 256;

    /// [`FLAG`] of a completion queue: no event is wanted.
    pub const ARM_NONE: u32 = 0;
    /// The next solicited completion, or the next that failed, raises an event.
    pub const ARM_SOLICITED: u32 = 1;
    /// The next completion raises an event.
    pub const ARM_ANY: u32 = 2;

    /// [`DEAD`]: completions were lost because there was no room.
    pub const DEAD_OVERRUN: u32 = 1;
    /// [`DEAD`]: the device is gone.
    pub const DEAD_DEVICE: u32 = 2;
    /// [`DEAD`]: the queue was resized, and is now where that call's response says.
    pub const DEAD_MOVED: u32 = 3;
}

/// A scatter/gather element in a queue; the same as `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// Flags of a [`SendEntry`]; the values are those of `enum ibv_send_flags`.
pub mod send_flags {
    /// Wait for READs and atomics before.
    pub const FENCE: u16 = 1;
    /// A completion is wanted.
    pub const SIGNALED: u16 = 2;
    /// The receiver's completion is solicited.
    pub const SOLICITED: u16 = 4;
    /// The data follow in the entry itself.
    pub const INLINE: u16 = 8;
}

/// A send work request. `num_sge` [`Sge`]s follow, or `inline_len` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendEntry {
    /// The program's own.
    pub wr_id: u64,
    /// `enum ibv_wr_opcode`.
    pub opcode: u16,
    /// [`send_flags`].
    pub flags: u16,
    /// Elements that follow, unless inline.
    pub num_sge: u32,
    /// Bytes that follow, if inline.
    pub inline_len: u32,
    /// Immediate data as they are, or the key to invalidate.
    pub imm: u32,
    /// Remote address.
    pub raddr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Number of the address handle (datagrams).
    pub ah: u32,
    /// What to compare with, or to add.
    pub compare_add: u64,
    /// What to swap in.
    pub swap: u64,
    /// QP number of the receiver (datagrams).
    pub dqpn: u32,
    /// Q_Key (datagrams).
    pub qkey: u32,
}

/// A receive work request. `num_sge` [`Sge`]s follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecvEntry {
    /// The program's own.
    pub wr_id: u64,
    /// Elements that follow.
    pub num_sge: u32,
    /// Zero.
    pub reserved: u32,
}

/// Flags of a [`CqEntry`]; the values are those of `enum ibv_wc_flags`, but for [`IPV4`](wc_flags::IPV4).
pub mod wc_flags {
    /// The receive begins with 40 bytes of a GRH.
    pub const GRH: u32 = 1;
    /// There are immediate data.
    pub const WITH_IMM: u32 = 2;
    /// A key was invalidated.
    pub const WITH_INV: u32 = 8;
    /// What the GRH's place holds is an IPv4 header, in its last 20 bytes. Programs learn of it otherwise.
    pub const IPV4: u32 = 1 << 16;
}

/// A completion; `status`, `opcode` and flags are numbered as in `struct ibv_wc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CqEntry {
    /// Of the work request.
    pub wr_id: u64,
    /// When it was made, nanoseconds of the monotonic clock.
    pub timestamp: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Bytes that were received or read.
    pub byte_len: u32,
    /// Immediate data as they came, or the key that was invalidated.
    pub imm: u32,
    /// QP of the work request.
    pub qpn: u32,
    /// QP that sent the message.
    pub src_qp: u32,
    /// [`wc_flags`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<QueueResp>() == 24);
    assert!(size_of::<CreateQpResp>() == 48);
    assert!(size_of::<CreateAhResp>() == 8);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<SendEntry>() == 64);
    assert!(offset_of!(SendEntry, raddr) == 24);
    assert!(offset_of!(SendEntry, compare_add) == 40);
    assert!(offset_of!(SendEntry, qkey) == 60);
    assert!(size_of::<RecvEntry>() == 16);
    assert!(size_of::<CqEntry>() == 48);
    assert!(offset_of!(CqEntry, reserved) == 44);
};
