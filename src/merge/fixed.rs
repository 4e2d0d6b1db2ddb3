//! `fixed` for keys of a small domain: a key is the number of its group, so that there is nothing to look up.
//!
//! Work is divided by state column: a worker takes one column through all rows, with no more than that column's table
//! in its cache, and no tables have to be merged afterwards. Whatever the skew of the keys, no worker gets the work of
//! all. Where the columns alone do not keep all workers busy, the rows are cut into shares as well, and the tables of
//! a column's shares are merged at the end.

use std::ops::Range;

use super::batches::{Batches, StateColumn};
use super::hash::Space;
use super::keys::Finished;
use super::{MergeError, parallel};
use crate::state::{Function, Lane, LaneSlice, Run, Split, StateError, Table};
use crate::wire::Data;

/// Groups of a piece of the result.
const PIECE_GROUPS: usize = 1 << 16;

/// Merges batches whose keys have a small domain, and of which no column is opaque.
pub(crate) fn merge<S: Space>(
    space: &S,
    domain: usize,
    batches: Batches<S::Key>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let Batches { keys, lanes, states } = batches;
    let columns: Vec<(&StateColumn, &dyn Function)> =
        states.columns.iter().filter_map(|column| Some((column, column.kind.as_ref().ok()?.as_ref()))).collect();
    let shares = cut(keys.len(), shares(columns.len(), threads));
    let (groups, seen) = number(space, domain, keys, &shares, threads)?;

    let merge_share = |(): &mut (), (share, (column, function)): (Range<usize>, (&StateColumn, &dyn Function))| {
        let mut table = function.table();
        table.resize(domain);
        for (groups, lanes) in groups[share.clone()].iter().zip(&lanes[share]) {
            let lanes: Vec<LaneSlice<'_>> = column.lanes.iter().map(|at| lanes[*at].slice(0..groups.len())).collect();
            table.merge(&Run { groups, lanes: &lanes, sources: &column.sources })?;
        }
        Ok::<_, StateError>(table)
    };
    let tasks = columns.iter().flat_map(|column| shares.iter().map(|share| (share.clone(), *column))).collect();
    let mut tables = parallel::each(threads, tasks, || (), merge_share)?.into_iter();
    let tasks = columns.iter().map(|column| (*column, tables.by_ref().take(shares.len()).collect())).collect();
    type Own<'a> = ((&'a StateColumn, &'a dyn Function), Vec<Box<dyn Table>>);
    let finish = |(): &mut (), ((column, function), mut tables): Own<'_>| match tables.as_mut_slice() {
        [table] => Ok(table.finish(&column.sources)),
        _ => join(column, function, tables, &seen, domain),
    };
    let finished = parallel::each(threads, tasks, || (), finish)?;
    pieces(space, &seen, finished, threads)
}

/// Shares of the rows so that columns times shares keep all workers busy: at most one of eight of them idle at the end.
pub(crate) fn shares(columns: usize, threads: usize) -> usize {
    let threads = threads.max(1);
    let idle = |shares: usize| (columns * shares).next_multiple_of(threads) - columns * shares;
    (1..threads).find(|shares| idle(*shares) * 8 <= columns * shares).unwrap_or(threads)
}

/// `0..count` in at most `shares` ranges of about the same length.
fn cut(count: usize, shares: usize) -> Vec<Range<usize>> {
    let each = count.div_ceil(shares.max(1)).max(1);
    (0..count).step_by(each).map(|start| start..count.min(start + each)).collect()
}

/// By batch, the group numbers of its rows; by share, which groups there are.
#[expect(clippy::type_complexity, reason = "two lists of lists")]
fn number<S: Space>(
    space: &S,
    domain: usize,
    keys: Vec<Vec<S::Key>>,
    shares: &[Range<usize>],
    threads: usize,
) -> Result<(Vec<Vec<u32>>, Vec<Vec<u8>>), MergeError> {
    let mut tasks = Vec::new();
    let mut keys = keys.into_iter();
    for (share, batches) in shares.iter().enumerate() {
        for chunk in cut(batches.len(), threads) {
            tasks.push((share, keys.by_ref().take(chunk.len()).collect::<Vec<_>>()));
        }
    }
    let work = |(): &mut (), (share, keys): (usize, Vec<Vec<S::Key>>)| {
        let mut seen = vec![0u8; domain];
        let mut groups = Vec::with_capacity(keys.len());
        for keys in keys {
            let numbers = space.numbers(keys);
            numbers.iter().for_each(|number| seen[*number as usize] = 1);
            groups.push(numbers);
        }
        Ok::<_, MergeError>((share, groups, seen))
    };
    let mut groups = Vec::new();
    let mut all = vec![vec![0u8; domain]; shares.len()];
    for (share, own, seen) in parallel::each(threads, tasks, || (), work)? {
        groups.extend(own);
        all[share].iter_mut().zip(seen).for_each(|(all, seen)| *all |= seen);
    }
    Ok((groups, all))
}

fn numbers(seen: &[u8]) -> Vec<u32> {
    seen.iter().zip(0..).filter(|(seen, _)| **seen != 0).map(|(_, number)| number).collect()
}

/// The states of a column, from the tables of its shares. A share's groups without rows are left out: the value that
/// stands there is none.
fn join(
    column: &StateColumn,
    function: &dyn Function,
    tables: Vec<Box<dyn Table>>,
    seen: &[Vec<u8>],
    domain: usize,
) -> Result<Data, StateError> {
    let mut inputs = Vec::with_capacity(tables.len());
    let mut sources = Vec::new();
    for (mut table, seen) in tables.into_iter().zip(seen) {
        let groups = numbers(seen);
        let lanes = match function.split(table.finish(&column.sources).gather(&groups))? {
            Split::Lanes(lanes) => lanes,
            Split::Rows { values, absent } => {
                let batch = sources.len();
                let references = (0..values.len()).map(|row| crate::state::reference(batch, row)).collect();
                sources.push(values);
                std::iter::once(Lane::W8(references)).chain(absent.map(Lane::W1)).collect()
            }
        };
        inputs.push((groups, lanes));
    }
    let mut total = function.table();
    total.resize(domain);
    for (groups, lanes) in &inputs {
        let lanes: Vec<LaneSlice<'_>> = lanes.iter().map(|lane| lane.slice(0..groups.len())).collect();
        total.merge(&Run { groups, lanes: &lanes, sources: &sources })?;
    }
    Ok(total.finish(&sources))
}

/// Keys and states of the groups that there are.
fn pieces<S: Space>(
    space: &S,
    seen: &[Vec<u8>],
    columns: Vec<Data>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let groups = match seen {
        [seen] => numbers(seen),
        shares => numbers(
            &(0..shares.first().map_or(0, Vec::len))
                .map(|at| shares.iter().fold(0, |any, seen| any | seen[at]))
                .collect::<Vec<u8>>(),
        ),
    };
    let keys = |groups: &[u32]| groups.iter().map(|group| space.key(*group)).collect();
    let domain = seen.first().map_or(0, Vec::len);
    if groups.len() == domain && domain <= PIECE_GROUPS {
        return Ok(vec![Finished { keys: keys(&groups), states: columns }]);
    }
    let piece = |(): &mut (), groups: &[u32]| {
        Ok(Finished { keys: keys(groups), states: columns.iter().map(|column| column.gather(groups)).collect() })
    };
    parallel::each(threads, groups.chunks(PIECE_GROUPS).collect(), || (), piece)
}
