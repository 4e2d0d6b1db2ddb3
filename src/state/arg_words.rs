//! argMin and argMax where the result and the compared value are both numbers: merged as words, without looking at the
//! states again. Bytes as in `arg`.

use super::arg::Single;
use super::lane::each_width;
use super::pick::Order;
use super::words::strided;
use super::{Function, Lane, LaneSlice, Run, Split, StateError, Table, Word};
use crate::wire::{Bytes, Data, Reader, WireError};

/// Bytes of a result and of the value that was compared.
type Pair<'a> = (&'a [u8], &'a [u8]);

#[derive(Debug, Clone)]
pub(super) struct ArgWords {
    pub type_name: String,
    pub is_max: bool,
    pub nullable: bool,
    /// Bytes of the result.
    pub result_width: usize,
    pub value_width: usize,
    pub value_order: Order,
}

impl ArgWords {
    /// For two numbers; `None` for anything else.
    pub fn new(type_name: &str, is_max: bool, nullable: bool, result: Single, value: Single) -> Option<Self> {
        match (result, value) {
            (Single::Fixed(result_width, Some(_)), Single::Fixed(value_width, Some(value_order))) => {
                Some(Self { type_name: type_name.into(), is_max, nullable, result_width, value_width, value_order })
            }
            _ => None,
        }
    }

    /// Bytes of result and value; `None` for an empty state.
    fn read<'a>(&self, reader: &mut Reader<'a>) -> Result<Option<Pair<'a>>, WireError> {
        if self.nullable && reader.u8()? == 0 {
            return Ok(None);
        }
        let mut single = |width| Ok::<_, WireError>(if reader.u8()? == 0 { None } else { Some(reader.take(width)?) });
        let (result, value) = (single(self.result_width)?, single(self.value_width)?);
        Ok(result.zip(value))
    }
}

impl ArgWords {
    /// The words of states that all have a result and a value.
    fn split_even(&self, states: &Bytes) -> Option<Vec<Lane>> {
        let value_at = self.result_width + 1;
        let width = value_at + 1 + self.value_width;
        let even = states.bytes.len() == states.len() * width
            && states.ends.iter().zip(1u64..).all(|(end, row)| *end == row * width as u64);
        if self.nullable
            || !even
            || !states.bytes.chunks_exact(width).all(|state| state[0] != 0 && state[value_at] != 0)
        {
            return None;
        }
        let words = |at: usize, width_of_word: usize| strided(&states.bytes, at, width, width_of_word);
        let has = Lane::W1(vec![1; states.len()]);
        Some(vec![has, words(1, self.result_width), words(value_at + 1, self.value_width)])
    }
}

fn zeros(width: usize, rows: usize) -> Lane {
    match width {
        1 => Lane::W1(Vec::with_capacity(rows)),
        2 => Lane::W2(Vec::with_capacity(rows)),
        4 => Lane::W4(Vec::with_capacity(rows)),
        8 => Lane::W8(Vec::with_capacity(rows)),
        16 => Lane::W16(Vec::with_capacity(rows)),
        _ => Lane::W32(Vec::with_capacity(rows)),
    }
}

fn push(lane: &mut Lane, bytes: Option<&[u8]>) {
    fn word<W: Word>(values: &mut Vec<W>, bytes: Option<&[u8]>) {
        values.push(bytes.map(W::read).unwrap_or_default());
    }
    each_width!(Lane, lane, values => word(values, bytes));
}

impl Function for ArgWords {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        self.read(reader).map(drop)
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        let Data::Bytes(states) = data else {
            let what = format!("unexpected data of {} rows", data.len());
            return Err(StateError::Column { type_name: self.type_name.clone(), what });
        };
        if let Some(lanes) = self.split_even(&states) {
            return Ok(Split::Lanes(lanes));
        }
        let mut has = Vec::with_capacity(states.len());
        let mut results = zeros(self.result_width, states.len());
        let mut values = zeros(self.value_width, states.len());
        for (row, state) in states.iter().enumerate() {
            let mut reader = Reader::new(state);
            let pair = self
                .read(&mut reader)
                .and_then(
                    |pair| if reader.is_empty() { Ok(pair) } else { Err(reader.malformed("bytes are left over")) },
                )
                .map_err(|source| StateError::Malformed { type_name: self.type_name.clone(), row, source })?;
            has.push(u8::from(pair.is_some()));
            push(&mut results, pair.map(|(result, _)| result));
            push(&mut values, pair.map(|(_, value)| value));
        }
        Ok(Split::Lanes(vec![Lane::W1(has), results, values]))
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    fn table(&self) -> Box<dyn Table> {
        Box::new(ArgTable {
            has: Vec::new(),
            results: zeros(self.result_width, 0),
            values: match self.value_width {
                1 => values::<u8>(self),
                2 => values::<u16>(self),
                4 => values::<u32>(self),
                8 => values::<u64>(self),
                16 => values::<u128>(self),
                _ => values::<[u64; 4]>(self),
            },
            wins: Vec::new(),
            form: self.clone(),
        })
    }
}

