//! Two levels: rows are ordered by the high bits of their hash, then each bucket is merged on its own.
//!
//! Ordering happens within morsels that fit the second-level cache, in place: the input is read and written once, no
//! memory is taken for it, and a bucket's rows lie in stretches of some hundred rows that are read in order. So the
//! table of a bucket is the only memory that is accessed at random, and it is in cache. What is left to prefetch is the
//! next stretch, whose first lines no pattern announces.
//!
//! No locks and no shared tables: a worker owns a morsel in the first phase and a bucket in the second, and claims
//! both one by one. A bucket's table of groups fits the cache that its worker has to itself.
//!
//! A bucket with far more rows than the others is ordered once more, by the next bits. What is still too big then has
//! few keys, as has any bucket of a small domain: it is cut into shares, which are merged apart, and their tables
//! after them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::batches::Batches;
use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;
use super::prefetch::{prefetch, prefetch_lane};
use super::scatter::{Digit, Scratch, cut, morsels, scatter};
use super::{MergeError, parallel};
use crate::state::StateError;

/// 256 buckets: a bucket of 8 million groups of 24 bytes still fits a second-level cache of 1 MiB.
const BUCKET_BITS: u32 = 8;
pub(crate) const BUCKETS: Digit = Digit { skip: 0, bits: BUCKET_BITS };
/// Rows of the next stretch that are fetched while this one is merged: some more than a stretch of an even spread has.
const PREFETCH_ROWS: usize = 256;
/// A bucket is oversized above this many times the mean, and this many rows.
const OVERSIZE: usize = 8;
const OVERSIZE_ROWS_MIN: usize = 1 << 16;

/// Rows of one bucket that lie side by side in one batch.
type Stretch = (usize, Range<usize>);
/// The rows of one bucket, in the order of the inputs.
type Bucket = Vec<Stretch>;

pub(crate) fn merge<S: Space>(
    space: &S,
    mut batches: Batches<S::Key>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let whole = batches
        .keys
        .iter()
        .enumerate()
        .flat_map(|(batch, keys)| morsels(keys.len()).into_iter().map(move |rows| (batch, rows)));
    let limit = (batches.rows() / BUCKETS.buckets() * OVERSIZE).max(OVERSIZE_ROWS_MIN);
    let whole = whole.collect();
    let (mut buckets, oversized): (Vec<Bucket>, Vec<Bucket>) =
        order(space, &mut batches, whole, BUCKETS, threads)?.into_iter().partition(|bucket| rows(bucket) <= limit);
    let (mut heavy, oversized) =
        if space.domain().is_some() { (oversized, Vec::new()) } else { (Vec::new(), oversized) };
    for bucket in oversized {
        let digit = Digit { skip: BUCKET_BITS, bits: BUCKET_BITS };
        for bucket in order(space, &mut batches, bucket, digit, threads)? {
            if rows(&bucket) <= limit { buckets.push(bucket) } else { heavy.push(bucket) }
        }
    }
    let mut finished = merge_buckets(space, &batches, buckets, threads)?;
    for bucket in heavy {
        let shares = share(bucket, threads);
        let tables = merge_buckets(space, &batches, shares, threads)?;
        let again = Batches::again(tables, batches.states.functions(), threads)?;
        let all = again.keys.iter().enumerate().map(|(batch, keys)| (batch, 0..keys.len())).collect();
        finished.extend(merge_buckets(space, &again, vec![all], threads)?);
    }
    Ok(finished)
}

fn rows(bucket: &Bucket) -> usize {
    bucket.iter().map(|(_, rows)| rows.len()).sum()
}

/// Orders the rows of every stretch by a digit of the hash. The result has one bucket per value of the digit.
fn order<S: Space>(
    space: &S,
    batches: &mut Batches<S::Key>,
    stretches: Vec<Stretch>,
    digit: Digit,
    threads: usize,
) -> Result<Vec<Bucket>, MergeError> {
    let mut tasks = Vec::with_capacity(stretches.len());
    let mut rest = stretches.as_slice();
    for (batch, (keys, lanes)) in batches.keys.iter_mut().zip(&mut batches.lanes).enumerate() {
        let own = rest.iter().take_while(|(of, _)| *of == batch).count();
        let ranges: Vec<Range<usize>> = rest[..own].iter().map(|(_, rows)| rows.clone()).collect();
        rest = &rest[own..];
        tasks.extend(cut(keys, lanes, &ranges));
    }
    let ends = parallel::each(threads, tasks, Scratch::default, |scratch, mut morsel| {
        Ok::<_, MergeError>(scatter(space, &mut morsel, digit, scratch))
    })?;
    let mut buckets: Vec<Bucket> = vec![Vec::with_capacity(stretches.len()); digit.buckets()];
    for ((batch, rows), ends) in stretches.into_iter().zip(ends) {
        let mut from = rows.start;
        for (bucket, end) in buckets.iter_mut().zip(ends) {
            let to = rows.start + end as usize;
            if from < to {
                bucket.push((batch, from..to));
            }
            from = to;
        }
    }
    Ok(buckets)
}

fn merge_buckets<S: Space>(
    space: &S,
    batches: &Batches<S::Key>,
    buckets: Vec<Bucket>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let Batches { keys, lanes, states } = batches;
    // Buckets of one hash are alike: the greatest number of groups so far is the best guess for the next.
    let groups_seen = AtomicUsize::new(0);
    // Keys of a small domain have a slot each.
    let slots = space.domain().unwrap_or(0) >> BUCKET_BITS;
    let finished = parallel::each(
        threads,
        buckets,
        || Cells::new(states),
        |cells, bucket| {
            cells.reserve(groups_seen.load(Ordering::Relaxed).max(slots));
            for (at, (batch, rows)) in bucket.iter().enumerate() {
                if let Some(next) = bucket.get(at + 2) {
                    space.prefetch_ends(next.clone());
                }
                if let Some((batch, rows)) = bucket.get(at + 1) {
                    space.prefetch_keys((*batch, rows.clone()));
                    let rows = rows.start..rows.end.min(rows.start + PREFETCH_ROWS);
                    prefetch(&keys[*batch][rows.clone()]);
                    lanes[*batch].iter().for_each(|lane| prefetch_lane(&lane.slice(rows.clone())));
                }
                let lanes = &lanes[*batch];
                cells.merge(space, &keys[*batch][rows.clone()], |lane| lanes[lane].slice(rows.clone()))?;
            }
            let finished = cells.finish();
            groups_seen.fetch_max(finished.keys.len(), Ordering::Relaxed);
            Ok::<_, StateError>(finished)
        },
    );
    Ok(finished?)
}

/// A bucket in `count` shares of about as many rows, in order.
fn share(bucket: Bucket, count: usize) -> Vec<Bucket> {
    let each = rows(&bucket).div_ceil(count.max(1));
    let mut shares: Vec<Bucket> = vec![Vec::new()];
    let mut filled = 0;
    for stretch in bucket {
        if filled >= each {
            shares.push(Vec::new());
            filled = 0;
        }
        filled += stretch.1.len();
        if let Some(share) = shares.last_mut() {
            share.push(stretch);
        }
    }
    shares
}
