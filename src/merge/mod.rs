//! Merges N tables of (group key -> partial states) into one: `(keys, states) x N -> (keys, states)`.
//!
//! ```text
//! blocks -> keys packed into words, states split into lanes   (one batch per block)
//!        -> by strategy: rows find their group, lanes are merged into the tables of states
//!        -> keys unpacked, states in storage form              (blocks, in no particular order)
//! ```
//! Rows of one key are merged in the order of the inputs, whatever the strategy, except by `sharded`, where workers
//! race: so `anyLast` takes the last one.

mod cells;
mod hash;
mod keys;
mod opaque;
mod parallel;
mod radix;
mod scatter;
mod serial;
mod serialized;
#[cfg(test)]
mod tests;

use crate::state::{self, Function, Lane, Split, StateError};
use crate::wire::{Block, Bytes, Column, Data, DataType};

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
    /// By the number of cells and the size of the key domain.
    Auto,
    /// One growing table, cell by cell, in one thread: the baseline.
    Serial,
    /// Two levels, by the high bits of a seeded hash.
    Radix,
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub threads: usize,
    pub strategy: Strategy,
}

impl Default for Options {
    /// Two thirds of the cores: maintenance runs beside a database.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self { threads: (cores * 2 / 3).max(1), strategy: Strategy::Auto }
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
    let plan = KeyPlan::new(&inputs, layout.key_count);
    // Bare states say themselves what they are: their version may differ from that of the storage type.
    let arrived = header[layout.key_count..].iter().zip(&layout.state_types);
    let types = arrived.map(|((_, arrived), stored)| match arrived {
        DataType::Aggregate(_) => arrived,
        _ => stored,
    });
    let functions = types.map(|type_| state::function(type_).ok()).collect();
    let prepared = prepare(inputs, &plan, functions, layout.key_count, options.threads)?;
    let pieces = keys::dispatch(&plan, prepared, options)?;
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

/// The inputs in the form that strategies work on.
pub(crate) struct Prepared {
    /// Packed keys, one lane per batch.
    keys: Vec<Lane>,
    /// `[batch][lane]`: the lanes of all state columns, one after the other.
    lanes: Vec<Vec<Lane>>,
    states: States,
    /// Serialised keys that the packed ones refer to, by batch; empty unless the plan serialises.
    arenas: Vec<Bytes>,
}

/// The state columns of a merge.
pub(crate) struct States {
    columns: Vec<StateColumn>,
}

pub(crate) struct StateColumn {
    /// How states are merged, or the form of opaque ones.
    kind: Result<Box<dyn Function>, opaque::Form>,
    /// Where the column's lanes are among all lanes.
    lanes: std::ops::Range<usize>,
    /// By batch, the buffers that references point into; empty without references.
    sources: Vec<Bytes>,
}

impl States {
    fn has_opaque(&self) -> bool {
        self.columns.iter().any(|column| column.kind.is_err())
    }
}

/// Lanes of one column of one batch, and what references in them point into.
type Taken = (Split, Option<opaque::Form>);

fn prepare(
    inputs: Vec<Block>,
    plan: &KeyPlan,
    functions: Vec<Option<Box<dyn Function>>>,
    key_count: usize,
    threads: usize,
) -> Result<Prepared, MergeError> {
    let tasks: Vec<(usize, Block)> = inputs.into_iter().enumerate().collect();
    let batches = parallel::each(
        threads,
        tasks,
        || (),
        |(), (number, mut block)| {
            let states = block.columns.split_off(key_count);
            let keys = plan.pack(number, &block);
            let taken = functions.iter().zip(states).map(|(function, column)| match function {
                Some(function) => Ok((function.split(column.data)?, None)),
                None => {
                    let (form, values) = opaque::Form::take(column.data);
                    Ok((Split::Rows { values, absent: None }, Some(form)))
                }
            });
            Ok::<_, MergeError>((keys, taken.collect::<Result<Vec<Taken>, StateError>>()?))
        },
    )?;
    let mut columns: Vec<(Option<Box<dyn Function>>, StateColumn)> = functions
        .into_iter()
        .map(|function| {
            let column = StateColumn { kind: Err(opaque::Form::Bytes), lanes: 0..0, sources: Vec::new() };
            (function, column)
        })
        .collect();
    let mut prepared = (Vec::new(), Vec::new(), Vec::new());
    for (batch, ((keys, arena), taken)) in batches.into_iter().enumerate() {
        prepared.0.push(keys);
        prepared.1.push(arena);
        let mut lanes = Vec::new();
        for ((split, form), (_, column)) in taken.into_iter().zip(&mut columns) {
            let first = lanes.len();
            match split {
                Split::Lanes(words) => lanes.extend(words),
                Split::Rows { values, absent } => {
                    lanes.push(Lane::W8(references(batch, values.len(), absent.as_deref())));
                    column.sources.push(values);
                }
            }
            column.lanes = first..lanes.len();
            if let Some(form) = form {
                column.kind = Err(form);
            }
        }
        prepared.2.push(lanes);
    }
    let columns = columns.into_iter().map(|(function, column)| match function {
        Some(function) => StateColumn { kind: Ok(function), ..column },
        None => column,
    });
    let (keys, arenas, lanes) = prepared;
    Ok(Prepared { keys, lanes, states: States { columns: columns.collect() }, arenas })
}

fn references(batch: usize, rows: usize, absent: Option<&[u8]>) -> Vec<u64> {
    (0..rows)
        .map(
            |row| {
                if absent.is_some_and(|absent| absent[row] != 0) { state::ABSENT } else { state::reference(batch, row) }
            },
        )
        .collect()
}

/// Some groups, finished.
pub(crate) struct Piece {
    keys: Vec<Data>,
    states: Vec<Data>,
    rows: usize,
}
