// SPDX-License-Identifier: GPL-2.0-only
//! Safe wrappers over the Thunderbolt core's service API (`include/linux/thunderbolt.h`), and
//! over other kernel services ([`os`], [`irq_lock`]).

pub(crate) mod alarm;
pub(crate) mod debugfs;
pub(crate) mod irq_lock;
pub(crate) mod os;
pub(crate) mod property;
pub(crate) mod protocol;
pub(crate) mod ring;
pub(crate) mod routers;
pub(crate) mod service;
pub(crate) mod xdomain;
