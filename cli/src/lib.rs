//! The `tbrdma` command: what there is of RDMA over USB4 on this machine.
#![forbid(unsafe_code)]

pub mod args;
pub mod status;
