//! What the kernel module and the libibverbs provider of tbrdma agree on.
//!
//! Compiled into both. Layouts are fixed: they are asserted here, and a change means a new
//! [`ABI_VERSION`].
#![no_std]
#![forbid(unsafe_code)]

mod abi;

pub use abi::*;
