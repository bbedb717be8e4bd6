//! Disturbing frames, in a way that can be repeated.

use crate::protocol::{Fault, FaultKind, When};

/// A fault that was set, and where it stands.
#[derive(Debug)]
pub(crate) struct Active {
    fault: Fault,
    seen: u64,
    random: Random,
}

impl Active {
    pub(crate) fn new(fault: Fault) -> Result<Self, String> {
        let seed = match fault.when {
            When::Chance { probability, .. } if !(0.0..=1.0).contains(&probability) => {
                return Err(format!("{probability} is no probability from 0 to 1"));
            }
            When::Chance { seed, .. } => seed,
            When::Nth { n: 0 } => return Err("frames are counted from 1".to_owned()),
            When::Nth { .. } => 0,
        };
        Ok(Self {
            fault,
            seen: 0,
            random: Random(seed),
        })
    }

    /// What happens to the next frame.
    pub(crate) fn next(&mut self) -> Option<FaultKind> {
        self.seen += 1;
        let hit = match self.fault.when {
            When::Chance { probability, .. } => self.random.chance() < probability,
            When::Nth { n } => self.seen == n,
        };
        hit.then_some(self.fault.kind)
    }

    /// A bit of a frame of `length` bytes.
    pub(crate) fn bit(&mut self, length: usize) -> (usize, u8) {
        let bit = self.random.next() % (length.max(1) as u64 * 8);
        ((bit / 8) as usize, 1 << (bit % 8))
    }
}

/// SplitMix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From 0 up to, not including, 1.
    fn chance(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(when: When, frames: usize) -> Vec<usize> {
        let mut active = Active::new(Fault {
            kind: FaultKind::Drop,
            when,
        })
        .unwrap();
        (1..=frames).filter(|_| active.next().is_some()).collect()
    }

    #[test]
    fn the_nth_frame_only() {
        assert_eq!(hits(When::Nth { n: 3 }, 10), [3]);
    }

    #[test]
    fn chance_is_right_and_repeats() {
        let when = When::Chance {
            probability: 0.01,
            seed: 7,
        };
        let first = hits(when.clone(), 100_000);
        assert!((900..1100).contains(&first.len()), "{}", first.len());
        assert_eq!(first, hits(when, 100_000));
        assert!(hits(
            When::Chance {
                probability: 0.0,
                seed: 1
            },
            1000
        )
        .is_empty());
        assert_eq!(
            hits(
                When::Chance {
                    probability: 1.0,
                    seed: 1
                },
                1000
            )
            .len(),
            1000
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for when in [
            When::Nth { n: 0 },
            When::Chance {
                probability: 1.5,
                seed: 0,
            },
            When::Chance {
                probability: f64::NAN,
                seed: 0,
            },
        ] {
            assert!(Active::new(Fault {
                kind: FaultKind::Drop,
                when
            })
            .is_err());
        }
    }
}
