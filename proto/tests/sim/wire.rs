//! One direction of a cable.

use super::Chance;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What the wire does to frames, in 1/1000.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Time from one end to the other, microseconds.
    pub delay: u64,
    pub loss: u32,
    pub duplication: u32,
    /// Frames that come up to 200 us late, so that others overtake them.
    pub reordering: u32,
    /// Frames with a flipped bit: the hardware's CRC finds it, and the driver drops them.
    pub corruption: u32,
    /// Frames that are lost besides, by their number on this wire from 0 on.
    pub lost: BTreeSet<u64>,
    /// Nothing passes in this time.
    pub cut: Range<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            delay: 5,
            loss: 0,
            duplication: 0,
            reordering: 0,
            corruption: 0,
            lost: BTreeSet::new(),
            cut: 0..0,
        }
    }
}

impl Faults {
    pub fn loss(permille: u32) -> Self {
        Self {
            loss: permille,
            ..Self::default()
        }
    }
}

/// One direction of a cable.
#[derive(Debug, Default)]
pub struct Wire {
    pub faults: Faults,
    /// Frames under way by arrival time, and a number that keeps order within it.
    under_way: BTreeMap<(u64, u64), Vec<u8>>,
    /// Frames that were put on the wire.
    pub count: u64,
    /// Of these, the ones that did not arrive.
    pub lost: u64,
}

impl Wire {
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            ..Self::default()
        }
    }

    pub fn send(&mut self, frame: Vec<u8>, now: u64, chance: &mut Chance) {
        let number = self.count;
        self.count += 1;
        let faults = &self.faults;
        let lost = chance.happens(faults.loss)
            || chance.happens(faults.corruption)
            || faults.lost.contains(&number)
            || faults.cut.contains(&now);
        if lost {
            self.lost += 1;
            return;
        }
        let mut at = now + faults.delay;
        if chance.happens(faults.reordering) {
            at += 1 + u64::from(chance.below(200));
        }
        if chance.happens(faults.duplication) {
            let again = at + u64::from(chance.below(50));
            self.under_way
                .insert((again, 2 * number + 1), frame.clone());
        }
        self.under_way.insert((at, 2 * number), frame);
    }

    /// The next frame that has arrived.
    pub fn receive(&mut self, now: u64) -> Option<Vec<u8>> {
        let entry = self.under_way.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    pub fn next_arrival(&self) -> Option<u64> {
        self.under_way.keys().next().map(|(at, _)| *at)
    }
}
