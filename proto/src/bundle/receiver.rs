//! The receiving half of a bundle.

use super::super::rail::Bits;
use super::{Stats, SPAN};

/// What to do with a frame that a rail has delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rx {
    /// Hand it up now, then ask [`Receiver::next_held`].
    Deliver,
    /// Keep it at `number % SPAN` until `next_held` names its number.
    Hold,
    /// It was here before: forget it.
    Duplicate,
    /// No honest sender is so far ahead: forget it.
    Beyond,
}

/// The order of frames over all rails.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The next number in order.
    expected: u32,
    held: Bits,
    held_count: u64,
    duplicates: u64,
    beyond: u64,
}

impl Receiver {
    /// Nothing has come yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next number in order.
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Takes the number of a frame that a rail has delivered.
    pub fn on_frame(&mut self, seq: u32) -> Rx {
        let ahead = seq.wrapping_sub(self.expected);
        if ahead == 0 {
            self.expected = seq.wrapping_add(1);
            return Rx::Deliver;
        }
        if self.expected.wrapping_sub(seq) <= SPAN || (ahead < SPAN && self.held.contains(seq)) {
            self.duplicates += 1;
            return Rx::Duplicate;
        }
        if ahead >= SPAN {
            self.beyond += 1;
            return Rx::Beyond;
        }
        self.held.insert(seq);
        self.held_count += 1;
        Rx::Hold
    }

    /// The caller cannot keep the frame, because no honest sender would have sent it yet.
    pub fn refuse(&mut self) {
        self.beyond += 1;
    }

    /// After a delivery: the next kept frame that is in order now.
    pub fn next_held(&mut self) -> Option<u32> {
        let seq = self.expected;
        if !self.held.contains(seq) {
            return None;
        }
        self.held.remove(seq);
        self.expected = seq.wrapping_add(1);
        Some(seq)
    }

    /// Fills in what this half has counted.
    pub fn stats(&self, stats: &mut Stats) {
        stats.held = self.held_count;
        stats.duplicates = self.duplicates;
        stats.beyond = self.beyond;
    }
}
