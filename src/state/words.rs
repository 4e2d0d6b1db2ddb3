//! States that are a few fixed words, each merged on its own: sums, counts, moments, bit masks.
//!
//! ```text
//! state: [u8 has-value, when the argument is Nullable] | word | word ..
//! word:  little-endian of its width, or a varint (counts)
//! ```
//! Written by ClickHouse 26.9 for count, sum, sumWithOverflow, avg, sumCount, groupBit*, var*, stddev*, covar*, corr,
//! skew*, kurt*. Without a value the words are left out and count as the identity, 0 (all ones for groupBitAnd).

use super::lane::each_width;
use super::{Function, Lane, LaneSlice, Run, Split, StateError, Table, Word};
use crate::wire::{Bytes, Data, Reader, WireError, write_varint};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    AddF32,
    AddF64,
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    /// Bytes: 1, 2, 4, 8, 16 or 32.
    pub width: usize,
    pub op: Op,
    /// Written as a varint (of a 64-bit word).
    pub varint: bool,
}

impl Field {
    pub fn fixed(width: usize, op: Op) -> Self {
        Self { width, op, varint: false }
    }

    pub fn count() -> Self {
        Self { width: 8, op: Op::Add, varint: true }
    }
}

/// How the words stand in the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A `SimpleAggregateFunction` column of plain values.
    Values,
    /// The same with NULLs, which are skipped; NULL where nothing else is.
    NullableValues,
    /// States as above.
    States,
    /// States with the leading has-value byte.
    FlaggedStates,
}

#[derive(Debug, Clone)]
pub(super) struct Words {
    pub type_name: String,
    pub fields: Vec<Field>,
    pub form: Form,
}

impl Words {
    fn flagged(&self) -> bool {
        matches!(self.form, Form::FlaggedStates | Form::NullableValues)
    }

    fn column_error(&self, data: &Data) -> StateError {
        let what = format!("unexpected data of {} rows", data.len());
        StateError::Column { type_name: self.type_name.clone(), what }
    }

    /// Words of a plain column; NULL rows, whose value may be anything, get the identity.
    fn split_values(&self, data: Data, nulls: Option<&[u8]>) -> Result<Lane, StateError> {
        let width = self.fields[0].width;
        let mut lane = match data {
            Data::W1(values) if width == 1 => Lane::W1(values),
            Data::W2(values) if width == 2 => Lane::W2(values),
            Data::W4(values) if width == 4 => Lane::W4(values),
            Data::W8(values) if width == 8 => Lane::W8(values),
            Data::W16(values) if width == 16 => Lane::W16(values),
            Data::W32(values) if width == 32 => Lane::W32(values),
            other => return Err(self.column_error(&other)),
        };
        fn blank<W: Word>(values: &mut [W], nulls: &[u8], op: Op) {
            values.iter_mut().zip(nulls).filter(|(_, null)| **null != 0).for_each(|(value, _)| *value = identity(op));
        }
        if let Some(nulls) = nulls {
            each_width!(Lane, &mut lane, values => blank(values, nulls, self.fields[0].op));
        }
        Ok(lane)
    }

    /// The words of states that all have the same length: no flags, and counts below 128.
    fn split_even(&self, states: &Bytes) -> Option<Vec<Lane>> {
        let widths = self.fields.iter().map(|field| if field.varint { 1 } else { field.width });
        let width: usize = widths.clone().sum();
        let even = states.ends.iter().zip(1u64..).all(|(end, row)| *end == row * width as u64);
        if self.form != Form::States || !even || states.bytes.len() != states.len() * width {
            return None;
        }
        let mut at = 0;
        let lanes = self.fields.iter().zip(widths).map(|(field, bytes)| {
            let start = at;
            at += bytes;
            if !field.varint {
                return Some(strided(&states.bytes, start, width, field.width));
            }
            let counts = || states.bytes.iter().skip(start).step_by(width);
            counts().all(|count| *count < 0x80).then(|| Lane::W8(counts().map(|count| u64::from(*count)).collect()))
        });
        lanes.collect()
    }

    fn split_states(&self, states: &Bytes) -> Result<Vec<Lane>, StateError> {
        if let Some(lanes) = self.split_even(states) {
            return Ok(lanes);
        }
        let rows = states.len();
        let mut cursors = Vec::with_capacity(rows);
        let mut start = 0;
        for end in &states.ends {
            cursors.push(start);
            start = *end as usize;
        }
        let mut lanes = Vec::new();
        if self.form == Form::FlaggedStates {
            let flag = Field::fixed(1, Op::Or);
            lanes.push(self.split_field::<u8>(states, &mut cursors, flag, None)?);
        }
        for field in &self.fields {
            let flags = match lanes.first() {
                Some(Lane::W1(flags)) if self.form == Form::FlaggedStates => Some(flags.as_slice()),
                _ => None,
            };
            lanes.push(match field.width {
                1 => self.split_field::<u8>(states, &mut cursors, *field, flags)?,
                2 => self.split_field::<u16>(states, &mut cursors, *field, flags)?,
                4 => self.split_field::<u32>(states, &mut cursors, *field, flags)?,
                8 => self.split_field::<u64>(states, &mut cursors, *field, flags)?,
                16 => self.split_field::<u128>(states, &mut cursors, *field, flags)?,
                _ => self.split_field::<[u64; 4]>(states, &mut cursors, *field, flags)?,
            });
        }
        match cursors.iter().zip(&states.ends).position(|(cursor, end)| *cursor as u64 != *end) {
            None => Ok(lanes),
            Some(row) => Err(self.malformed(
                row,
                WireError::Malformed { offset: cursors[row], what: "bytes are left over after the state".into() },
            )),
        }
    }

