// SPDX-License-Identifier: GPL-2.0-only
//! RDMA between computers joined by a USB4 or Thunderbolt cable.
//!
//! From the top: [`verbs`] is what programs see (QPs, CQs, memory regions), [`link`] is peers,
//! cables and rails, [`net`] the network device whose addresses become GIDs. [`rdma`],
//! [`thunderbolt`] and parts of [`net`] wrap the C subsystems; `unsafe` is confined to them and to
//! `link::os`. `proto` holds the wire formats and state machines, and is tested outside the kernel.

use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::Arc;

mod errno;
mod link;
mod net;
mod params;
mod print;
mod proto;
mod rdma;
mod sys;
mod thunderbolt;
mod uapi;
mod verbs;

use link::Links;
use rdma::device::{IbDevice, Registration};
use verbs::Hca;

module! {
    type: Tbrdma,
    name: "tbrdma",
    authors: ["The tbrdma authors"],
    description: "RDMA over USB4 and Thunderbolt host-to-host links",
    license: "GPL",
}

struct Tbrdma {
    hca: Arc<Hca>,
    links: Arc<Links>,
    /// `None` once the module is being unloaded.
    registration: Option<Registration>,
}

impl kernel::Module for Tbrdma {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let device = Arc::new(IbDevice::new()?, GFP_KERNEL)?;
        let hca = Hca::new(device.clone())?;
        let links = Links::new(hca.clone())?;
        hca.set_links(Some(links.clone()));
        // From here on, dropping the value undoes everything.
        let mut this = Self {
            hca,
            links,
            registration: None,
        };
        let guid = this.hca.guid();
        let netdev = NonNull::new(this.links.netdev());
        this.registration = Some(Registration::new(
            module,
            device,
            this.hca.clone(),
            guid,
            netdev,
        )?);
        this.hca.set_registered(true);
        this.links.start()?;
        print::log_info!("version {} is ready", env!("TBRDMA_VERSION"));
        Ok(this)
    }
}

impl Drop for Tbrdma {
    fn drop(&mut self) {
        self.hca.set_registered(false);
        // Users first: their QPs end while the links still work.
        self.registration = None;
        self.links.stop();
        self.hca.set_links(None);
    }
}
