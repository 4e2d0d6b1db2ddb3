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

const COOKIE: u32 = 12_346;
const COOKIE_WITH_RUNS: u16 = 12_347;
const CONTAINERS_MAX: u64 = 1 << 16;
/// From so many containers on, a bitmap with runs has offsets too.
const CONTAINERS_WITH_OFFSETS: usize = 4;
const ARRAY_VALUES_MAX: usize = 4096;
const BITS_BYTES: usize = 8192;

/// Walks over bitmaps in the portable format: the library takes memory for what a header announces before it has seen
/// whether the bytes are there.
fn check(form: Form, reader: &mut Reader<'_>) -> Result<(), WireError> {
    if form.width < 8 {
        return check_bitmap(reader);
    }
    for _ in 0..reader.u64()? {
        reader.u32()?;
        check_bitmap(reader)?;
    }
    Ok(())
}

fn check_bitmap(reader: &mut Reader<'_>) -> Result<(), WireError> {
    let cookie = reader.u32()?;
    let (count, runs) = match cookie as u16 {
        COOKIE_WITH_RUNS => {
            let count = (cookie >> 16) as usize + 1;
            (count, Some(reader.take(count.div_ceil(8))?))
        }
        _ if cookie == COOKIE => {
            let count = u64::from(reader.u32()?);
            (reader.limit("containers of a bitmap", count, CONTAINERS_MAX)?, None)
        }
        _ => return Err(reader.malformed(format!("a bitmap that begins with {cookie}"))),
    };
    let descriptions = reader.take_values(count, 4)?;
    if runs.is_none() || count >= CONTAINERS_WITH_OFFSETS {
        reader.take_values(count, 4)?;
    }
    for (at, description) in descriptions.as_chunks::<4>().0.iter().enumerate() {
        let values = usize::from(u16::from_le_bytes([description[2], description[3]])) + 1;
        match runs {
            Some(runs) if runs[at / 8] >> (at % 8) & 1 != 0 => {
                let runs = reader.u16()?;
                reader.take_values(usize::from(runs), 4)?;
            }
            _ if values <= ARRAY_VALUES_MAX => drop(reader.take_values(values, 2)?),
            _ => drop(reader.take(BITS_BYTES)?),
        }
    }
    Ok(())
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
                check(*form, &mut Reader::new(bytes))?;
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
