//! Merges N tables of (group key -> partial states) into one: `(keys, states) x N -> (keys, states)`.
//!
//! ```text
//! blocks -> keys packed into words, states split into lanes   (one batch per block)
//!        -> by strategy: rows find their group, lanes are merged into the tables of states
//!        -> keys unpacked, states in storage form              (blocks, in no particular order)
//! ```
//! Rows of one key are merged in the order of the inputs, whatever the strategy, except by `sharded`, where workers
//! race: so `anyLast` takes the last one.

mod arena;
mod batches;
mod cells;
mod dispatch;
mod fixed;
mod hash;
mod keys;
mod local;
mod opaque;
mod parallel;
mod prefetch;
mod radix;
mod scatter;
mod serial;
mod serialized;
mod sharded;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use crate::state::{self, Lane, StateError};
use crate::wire::{Block, Bytes, Column, Data, DataType};

use batches::{Functions, States};
use keys::KeyPlan;

/// What the columns of the inputs are: first the group key, then one column per state.
#[derive(Debug, Clone)]
pub struct Layout {
    pub key_count: usize,
    /// Storage types of the states: `SimpleAggregateFunction(..)` or `AggregateFunction(..)`. States of the latter may
    /// arrive as `String` columns (see `state::carrier`). Functions that `state::function` does not know are opaque: every
    /// row keeps its own state, so that a key comes out in as many rows as it came in.
    pub state_types: Vec<DataType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// By the number of rows and of groups, and by the size of the key domain.
    Auto,
    /// One growing table in one thread: the baseline.
    Serial,
    /// Tables behind locks, chosen by hash.
    Sharded,
    /// Two levels, by the high bits of a seeded hash.
    Radix,
    /// Pairs of tables upward, each pair by `Radix`.
    Tree,
    /// A table per worker, merged by `Radix` at the end: for few groups. Keys of a small domain index it directly.
    Fixed,
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub threads: usize,
    pub strategy: Strategy,
}

impl Options {
    /// Two thirds of the physical cores, since maintenance runs beside a database.
    pub fn for_cores(physical: usize) -> Self {
        Self { threads: (physical * 2 / 3).max(1), strategy: Strategy::Auto }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::for_cores(std::thread::available_parallelism().map_or(1, |cores| cores.get()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error(transparent)]
    State(#[from] StateError),
    /// The inputs do not have the columns that the layout says.
    #[error("input block {block}: {what}")]
    Layout { block: usize, what: String },
    #[error("{what} of {value} is over the limit of {limit}")]
    Limit { what: &'static str, value: usize, limit: usize },
}

/// Merges blocks of the same columns into blocks in which every key occurs once (more often beside opaque states).
/// Names and types of the columns are those of the first block.
pub fn merge(inputs: Vec<Block>, layout: &Layout, options: &Options) -> Result<Vec<Block>, MergeError> {
    let inputs: Vec<Block> = inputs.into_iter().filter(|block| block.rows > 0).collect();
    check_layout(&inputs, layout)?;
    if inputs.is_empty() {
        return Ok(inputs);
    }
    let header: Vec<(String, DataType)> =
        inputs[0].columns.iter().map(|column| (column.name.clone(), column.type_.clone())).collect();
    // The baseline takes the rows as they come, and their keys too.
    let order = if options.strategy == Strategy::Serial { arena::Order::Rows } else { arena::Order::Buckets };
    let plan = KeyPlan::new(&inputs, layout.key_count, order, options.threads);
    // Bare states say themselves what they are: their version may differ from that of the storage type.
    let arrived = header[layout.key_count..].iter().zip(&layout.state_types);
    let types = arrived.map(|((_, arrived), stored)| match arrived {
        DataType::Aggregate(_) => arrived,
        _ => stored,
    });
    let functions = types.map(|type_| state::function(type_).ok().map(Arc::from)).collect();
    let prepared = prepare(inputs, &plan, functions, layout.key_count, options.threads)?;
    let pieces = dispatch::dispatch(&plan, prepared, options)?;
    Ok(pieces
        .into_iter()
        .map(|piece| {
            let rows = piece.rows;
            let columns = piece.keys.into_iter().chain(piece.states).zip(&header);
            let columns =
                columns.map(|(data, (name, type_))| Column { name: name.clone(), type_: type_.clone(), data });
            Block { columns: columns.collect(), rows }
        })
        .collect())
}

/// Rows of a batch are numbered in 32 bits; of all batches together so are groups.
const ROWS_MAX: usize = u32::MAX as usize - 1;

fn check_layout(inputs: &[Block], layout: &Layout) -> Result<(), MergeError> {
    let width = layout.key_count + layout.state_types.len();
    for (number, block) in inputs.iter().enumerate() {
        let wrong = |what: String| Err(MergeError::Layout { block: number, what });
        if block.columns.len() != width {
            return wrong(format!("{} columns, the layout has {width}", block.columns.len()));
        }
        if let Some(column) = block.columns.iter().find(|column| column.data.len() != block.rows) {
            return wrong(format!("column `{}` has {} of {} rows", column.name, column.data.len(), block.rows));
        }
        let same = |(a, b): (&Column, &Column)| a.type_ == b.type_;
        if let Some(at) = block.columns.iter().zip(&inputs[0].columns).position(|pair| !same(pair)) {
            let (type_, first) = (&block.columns[at].type_, &inputs[0].columns[at].type_);
            return wrong(format!("column {at} is {type_}, in the first block it is {first}"));
        }
    }
    let rows: usize = inputs.iter().map(|block| block.rows).sum();
    if rows > ROWS_MAX {
        return Err(MergeError::Limit { what: "number of rows to merge at once", value: rows, limit: ROWS_MAX });
    }
    Ok(())
}

/// The inputs with packed keys.
pub(crate) struct Prepared {
    /// One lane per batch.
    keys: Vec<Lane>,
    /// Keys without a fixed width, by batch; empty for others.
    arenas: Vec<Bytes>,
    lanes: Vec<Vec<Lane>>,
    states: States,
}

fn prepare(
    inputs: Vec<Block>,
    plan: &KeyPlan,
    functions: Functions,
    key_count: usize,
    threads: usize,
) -> Result<Prepared, MergeError> {
    let tasks: Vec<(usize, Block)> = inputs.into_iter().enumerate().collect();
    let split = |scratch: &mut arena::Scratch, (number, mut block): (usize, Block)| {
        let states = block.columns.split_off(key_count);
        let (keys, arena) = plan.pack(number, block, scratch);
        let states = states.into_iter().map(|column| column.data).collect();
        Ok::<_, MergeError>((keys, arena, batches::take(&functions, states)?))
    };
    let mut prepared = (Vec::new(), Vec::new(), Vec::new());
    for (keys, arena, taken) in parallel::each(threads, tasks, arena::Scratch::default, split)? {
        prepared.0.push(keys);
        prepared.1.push(arena);
        prepared.2.push(taken);
    }
    let (keys, arenas, taken) = prepared;
    let (lanes, states) = States::assemble(functions, taken);
    Ok(Prepared { keys, arenas, lanes, states })
}

/// Some groups, finished.
pub(crate) struct Piece {
    keys: Vec<Data>,
    states: Vec<Data>,
    rows: usize,
}
