//! quantileExact and groupArray: lists, merged by putting one behind the other.
//!
//! ```text
//! state: varint count | value of fixed width, count times          (quantileExact, groupArray over numbers)
//!        varint count | (varint length | bytes), count times       (groupArray over everything else)
//! ```
//! Written by ClickHouse 26.9. NULLs are not in the lists.

use super::sketch::Sketch;
use crate::wire::{Reader, WireError, write_varint};

#[derive(Default)]
pub(super) struct List {
    count: u64,
    bytes: Vec<u8>,
}

impl Sketch for List {
    /// Bytes of a value; `None`: each has its length in front.
    type Form = Option<usize>;

    fn skip(form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("list elements", form.unwrap_or(1))?;
        skip_elements(*form, count, reader)
    }

    fn empty(_: &Self::Form) -> Self {
        Self::default()
    }

    fn absorb(&mut self, form: &Self::Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let count = reader.count("list elements", form.unwrap_or(1))?;
        let start = reader.position();
        skip_elements(*form, count, reader)?;
        self.bytes.extend_from_slice(reader.since(start));
        self.count += count as u64;
        Ok(())
    }

    fn write(&mut self, _: &Self::Form, out: &mut Vec<u8>) {
        write_varint(out, self.count);
        out.extend_from_slice(&self.bytes);
    }
}

fn skip_elements(width: Option<usize>, count: usize, reader: &mut Reader<'_>) -> Result<(), WireError> {
    match width {
        Some(width) => reader.take_values(count, width).map(drop),
        None => (0..count).try_for_each(|_| reader.string().map(drop)),
    }
}
