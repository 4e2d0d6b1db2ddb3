//! groupBitmap: a small set, then a roaring bitmap.
//!
//! ```text
//! state: u8 kind | 0: varint count | value of the argument's width, count times (at most 32)
//!                | 1: varint length | roaring bitmap, portable format
//! portable format of 64-bit values: u64 number of bitmaps | (u32 high half | 32-bit bitmap) ..
//! ```
//! Written by ClickHouse 26.9: `AggregateFunctionGroupBitmapData.h`.

use std::collections::BTreeSet;

use roaring::{RoaringBitmap, RoaringTreemap};

use super::sketch::Sketch;
use crate::wire::{Reader, WireError, write_string, write_varint};

const SMALL_MAX: usize = 32;
const KIND_SMALL: u8 = 0;
const KIND_BITMAP: u8 = 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Bytes of a value: 1, 2, 4 or 8. Bitmaps are of 32 bits below 8.
    pub width: usize,
    pub signed: bool,
}

pub(super) enum Bitmap {
    /// Values as bit patterns of the argument's width.
    Small(BTreeSet<u64>),
    Narrow(RoaringBitmap),
    Wide(RoaringTreemap),
}

impl Bitmap {
    fn insert(&mut self, form: Form, value: u64) {
        match self {
            Self::Small(values) => {
                values.insert(value);
                if values.len() > SMALL_MAX {
                    self.enlarge(form);
                }
            }
            Self::Narrow(bitmap) => drop(bitmap.insert(widen(form, value) as u32)),
            Self::Wide(bitmap) => drop(bitmap.insert(widen(form, value))),
        }
    }

    fn enlarge(&mut self, form: Form) {
        if let Self::Small(values) = self {
            let values = values.iter().map(|value| widen(form, *value));
            *self = if form.width == 8 {
                Self::Wide(values.collect())
            } else {
                Self::Narrow(values.map(|value| value as u32).collect())
            };
        }
    }
}

/// Signed values are extended to the width of the bitmap.
fn widen(form: Form, value: u64) -> u64 {
    match (form.signed, form.width) {
        (true, 1) => value as u8 as i8 as u64,
        (true, 2) => value as u16 as i16 as u64,
        (true, 4) => value as u32 as i32 as u64,
        _ => value,
    }
}

enum Content<'a> {
    Values(&'a [u8]),
    Bitmap(&'a [u8]),
}

fn read<'a>(form: Form, reader: &mut Reader<'a>) -> Result<Content<'a>, WireError> {
    match reader.u8()? {
        KIND_SMALL => {
            let count = reader.count("values of a bitmap", form.width)?;
            Ok(Content::Values(reader.take_values(count, form.width)?))
        }
        KIND_BITMAP => Ok(Content::Bitmap(reader.string()?)),
        kind => Err(reader.malformed(format!("a bitmap of kind {kind}"))),
    }
}

impl Sketch for Bitmap {
    type Form = Form;

    fn skip(form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        read(*form, reader).map(drop)
    }

    fn empty(_: &Form) -> Self {
        Self::Small(BTreeSet::new())
    }

    fn absorb(&mut self, form: &Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
        match read(*form, reader)? {
            Content::Values(bytes) => {
                for value in bytes.chunks_exact(form.width) {
                    let mut word = [0; 8];
                    word[..form.width].copy_from_slice(value);
                    self.insert(*form, u64::from_le_bytes(word));
                }
            }
            Content::Bitmap(bytes) => {
                self.enlarge(*form);
                let malformed = |error: std::io::Error| reader.malformed(format!("not a roaring bitmap: {error}"));
                match self {
                    Self::Narrow(bitmap) => *bitmap |= RoaringBitmap::deserialize_from(bytes).map_err(malformed)?,
                    Self::Wide(bitmap) => *bitmap |= RoaringTreemap::deserialize_from(bytes).map_err(malformed)?,
                    Self::Small(_) => unreachable!("it was just made large"),
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, form: &Form, out: &mut Vec<u8>) {
        let mut bytes = Vec::new();
        let written = match self {
            Self::Small(values) => {
                out.push(KIND_SMALL);
                write_varint(out, values.len() as u64);
                values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()[..form.width]));
                return;
            }
            Self::Narrow(bitmap) => bitmap.serialize_into(&mut bytes),
            Self::Wide(bitmap) => bitmap.serialize_into(&mut bytes),
        };
        debug_assert!(written.is_ok(), "writing to memory does not fail");
        out.push(KIND_BITMAP);
        write_string(out, &bytes);
    }
}
