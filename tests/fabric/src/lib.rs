//! Emulated USB4 host routers and cables over vfio-user.
//!
//! Stock kernels in virtual machines enumerate the routers, find each other over the cables and send frames, as
//! on hardware. [`protocol`] and [`client`] are for steering a fabric that runs; [`server`] is the fabric.

pub mod client;
pub mod protocol;
pub mod server;
pub mod spec;

mod control;
mod device;
mod fabric;
mod fault;
mod frames;
mod host;
mod layout;
mod memory;
mod nhi;
mod packet;
mod pcap;
mod router;
