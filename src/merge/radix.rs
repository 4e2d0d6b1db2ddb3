//! Two levels: rows are ordered by the high bits of their hash, then each bucket is merged on its own.
//!
//! No locks and no shared tables: a worker owns a morsel in the first phase and a bucket in the second, and claims
//! both one by one. A bucket's table of groups fits the cache that its worker has to itself.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;
use super::scatter::{Digit, MORSEL_ROWS, Morsel, Scratch, scatter};
use super::{MergeError, States, parallel};
use crate::state::{Lane, LaneSlice, StateError};

/// 256 buckets: a bucket of 8 million groups of 24 bytes still fits a second-level cache of 1 MiB.
const BUCKET_BITS: u32 = 8;

/// Rows of one bucket that lie side by side in one batch.
type Stretch = (usize, Range<usize>);

pub(crate) fn merge<S: Space>(
    space: &S,
    mut keys: Vec<Vec<S::Key>>,
    mut lanes: Vec<Vec<Lane>>,
    states: &States,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let digit = Digit { skip: 0, bits: BUCKET_BITS };
    let morsels: Vec<_> = keys.iter_mut().zip(&mut lanes).flat_map(|(keys, lanes)| cut(keys, lanes)).collect();
    let ends = parallel::each(threads, morsels, Scratch::default, |scratch, mut morsel| {
        Ok::<_, MergeError>(scatter(space, &mut morsel, digit, scratch))
    })?;
    let buckets = stretches(&keys, &ends, digit.buckets());
    // Buckets of one hash are alike: the greatest number of groups so far is the best guess for the next.
    let groups_seen = AtomicUsize::new(0);
    parallel::each(
        threads,
        buckets,
        || Cells::new(states),
        |cells, bucket| {
            cells.reserve(groups_seen.load(Ordering::Relaxed));
            for (batch, rows) in bucket {
                let words: Vec<LaneSlice<'_>> = lanes[batch].iter().map(|lane| lane.slice(rows.clone())).collect();
                cells.merge(space, &keys[batch][rows], &words)?;
            }
            let finished = cells.finish();
            groups_seen.fetch_max(finished.keys.len(), Ordering::Relaxed);
            Ok::<_, StateError>(finished)
        },
    )
    .map_err(MergeError::from)
}

/// A batch in morsels.
fn cut<'a, K>(keys: &'a mut [K], lanes: &'a mut [Lane]) -> Vec<Morsel<'a, K>> {
    let mut pieces: Vec<_> = lanes.iter_mut().map(|lane| lane.chunks_mut(MORSEL_ROWS)).collect();
    keys.chunks_mut(MORSEL_ROWS)
        .map(|keys| Morsel { keys, lanes: pieces.iter_mut().filter_map(|lane| lane.next()).collect() })
        .collect()
}

/// Where the rows of each bucket are, in the order of the inputs. `ends` has the bucket ends of every morsel.
fn stretches<K>(keys: &[Vec<K>], ends: &[Vec<u32>], buckets: usize) -> Vec<Vec<Stretch>> {
    let mut stretches: Vec<Vec<Stretch>> = vec![Vec::with_capacity(ends.len()); buckets];
    let mut ends = ends.iter();
    for (batch, keys) in keys.iter().enumerate() {
        for (start, ends) in (0..keys.len()).step_by(MORSEL_ROWS).zip(&mut ends) {
            let mut from = start;
            for (bucket, end) in ends.iter().enumerate() {
                let to = start + *end as usize;
                if from < to {
                    stretches[bucket].push((batch, from..to));
                }
                from = to;
            }
        }
    }
    stretches
}
