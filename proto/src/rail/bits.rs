//! A set of sequences within one window.

use super::MAX_WINDOW;

const WORDS: usize = MAX_WINDOW as usize / 64;

/// Sequences by their place modulo [`MAX_WINDOW`]. Only sequences less than that apart may be in
/// it at once, which the callers' windows guarantee; 2^32 is a multiple, so wrapping does no harm.
#[derive(Debug, Default)]
pub(in super::super) struct Bits([u64; WORDS]);

fn place(seq: u32) -> (usize, u64) {
    let at = seq % MAX_WINDOW;
    (at as usize / 64, 1 << (at % 64))
}

impl Bits {
    pub(in super::super) fn insert(&mut self, seq: u32) {
        let (word, bit) = place(seq);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    pub(in super::super) fn remove(&mut self, seq: u32) {
        let (word, bit) = place(seq);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(in super::super) fn contains(&self, seq: u32) -> bool {
        let (word, bit) = place(seq);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}