fn values<W: Word>(form: &ArgWords) -> Box<dyn Values> {
    macro_rules! picked {
        ($better:expr) => {
            Box::new(Picked::<W, _> { values: Vec::new(), better: $better })
        };
    }
    match (form.is_max, form.value_order) {
        (false, Order::Unsigned) => picked!(|new: W, current: W| new.less_unsigned(current)),
        (false, Order::Signed) => picked!(|new: W, current: W| new.less_signed(current)),
        (false, Order::Float) => picked!(|new: W, current: W| new.less_float(current) || beats_nan(new, current)),
        (true, Order::Unsigned) => picked!(|new: W, current: W| current.less_unsigned(new)),
        (true, Order::Signed) => picked!(|new: W, current: W| current.less_signed(new)),
        (true, Order::Float) => picked!(|new: W, current: W| current.less_float(new) || beats_nan(new, current)),
    }
}

fn beats_nan<W: Word>(new: W, current: W) -> bool {
    current.is_nan() && !new.is_nan()
}

/// The values that are compared, one per group.
trait Values: Send {
    fn resize(&mut self, groups: usize);
    /// Merges rows that have a value, and notes in `wins` which of them took over their group.
    fn pick(
        &mut self,
        groups: &[u32],
        has: &mut [u8],
        row_has: &[u8],
        row_values: &LaneSlice<'_>,
        wins: &mut Vec<bool>,
    );
    fn finish(&mut self) -> Lane;
}

struct Picked<W, F> {
    values: Vec<W>,
    /// Whether the first value takes the place of the second.
    better: F,
}

impl<W: Word, F: Fn(W, W) -> bool + Send> Values for Picked<W, F> {
    fn resize(&mut self, groups: usize) {
        self.values.resize(groups.max(self.values.len()), W::default());
    }

    fn pick(
        &mut self,
        groups: &[u32],
        has: &mut [u8],
        row_has: &[u8],
        row_values: &LaneSlice<'_>,
        wins: &mut Vec<bool>,
    ) {
        wins.clear();
        // Which row wins is a matter of chance: no branch on it.
        wins.extend(groups.iter().zip(row_has).zip(W::of(row_values)).map(|((group, row_has), value)| {
            let (has, own) = (&mut has[*group as usize], &mut self.values[*group as usize]);
            let win = (*row_has != 0) & ((*has == 0) | (self.better)(*value, *own));
            *has |= u8::from(win);
            *own = if win { *value } else { *own };
            win
        }));
    }

    fn finish(&mut self) -> Lane {
        W::lane(std::mem::take(&mut self.values))
    }
}

struct ArgTable {
    has: Vec<u8>,
    results: Lane,
    values: Box<dyn Values>,
    wins: Vec<bool>,
    form: ArgWords,
}

impl Table for ArgTable {
    fn resize(&mut self, groups: usize) {
        fn grow<W: Word>(values: &mut Vec<W>, groups: usize) {
            values.resize(groups.max(values.len()), W::default());
        }
        grow(&mut self.has, groups);
        each_width!(Lane, &mut self.results, values => grow(values, groups));
        self.values.resize(groups);
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        fn take<W: Word>(results: &mut [W], groups: &[u32], rows: &LaneSlice<'_>, wins: &[bool]) {
            for ((group, result), win) in groups.iter().zip(W::of(rows)).zip(wins) {
                let own = &mut results[*group as usize];
                *own = if *win { *result } else { *own };
            }
        }
        let [has, results, values] = run.lanes else { panic!("three lanes were split, {} came back", run.lanes.len()) };
        self.values.pick(run.groups, &mut self.has, u8::of(has), values, &mut self.wins);
        each_width!(Lane, &mut self.results, own => take(own, run.groups, results, &self.wins));
        Ok(())
    }

    fn finish(&mut self, _: &[Bytes]) -> Data {
        let has = std::mem::take(&mut self.has);
        let results = std::mem::replace(&mut self.results, zeros(self.form.result_width, 0));
        let values = self.values.finish();
        let state_bytes = self.form.result_width + self.form.value_width + 3;
        let mut out = Bytes { ends: Vec::with_capacity(has.len()), bytes: Vec::with_capacity(has.len() * state_bytes) };
        for (group, has) in has.iter().enumerate() {
            if self.form.nullable {
                out.bytes.push(*has);
            }
            if *has != 0 {
                out.bytes.push(1);
                each_width!(Lane, &results, results => results[group].write(&mut out.bytes));
                out.bytes.push(1);
                each_width!(Lane, &values, values => values[group].write(&mut out.bytes));
            } else if !self.form.nullable {
                out.bytes.extend_from_slice(&[0, 0]);
            }
            out.end_row();
        }
        Data::Bytes(out)
    }
}
