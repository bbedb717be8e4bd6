//! See the crate description.
#![no_std]
#![forbid(unsafe_code)]
