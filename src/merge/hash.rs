//! Seeded hashes of group keys, and when two keys are the same.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use crate::state::Word;

/// Keys of one form: how to hash and compare them.
pub(crate) trait Space: Sync {
    type Key: Word;
    fn hash(&self, key: Self::Key) -> u64;
    fn same(&self, a: Self::Key, b: Self::Key) -> bool;
    /// Asks for what [`Self::prefetch_keys`] is going to read of those rows of a batch that `radix` has ordered.
    fn prefetch_ends(&self, _: (usize, Range<usize>)) {}
    /// Asks for what comparing their keys is going to read, beside the words.
    fn prefetch_keys(&self, _: (usize, Range<usize>)) {}
    /// Number of keys that there can be, where it is small enough for a directly indexed table.
    fn domain(&self) -> Option<usize> {
        None
    }
    /// Places of keys in the domain, where there is one.
    fn numbers(&self, _: Vec<Self::Key>) -> Vec<u32> {
        unreachable!("only keys of a domain are numbered")
    }
    /// The key of that number.
    fn key(&self, _: u32) -> Self::Key {
        unreachable!("only keys of a domain are numbered")
    }
}

/// Random per process and merge, so that nobody can craft keys that collide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed([u64; 2]);

impl Seed {
    pub fn random() -> Self {
        let draw = || RandomState::new().build_hasher().finish();
        // The multiplier is odd, so that no bit of the key is lost.
        Self([draw(), draw() | 1])
    }

    /// Both halves of the 128-bit product folded into one: every bit of the key reaches the high bits (buckets) and
    /// the low bits (slots).
    #[inline]
    pub fn mix(self, value: u64) -> u64 {
        let product = u128::from(value ^ self.0[0]) * u128::from(self.0[1] ^ 0x9e37_79b9_7f4a_7c14);
        (product >> 64) as u64 ^ product as u64
    }

    pub fn bytes(self, bytes: &[u8]) -> u64 {
        let mut hasher = foldhash::fast::FixedState::with_seed(self.0[0]).build_hasher();
        hasher.write(bytes);
        self.mix(hasher.finish())
    }
}

/// Keys packed into one word.
pub(crate) struct Packed<K> {
    seed: Seed,
    word: std::marker::PhantomData<fn(K)>,
}

impl<K> Packed<K> {
    pub fn new(seed: Seed) -> Self {
        Self { seed, word: std::marker::PhantomData }
    }
}

impl Space for Packed<u32> {
    type Key = u32;
    #[inline]
    fn hash(&self, key: u32) -> u64 {
        self.seed.mix(u64::from(key))
    }
    #[inline]
    fn same(&self, a: u32, b: u32) -> bool {
        a == b
    }
}

impl Space for Packed<u64> {
    type Key = u64;
    #[inline]
    fn hash(&self, key: u64) -> u64 {
        self.seed.mix(key)
    }
    #[inline]
    fn same(&self, a: u64, b: u64) -> bool {
        a == b
    }
}

impl Space for Packed<u128> {
    type Key = u128;
    #[inline]
    fn hash(&self, key: u128) -> u64 {
        self.seed.mix(self.seed.mix(key as u64).rotate_left(23) ^ (key >> 64) as u64)
    }
    #[inline]
    fn same(&self, a: u128, b: u128) -> bool {
        a == b
    }
}

impl Space for Packed<[u64; 4]> {
    type Key = [u64; 4];
    #[inline]
    fn hash(&self, key: [u64; 4]) -> u64 {
        key.iter().fold(0u64, |hash, limb| self.seed.mix(hash.rotate_left(23) ^ limb))
    }
    #[inline]
    fn same(&self, a: [u64; 4], b: [u64; 4]) -> bool {
        a == b
    }
}

/// Keys of few bits, which are their own hash: a slot for each, and buckets that are ranges of keys.
pub(crate) struct Direct {
    pub bits: u32,
}

impl Space for Direct {
    type Key = u32;
    #[inline]
    fn hash(&self, key: u32) -> u64 {
        u64::from(key) | u64::from(key) << (64 - self.bits)
    }
    #[inline]
    fn same(&self, a: u32, b: u32) -> bool {
        a == b
    }
    fn domain(&self) -> Option<usize> {
        Some(1 << self.bits)
    }
    fn numbers(&self, keys: Vec<u32>) -> Vec<u32> {
        keys
    }
    fn key(&self, number: u32) -> u32 {
        number
    }
}
