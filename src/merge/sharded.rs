//! Tables behind locks: the hash chooses the table, and workers wait for one another where they meet.

use std::sync::Mutex;

use super::batches::Batches;
use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;
use super::scatter::{Digit, Scratch, cut, morsels, scatter};
use super::{MergeError, parallel};

/// Many times the workers, so that two rarely want the same.
const SHARD_BITS: u32 = 6;

/// On cache lines of its own, and on the one that is fetched with it: two workers wait for each other only where they want
/// the same shard.
#[repr(align(128))]
struct Shard<'a, K>(Mutex<Cells<'a, K>>);

pub(crate) fn merge<S: Space>(
    space: &S,
    mut batches: Batches<S::Key>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let digit = Digit { skip: 0, bits: SHARD_BITS };
    let states = &batches.states;
    let shards: Vec<Shard<'_, S::Key>> = (0..digit.buckets()).map(|_| Shard(Mutex::new(Cells::new(states)))).collect();
    let inputs = batches.keys.iter_mut().zip(&mut batches.lanes);
    let morsels = inputs.flat_map(|(keys, lanes)| {
        let ranges = morsels(keys.len());
        cut(keys, lanes, &ranges)
    });
    let morsels = morsels.collect();
    parallel::each(threads, morsels, Scratch::default, |scratch, mut morsel| {
        let ends = scatter(space, &mut morsel, digit, scratch);
        let mut start = 0;
        for (shard, end) in shards.iter().zip(ends) {
            let rows = start..end as usize;
            start = end as usize;
            if !rows.is_empty() {
                let mut cells = shard.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                cells.merge(space, &morsel.keys[rows.clone()], |lane| morsel.lanes[lane].rows(rows.clone()))?;
            }
        }
        Ok::<_, MergeError>(())
    })?;
    let finish =
        |shard: Shard<'_, S::Key>| shard.0.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).finish();
    Ok(shards.into_iter().map(finish).collect())
}
