//! States that have to be understood to be merged: sets, sketches, lists.
//!
//! A group holds a reference to its first state, and reads it only when a second one comes: most groups of a merge
//! have one, and their bytes go from input to output untouched.

use super::{Function, Run, Split, StateError, Table, Word, referenced};
use crate::wire::{Bytes, Data, Reader, WireError};

/// A state in memory. `Form` is what its binary form depends on: parameters, width of the argument.
pub(super) trait Sketch: Sized + Send {
    type Form: Clone + Send + Sync + 'static;

    /// Moves the reader past one state.
    fn skip(form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError>;

    fn empty(form: &Self::Form) -> Self;

    /// Merges the state that follows in the reader into this one.
    fn absorb(&mut self, form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError>;

    fn write(&mut self, form: &Self::Form, out: &mut Vec<u8>);
}

pub(super) struct Sketched<S: Sketch> {
    pub type_name: String,
    pub form: S::Form,
    /// A byte in front says whether there is a value: the argument is Nullable.
    pub flagged: bool,
}

impl<S: Sketch + 'static> Function for Sketched<S> {
    fn skip(&self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        if self.flagged && reader.u8()? == 0 {
            return Ok(());
        }
        S::skip(&self.form, reader)
    }

    fn split(&self, data: Data) -> Result<Split, StateError> {
        let Data::Bytes(values) = data else {
            let what = format!("unexpected data of {} rows", data.len());
            return Err(StateError::Column { type_name: self.type_name.clone(), what });
        };
        let mut absent = self.flagged.then(|| Vec::with_capacity(values.len()));
        for (row, state) in values.iter().enumerate() {
            let mut reader = Reader::new(state);
            self.skip(&mut reader)
                .and_then(|()| if reader.is_empty() { Ok(()) } else { Err(reader.malformed("bytes are left over")) })
                .map_err(|source| StateError::Malformed { type_name: self.type_name.clone(), row, source })?;
            if let Some(absent) = &mut absent {
                absent.push(u8::from(state[0] == 0));
            }
        }
        Ok(Split::Rows { values, absent })
    }

    fn table(&self) -> Box<dyn Table> {
        let (type_name, form) = (self.type_name.clone(), self.form.clone());
        Box::new(SketchTable::<S> { states: Vec::new(), type_name, form, flagged: self.flagged })
    }
}

enum State<S> {
    Empty,
    /// One state so far, in the buffer as read.
    Reference(u64),
    Own(Box<S>),
}

struct SketchTable<S: Sketch> {
    states: Vec<State<S>>,
    type_name: String,
    form: S::Form,
    flagged: bool,
}

impl<S: Sketch> SketchTable<S> {
    fn merge_one(&mut self, sources: &[Bytes], group: usize, reference: u64) -> Result<(), StateError> {
        self.states[group] = match std::mem::replace(&mut self.states[group], State::Empty) {
            State::Empty => State::Reference(reference),
            State::Reference(first) => {
                let mut state = Box::new(S::empty(&self.form));
                self.absorb(&mut state, sources, first)?;
                self.absorb(&mut state, sources, reference)?;
                State::Own(state)
            }
            State::Own(mut state) => {
                self.absorb(&mut state, sources, reference)?;
                State::Own(state)
            }
        };
        Ok(())
    }

    fn absorb(&self, into: &mut S, sources: &[Bytes], reference: u64) -> Result<(), StateError> {
        let bytes = referenced(sources, reference);
        let mut reader = Reader::new(&bytes[usize::from(self.flagged)..]);
        into.absorb(&self.form, &mut reader).map_err(|source| StateError::Malformed {
            type_name: self.type_name.clone(),
            row: reference as u32 as usize,
            source,
        })
    }
}

impl<S: Sketch> Table for SketchTable<S> {
    fn resize(&mut self, groups: usize) {
        if groups > self.states.len() {
            self.states.resize_with(groups, || State::Empty);
        }
    }

    fn merge(&mut self, run: &Run<'_>) -> Result<(), StateError> {
        let mut outcome = Ok(());
        run.for_each_reference(|group, reference| {
            if let Err(error) = self.merge_one(run.sources, group, reference) {
                outcome = Err(error);
            }
        });
        outcome
    }

    fn finish(&mut self, sources: &[Bytes]) -> Data {
        let mut out = Bytes { ends: Vec::with_capacity(self.states.len()), bytes: Vec::new() };
        for state in std::mem::take(&mut self.states) {
            match state {
                State::Empty if self.flagged => out.bytes.push(0),
                State::Empty => S::empty(&self.form).write(&self.form, &mut out.bytes),
                State::Reference(reference) => out.bytes.extend_from_slice(referenced(sources, reference)),
                State::Own(mut state) => {
                    if self.flagged {
                        out.bytes.push(1);
                    }
                    state.write(&self.form, &mut out.bytes);
                }
            }
            out.end_row();
        }
        Data::Bytes(out)
    }
}

/// Words of one width as they stand in a state.
pub(super) fn words<'a, W: Word>(
    reader: &mut Reader<'a>,
    count: usize,
) -> Result<impl Iterator<Item = W> + 'a, WireError> {
    Ok(reader.take_values(count, W::WIDTH)?.chunks_exact(W::WIDTH).map(W::read))
}
