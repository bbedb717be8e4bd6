//! The bytes of a message: a function of seed, stream, message number and place.

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which bytes a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    base: u64,
}

impl Pattern {
    /// Of message `number` in the stream of one direction.
    pub fn new(seed: u64, stream: u64, number: u64) -> Self {
        let mut base = seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        base = (base ^ (base >> 32)).wrapping_add(number.wrapping_mul(MIX));
        base = (base ^ (base >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self {
            base: base ^ (base >> 32),
        }
    }

    fn word(self, index: usize) -> u64 {
        self.base
            .wrapping_add((index as u64).wrapping_mul(MIX))
            .rotate_left(17)
    }

    /// Writes the message.
    pub fn fill(self, to: &mut [u8]) {
        for (index, chunk) in to.chunks_mut(8).enumerate() {
            let word = self.word(index).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// The first byte that is not as it should be.
    pub fn mismatch(self, bytes: &[u8]) -> Option<usize> {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let word = self.word(index).to_le_bytes();
            if chunk != &word[..chunk.len()] {
                let within = chunk
                    .iter()
                    .zip(word)
                    .position(|(a, b)| *a != b)
                    .unwrap_or(0);
                return Some(index * 8 + within);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_matches_and_nothing_else_does() {
        for size in [1, 7, 8, 64, 4099] {
            let pattern = Pattern::new(1, 0, 5);
            let mut bytes = vec![0; size];
            pattern.fill(&mut bytes);
            assert_eq!(pattern.mismatch(&bytes), None);
            for at in [0, size / 2, size - 1] {
                bytes[at] ^= 0x40;
                assert_eq!(pattern.mismatch(&bytes), Some(at));
                bytes[at] ^= 0x40;
            }
        }
    }

    #[test]
    fn neighbours_differ() {
        let mut seen = std::collections::HashSet::new();
        for stream in 0..2 {
            for number in 0..10_000 {
                assert!(seen.insert(Pattern::new(1, stream, number).base));
            }
        }
        let (mut a, mut b) = ([0; 16], [0; 16]);
        Pattern::new(1, 0, 0).fill(&mut a);
        Pattern::new(2, 0, 0).fill(&mut b);
        assert_ne!(a, b);
        assert_ne!(a[..8], a[8..]);
    }
}
