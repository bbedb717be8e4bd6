// SPDX-License-Identifier: GPL-2.0-only
//! The peers that can be sent to now.

use super::Peer;
use kernel::prelude::*;
use kernel::sync::{new_spinlock, Arc, SpinLock};

/// Peers at most, the loopback peer included: bounds what the machines at the other ends of the
/// cables can make us keep.
const MAX_PEERS: usize = 64;

/// The peers that can be sent to now, and this host.
#[pin_data]
pub(crate) struct PeerTable {
    #[pin]
    peers: SpinLock<KVec<Arc<Peer>>>,
}

impl PeerTable {
    pub(super) fn new() -> Result<Arc<Self>> {
        let peers = KVec::with_capacity(MAX_PEERS, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                peers <- new_spinlock!(peers, "tbrdma_peers"),
            }),
            GFP_KERNEL,
        )
    }

    /// The peer with this address.
    pub(crate) fn by_mac(&self, mac: &[u8; 6]) -> Option<Arc<Peer>> {
        let peers = self.peers.lock();
        peers.iter().find(|peer| peer.mac() == *mac).cloned()
    }

    /// The peers one by one, by their place; those that come or go meanwhile may be missed.
    pub(super) fn get(&self, at: usize) -> Option<Arc<Peer>> {
        self.peers.lock().get(at).cloned()
    }

    /// Calls `f` for every remote peer, with the table locked: `f` must not sleep, nor use the
    /// table.
    pub(crate) fn for_each_up(&self, mut f: impl FnMut(&Arc<Peer>)) {
        for peer in self.peers.lock().iter() {
            if !peer.is_loopback() && peer.is_up() {
                f(peer);
            }
        }
    }

    /// Adds a peer; fails if there are too many.
    pub(super) fn add(&self, peer: Arc<Peer>) -> Result {
        let refused = self.peers.lock().push_within_capacity(peer);
        // What was refused is dropped here, with the lock released.
        refused.map_err(|_| ENOSPC)
    }

    /// Takes a peer out.
    pub(super) fn remove(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock();
        let at = peers.iter().position(|p| Arc::ptr_eq(p, peer));
        let removed = at.and_then(|at| peers.remove(at).ok());
        drop(peers);
        drop(removed);
    }
}
