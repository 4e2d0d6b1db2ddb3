//! Columns of states that only ClickHouse can merge: every row keeps its own.
//!
//! The first row of a group carries its merged states. Each further row carries one more opaque state, and beside it
//! states that change nothing: empty ones, or the merged ones again where merging twice is merging once (min, any).

use crate::state::{Function, LaneSlice, Word, referenced};
use crate::wire::{Bytes, Data, Reader};

use super::serialized;

/// The opaque columns of one table of groups.
#[derive(Default)]
pub(crate) struct Unmerged {
    /// Group of each row.
    groups: Vec<u32>,
    /// `[opaque column][row]`: the row's state in the buffers as read.
    references: Vec<Vec<u64>>,
}

/// The form of an opaque column.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// Byte strings, referred to as they are.
    Bytes,
    /// Anything else, serialised; an empty column to read it back into.
    Serialized(Data),
}

impl Form {
    /// The column as byte strings that rows can refer to.
    pub fn take(data: Data) -> (Self, Bytes) {
        match data {
            Data::Bytes(values) => (Self::Bytes, values),
            data => {
                let mut out = Bytes::default();
                for row in 0..data.len() {
                    serialized::write(&data, row, &mut out.bytes);
                    out.end_row();
                }
                (Self::Serialized(data.gather(&[])), out)
            }
        }
    }

    fn restore<'a>(&self, values: impl Iterator<Item = &'a [u8]>) -> Data {
        match self {
            Self::Bytes => Data::Bytes(values.collect()),
            Self::Serialized(empty) => {
                let mut data = empty.clone();
                for value in values {
                    if let Err(error) = serialized::read(&mut Reader::new(value), &mut data) {
                        unreachable!("a value serialised by `take` is read back: {error}");
                    }
                }
                data
            }
        }
    }
}

impl Unmerged {
    pub fn new(columns: usize) -> Self {
        Self { groups: Vec::new(), references: vec![Vec::new(); columns] }
    }

    pub fn push(&mut self, groups: &[u32], column: usize, lane: &LaneSlice<'_>) {
        if column == 0 {
            self.groups.extend_from_slice(groups);
        }
        self.references[column].extend_from_slice(u64::of(lane));
    }

    /// Rows in the order of output: the first row of every group in the order of the groups, then all others.
    pub fn rows(&self, group_count: usize) -> Rows {
        let mut first = vec![u32::MAX; group_count];
        let mut rest = Vec::new();
        for (row, group) in self.groups.iter().enumerate() {
            match &mut first[*group as usize] {
                first if *first == u32::MAX => *first = row as u32,
                _ => rest.push(row as u32),
            }
        }
        let rest_groups = rest.iter().map(|row| self.groups[*row as usize]).collect();
        first.extend(rest);
        Rows { rows: first, rest_groups }
    }

    pub fn column(&self, column: usize, form: &Form, sources: &[Bytes], rows: &Rows) -> Data {
        let references = &self.references[column];
        form.restore(rows.rows.iter().map(|row| referenced(sources, references[*row as usize])))
    }

    pub fn clear(&mut self) {
        self.groups.clear();
        self.references.iter_mut().for_each(Vec::clear);
    }
}

/// The rows of a finished table with opaque columns.
pub(crate) struct Rows {
    rows: Vec<u32>,
    /// Groups of the rows beyond the first of their group.
    pub rest_groups: Vec<u32>,
}

impl Rows {
    /// A merged column, filled up for the further rows.
    pub fn fill(&self, function: &dyn Function, mut merged: Data) -> Data {
        let rest = if function.is_idempotent() {
            merged.gather(&self.rest_groups)
        } else {
            let mut neutral = function.table();
            neutral.resize(self.rest_groups.len());
            neutral.finish(&[])
        };
        merged.append(&rest);
        merged
    }
}
