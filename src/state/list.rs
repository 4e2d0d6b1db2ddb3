//! quantileExact and groupArray: lists, merged by putting one behind the other.
//!
//! ```text
//! state: varint count | value of fixed width, count times          (quantileExact, groupArray over numbers)
//!        varint count | (varint length | bytes), count times       (groupArray over everything else)
//! ```
//! Written by ClickHouse 26.9. NULLs are not in the lists.

use super::sketch::Sketch;
use crate::wire::{Reader, WireError, write_varint};

#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Bytes of a value; `None`: each has its length in front.
    pub width: Option<usize>,
    /// Elements at most: the parameter of `groupArray(max)`.
    pub max: Option<usize>,
}

#[derive(Default)]
pub(super) struct List {
    count: usize,
    bytes: Vec<u8>,
}

impl Sketch for List {
    type Form = Form;

    fn skip(form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("list elements", form.width.unwrap_or(1))?;
        skip_elements(*form, count, reader)
    }

    fn empty(_: &Form) -> Self {
        Self::default()
    }

    fn absorb(&mut self, form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("list elements", form.width.unwrap_or(1))?;
        let count = form.max.map_or(count, |max| count.min(max.saturating_sub(self.count)));
        let start = reader.position();
        skip_elements(*form, count, reader)?;
        self.bytes.extend_from_slice(reader.since(start));
        self.count += count;
        Ok(())
    }

    fn write(&mut self, _: &Form, out: &mut Vec<u8>) {
        write_varint(out, self.count as u64);
        out.extend_from_slice(&self.bytes);
    }
}

fn skip_elements(form: Form, count: usize, reader: &mut Reader<'_>) -> Result<(), WireError> {
    match form.width {
        Some(width) => reader.take_values(count, width).map(drop),
        None => (0..count).try_for_each(|_| reader.string().map(drop)),
    }
}