    fn split_field<W: Word>(
        &self,
        states: &Bytes,
        cursors: &mut [usize],
        field: Field,
        flags: Option<&[u8]>,
    ) -> Result<Lane, StateError> {
        let mut words = Vec::with_capacity(cursors.len());
        for (row, cursor) in cursors.iter_mut().enumerate() {
            if flags.is_some_and(|flags| flags[row] == 0) {
                words.push(identity::<W>(field.op));
                continue;
            }
            let rest = &states.bytes[*cursor..states.ends[row] as usize];
            // The usual cases first: a whole word, a count below 128.
            if !field.varint && rest.len() >= W::WIDTH {
                words.push(W::read(rest));
                *cursor += W::WIDTH;
                continue;
            }
            if let (true, Some(count @ 0..0x80)) = (field.varint, rest.first()) {
                words.push(widened(u64::from(*count)));
                *cursor += 1;
                continue;
            }
            let mut reader = Reader::new(rest);
            let word = if field.varint { reader.varint().map(widened) } else { reader.take(W::WIDTH).map(W::read) };
            words.push(word.map_err(|source| self.malformed(row, source))?);
            *cursor += reader.position();
        }
        Ok(W::lane(words))
    }

    fn malformed(&self, row: usize, source: WireError) -> StateError {
        StateError::Malformed { type_name: self.type_name.clone(), row, source }
    }
}

/// The words of `word_bytes` bytes that begin at `start` in every `width` bytes.
pub(super) fn strided(bytes: &[u8], start: usize, width: usize, word_bytes: usize) -> Lane {
    fn words<W: Word>(states: std::slice::ChunksExact<'_, u8>, start: usize) -> Lane {
        W::lane(states.map(|state| W::read(&state[start..])).collect())
    }
    let states = bytes.chunks_exact(width);
    match word_bytes {
        1 => words::<u8>(states, start),
        2 => words::<u16>(states, start),
        4 => words::<u32>(states, start),
        8 => words::<u64>(states, start),
        16 => words::<u128>(states, start),
        _ => words::<[u64; 4]>(states, start),
    }
}

/// A count as a lane's word; counts are kept in words of eight bytes or more.
fn widened<W: Word>(count: u64) -> W {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    W::read(&bytes)
}

fn identity<W: Word>(op: Op) -> W {
    match op {
        Op::And => W::ONES,
        _ => W::default(),
    }
}

impl Function for Words {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        if self.form == Form::FlaggedStates && reader.u8()? == 0 {
            return Ok(());
        }
        for field in &self.fields {
            if field.varint {
                reader.varint()?;
            } else {
                reader.take(field.width)?;
            }
        }
        Ok(())
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        Ok(Split::Lanes(match (self.form, data) {
            (Form::Values, data) => vec![self.split_values(data, None)?],
            (Form::NullableValues, Data::Nullable { mut nulls, values }) => {
                let values = self.split_values(*values, Some(&nulls))?;
                nulls.iter_mut().for_each(|null| *null = u8::from(*null == 0));
                vec![Lane::W1(nulls), values]
            }
            (Form::States | Form::FlaggedStates, Data::Bytes(states)) => self.split_states(&states)?,
            (_, data) => return Err(self.column_error(&data)),
        }))
    }

    fn table(&self) -> Box<dyn Table> {
        let flag = self.flagged().then(|| Field::fixed(1, Op::Or));
        let columns = flag.iter().chain(&self.fields).map(|field| field_table(*field)).collect();
        Box::new(WordsTable { columns, fields: self.fields.clone(), form: self.form })
    }
}

/// One word per group.
trait FieldTable: Send {
    fn resize(&mut self, groups: usize);
    fn reserve(&mut self, groups: usize);
    fn merge(&mut self, groups: &[u32], lane: &LaneSlice<'_>);
    fn finish(&mut self) -> Lane;
}

struct Column<W, F> {
    words: Vec<W>,
    identity: W,
    fold: F,
}

impl<W: Word, F: Fn(W, W) -> W + Send> FieldTable for Column<W, F> {
    fn resize(&mut self, groups: usize) {
        if groups > self.words.len() {
            self.words.resize(groups, self.identity);
        }
    }

