//! States that are one number picked from many: min, max, any, anyLast over types of fixed width.
//!
//! ```text
//! state: [u8 has-value, when the argument is Nullable] | u8 has-value | value, if there is one
//! ```
//! Written by ClickHouse 26.9. NaN loses against every number, in min and in max.

use super::words::lane_data;
use super::{Function, Lane, Run, Split, StateError, Table, Word};
use crate::wire::{Bytes, Data, Reader, WireError};

/// Which of two values stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    First,
    Last,
    Min,
    Max,
}

/// How the bits of a value are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Unsigned,
    Signed,
    Float,
}

#[derive(Debug, Clone)]
pub(super) struct Pick {
    pub type_name: String,
    pub rule: Rule,
    pub order: Order,
    /// Bytes of a value.
    pub width: usize,
    /// The argument is Nullable.
    pub nullable: bool,
    /// A `SimpleAggregateFunction` column of plain values.
    pub values: bool,
}

impl Pick {
    fn column_error(&self, data: &Data) -> StateError {
        let what = format!("unexpected data of {} rows", data.len());
        StateError::Column { type_name: self.type_name.clone(), what }
    }

    /// Whether a state follows that has a value.
    fn has_value(&self, reader: &mut Reader<'_>) -> Result<bool, WireError> {
        if self.nullable && reader.u8()? == 0 {
            return Ok(false);
        }
        Ok(reader.u8()? != 0)
    }

    fn split_states<W: Word>(&self, states: &Bytes) -> Result<Vec<Lane>, StateError> {
        let mut has = Vec::with_capacity(states.len());
        let mut values = Vec::with_capacity(states.len());
        for (row, state) in states.iter().enumerate() {
            let mut reader = Reader::new(state);
            let value = self.has_value(&mut reader).and_then(|has_value| match has_value {
                true => Ok(Some(W::read(reader.take(W::WIDTH)?))),
                false => Ok(None),
            });
            let value = value
                .and_then(|value| if reader.is_empty() { Ok(value) } else { Err(reader.malformed("bytes are left")) })
                .map_err(|source| StateError::Malformed { type_name: self.type_name.clone(), row, source })?;
            has.push(u8::from(value.is_some()));
            values.push(value.unwrap_or_default());
        }
        Ok(vec![Lane::W1(has), W::lane(values)])
    }

    fn plain(&self, data: Data) -> Result<Lane, StateError> {
        Ok(match (data, self.width) {
            (Data::W1(values), 1) => Lane::W1(values),
            (Data::W2(values), 2) => Lane::W2(values),
            (Data::W4(values), 4) => Lane::W4(values),
            (Data::W8(values), 8) => Lane::W8(values),
            (Data::W16(values), 16) => Lane::W16(values),
            (Data::W32(values), 32) => Lane::W32(values),
            (other, _) => return Err(self.column_error(&other)),
        })
    }

    fn table_of<W: Word>(&self) -> Box<dyn Table> {
        let form = self.clone();
        // Each rule is a type of its own, so that the loop over rows has no choice to make.
        macro_rules! table {
            ($replaces:expr) => {
                Box::new(PickTable::<W, _> { has: Vec::new(), values: Vec::new(), replaces: $replaces, form })
            };
        }
        match (self.rule, self.order) {
            (Rule::First, _) => table!(|_: W, _: W| false),
            (Rule::Last, _) => table!(|_: W, _: W| true),
            (Rule::Min, Order::Unsigned) => table!(|current: W, new: W| new.less_unsigned(current)),
            (Rule::Min, Order::Signed) => table!(|current: W, new: W| new.less_signed(current)),
            (Rule::Min, Order::Float) => table!(|current: W, new: W| new.less_float(current) || current.is_nan()),
            (Rule::Max, Order::Unsigned) => table!(|current: W, new: W| current.less_unsigned(new)),
            (Rule::Max, Order::Signed) => table!(|current: W, new: W| current.less_signed(new)),
            (Rule::Max, Order::Float) => table!(|current: W, new: W| current.less_float(new) || current.is_nan()),
        }
    }
}

impl Function for Pick {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        if self.has_value(reader)? {
            reader.take(self.width)?;
        }
        Ok(())
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        Ok(Split::Lanes(match data {
            Data::Nullable { mut nulls, values } if self.values && self.nullable => {
                nulls.iter_mut().for_each(|null| *null = u8::from(*null == 0));
                vec![Lane::W1(nulls), self.plain(*values)?]
            }
            Data::Bytes(states) if !self.values => match self.width {
                1 => self.split_states::<u8>(&states)?,
                2 => self.split_states::<u16>(&states)?,
                4 => self.split_states::<u32>(&states)?,
                8 => self.split_states::<u64>(&states)?,
                16 => self.split_states::<u128>(&states)?,
                _ => self.split_states::<[u64; 4]>(&states)?,
            },
            // Every row has a value: one lane says it all.
            data if self.values && !self.nullable => vec![self.plain(data)?],
            data => return Err(self.column_error(&data)),
        }))
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn table(&self) -> Box<dyn Table> {
        match self.width {
            1 => self.table_of::<u8>(),
            2 => self.table_of::<u16>(),
            4 => self.table_of::<u32>(),
            8 => self.table_of::<u64>(),
            16 => self.table_of::<u128>(),
            _ => self.table_of::<[u64; 4]>(),
        }
    }
}

struct PickTable<W, F> {
    has: Vec<u8>,
    values: Vec<W>,
    /// Whether the second value takes the place of the first.
    replaces: F,
    form: Pick,
}

impl<W: Word, F: Fn(W, W) -> bool + Send> Table for PickTable<W, F> {
    fn resize(&mut self, groups: usize) {
        if groups > self.has.len() {
            self.has.resize(groups, 0);
            self.values.resize(groups, W::default());
        }
    }

    fn reserve(&mut self, groups: usize) {
        self.has.reserve(groups.saturating_sub(self.has.len()));
        self.values.reserve(groups.saturating_sub(self.values.len()));
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        // Which value stays is a matter of chance: it is chosen without a branch.
        let mut merge = |group: u32, has: u8, value: W| {
            let (own_has, own) = (&mut self.has[group as usize], &mut self.values[group as usize]);
            let takes = (has != 0) & ((*own_has == 0) | (self.replaces)(*own, value));
            *own = if takes { value } else { *own };
            *own_has |= has;
        };
        let groups = run.groups.iter();
        match run.lanes {
            [values] => groups.zip(W::of(values)).for_each(|(group, value)| merge(*group, 1, *value)),
            [has, values] => {
                let rows = groups.zip(u8::of(has)).zip(W::of(values));
                rows.for_each(|((group, has), value)| merge(*group, u8::from(*has != 0), *value));
            }
            lanes => panic!("one lane or two were split, {} came back", lanes.len()),
        }
        Ok(())
    }

    fn finish(&mut self, _: &[Bytes]) -> Data {
        let has = std::mem::take(&mut self.has);
        let values = std::mem::take(&mut self.values);
        if self.form.values {
            let values = lane_data(W::lane(values));
            if !self.form.nullable {
                return values;
            }
            let nulls = has.into_iter().map(|has| u8::from(has == 0)).collect();
            return Data::Nullable { nulls, values: Box::new(values) };
        }
        let mut states = Bytes::default();
        for (has, value) in has.iter().zip(values) {
            if self.form.nullable {
                states.bytes.push(*has);
            }
            if *has != 0 || !self.form.nullable {
                states.bytes.push(*has);
            }
            if *has != 0 {
                value.write(&mut states.bytes);
            }
            states.end_row();
        }
        Data::Bytes(states)
    }
}
