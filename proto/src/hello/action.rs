//! What the two ends agree on, and what the state machine asks of its caller.

use super::message::{Facts, Message, Refusal, MAX_RAILS};

/// Where an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Saying HELLO.
    Greeting,
    /// The caller is enabling the paths.
    Enabling,
    /// Pings are under way.
    Proving,
    /// Data may flow.
    Ready,
}

/// What both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The other end's facts.
    pub peer: Facts,
    /// Version to speak.
    pub version: u8,
    /// Features that both have.
    pub features: u32,
    /// Rails to use.
    pub rails: u8,
    /// Frames in flight at the most, in both directions.
    pub window: u16,
    /// HopIDs to receive on, one for each rail: those that the other end transmits on.
    pub rx_hops: [u16; MAX_RAILS],
    /// First sequences of the rails, to send and to receive. They follow from both link nonces,
    /// so a frame of an earlier attempt that comes late is outside of every window.
    pub first_seqs: (u32, u32),
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this as an XDomain request, and report how it went with
    /// `Hello::on_response` or `Hello::on_request_failed`.
    Request(Message),
    /// Enable the paths and start the rails; report with `Hello::paths_enabled` or
    /// `Hello::paths_failed`.
    EnablePaths(Agreed),
    /// Send a ping on every rail; report with `Hello::proven` when each was answered.
    Ping,
    /// Data may flow.
    Ready(Agreed),
    /// Data flows no more. Stop the rails, disable the paths, then go on polling.
    Down,
    /// Choose other HopIDs to transmit on, and give them with `Hello::set_hops`. It comes again
    /// slowly until that was done.
    OtherHops,
    /// Tell the user, once, that the other end refuses.
    Refused(Refusal),
}

/// Where the rails of an attempt of `sender` begin to count, given the receiver's attempt. Nonces
/// of neighbouring attempts are close; the numbers have to be far apart.
pub(super) fn first_seq(sender: u64, receiver: u64) -> u32 {
    let mut mixed = sender.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ receiver.rotate_left(32);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 32) as u32
}
