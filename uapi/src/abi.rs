//! The definitions; a file of its own because the module includes it by path.

use core::mem::{offset_of, size_of};

/// Driver id of the device ("TBRD"), far outside `enum rdma_driver_id` (rdma/ib_user_ioctl_verbs.h),
/// so that neither another provider nor another kernel driver takes the device for its own.
pub const DRIVER_ID: u32 = 0x5442_5244;

/// `uverbs_abi_ver` of the device. A provider refuses any other.
pub const ABI_VERSION: u32 = 1;

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
