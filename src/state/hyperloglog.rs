//! uniqCombined, uniqCombined64 and uniqHLL12: a small set, then a hash set, then a HyperLogLog.
//!
//! ```text
//! uniqCombined: u8 kind | 1, 2: varint count | key, count times     (1: at most 16 keys)
//!                       | 3: counter
//! uniqHLL12:    u8 is-large | 0: varint count | value or u64 hash, count times (at most 16) | 1: counter
//! counter:      2^K ranks of 5 bits (6 for 64-bit keys), least significant first
//!               | u32 number of ranks of each value 0..=rank_max | u16 or u32 number of ranks that are 0
//! ```
//! Written by ClickHouse 26.9: `CombinedCardinalityEstimator.h`, `HyperLogLogCounter.h`. Keys of uniqCombined have 8
//! bytes over String and IPv6, as those of uniqCombined64 have, and 4 otherwise. Only precisions of 12 and more are
//! known: below, the counter keeps a floating-point sum that depends on the compiler.

use hashbrown::HashSet;

use super::Word;
use super::sketch::{Sketch, words};
use crate::wire::{Reader, WireError, write_varint};

const SMALL: u8 = 1;
const MEDIUM: u8 = 2;
const LARGE: u8 = 3;
const SMALL_KEYS_MAX: usize = 16;

/// Which of the two functions, and the shape of its counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Bits of the hash that choose a rank: K of 12 to 20.
    pub precision: u32,
    /// Bits of a key: 32 or 64.
    pub key_bits: u32,
    pub hll12: Option<Hll12>,
}

/// What the set of uniqHLL12 holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hll12 {
    /// Numbers of so many bytes (at most 8); the counter takes their `intHash32`.
    Values(usize),
    /// Hashes of strings and the like, treated as numbers of 8 bytes.
    Hashes,
    /// Hashes of anything else and of several arguments, of which the counter takes the low half as it is.
    WholeHashes,
}

impl Form {
    fn buckets(self) -> usize {
        1 << self.precision
    }

    fn rank_max(self) -> u32 {
        self.key_bits - self.precision + 1
    }

    fn rank_bits(self) -> usize {
        if self.key_bits == 64 { 6 } else { 5 }
    }

    fn rank_bytes(self) -> usize {
        self.buckets() * self.rank_bits() / 8
    }

    fn zeros_bytes(self) -> usize {
        if self.precision < 16 { 2 } else { 4 }
    }

    fn counter_bytes(self) -> usize {
        self.rank_bytes() + (self.rank_max() as usize + 1) * 4 + self.zeros_bytes()
    }

    /// Bytes of a key in the sets.
    fn key_bytes(self) -> usize {
        match self.hll12 {
            Some(Hll12::Values(width)) => width,
            Some(Hll12::Hashes | Hll12::WholeHashes) => 8,
            None => self.key_bits as usize / 8,
        }
    }

    /// Keys of the medium set, from which on it turns into a counter.
    fn medium_max(self) -> usize {
        if self.hll12.is_some() {
            SMALL_KEYS_MAX
        } else {
            1 << (self.precision - if self.key_bits == 64 { 5 } else { 4 })
        }
    }
}

/// ClickHouse's `intHash32` of salt 0.
fn int_hash_32(value: u64) -> u32 {
    let mut key = (!value).wrapping_add(value << 18);
    key ^= key.rotate_right(31);
    key = key.wrapping_mul(21);
    key ^= key.rotate_right(11);
    key = key.wrapping_add(key << 6);
    key ^= key.rotate_right(22);
    key as u32
}

pub(super) enum Counter {
    /// Keys in the order of their coming, which is that of the small set.
    Set { keys: HashSet<u64, foldhash::fast::RandomState>, is_small: bool },
    /// One rank per bucket, unpacked.
    Ranks(Vec<u8>),
}

impl Counter {
    fn insert(&mut self, form: Form, key: u64) {
        match self {
            Self::Ranks(ranks) => raise(ranks, form, key),
            Self::Set { keys, is_small } => {
                let max = if *is_small { SMALL_KEYS_MAX } else { form.medium_max() };
                // The small set looks before it grows; the medium one turns into a counter at its limit, come what may.
                if *is_small && keys.contains(&key) {
                    return;
                }
                if keys.len() < max {
                    keys.insert(key);
                } else if *is_small && form.hll12.is_none() {
                    *is_small = false;
                    keys.insert(key);
                } else {
                    raise(self.make_ranks(form), form, key);
                }
            }
        }
    }

    fn make_ranks(&mut self, form: Form) -> &mut Vec<u8> {
        if let Self::Set { keys, .. } = self {
            let mut ranks = vec![0; form.buckets()];
            keys.iter().for_each(|key| raise(&mut ranks, form, *key));
            *self = Self::Ranks(ranks);
        }
        match self {
            Self::Ranks(ranks) => ranks,
            Self::Set { .. } => unreachable!("it was just made a counter"),
        }
    }
}

