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

use super::hash::{Seed, Space};
use super::radix::BUCKETS;
use super::scatter::morsels;
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

/// Words of the keys of a batch, row by row, and the arena that they refer to.
pub(crate) fn fill(seed: Seed, batch: usize, mut keys: Bytes, order: Order) -> (Vec<u128>, Bytes) {
    let word = |hash: u64, place: usize| u128::from(hash) << 64 | u128::from(reference(batch, place));
    let mut words: Vec<u128> = Vec::with_capacity(keys.len());
    let mut start = 0;
    for (row, end) in keys.ends.iter().enumerate() {
        words.push(word(seed.bytes(&keys.bytes[start..*end as usize]), row));
        start = *end as usize;
    }
    if order == Order::Buckets {
        let (mut rows, mut scratch) = (Vec::new(), Bytes::default());
        for morsel in morsels(words.len()) {
            let first = morsel.start;
            by_bucket(&words[morsel.clone()], &mut rows);
            scratch.ends.clear();
            scratch.bytes.clear();
            let start = if first == 0 { 0 } else { keys.ends[first - 1] };
            for (place, row) in rows.iter().enumerate() {
                let row = first + *row as usize;
                words[row] = word((words[row] >> 64) as u64, first + place);
                let from = if row == 0 { 0 } else { keys.ends[row - 1] };
                append(&mut scratch.bytes, &keys.bytes, from as usize, keys.ends[row] as usize);
                scratch.ends.push(start + scratch.bytes.len() as u64);
            }
            keys.bytes[start as usize..][..scratch.bytes.len()].copy_from_slice(&scratch.bytes);
            keys.ends[morsel].copy_from_slice(&scratch.ends);
        }
    }
    (words, keys)
}

/// The rows of a morsel, by bucket and then in their order.
fn by_bucket(words: &[u128], rows: &mut Vec<u32>) {
    let bucket = |word: &u128| BUCKETS.of((word >> 64) as u64);
    let mut cursors = vec![0u32; BUCKETS.buckets() + 1];
    words.iter().for_each(|word| cursors[bucket(word) + 1] += 1);
    let mut sum = 0;
    for cursor in &mut cursors {
        sum += *cursor;
        *cursor = sum;
    }
    rows.clear();
    rows.resize(words.len(), 0);
    for (row, word) in (0u32..).zip(words) {
        let cursor = &mut cursors[bucket(word)];
        rows[*cursor as usize] = row;
        *cursor += 1;
    }
}

/// Appends `bytes[from..to]`. Most keys are short: a copy of constant length is several times faster than one of any.
#[inline]
fn append(out: &mut Vec<u8>, bytes: &[u8], from: usize, to: usize) {
    const SHORT_BYTES: usize = 32;
    let length = to - from;
    match bytes[from..].first_chunk::<SHORT_BYTES>() {
        Some(chunk) if length <= SHORT_BYTES => {
            out.extend_from_slice(chunk);
            out.truncate(out.len() - (SHORT_BYTES - length));
        }
        _ => out.extend_from_slice(&bytes[from..to]),
    }
}

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