    fn reserve(&mut self, groups: usize) {
        self.words.reserve(groups.saturating_sub(self.words.len()));
    }

    fn merge(&mut self, groups: &[u32], lane: &LaneSlice<'_>) {
        let words = self.words.as_mut_slice();
        for (group, value) in groups.iter().zip(W::of(lane)) {
            let word = &mut words[*group as usize];
            *word = (self.fold)(*word, *value);
        }
    }

    fn finish(&mut self) -> Lane {
        W::lane(std::mem::take(&mut self.words))
    }
}

fn field_table(field: Field) -> Box<dyn FieldTable> {
    fn integers<W: Word>(op: Op) -> Box<dyn FieldTable> {
        let words = Vec::new();
        match op {
            Op::And => Box::new(Column { words, identity: identity(op), fold: W::and }),
            Op::Or => Box::new(Column { words, identity: identity(op), fold: W::or }),
            Op::Xor => Box::new(Column { words, identity: identity(op), fold: W::xor }),
            _ => Box::new(Column { words, identity: identity(op), fold: |a: W, b: W| a.wrapping_add(b) }),
        }
    }
    match (field.width, field.op) {
        (4, Op::AddF32) => {
            let fold = |a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits();
            Box::new(Column::<u32, _> { words: Vec::new(), identity: 0, fold })
        }
        (8, Op::AddF64) => {
            let fold = |a, b| (f64::from_bits(a) + f64::from_bits(b)).to_bits();
            Box::new(Column::<u64, _> { words: Vec::new(), identity: 0, fold })
        }
        (1, op) => integers::<u8>(op),
        (2, op) => integers::<u16>(op),
        (4, op) => integers::<u32>(op),
        (8, op) => integers::<u64>(op),
        (16, op) => integers::<u128>(op),
        (_, op) => integers::<[u64; 4]>(op),
    }
}

struct WordsTable {
    /// The flag first, where there is one.
    columns: Vec<Box<dyn FieldTable>>,
    fields: Vec<Field>,
    form: Form,
}

impl Table for WordsTable {
    fn resize(&mut self, groups: usize) {
        self.columns.iter_mut().for_each(|column| column.resize(groups));
    }

    fn reserve(&mut self, groups: usize) {
        self.columns.iter_mut().for_each(|column| column.reserve(groups));
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        for (column, lane) in self.columns.iter_mut().zip(run.lanes) {
            column.merge(run.groups, lane);
        }
        Ok(())
    }

    fn finish(&mut self, _: &[Bytes]) -> Data {
        let mut lanes: Vec<Lane> = self.columns.iter_mut().map(|column| column.finish()).collect();
        match self.form {
            Form::Values => lane_data(lanes.remove(0)),
            Form::NullableValues => {
                let values = lane_data(lanes.remove(1));
                let Lane::W1(mut nulls) = lanes.remove(0) else { unreachable!("flags are bytes") };
                nulls.iter_mut().for_each(|flag| *flag = u8::from(*flag == 0));
                Data::Nullable { nulls, values: Box::new(values) }
            }
            Form::States => Data::Bytes(encode_states(&lanes, &self.fields, None)),
            Form::FlaggedStates => {
                let Lane::W1(flags) = lanes.remove(0) else { unreachable!("flags are bytes") };
                Data::Bytes(encode_states(&lanes, &self.fields, Some(&flags)))
            }
        }
    }
}

fn encode_states(lanes: &[Lane], fields: &[Field], flags: Option<&[u8]>) -> Bytes {
    let rows = lanes.first().map_or(0, Lane::len);
    let row_bytes: usize = fields.iter().map(|field| field.width).sum();
    if let ([lane], [Field { varint: false, width, .. }], None) = (lanes, fields, flags) {
        let mut bytes = Vec::with_capacity(rows * width);
        each_width!(Lane, lane, words => words.iter().for_each(|word| word.write(&mut bytes)));
        return Bytes { ends: (1..=rows as u64).map(|row| row * *width as u64).collect(), bytes };
    }
    let mut states = Bytes { ends: Vec::with_capacity(rows), bytes: Vec::with_capacity(rows * row_bytes) };
    for row in 0..rows {
        let out = &mut states.bytes;
        out.extend(flags.map(|flags| flags[row]));
        if flags.is_none_or(|flags| flags[row] != 0) {
            for (lane, field) in lanes.iter().zip(fields) {
                match lane {
                    Lane::W8(words) if field.varint => write_varint(out, words[row]),
                    lane => each_width!(Lane, lane, words => words[row].write(out)),
                }
            }
        }
        states.end_row();
    }
    states
}

pub(super) fn lane_data(lane: Lane) -> Data {
    match lane {
        Lane::W1(words) => Data::W1(words),
        Lane::W2(words) => Data::W2(words),
        Lane::W4(words) => Data::W4(words),
        Lane::W8(words) => Data::W8(words),
        Lane::W16(words) => Data::W16(words),
        Lane::W32(words) => Data::W32(words),
    }
}
