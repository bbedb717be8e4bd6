// SPDX-License-Identifier: GPL-2.0-only
//! `uapi`, compiled into the module.
// Some of it is for the other side only.
#![allow(dead_code, unreachable_pub)]

#[path = "../../uapi/src/abi.rs"]
mod abi;

pub(crate) use abi::*;
