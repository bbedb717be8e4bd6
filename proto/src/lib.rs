//! Wire formats and state machines of tbrdma, without I/O.
//!
//! Everything here is compiled twice: into the kernel module and as a member of the workspace, so
//! that tests, the simulator and the fuzzers run the very code that ships. Nothing allocates, reads
//! a clock or panics on what a peer sends.
#![no_std]
#![forbid(unsafe_code)]

pub mod bundle;
pub mod frame;
pub mod hello;
pub mod rail;
pub mod rc;
pub mod ud;
