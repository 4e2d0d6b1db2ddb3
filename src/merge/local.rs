//! `fixed`: every worker merges a stretch of the inputs into a table of its own; the workers' tables are then merged by
//! ranges of the hash, which for keys of a small domain are ranges of the key.
//!
//! For tables that fit the cache of a core: rows are read where they lie, nothing is moved first, and no skew of the
//! keys makes one worker do the work of all.

use super::batches::Batches;
use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;
use super::{MergeError, parallel, radix};
use crate::state::StateError;

/// Rows that find their groups at once, before their states are merged.
const RUN_ROWS: usize = 1 << 12;

pub(crate) fn merge<S: Space>(
    space: &S,
    batches: Batches<S::Key>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let Batches { keys, lanes, states } = &batches;
    let finished = parallel::each(
        threads,
        shares(keys, threads),
        || (),
        |(), share| {
            let mut cells = Cells::new(states);
            // No more slots than rows: a table of few groups is not to cost more than its rows do.
            let rows = share.iter().map(|(_, rows)| rows.len()).sum();
            cells.reserve(space.domain().unwrap_or(0).min(rows));
            for (batch, rows) in share {
                for start in rows.clone().step_by(RUN_ROWS) {
                    let run = start..rows.end.min(start + RUN_ROWS);
                    let lanes = &lanes[batch];
                    cells.merge(space, &keys[batch][run.clone()], |lane| lanes[lane].slice(run.clone()))?;
                }
            }
            Ok::<_, StateError>(cells.finish())
        },
    )?;
    if finished.len() == 1 {
        return Ok(finished);
    }
    radix::merge(space, Batches::again(finished, states.functions(), threads)?, threads)
}

/// The inputs in `count` shares of about as many rows each, in order.
fn shares<K>(keys: &[Vec<K>], count: usize) -> Vec<Vec<(usize, std::ops::Range<usize>)>> {
    let total: usize = keys.iter().map(Vec::len).sum();
    let each = total.div_ceil(count.max(1)).max(1);
    let mut shares = vec![Vec::new()];
    let mut room = each;
    for (batch, keys) in keys.iter().enumerate() {
        let mut start = 0;
        while start < keys.len() {
            if room == 0 {
                shares.push(Vec::new());
                room = each;
            }
            let end = keys.len().min(start + room);
            room -= end - start;
            if let Some(share) = shares.last_mut() {
                share.push((batch, start..end));
            }
            start = end;
        }
    }
    shares
}
