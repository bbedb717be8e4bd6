// SPDX-License-Identifier: GPL-2.0-only
//! `uapi`, compiled into the module.
#![allow(unreachable_pub)]

#[path = "../../uapi/src/abi.rs"]
mod abi;

pub(crate) use abi::*;
