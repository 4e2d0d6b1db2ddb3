//! From packed keys to finished pieces: the form of the keys, the strategy, the size of the pieces.

use super::arena::InArenas;
use super::batches::Batches;
use super::hash::{Direct, Packed, Space};
use super::keys::{DIRECT_BITS_MAX, Finished, KeyPlan};
use super::{MergeError, Options, Piece, Prepared, Strategy, fixed, local, parallel, radix, serial, sharded, tree};
use crate::state::{Lane, Word};
use crate::wire::Data;

/// Rows of an output block; smaller pieces are put together up to this.
const OUTPUT_ROWS: usize = 1 << 16;
/// A piece of fewer rows is put together with its neighbour.
const SMALL_ROWS: usize = 1 << 12;
/// Below this many rows the two levels of `radix` cost more than they save (bench/results/2026-11-30-2core/merge.md).
const RADIX_ROWS_MIN: usize = 1 << 16;

/// Rows for each key of the domain from which on `fixed` is faster than `radix`: for domains whose columns of states fit
/// a second-level cache, and for greater ones (bench/results/2026-11-30-2core/merge.md).
const FIXED_ROWS_PER_KEY: usize = 4;
const FIXED_ROWS_PER_KEY_LARGE: usize = 8;
const FIXED_DOMAIN_SMALL: usize = 1 << 16;
/// Rows that are looked at to see whether few keys have most of them, and for each key so many of those then: 512 keys
/// of any rows, or nine rows of ten in a few keys.
const SAMPLE_ROWS: usize = 1 << 12;
const SAMPLE_ROWS_PER_KEY: usize = 8;

/// Runs the strategy over keys of the plan's form.
pub(crate) fn dispatch(plan: &KeyPlan, prepared: Prepared, options: &Options) -> Result<Vec<Piece>, MergeError> {
    let Prepared { keys: packed, arenas, lanes, states } = prepared;
    macro_rules! words {
        ($variant:ident) => {
            packed.into_iter().map(|lane| match lane {
                Lane::$variant(words) => words,
                other => unreachable!("all keys have the same width: {other:?}"),
            })
        };
    }
    let seed = plan.seed;
    match plan.bits {
        Some(bits @ 1..=DIRECT_BITS_MAX) => {
            let batches = Batches { keys: words!(W4).collect(), lanes, states };
            let unpack = |words: &[u32]| plan.unpack_words(words);
            // The baseline hashes whatever the keys are.
            match options.strategy {
                Strategy::Serial => run(&Packed::<u32>::new(seed), batches, options, unpack),
                _ => run(&Direct { bits }, batches, options, unpack),
            }
        }
        Some(0..=64) => {
            let batches = Batches { keys: words!(W8).collect(), lanes, states };
            run(&Packed::<u64>::new(seed), batches, options, |words| plan.unpack_words(words))
        }
        Some(65..=128) => {
            let batches = Batches { keys: words!(W16).collect(), lanes, states };
            run(&Packed::<u128>::new(seed), batches, options, |words| plan.unpack_words(words))
        }
        Some(_) => {
            let batches = Batches { keys: words!(W32).collect(), lanes, states };
            run(&Packed::<[u64; 4]>::new(seed), batches, options, |words| plan.unpack_words(words))
        }
        None => {
            let batches = Batches { keys: words!(W16).collect(), lanes, states };
            run(&InArenas { arenas: &arenas }, batches, options, |words| plan.read(words, &arenas))
        }
    }
}

fn run<S: Space>(
    space: &S,
    batches: Batches<S::Key>,
    options: &Options,
    unpack: impl Fn(&[S::Key]) -> Vec<Data> + Sync,
) -> Result<Vec<Piece>, MergeError> {
    // A few rows are merged before a thread has started.
    let few = options.strategy == Strategy::Auto && batches.rows() < RADIX_ROWS_MIN;
    let threads = if few { 1 } else { options.threads };
    let finished = match choose(options.strategy, space, &batches, threads) {
        Strategy::Serial => serial::merge(space, &batches)?,
        Strategy::Sharded => sharded::merge(space, batches, threads)?,
        Strategy::Tree => tree::merge(space, batches, threads)?,
        Strategy::Fixed => match space.domain() {
            Some(domain) if !batches.states.has_opaque() && batches.rows() >= domain => {
                fixed::merge(space, domain, batches, threads)?
            }
            _ => local::merge(space, batches, threads)?,
        },
        Strategy::Auto | Strategy::Radix => radix::merge(space, batches, threads)?,
    };
    parallel::each(
        threads,
        coalesce(finished),
        || (),
        |(), finished| Ok(Piece { rows: finished.keys.len(), keys: unpack(&finished.keys), states: finished.states }),
    )
}

/// What `Auto` stands for.
fn choose<S: Space>(strategy: Strategy, space: &S, batches: &Batches<S::Key>, threads: usize) -> Strategy {
    let rows = batches.rows();
    match (strategy, space.domain()) {
        (Strategy::Auto, _) if rows < RADIX_ROWS_MIN => Strategy::Fixed,
        (Strategy::Auto, Some(domain)) => {
            let is_small = domain <= FIXED_DOMAIN_SMALL;
            let per_key = if is_small { FIXED_ROWS_PER_KEY } else { FIXED_ROWS_PER_KEY_LARGE };
            // Every share of the rows has a table of its own, and so has every worker beside opaque states.
            let (tables, fits) = match batches.states.has_opaque() {
                false => (fixed::shares(batches.states.columns.len(), threads), true),
                true => (threads, is_small),
            };
            if fits && rows >= domain * per_key * tables { Strategy::Fixed } else { Strategy::Radix }
        }
        (Strategy::Auto, None) if few_keys_have_most_rows(space, batches) => Strategy::Fixed,
        (Strategy::Auto, None) => Strategy::Radix,
        (strategy, _) => strategy,
    }
}

/// By a sample. The table of such a merge, or the part of it that is in use, is in cache wherever the rows lie: ordering
/// them costs more than it saves, most of all for the buckets of the heavy keys, which no digit of the hash divides.
fn few_keys_have_most_rows<S: Space>(space: &S, batches: &Batches<S::Key>) -> bool {
    let rows = batches.rows();
    let mut sample = Vec::with_capacity(SAMPLE_ROWS + batches.keys.len());
    for keys in &batches.keys {
        let share = (keys.len() * SAMPLE_ROWS).div_ceil(rows.max(1));
        // Steps of the golden ratio: even over the batch, and in step with no period of the data.
        let at = |step: u64| (u128::from(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * keys.len() as u128) >> 64;
        sample.extend((0..share as u64).map(|step| space.hash(keys[at(step) as usize])));
    }
    let rows = sample.len();
    sample.sort_unstable();
    sample.dedup();
    sample.len() * SAMPLE_ROWS_PER_KEY <= rows
}

/// Puts small pieces together.
fn coalesce<K: Word>(finished: Vec<Finished<K>>) -> Vec<Finished<K>> {
    let mut pieces: Vec<Finished<K>> = Vec::new();
    for next in finished.into_iter().filter(|next| !next.keys.is_empty()) {
        match pieces.last_mut() {
            Some(last) if next.keys.len() < SMALL_ROWS && last.keys.len() + next.keys.len() <= OUTPUT_ROWS => {
                last.keys.extend_from_slice(&next.keys);
                last.states.iter_mut().zip(&next.states).for_each(|(to, from)| to.append(from));
            }
            _ => pieces.push(next),
        }
    }
    pieces
}
