//! argMin and argMax: the result that goes with the least or greatest value. Merged without copying: a group refers
//! to the state that it picked.
//!
//! ```text
//! state: [u8 has-value, when an argument is Nullable] | single value: the result | single value: what is compared
//! single value of String: i32 length + 1, or -1 for none | bytes | 0
//! of other types:         u8 has-value | value in its binary form
//! ```
//! Written by ClickHouse 26.9.

use super::pick::Order;
use super::text::{Form, read_single};
use super::{ABSENT, Function, Run, Split, StateError, Table, Word, copy_referenced, referenced};
use crate::wire::{Bytes, Data, Reader, WireError};

/// The type of a result or of a value to compare.
#[derive(Debug, Clone, Copy)]
pub(super) enum Single {
    String,
    /// Bytes, and the order where the value is a number; FixedString and others are compared as bytes.
    Fixed(usize, Option<Order>),
}

#[derive(Debug, Clone)]
pub(super) struct Arg {
    pub type_name: String,
    pub is_max: bool,
    pub nullable: bool,
    pub result: Single,
    pub value: Single,
}

impl Single {
    fn read<'a>(self, reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, WireError> {
        match self {
            Self::String => read_single(reader, Form::StringStates),
            Self::Fixed(width, _) => read_single(reader, Form::FixedStates(width)),
        }
    }

    fn less(self, a: &[u8], b: &[u8]) -> bool {
        fn numbers<W: Word>(order: Order, a: &[u8], b: &[u8]) -> bool {
            let (a, b) = (W::read(a), W::read(b));
            match order {
                Order::Unsigned => a.less_unsigned(b),
                Order::Signed => a.less_signed(b),
                Order::Float => a.less_float(b),
            }
        }
        match self {
            Self::Fixed(1, Some(order)) => numbers::<u8>(order, a, b),
            Self::Fixed(2, Some(order)) => numbers::<u16>(order, a, b),
            Self::Fixed(4, Some(order)) => numbers::<u32>(order, a, b),
            Self::Fixed(8, Some(order)) => numbers::<u64>(order, a, b),
            Self::Fixed(16, Some(order)) => numbers::<u128>(order, a, b),
            Self::Fixed(32, Some(order)) => numbers::<[u64; 4]>(order, a, b),
            _ => a < b,
        }
    }

    fn is_nan(self, value: &[u8]) -> bool {
        match self {
            Self::Fixed(2, Some(Order::Float)) => u16::read(value).is_nan(),
            Self::Fixed(4, Some(Order::Float)) => u32::read(value).is_nan(),
            Self::Fixed(8, Some(Order::Float)) => u64::read(value).is_nan(),
            _ => false,
        }
    }
}

impl Arg {
    /// The value to compare; `None` for an empty state.
    fn read<'a>(&self, reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, WireError> {
        if self.nullable && reader.u8()? == 0 {
            return Ok(None);
        }
        self.result.read(reader)?;
        self.value.read(reader)
    }

    fn value<'a>(&self, sources: &'a [Bytes], reference: u64) -> Option<&'a [u8]> {
        // `split` has read every state once: none is malformed here.
        self.read(&mut Reader::new(referenced(sources, reference))).ok().flatten()
    }

    fn wins(&self, new: &[u8], current: &[u8]) -> bool {
        let better = if self.is_max { self.value.less(current, new) } else { self.value.less(new, current) };
        better || (self.value.is_nan(current) && !self.value.is_nan(new))
    }
}

impl Function for Arg {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        self.read(reader).map(drop)
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        let Data::Bytes(values) = data else {
            let what = format!("unexpected data of {} rows", data.len());
            return Err(StateError::Column { type_name: self.type_name.clone(), what });
        };
        let mut absent = Vec::with_capacity(values.len());
        for (row, state) in values.iter().enumerate() {
            let mut reader = Reader::new(state);
            let value = self
                .read(&mut reader)
                .and_then(
                    |value| if reader.is_empty() { Ok(value) } else { Err(reader.malformed("bytes are left over")) },
                )
                .map_err(|source| StateError::Malformed { type_name: self.type_name.clone(), row, source })?;
            absent.push(u8::from(value.is_none()));
        }
        Ok(Split::Rows { values, absent: Some(absent) })
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn table(&self) -> Box<dyn Table> {
        Box::new(ArgTable { picked: Vec::new(), form: self.clone() })
    }
}

struct ArgTable {
    picked: Vec<u64>,
    form: Arg,
}

impl Table for ArgTable {
    fn resize(&mut self, groups: usize) {
        if groups > self.picked.len() {
            self.picked.resize(groups, ABSENT);
        }
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        run.for_each_reference(|group, reference| {
            let picked = &mut self.picked[group];
            let wins = *picked == ABSENT
                || match (self.form.value(run.sources, reference), self.form.value(run.sources, *picked)) {
                    (Some(new), Some(current)) => self.form.wins(new, current),
                    _ => false,
                };
            if wins {
                *picked = reference;
            }
        });
        Ok(())
    }

    fn finish(&mut self, sources: &[Bytes]) -> Data {
        let mut empty = Vec::new();
        if self.form.nullable {
            empty.push(0);
        } else {
            for single in [self.form.result, self.form.value] {
                match single {
                    Single::String => empty.extend_from_slice(&[0xff; 4]),
                    Single::Fixed(..) => empty.push(0),
                }
            }
        }
        let picked = std::mem::take(&mut self.picked);
        Data::Bytes(copy_referenced(sources, &picked, &empty))
    }
}
