// SPDX-License-Identifier: GPL-2.0-only
//! Address handles: where datagrams go.

use super::{Hca, LIMITS};
use crate::proto::ud::Gid;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};

/// An address handle. A user's process names it by its number.
pub(crate) struct Ah {
    hca: Arc<Hca>,
    number: u32,
    pub(super) pd: u32,
    /// MAC address of the peer.
    pub(super) mac: [u8; 6],
    pub(super) sgid: Gid,
    pub(super) dgid: Gid,
}

impl Ah {
    /// Makes a handle; any context. ENOMEM: there are too many.
    pub(crate) fn new(
        hca: ArcBorrow<'_, Hca>,
        pd: u32,
        mac: [u8; 6],
        sgid: Gid,
        dgid: Gid,
    ) -> Result<Arc<Self>> {
        hca.ah_count.take(LIMITS.ahs)?;
        let made = hca.ahs.insert_with(GFP_ATOMIC, |number| {
            let ah = Self {
                hca: hca.into(),
                number,
                pd,
                mac,
                sgid,
                dgid,
            };
            Ok(Arc::new(ah, GFP_ATOMIC)?)
        });
        if made.is_err() {
            hca.ah_count.give();
        }
        made
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// No datagram uses it from now on; any context.
    pub(crate) fn destroy(&self) {
        self.hca.ahs.remove(self.number);
        self.hca.ah_count.give();
    }
}
