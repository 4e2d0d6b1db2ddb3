//! The first level of `radix`: rows of a morsel are ordered by bucket, in place.
//!
//! A morsel and the scratch that it is scattered into fit the second-level cache together, so that every line of
//! the input is read once and written once. Nothing is allocated per row.

use super::hash::Space;
use std::ops::Range;

use crate::state::{Lane, LaneSliceMut, Word};

/// Rows of a morsel. Its widest usual lane (8 bytes) and the scratch take 512 KiB together.
pub(crate) const MORSEL_ROWS: usize = 1 << 15;

/// A piece of a batch that one worker orders by bucket.
pub(crate) struct Morsel<'a, K> {
    pub keys: &'a mut [K],
    pub lanes: Vec<LaneSliceMut<'a>>,
}

/// Cuts the given ranges of rows, ascending and apart, out of a batch.
pub(crate) fn cut<'a, K>(keys: &'a mut [K], lanes: &'a mut [Lane], ranges: &[Range<usize>]) -> Vec<Morsel<'a, K>> {
    let mut keys = keys;
    let mut lanes: Vec<LaneSliceMut<'a>> = lanes.iter_mut().map(Lane::as_mut).collect();
    let mut at = 0;
    let mut morsels = Vec::with_capacity(ranges.len());
    for range in ranges {
        let (_, rest) = std::mem::take(&mut keys).split_at_mut(range.start - at);
        let (own_keys, rest) = rest.split_at_mut(range.len());
        keys = rest;
        let mut own_lanes = Vec::with_capacity(lanes.len());
        let mut rest_lanes = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let (own, rest) = lane.split_at(range.start - at).1.split_at(range.len());
            own_lanes.push(own);
            rest_lanes.push(rest);
        }
        lanes = rest_lanes;
        at = range.end;
        morsels.push(Morsel { keys: own_keys, lanes: own_lanes });
    }
    morsels
}

/// Rows `0..rows` in morsels.
pub(crate) fn morsels(rows: usize) -> Vec<Range<usize>> {
    (0..rows).step_by(MORSEL_ROWS).map(|start| start..rows.min(start + MORSEL_ROWS)).collect()
}

/// Which bits of the hash make the bucket: `hash << skip >> (64 - bits)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digit {
    pub skip: u32,
    pub bits: u32,
}

impl Digit {
    pub fn buckets(self) -> usize {
        1 << self.bits
    }

    #[inline]
    pub fn of(self, hash: u64) -> usize {
        ((hash << self.skip) >> (64 - self.bits)) as usize
    }
}

/// Memory of one worker, reused from morsel to morsel.
#[derive(Default)]
pub(crate) struct Scratch<K> {
    /// Where each row goes.
    targets: Vec<u32>,
    keys: Vec<K>,
    w1: Vec<u8>,
    w2: Vec<u16>,
    w4: Vec<u32>,
    w8: Vec<u64>,
    w16: Vec<u128>,
    w32: Vec<[u64; 4]>,
}

/// Orders the rows of the morsel by bucket, keeping their order within a bucket. Returns where each bucket ends.
pub(crate) fn scatter<S: Space>(
    space: &S,
    morsel: &mut Morsel<'_, S::Key>,
    digit: Digit,
    scratch: &mut Scratch<S::Key>,
) -> Vec<u32> {
    let ends = places(morsel.keys.iter().map(|key| space.hash(*key)), digit, &mut scratch.targets);
    let targets = &scratch.targets;
    permute(morsel.keys, targets, &mut scratch.keys);
    for lane in &mut morsel.lanes {
        match lane {
            LaneSliceMut::W1(values) => permute(values, targets, &mut scratch.w1),
            LaneSliceMut::W2(values) => permute(values, targets, &mut scratch.w2),
            LaneSliceMut::W4(values) => permute(values, targets, &mut scratch.w4),
            LaneSliceMut::W8(values) => permute(values, targets, &mut scratch.w8),
            LaneSliceMut::W16(values) => permute(values, targets, &mut scratch.w16),
            LaneSliceMut::W32(values) => permute(values, targets, &mut scratch.w32),
        }
    }
    ends
}

/// Where rows of these hashes go when they are ordered by bucket, keeping their order within a bucket. Returns where each
/// bucket ends.
pub(crate) fn places(hashes: impl Iterator<Item = u64>, digit: Digit, places: &mut Vec<u32>) -> Vec<u32> {
    let mut ends = vec![0u32; digit.buckets()];
    places.clear();
    places.extend(hashes.map(|hash| {
        let bucket = digit.of(hash);
        ends[bucket] += 1;
        bucket as u32
    }));
    let mut cursors = Vec::with_capacity(ends.len());
    let mut sum = 0;
    for end in &mut ends {
        cursors.push(sum);
        sum += *end;
        *end = sum;
    }
    for place in places {
        let cursor = &mut cursors[*place as usize];
        *place = *cursor;
        *cursor += 1;
    }
    ends
}

fn permute<W: Word>(values: &mut [W], targets: &[u32], scratch: &mut Vec<W>) {
    scratch.resize(values.len().max(scratch.len()), W::default());
    let scratch = &mut scratch[..values.len()];
    for (value, target) in values.iter().zip(targets) {
        scratch[*target as usize] = *value;
    }
    values.copy_from_slice(scratch);
}