fn raise(ranks: &mut [u8], form: Form, key: u64) {
    let hash = match form.hll12 {
        Some(Hll12::Values(_) | Hll12::Hashes) => u64::from(int_hash_32(key)),
        Some(Hll12::WholeHashes) => u64::from(key as u32),
        None => key,
    };
    let bucket = hash as usize & (form.buckets() - 1);
    let tail = hash >> form.precision;
    let rank = if tail == 0 { form.rank_max() } else { (tail.trailing_zeros() + 1).min(form.rank_max()) };
    ranks[bucket] = ranks[bucket].max(rank as u8);
}

impl Sketch for Counter {
    type Form = Form;

    fn skip(form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        if read_kind(*form, reader)? == LARGE {
            return reader.take(form.counter_bytes()).map(drop);
        }
        let count = reader.count("keys of uniqCombined", form.key_bytes())?;
        reader.take_values(count, form.key_bytes()).map(drop)
    }

    fn empty(_: &Form) -> Self {
        Self::Set { keys: HashSet::default(), is_small: true }
    }

    fn absorb(&mut self, form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let kind = read_kind(*form, reader)?;
        if kind == LARGE {
            let bytes = reader.take(form.counter_bytes())?;
            let ranks = self.make_ranks(*form);
            let width = form.rank_bits();
            for (bucket, rank) in ranks.iter_mut().enumerate() {
                let bit = bucket * width;
                let pair = u16::from_le_bytes([bytes[bit / 8], bytes[bit / 8 + 1]]);
                *rank = (*rank).max((pair >> (bit % 8)) as u8 & ((1 << width) - 1));
            }
            return Ok(());
        }
        if let (MEDIUM, Self::Set { is_small, .. }) = (kind, &mut *self) {
            *is_small = false;
        }
        let count = reader.count("keys of uniqCombined", form.key_bytes())?;
        match form.key_bytes() {
            1 => words::<u8>(reader, count)?.for_each(|key| self.insert(*form, u64::from(key))),
            2 => words::<u16>(reader, count)?.for_each(|key| self.insert(*form, u64::from(key))),
            4 => words::<u32>(reader, count)?.for_each(|key| self.insert(*form, u64::from(key))),
            _ => words::<u64>(reader, count)?.for_each(|key| self.insert(*form, key)),
        }
        Ok(())
    }

    fn write(&mut self, form: &Form, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Ranks(_) => LARGE,
            Self::Set { is_small: true, .. } => SMALL,
            Self::Set { .. } => MEDIUM,
        };
        out.push(if form.hll12.is_some() { u8::from(kind == LARGE) } else { kind });
        match self {
            Self::Set { keys, .. } => {
                write_varint(out, keys.len() as u64);
                keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()[..form.key_bytes()]));
            }
            Self::Ranks(ranks) => write_counter(ranks, *form, out),
        }
    }
}

fn write_counter(ranks: &[u8], form: Form, out: &mut Vec<u8>) {
    let start = out.len();
    let width = form.rank_bits();
    // One byte more, so that the last rank can be written as a pair.
    out.resize(start + form.rank_bytes() + 1, 0);
    let mut counts = vec![0u32; form.rank_max() as usize + 1];
    for (bucket, rank) in ranks.iter().enumerate() {
        let bit = bucket * width;
        let [low, high] = (u16::from(*rank) << (bit % 8)).to_le_bytes();
        out[start + bit / 8] |= low;
        out[start + bit / 8 + 1] |= high;
        counts[usize::from(*rank).min(form.rank_max() as usize)] += 1;
    }
    out.pop();
    counts.iter().for_each(|count| count.write(out));
    out.extend_from_slice(&counts[0].to_le_bytes()[..form.zeros_bytes()]);
}

fn read_kind(form: Form, reader: &mut Reader<'_>) -> Result<u8, WireError> {
    match (form.hll12.is_some(), reader.u8()?) {
        (true, 0) => Ok(SMALL),
        (true, 1) => Ok(LARGE),
        (false, kind @ SMALL..=LARGE) => Ok(kind),
        (_, kind) => Err(reader.malformed(format!("a set of kind {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_clickhouse() {
        // SELECT intHash32(1), intHash32(2), intHash32(12345678901) on 26.9; the SQL function has a salt of its own.
        let salted = |value: u64| int_hash_32(value ^ 0x75d9_543d_e018_bf45);
        assert_eq!([1, 2, 12_345_678_901].map(salted), [1_343_103_100, 1_996_614_413, 2_302_547_692]);
    }

    #[test]
    fn the_counter_has_the_size_that_clickhouse_writes() {
        // length(CAST(uniqCombinedState(K)(number) AS String)) - 1 for a million numbers on 26.9.
        let bytes = |precision, key_bits| Form { precision, key_bits, hll12: None }.counter_bytes();
        assert_eq!([bytes(12, 32), bytes(16, 32), bytes(17, 32), bytes(20, 32)], [2650, 41036, 81992, 655_420]);
        assert_eq!([bytes(12, 64), bytes(16, 64), bytes(17, 64), bytes(20, 64)], [3290, 49356, 98504, 786_620]);
    }
}
