//! Partial states of aggregate functions, in ClickHouse's own binary form: read, merged, written.
//!
//! A column of states is first *split* into lanes ([`Split`]): words of fixed width that the merge engine can move
//! without knowing what they mean, or references to the rows of the buffer that was read. A [`Table`] then holds one
//! state per group and merges lanes into it, a run of rows at a time: one virtual call per column and run, a tight
//! loop inside. Strings and sketches are never copied before a group needs them.
//!
//! One file per family. [`function`] finds the family of a storage type; what it does not know is *opaque*.

mod arg;
mod arg_words;
mod bitmap;
mod carrier;
mod hyperloglog;
pub(crate) mod lane;
mod list;
mod pick;
mod registry;
mod reservoir;
mod sketch;
mod sum_map;
mod tdigest;
#[cfg(test)]
mod tests;
mod text;
mod uniq;
mod words;

use crate::wire::{AggregateType, Bytes, Data, DataType, Reader, WireError};

pub use carrier::{Carrier, carrier};
pub use lane::{Lane, LaneSlice, LaneSliceMut, Word};
pub use registry::function;

/// Why states could not be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The function, or its form for these arguments, is not known here: ClickHouse has to merge its states.
    #[error("states of `{type_name}` are merged by ClickHouse only")]
    Opaque { type_name: String },
    #[error("state of `{type_name}` in row {row}: {source}")]
    Malformed { type_name: String, row: usize, source: WireError },
    /// The column's data is not what its type says.
    #[error("column of `{type_name}`: {what}")]
    Column { type_name: String, what: String },
}

/// A column of states, taken apart.
#[derive(Debug)]
pub enum Split {
    /// Each lane has one word per row.
    Lanes(Vec<Lane>),
    /// States, or values, stay in the buffer as read; rows of which `absent` is set have none (NULL).
    Rows { values: Bytes, absent: Option<Vec<u8>> },
}

/// One aggregate function over given argument types.
pub trait Function: Send + Sync {
    /// Moves the reader past one state in its `AggregateFunction` form.
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError>;

    /// Takes a column in storage form apart. States may come as `AggregateFunction` or as `String`.
    fn split(&self, data: Data) -> Result<Split, StateError>;

    /// An empty table of states.
    fn table(&self) -> Box<dyn Table>;

    /// Whether merging a state a second time changes nothing, as with min and any.
    fn is_idempotent(&self) -> bool {
        false
    }
}

/// States by group number.
pub trait Table: Send {
    /// Makes room for groups `0..groups`, new ones with an empty state. Never shrinks.
    fn resize(&mut self, groups: usize);

    /// Takes memory for `groups` groups beforehand; a hint.
    fn reserve(&mut self, groups: usize) {
        let _ = groups;
    }

    /// Merges one run of rows.
    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError>;

    /// The states of all groups in storage form; the table is left empty.
    fn finish(&mut self, sources: &[Bytes]) -> Data;
}

/// A run of rows to merge: row `i` goes to group `groups[i]`.
pub struct Run<'a> {
    pub groups: &'a [u32],
    /// Of [`Split::Lanes`] those lanes. Of [`Split::Rows`] the references, and then one byte per row that is set for
    /// rows without a value, where there are such.
    pub lanes: &'a [LaneSlice<'a>],
    /// The buffers that references point into, by batch.
    pub sources: &'a [Bytes],
}

impl Run<'_> {
    /// Calls back with group and reference of every row that has a value.
    #[inline]
    pub fn for_each_reference(&self, mut merge: impl FnMut(usize, u64)) {
        let rows = self.groups.iter().zip(u64::of(&self.lanes[0]));
        match self.lanes.get(1) {
            None => rows.for_each(|(group, reference)| merge(*group as usize, *reference)),
            Some(absent) => rows
                .zip(u8::of(absent))
                .filter(|(_, absent)| **absent == 0)
                .for_each(|((group, reference), _)| merge(*group as usize, *reference)),
        }
    }
}

/// A reference to row `row` of the buffer of batch `batch`.
pub fn reference(batch: usize, row: usize) -> u64 {
    ((batch as u64) << 32) | row as u64
}

/// What a group refers to that has met no value yet.
const ABSENT: u64 = u64::MAX;

/// The bytes that a reference points to.
pub fn referenced(sources: &[Bytes], reference: u64) -> &[u8] {
    sources[(reference >> 32) as usize].get(reference as u32 as usize)
}

/// What references point to, one after the other; `empty` stands for those that are [`ABSENT`].
///
/// The rows lie anywhere, so that every one costs several misses of the cache. They are looked up, and their first
/// bytes touched, some at a time before any is copied: then the misses overlap.
pub(crate) fn copy_referenced(sources: &[Bytes], references: &[u64], empty: &[u8]) -> Bytes {
    const AT_A_TIME: usize = 64;
    let mut out = Bytes { ends: Vec::with_capacity(references.len()), bytes: Vec::new() };
    for references in references.chunks(AT_A_TIME) {
        let mut values = [empty; AT_A_TIME];
        let values = &mut values[..references.len()];
        let mut bytes = 0;
        for (value, reference) in values.iter_mut().zip(references).filter(|(_, reference)| **reference != ABSENT) {
            *value = referenced(sources, *reference);
            bytes += value.len();
        }
        std::hint::black_box(values.iter().fold(0, |any, value| any ^ value.first().copied().unwrap_or_default()));
        out.bytes.reserve(bytes);
        values.iter().for_each(|value| out.push(value));
    }
    out
}

/// For `wire::native`: cuts states of every function that is known here.
pub fn skip(aggregate: &AggregateType, reader: &mut Reader<'_>) -> Result<(), WireError> {
    match registry::aggregate(aggregate) {
        Some(function) => function.skip(reader),
        None => crate::wire::native::no_states(aggregate, reader),
    }
}

/// Whether states of this storage type can be merged here.
pub fn is_mergeable(storage: &DataType) -> bool {
    function(storage).is_ok()
}
