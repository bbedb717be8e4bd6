// SPDX-License-Identifier: GPL-2.0-only
//! `proto`, compiled into the module.
// The crate's interface is wider than what this module uses of it.
#![allow(dead_code, unused_imports, unreachable_pub)]

#[path = "../../proto/src/bundle/mod.rs"]
pub(crate) mod bundle;
#[path = "../../proto/src/frame.rs"]
pub(crate) mod frame;
#[path = "../../proto/src/hello/mod.rs"]
pub(crate) mod hello;
#[path = "../../proto/src/rail/mod.rs"]
pub(crate) mod rail;
#[path = "../../proto/src/rc/mod.rs"]
pub(crate) mod rc;
#[path = "../../proto/src/ud.rs"]
pub(crate) mod ud;
