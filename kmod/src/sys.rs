// SPDX-License-Identifier: GPL-2.0-only
//! Raw bindings: everything of `kernel::bindings`, and the headers of `bindings/sys.h` and `shims/*.h`,
//! made by bindgen for the kernel that the module is built for. Types that `kernel::bindings` has are the
//! same types here.
#![allow(
    clippy::all,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    unused_imports,
    unknown_lints,
    unnecessary_transmutes
)]

pub use kernel::bindings::*;
use kernel::ffi;
use pin_init::{MaybeZeroable, Zeroable};

// The kernel's bindgen parameters leave these to us.
type __kernel_size_t = usize;
type __kernel_ssize_t = isize;
type __kernel_ptrdiff_t = isize;

include!(concat!(env!("TBRDMA_OBJ"), "/sys_generated.rs"));
