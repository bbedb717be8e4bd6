//! A deterministic simulator in virtual time: two rails with their rings, joined by a wire that
//! loses, repeats, delays and reorders. What runs above the rails is the test's: see [`Upper`].
//!
//! Everything that happens follows from the seed, so a failure can be repeated.

// Every test program uses another part of it.
#![allow(dead_code, unused_imports)]

mod chance;
mod driver;
mod stream;
mod wire;
mod world;

pub use chance::Chance;
pub use driver::{Driver, Setting};
pub use stream::Stream;
pub use wire::{Faults, Wire};
pub use world::World;

use tbrdma_proto::frame::Header;

/// A frame of the layer above, without the fields that the rail fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub header: Header,
    pub ext: Vec<u8>,
    pub payload: Vec<u8>,
}

/// What runs above a rail.
pub trait Upper {
    /// A frame of the other side: each comes once, and in the order of sending.
    fn deliver(&mut self, frame: Frame, now: u64);

    /// The frames that had come were all delivered.
    fn batch_end(&mut self, _now: u64) {}

    /// The next frame to send, which the rail can take now.
    fn want_send(&mut self, now: u64) -> Option<Frame>;

    /// When [`want_send`](Self::want_send) may have something although nothing was delivered.
    fn next_timeout(&self) -> Option<u64> {
        None
    }

    /// Nothing is left to send or to wait for.
    fn is_done(&self) -> bool;
}
