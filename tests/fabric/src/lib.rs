//! Emulated USB4 host routers and cables over vfio-user.

pub mod client;
pub mod protocol;
