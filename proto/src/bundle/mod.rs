//! One sequence over all rails between two hosts.
//!
//! A rail delivers in order, but rails do not wait for each other, and a rail may die with frames
//! that have not arrived. So every sequenced frame also has a number in the bundle of all rails,
//! given together with its sequence on the rail that it goes out on. The receiver hands frames up
//! in the order of these numbers and keeps the ones that come early. What a dead rail has not had
//! acknowledged goes out on another one under the same number; the receiver drops what it has.
//!
//! No frame is given a number [`SPAN`] or more beyond the oldest that is unacknowledged, so that
//! is what the receiver keeps at the most. A frame must not be acknowledged on its rail, not even
//! by chance of another frame that goes the other way, and be unknown to [`Receiver`] while frames
//! of other rails are given to it: the caller serialises both steps for all rails.
//!
//! Numbers begin at 0 when an end makes its state for the other host. [`Epoch`] is how the two make
//! sure that they began together.

mod epoch;
mod receiver;
mod sender;

pub use epoch::{Epoch, Verdict, EPOCH_LEN};
pub use receiver::{Receiver, Rx};
pub use sender::Sender;

use super::rail::MAX_WINDOW;

/// Frames from the oldest unacknowledged one to the newest at the most, on all rails together.
pub const SPAN: u32 = MAX_WINDOW;

/// When this many frames have come since an acknowledgement of a rail was due, the other end may
/// soon have to wait for it.
pub const ACK_SPAN: u32 = SPAN / 4;

/// Counters of a bundle; they never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames that came early and were kept.
    pub held: u64,
    /// Frames that were here before.
    pub duplicates: u64,
    /// Frames beyond the span.
    pub beyond: u64,
    /// Frames of dead rails that were sent again.
    pub orphans: u64,
    /// Times that a frame could not be sent because an old one was unacknowledged.
    pub stalls: u64,
}
