//! The sending half of a bundle.

use super::super::rail::Bits;
use super::{Stats, SPAN};

/// Numbers for frames, and which of them are acknowledged.
#[derive(Debug, Default)]
pub struct Sender {
    /// The oldest unacknowledged number, and the next to be given.
    una: u32,
    nxt: u32,
    /// Claims that are not committed.
    reserved: u32,
    /// Acknowledged, of the numbers from `una` on.
    acknowledged: Bits,
    /// Somebody found no room.
    refused: bool,
    stalls: u64,
    orphans: u64,
}

impl Sender {
    /// Nothing is sent yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on where one rail alone has given the numbers, without asking: `una` is the oldest
    /// unacknowledged one, `nxt` the next, and `reserved` claims are to be committed or given back.
    pub fn resume(una: u32, nxt: u32, reserved: u32) -> Self {
        Self {
            una,
            nxt,
            reserved,
            ..Self::default()
        }
    }

    /// Frames that could be reserved now.
    pub fn room(&self) -> u32 {
        SPAN.saturating_sub(self.nxt.wrapping_sub(self.una) + self.reserved)
    }

    /// Claims a number; to be used by [`commit`](Self::commit) or given back by
    /// [`cancel`](Self::cancel). `false`: there is no room, and
    /// [`take_resume`](Self::take_resume) will tell when there is.
    pub fn reserve(&mut self) -> bool {
        if self.room() == 0 {
            self.refused = true;
            self.stalls += 1;
            return false;
        }
        self.reserved += 1;
        true
    }

    /// Gives a claim back.
    pub fn cancel(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// The number of the claimed frame, which is sent now.
    pub fn commit(&mut self) -> u32 {
        self.cancel();
        let seq = self.nxt;
        self.nxt = seq.wrapping_add(1);
        seq
    }

    /// The rail that the frame was sent on says that it has arrived.
    pub fn acknowledged(&mut self, seq: u32) {
        if seq.wrapping_sub(self.una) >= self.nxt.wrapping_sub(self.una) {
            // It arrived on two rails.
            return;
        }
        self.acknowledged.insert(seq);
        while self.acknowledged.contains(self.una) {
            self.acknowledged.remove(self.una);
            self.una = self.una.wrapping_add(1);
        }
    }

    /// The frame is not acknowledged yet.
    pub fn is_open(&self, seq: u32) -> bool {
        seq.wrapping_sub(self.una) < self.nxt.wrapping_sub(self.una)
            && !self.acknowledged.contains(seq)
    }

    /// A frame of a dead rail was sent on another one.
    pub fn orphan_sent(&mut self) {
        self.orphans += 1;
    }

    /// For whoever looks after those who wait: somebody was refused by something else than the
    /// span.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// Somebody was refused and there is room now. Told once.
    pub fn take_resume(&mut self) -> bool {
        self.room() > 0 && core::mem::take(&mut self.refused)
    }

    /// Fills in what this half has counted.
    pub fn stats(&self, stats: &mut Stats) {
        stats.stalls = self.stalls;
        stats.orphans = self.orphans;
    }
}
