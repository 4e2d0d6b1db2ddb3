//! Keys without a fixed width: bytes in an arena per batch, and words that refer to them.
//!
//! ```text
//! word: hash (64 bits) | batch (32) | place in the arena (32)
//! ```
//! Two words of different hashes are different keys, whatever the bytes; those of equal hashes are looked at.
//!
//! [`Order::Buckets`] lays the bytes of every morsel out in the order into which `radix` is going to bring its rows. The
//! words still stand in the order of the rows. So who merges a bucket reads the bytes of its rows one after the other,
//! and the bytes of its groups, which are those of some of its rows, lie close together: they stay in the cache. With
//! bytes in the order of the rows, both cost a miss per row (bench/results/2026-11-30-2core/merge.md).

use std::ops::Range;

use super::hash::{Seed, Space};
use super::prefetch::prefetch;
use super::radix::BUCKETS;
use super::scatter::{self, morsels};
use crate::state::{reference, referenced};
use crate::wire::Bytes;

/// In which order the bytes of keys lie in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they came.
    Rows,
    /// By bucket, within every morsel.
    Buckets,
}

/// Memory of one worker, reused from batch to batch.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Where each row of a morsel goes, and which row has come to each place.
    places: Vec<u32>,
    rows: Vec<u32>,
    /// What the keys are copied to. The arena of one batch becomes the scratch of the next, so that no memory is fresh.
    keys: Bytes,
}

/// Words of the keys of a batch, row by row, and the arena that they refer to.
pub(crate) fn fill(
    seed: Seed,
    batch: usize,
    mut keys: Bytes,
    order: Order,
    scratch: &mut Scratch,
) -> (Vec<u128>, Bytes) {
    let word = |hash: u64, place: usize| u128::from(hash) << 64 | u128::from(reference(batch, place));
    let mut words: Vec<u128> = Vec::with_capacity(keys.len());
    let mut start = 0;
    for (row, end) in keys.ends.iter().enumerate() {
        words.push(word(seed.bytes(&keys.bytes[start..*end as usize]), row));
        start = *end as usize;
    }
    if order == Order::Buckets {
        let Scratch { places, rows, keys: ordered } = scratch;
        ordered.ends.clear();
        ordered.bytes.clear();
        ordered.ends.reserve(words.len());
        ordered.bytes.reserve(keys.bytes.len());
        for morsel in morsels(words.len()) {
            let first = morsel.start;
            let words = &mut words[morsel];
            scatter::places(words.iter().map(|word| (word >> 64) as u64), BUCKETS, places);
            rows.resize(words.len(), 0);
            for ((row, own), place) in (0u32..).zip(words).zip(places.iter()) {
                rows[*place as usize] = row;
                *own = word((*own >> 64) as u64, first + *place as usize);
            }
            for row in rows.iter() {
                keys.append_row(first + *row as usize, &mut ordered.bytes);
                ordered.end_row();
            }
        }
        std::mem::swap(&mut keys, ordered);
    }
    (words, keys)
}

/// Bytes of the next stretch that are fetched at most.
const PREFETCH_BYTES: u64 = 1 << 13;

/// Keys in arenas, by batch.
pub(crate) struct InArenas<'a> {
    pub arenas: &'a [Bytes],
}

impl Space for InArenas<'_> {
    type Key = u128;
    #[inline]
    fn hash(&self, key: u128) -> u64 {
        (key >> 64) as u64
    }
    #[inline]
    fn same(&self, a: u128, b: u128) -> bool {
        a == b
            || (a >> 64 == b >> 64 && same_bytes(referenced(self.arenas, a as u64), referenced(self.arenas, b as u64)))
    }
    fn prefetch_ends(&self, (batch, rows): (usize, Range<usize>)) {
        if let Some(ends) = self.arenas.get(batch).and_then(|arena| arena.ends.get(rows)) {
            prefetch(ends);
        }
    }
    fn prefetch_keys(&self, (batch, rows): (usize, Range<usize>)) {
        // The places of rows in order are the rows themselves. (Of tables merged before, they are any: no harm done.)
        let Some(arena) = self.arenas.get(batch) else { return };
        if let Some([first, .., last]) = arena.ends.get(rows) {
            prefetch(&arena.bytes[*first as usize..(*last).min(*first + PREFETCH_BYTES) as usize]);
        }
    }
}

/// By words of eight bytes, the last of which may overlap: a call for a comparison of any length takes longer than that.
#[inline]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let ((a_words, _), (b_words, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(a_last), Some(b_last)) => {
            a_last == b_last
                && a_words.iter().zip(b_words).all(|(a, b)| u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b))
        }
        _ => a == b,
    }
}
