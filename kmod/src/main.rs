// SPDX-License-Identifier: GPL-2.0-only
//! RDMA between computers joined by a USB4 or Thunderbolt cable.

use kernel::prelude::*;

mod params;
mod print;
mod sys;

module! {
    type: Tbrdma,
    name: "tbrdma",
    authors: ["The tbrdma authors"],
    description: "RDMA over USB4 and Thunderbolt host-to-host links",
    license: "GPL",
}

struct Tbrdma;

impl kernel::Module for Tbrdma {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        print::log_info!(
            "version {}, ring_size={} loopback={}",
            env!("TBRDMA_VERSION"),
            params::ring_size(),
            params::loopback()
        );
        Ok(Self)
    }
}
