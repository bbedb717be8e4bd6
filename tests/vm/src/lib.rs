//! Virtual machines with stock Debian kernels, joined by an emulated USB4 fabric.
//!
//! - [`cache`]: the one place outside the checkout where what is expensive is kept, by content
//! - [`archive`]: where Debian's packages come from
//! - [`debian`]: Debian root file systems
//! - [`image`]: the guests' disk and initramfs, made from such a root
//! - [`roots`]: those of the lab
//! - [`weekly`]: files of packages of a suite that moves on
//! - [`source`]: what Debian built packages from
//! - [`lab`]: machines, cables, and how to talk to them
//! - [`health`]: what a guest's kernel log must not contain
//!
//! Everything needs root, and works on Debian 12 and newer. QEMU comes from Debian's backports and
//! is run from a root of its own, whatever the host has.

pub mod archive;
mod boot;
pub mod cache;
pub mod command;
pub mod debian;
pub mod health;
pub mod image;
pub mod lab;
mod machine;
mod process;
pub mod roots;
pub mod source;
mod ssh;
mod state;
pub mod weekly;

pub use boot::Options;
pub use lab::{Lab, Running};
pub use ssh::quote;
