//! A source of chance that gives the same again for the same seed.

/// A linear congruential generator (Knuth's MMIX constants), of which the upper half is used.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        let mut chance = Self(seed);
        chance.next();
        chance
    }

    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(end)) >> 32) as u32
    }

    /// True in `permille` of 1000 cases.
    pub fn happens(&mut self, permille: u32) -> bool {
        self.below(1000) < permille
    }
}
