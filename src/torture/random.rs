//! Numbers by chance from a seed, so that a run's choices can be repeated (its interleavings cannot).

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another source of numbers, which depends on this one and on `number`.
    pub fn split(&self, number: u64) -> Self {
        let mut random = Self(self.0 ^ number.wrapping_mul(0xD1B5_4A32_D192_ED03));
        random.number();
        random
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }

    pub fn between(&mut self, least: i64, greatest: i64) -> i64 {
        least + self.below((greatest - least + 1) as usize) as i64
    }

    /// True in `share` of a hundred cases.
    pub fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(items[self.below(items.len())]) }
    }
}
