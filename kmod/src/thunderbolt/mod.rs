// SPDX-License-Identifier: GPL-2.0-only
//! Safe wrappers over the Thunderbolt core's service API (`include/linux/thunderbolt.h`), and
//! over the few other kernel services that the link layer needs ([`os`]).

pub(crate) mod debugfs;
pub(crate) mod os;
pub(crate) mod property;
pub(crate) mod protocol;
pub(crate) mod ring;
pub(crate) mod routers;
pub(crate) mod service;
pub(crate) mod xdomain;
