//! min, max, any, anyLast over strings, and any, anyLast over everything else: merged without copying.
//!
//! A group holds a reference to the row that it picked, in the buffer as read; bytes are copied once, on output.
//!
//! ```text
//! state of String: [u8 has-value, when the argument is Nullable] | i32 length + 1, or -1 for none | bytes | 0
//! other types:     [u8 has-value, when the argument is Nullable] | u8 has-value | value in its binary form
//! ```
//! Written by ClickHouse 26.9. The length counts the 0 at the end.

use super::pick::Rule;
use super::{ABSENT, Function, Run, Split, StateError, Table, Word, copy_referenced, referenced};
use crate::wire::{Bytes, Data, Reader, WireError};

/// How a value stands in the buffer that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A `SimpleAggregateFunction` column of strings.
    Values,
    /// The same, of fixed width in bytes.
    FixedValues(usize),
    /// States of String.
    StringStates,
    /// States of `FixedString(width)`.
    FixedStates(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Text {
    pub type_name: String,
    pub rule: Rule,
    pub form: Form,
    pub nullable: bool,
}

impl Text {
    /// The value within a state; `None` for an empty state.
    fn value<'a>(&self, state: &'a [u8]) -> Result<Option<&'a [u8]>, WireError> {
        let mut reader = Reader::new(state);
        let value = self.read(&mut reader)?;
        if reader.is_empty() { Ok(value) } else { Err(reader.malformed("bytes are left over after the state")) }
    }

    fn read<'a>(&self, reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, WireError> {
        if self.nullable && reader.u8()? == 0 {
            return Ok(None);
        }
        read_single(reader, self.form)
    }

    fn is_states(&self) -> bool {
        matches!(self.form, Form::StringStates | Form::FixedStates(_))
    }

    fn values(&self, data: Data) -> Result<Bytes, StateError> {
        match (data, self.form) {
            (Data::Bytes(values), Form::Values) => Ok(values),
            (Data::Fixed { width, bytes }, Form::FixedValues(expected)) if width == expected => {
                let ends = (1..=bytes.len() / width).map(|row| (row * width) as u64).collect();
                Ok(Bytes { ends, bytes })
            }
            (Data::LowCardinality { keys, dictionary }, _) => {
                let Data::Bytes(values) = self.values(*dictionary).map(Data::Bytes)?.gather(&keys) else {
                    unreachable!("rows of a byte column are bytes")
                };
                Ok(values)
            }
            (other, _) => Err(StateError::Column {
                type_name: self.type_name.clone(),
                what: format!("unexpected data of {} rows", other.len()),
            }),
        }
    }
}

/// A value in ClickHouse's single-value form; `None` for an empty one.
pub(super) fn read_single<'a>(reader: &mut Reader<'a>, form: Form) -> Result<Option<&'a [u8]>, WireError> {
    if let Form::FixedStates(width) = form {
        return if reader.u8()? == 0 { Ok(None) } else { reader.take(width).map(Some) };
    }
    match reader.u32()? as i32 {
        -1 => Ok(None),
        0 => Ok(Some(&[])),
        length if length < 0 => Err(reader.malformed(format!("a string of length {length}"))),
        length => {
            let bytes = reader.take(length as usize)?;
            match bytes.split_last() {
                Some((0, value)) => Ok(Some(value)),
                _ => Err(reader.malformed("a string without the 0 at its end")),
            }
        }
    }
}

impl Function for Text {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        self.read(reader).map(drop)
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        if !self.is_states() {
            return Ok(match data {
                Data::Nullable { nulls, values } if self.nullable => {
                    Split::Rows { values: self.values(*values)?, absent: Some(nulls) }
                }
                Data::LowCardinality { keys, dictionary } if self.nullable => {
                    let absent = keys.iter().map(|key| u8::from(*key == 0)).collect();
                    let values = self.values(Data::LowCardinality { keys, dictionary })?;
                    Split::Rows { values, absent: Some(absent) }
                }
                data => Split::Rows { values: self.values(data)?, absent: None },
            });
        }
        let Data::Bytes(states) = data else {
            return self.values(data).map(|values| Split::Rows { values, absent: None });
        };
        let mut absent = Vec::with_capacity(states.len());
        for (row, state) in states.iter().enumerate() {
            let value = self.value(state);
            let malformed = |source| StateError::Malformed { type_name: self.type_name.clone(), row, source };
            absent.push(u8::from(value.map_err(malformed)?.is_none()));
        }
        Ok(Split::Rows { values: states, absent: Some(absent) })
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn table(&self) -> Box<dyn Table> {
        Box::new(TextTable { picked: Vec::new(), form: self.clone() })
    }
}

struct TextTable {
    /// Reference to the row that the group picked, or [`ABSENT`].
    picked: Vec<u64>,
    form: Text,
}

impl TextTable {
    fn value<'a>(&self, sources: &'a [Bytes], reference: u64) -> Option<&'a [u8]> {
        let bytes = referenced(sources, reference);
        // `split` has read every state once: none is malformed here.
        if self.form.is_states() { self.form.value(bytes).ok().flatten() } else { Some(bytes) }
    }

    fn merge_ordered(&mut self, run: &Run<'_>, replaces: impl Fn(&[u8], &[u8]) -> bool) {
        run.for_each_reference(|group, reference| {
            let current = self.picked[group];
            let wins = current == ABSENT
                || match (self.value(run.sources, current), self.value(run.sources, reference)) {
                    (Some(current), Some(new)) => replaces(current, new),
                    _ => false,
                };
            if wins {
                self.picked[group] = reference;
            }
        });
    }
}

impl Table for TextTable {
    fn resize(&mut self, groups: usize) {
        if groups > self.picked.len() {
            self.picked.resize(groups, ABSENT);
        }
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        match self.form.rule {
            Rule::Last if run.lanes.len() == 2 => {
                // Which rows have a value is a matter of chance: no branch on it.
                let rows = run.groups.iter().zip(u64::of(&run.lanes[0])).zip(u8::of(&run.lanes[1]));
                for ((group, reference), absent) in rows {
                    let picked = &mut self.picked[*group as usize];
                    *picked = if *absent == 0 { *reference } else { *picked };
                }
            }
            Rule::First => run.for_each_reference(|group, reference| {
                let picked = &mut self.picked[group];
                if *picked == ABSENT {
                    *picked = reference;
                }
            }),
            Rule::Last => run.for_each_reference(|group, reference| self.picked[group] = reference),
            Rule::Min => self.merge_ordered(run, |current, new| new < current),
            Rule::Max => self.merge_ordered(run, |current, new| new > current),
        }
        Ok(())
    }

    fn finish(&mut self, sources: &[Bytes]) -> Data {
        let picked = std::mem::take(&mut self.picked);
        let empty: Vec<u8> = match self.form.form {
            Form::Values => Vec::new(),
            Form::FixedValues(width) => vec![0; width],
            _ if self.form.nullable => vec![0],
            Form::StringStates => vec![0xff; 4],
            Form::FixedStates(_) => vec![0],
        };
        let out = copy_referenced(sources, &picked, &empty);
        let values = match self.form.form {
            Form::FixedValues(width) => Data::Fixed { width, bytes: out.bytes },
            _ => Data::Bytes(out),
        };
        if self.form.is_states() || !self.form.nullable {
            return values;
        }
        let nulls = picked.iter().map(|reference| u8::from(*reference == ABSENT)).collect();
        Data::Nullable { nulls, values: Box::new(values) }
    }
}
