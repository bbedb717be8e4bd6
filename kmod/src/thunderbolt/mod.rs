// SPDX-License-Identifier: GPL-2.0-only
//! Safe wrappers over the Thunderbolt core's service API (`include/linux/thunderbolt.h`).

pub(crate) mod routers;
