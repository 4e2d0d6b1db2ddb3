//! Values of any column as bytes, one after the other: the form of keys that do not fit a word.
//!
//! ```text
//! number: little-endian | string: varint length, bytes | Nullable: u8 is-null, value unless null
//! array: varint count, elements | tuple: elements
//! ```

use crate::wire::{Data, Reader, WireError, write_varint};

/// Appends the value in `row`.
pub(crate) fn write(data: &Data, row: usize, out: &mut Vec<u8>) {
    match data {
        Data::W1(values) => out.push(values[row]),
        Data::W2(values) => out.extend_from_slice(&values[row].to_le_bytes()),
        Data::W4(values) => out.extend_from_slice(&values[row].to_le_bytes()),
        Data::W8(values) => out.extend_from_slice(&values[row].to_le_bytes()),
        Data::W16(values) => out.extend_from_slice(&values[row].to_le_bytes()),
        Data::W32(values) => values[row].iter().for_each(|limb| out.extend_from_slice(&limb.to_le_bytes())),
        Data::Fixed { width, bytes } => out.extend_from_slice(&bytes[row * width..][..*width]),
        Data::Bytes(values) => {
            write_varint(out, values.get(row).len() as u64);
            values.append_row(row, out);
        }
        Data::Nullable { nulls, values } => {
            out.push(nulls[row]);
            if nulls[row] == 0 {
                write(values, row, out);
            }
        }
        Data::Array { ends, values } => {
            let start = if row == 0 { 0 } else { ends[row - 1] };
            write_varint(out, ends[row] - start);
            (start..ends[row]).for_each(|element| write(values, element as usize, out));
        }
        Data::Tuple(elements) => elements.iter().for_each(|element| write(element, row, out)),
        // The dictionaries of two blocks differ: the value itself is the key. Key 0 may be NULL.
        Data::LowCardinality { keys, dictionary } => {
            out.push(u8::from(keys[row] == 0));
            write(dictionary, keys[row] as usize, out);
        }
    }
}

/// Appends the next value to a column.
pub(crate) fn read(reader: &mut Reader<'_>, into: &mut Data) -> Result<(), WireError> {
    match into {
        Data::W1(values) => values.push(reader.u8()?),
        Data::W2(values) => values.push(reader.u16()?),
        Data::W4(values) => values.push(reader.u32()?),
        Data::W8(values) => values.push(reader.u64()?),
        Data::W16(values) => values.push(u128::from_le_bytes(reader.array()?)),
        Data::W32(values) => values.push([reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?]),
        Data::Fixed { width, bytes } => bytes.extend_from_slice(reader.take(*width)?),
        Data::Bytes(values) => values.push(reader.string()?),
        Data::Nullable { nulls, values } => {
            let null = reader.u8()?;
            nulls.push(null);
            if null == 0 { read(reader, values)? } else { push_default(values) }
        }
        Data::Array { ends, values } => {
            let count = reader.varint()?;
            for _ in 0..count {
                read(reader, values)?;
            }
            ends.push(values.len() as u64);
        }
        Data::Tuple(elements) => elements.iter_mut().try_for_each(|element| read(reader, element))?,
        Data::LowCardinality { keys, dictionary } => {
            let is_first = reader.u8()? != 0;
            if dictionary.is_empty() {
                push_default(dictionary);
            }
            if is_first {
                skip_into(reader, dictionary)?;
                keys.push(0);
            } else {
                read(reader, dictionary)?;
                keys.push(dictionary.len() as u32 - 1);
            }
        }
    }
    Ok(())
}

/// Reads a value of the column's form and drops it.
fn skip_into(reader: &mut Reader<'_>, form: &Data) -> Result<(), WireError> {
    let mut dropped = form.gather(&[]);
    read(reader, &mut dropped)
}

/// Appends the default value of the column's form: zeros, or an empty string.
pub(crate) fn push_default(into: &mut Data) {
    match into {
        Data::W1(values) => values.push(0),
        Data::W2(values) => values.push(0),
        Data::W4(values) => values.push(0),
        Data::W8(values) => values.push(0),
        Data::W16(values) => values.push(0),
        Data::W32(values) => values.push([0; 4]),
        Data::Fixed { width, bytes } => bytes.resize(bytes.len() + *width, 0),
        Data::Bytes(values) => values.end_row(),
        Data::Nullable { nulls, values } => {
            nulls.push(1);
            push_default(values);
        }
        Data::Array { ends, values } => ends.push(values.len() as u64),
        Data::Tuple(elements) => elements.iter_mut().for_each(push_default),
        Data::LowCardinality { keys, dictionary } => {
            if dictionary.is_empty() {
                push_default(dictionary);
            }
            keys.push(0);
        }
    }
}
