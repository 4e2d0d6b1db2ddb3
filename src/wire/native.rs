//! `FORMAT Native` as ClickHouse writes and reads it over HTTP without `client_protocol_version` (seen in 26.9):
//!
//! ```text
//! block:   varint columns | varint rows | column*
//! column:  string name | string type | data (nothing at all when the block has no rows)
//! data:    every LowCardinality prefix of the type (u64 version = 1) | values
//!   number, date, ..       width * rows, little-endian
//!   String                 (varint length | bytes) per row
//!   Nullable(T)            u8 is-NULL per row | values of T
//!   Array(T), Map          u64 end per row | values
//!   Tuple                  one element after the other
//!   LowCardinality(T)      u64 index width and flags | u64 keys | T values | u64 rows | index per row
//!   AggregateFunction      states back to back, without lengths
//! ```
//!
//! `DateTime('zone')` columns are announced as `DateTime`, and aggregate states without their version.
//!
//! A state has no length in front, so cutting a column of them into rows needs to know its function: callers pass a
//! [`Skip`] that does. States of any function can be had as `String` instead: see `state::carrier`.

use super::{
    AggregateType, Block, Bytes, Column, Data, DataType, Limits, Reader, WireError, write_string, write_varint,
};

/// Moves a reader past one state of a function; an error for functions that it does not know.
pub type Skip = fn(&AggregateType, &mut Reader<'_>) -> Result<(), WireError>;

/// LowCardinality: the only version of keys there is, `SharedDictionariesWithAdditionalKeys`.
const KEYS_VERSION: u64 = 1;
/// LowCardinality flags: the block brings its own keys (bit 9), and does not refer to earlier ones (bit 10).
const HAS_ADDITIONAL_KEYS: u64 = 1 << 9;
const NEED_UPDATE_DICTIONARY: u64 = 1 << 10;
const NEED_GLOBAL_DICTIONARY: u64 = 1 << 8;

/// A [`Skip`] for streams without bare aggregate states.
pub fn no_states(aggregate: &AggregateType, _: &mut Reader<'_>) -> Result<(), WireError> {
    Err(WireError::Type {
        type_name: aggregate.to_string(),
        what: "states of this function cannot be told apart; select them as CAST(state AS String)".into(),
    })
}

/// All blocks of a complete stream.
pub fn decode(bytes: &[u8], skip: Skip) -> Result<Vec<Block>, WireError> {
    let mut decoder = Decoder::new(skip);
    let mut blocks = decoder.push(bytes)?;
    blocks.extend(decoder.finish()?);
    Ok(blocks)
}

/// Decodes a stream that arrives in pieces.
#[derive(Debug)]
pub struct Decoder {
    skip: Skip,
    limits: Limits,
    buffer: Vec<u8>,
    /// Bytes of the stream before `buffer`.
    offset: usize,
    /// Below this length of `buffer` another attempt is known to fail.
    wanted: usize,
    block: Option<Partial>,
}

/// A block of which some columns are still to come.
#[derive(Debug)]
struct Partial {
    columns: Vec<Column>,
    column_count: usize,
    rows: usize,
    strings: Option<Strings>,
}

/// A `String` column of which some rows are there: states travel as strings, and such a column may be far longer than
/// the pieces that the stream arrives in.
#[derive(Debug)]
struct Strings {
    name: String,
    values: Bytes,
}

impl Decoder {
    pub fn new(skip: Skip) -> Self {
        Self::with_limits(skip, Limits::default())
    }

    pub fn with_limits(skip: Skip, limits: Limits) -> Self {
        Self { skip, limits, buffer: Vec::new(), offset: 0, wanted: 0, block: None }
    }

    /// Takes the next piece of the stream and returns the blocks that it completes. Blocks without rows (headers)
    /// are returned like any other.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Block>, WireError> {
        let mut blocks = Vec::new();
        if self.buffer.is_empty() {
            let used = self.parse(piece, &mut blocks)?;
            self.buffer.extend_from_slice(&piece[used..]);
        } else {
            self.buffer.extend_from_slice(piece);
            if self.buffer.len() >= self.wanted {
                let buffer = std::mem::take(&mut self.buffer);
                let used = self.parse(&buffer, &mut blocks)?;
                self.buffer = buffer;
                self.buffer.drain(..used);
            }
        }
        Ok(blocks)
    }

    /// To be called at the end of the stream: the blocks that were held back in the hope of more bytes; an error when
    /// the stream ended within a block.
    pub fn finish(&mut self) -> Result<Vec<Block>, WireError> {
        let mut blocks = Vec::new();
        let buffer = std::mem::take(&mut self.buffer);
        let used = self.parse(&buffer, &mut blocks)?;
        self.buffer.extend_from_slice(&buffer[used..]);
        if self.buffer.is_empty() && self.block.is_none() {
            return Ok(blocks);
        }
        let needed = self.wanted.saturating_sub(self.buffer.len()).max(1);
        Err(WireError::Incomplete { offset: self.offset + self.buffer.len(), needed })
    }

    /// Parses whole columns from `bytes` while there are any; the number of bytes used.
    fn parse(&mut self, bytes: &[u8], blocks: &mut Vec<Block>) -> Result<usize, WireError> {
        let mut used = 0;
        while used < bytes.len() || self.block.is_some() {
            let mut reader = Reader::with(&bytes[used..], self.offset, self.limits);
            match self.step(&mut reader) {
                Ok(finished) => {
                    used += reader.position();
                    self.offset += reader.position();
                    blocks.extend(finished);
                }
                Err(WireError::Incomplete { needed, .. }) => {
                    self.wanted = bytes.len() - used + needed;
                    return Ok(used);
                }
                Err(error) => return Err(error),
            }
        }
        self.wanted = 0;
        Ok(used)
    }

    /// Reads a block's head, one column, or some rows of a `String` column; the block when it is complete.
    fn step(&mut self, reader: &mut Reader<'_>) -> Result<Option<Block>, WireError> {
        let Some(partial) = &mut self.block else {
            let columns = reader.varint()?;
            let column_count = reader.limit("column count", columns, self.limits.columns_max)?;
            let rows = reader.varint()?;
            let rows = reader.limit("row count", rows, self.limits.rows_max)?;
            self.block = Some(Partial { columns: Vec::new(), column_count, rows, strings: None });
            return Ok(self.complete());
        };
        if let Some(strings) = &mut partial.strings {
            let before = strings.values.len();
            while strings.values.len() < partial.rows {
                let mut next = reader.clone();
                match next.string() {
                    Ok(value) => strings.values.push(value),
                    Err(WireError::Incomplete { .. }) if strings.values.len() > before => return Ok(None),
                    Err(error) => return Err(error),
                }
                *reader = next;
            }
            if let Some(Strings { name, values }) = partial.strings.take() {
                partial.columns.push(Column { name, type_: DataType::String, data: Data::Bytes(values) });
            }
            return Ok(self.complete());
        }
        let name = reader.text()?.to_string();
        let type_ = DataType::parse(reader.text()?)?;
        if type_ == DataType::String && partial.rows > 0 {
            partial.strings = Some(Strings { name, values: Bytes::default() });
            return Ok(None);
        }
        let data = decode_column(reader, &type_, partial.rows, self.skip)?;
        partial.columns.push(Column { name, type_, data });
        Ok(self.complete())
    }

    fn complete(&mut self) -> Option<Block> {
        let partial = self.block.take_if(|partial| partial.columns.len() == partial.column_count)?;
        Some(Block { columns: partial.columns, rows: partial.rows })
    }
}

/// The data of one column, as it stands after the column's type. `rows` is 0 where nothing was written.
pub fn decode_column(reader: &mut Reader<'_>, type_: &DataType, rows: usize, skip: Skip) -> Result<Data, WireError> {
    if rows == 0 {
        return Data::empty(type_);
    }
    decode_prefix(reader, type_)?;
    decode_values(reader, type_, rows, skip)
}

fn decode_prefix(reader: &mut Reader<'_>, type_: &DataType) -> Result<(), WireError> {
    match type_ {
        DataType::LowCardinality(_) => match reader.u64()? {
            KEYS_VERSION => Ok(()),
            other => Err(reader.malformed(format!("LowCardinality keys of version {other}, only 1 is known"))),
        },
        DataType::Nullable(inner)
        | DataType::Array(inner)
        | DataType::Named(_, inner)
        | DataType::Simple { inner, .. } => decode_prefix(reader, inner),
        DataType::Map(key, value) => {
            decode_prefix(reader, key)?;
            decode_prefix(reader, value)
        }
        DataType::Tuple(elements) => elements.iter().try_for_each(|(_, element)| decode_prefix(reader, element)),
        _ => Ok(()),
    }
}

fn decode_values(reader: &mut Reader<'_>, type_: &DataType, rows: usize, skip: Skip) -> Result<Data, WireError> {
    Ok(match type_ {
        DataType::String => Data::Bytes(decode_strings(reader, rows)?),
        DataType::FixedString(width) => {
            Data::Fixed { width: *width, bytes: reader.take_values(rows, *width)?.to_vec() }
        }
        DataType::Nullable(inner) => {
            let nulls = reader.take(rows)?.to_vec();
            Data::Nullable { nulls, values: Box::new(decode_values(reader, inner, rows, skip)?) }
        }
        DataType::Array(inner) => {
            let (ends, total) = decode_ends(reader, rows)?;
            Data::Array { ends, values: Box::new(decode_values(reader, inner, total, skip)?) }
        }
        DataType::Map(key, value) => {
            let (ends, total) = decode_ends(reader, rows)?;
            let keys = decode_values(reader, key, total, skip)?;
            let values = decode_values(reader, value, total, skip)?;
            Data::Array { ends, values: Box::new(Data::Tuple(vec![keys, values])) }
        }
        DataType::Tuple(elements) if !elements.is_empty() => Data::Tuple(
            elements.iter().map(|(_, element)| decode_values(reader, element, rows, skip)).collect::<Result<_, _>>()?,
        ),
        DataType::LowCardinality(inner) => decode_low_cardinality(reader, inner, rows)?,
        DataType::Named(_, inner) | DataType::Simple { inner, .. } => decode_values(reader, inner, rows, skip)?,
        DataType::Aggregate(aggregate) => Data::Bytes(decode_states(reader, aggregate, rows, skip)?),
        other => match other.width() {
            Some(width) => decode_fixed(reader.take_values(rows, width)?, width),
            None => return Err(WireError::Type { type_name: other.to_string(), what: "no values to decode".into() }),
        },
    })
}

/// `bytes` as values of `width` bytes each.
fn decode_fixed(bytes: &[u8], width: usize) -> Data {
    fn values<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| value(*chunk)).collect()
    }
    match width {
        1 => Data::W1(bytes.to_vec()),
        2 => Data::W2(values(bytes, u16::from_le_bytes)),
        4 => Data::W4(values(bytes, u32::from_le_bytes)),
        8 => Data::W8(values(bytes, u64::from_le_bytes)),
        16 => Data::W16(values(bytes, u128::from_le_bytes)),
        _ => Data::W32(values(bytes, |chunk: [u8; 32]| {
            let mut limbs = [0; 4];
            for (limb, bytes) in limbs.iter_mut().zip(chunk.as_chunks::<8>().0) {
                *limb = u64::from_le_bytes(*bytes);
            }
            limbs
        })),
    }
}

fn decode_strings(reader: &mut Reader<'_>, rows: usize) -> Result<Bytes, WireError> {
    if rows > reader.remaining() {
        // A string takes at least the byte of its length.
        return Err(WireError::Incomplete { offset: reader.offset(), needed: rows - reader.remaining() });
    }
    let mut strings = Bytes { ends: Vec::with_capacity(rows), bytes: Vec::new() };
    for _ in 0..rows {
        strings.push(reader.string()?);
    }
    Ok(strings)
}

fn decode_states(
    reader: &mut Reader<'_>,
    aggregate: &AggregateType,
    rows: usize,
    skip: Skip,
) -> Result<Bytes, WireError> {
    let start = reader.position();
    let mut ends = Vec::with_capacity(rows.min(reader.remaining()));
    for _ in 0..rows {
        skip(aggregate, reader)?;
        ends.push((reader.position() - start) as u64);
    }
    Ok(Bytes { ends, bytes: reader.since(start).to_vec() })
}

fn decode_ends(reader: &mut Reader<'_>, rows: usize) -> Result<(Vec<u64>, usize), WireError> {
    let Data::W8(ends) = decode_fixed(reader.take_values(rows, 8)?, 8) else { unreachable!("eight bytes are W8") };
    if !ends.is_sorted() {
        return Err(reader.malformed("array offsets that go back"));
    }
    let total = reader.limit("array elements", ends.last().copied().unwrap_or(0), reader.limits.rows_max)?;
    Ok((ends, total))
}

fn decode_low_cardinality(reader: &mut Reader<'_>, inner: &DataType, rows: usize) -> Result<Data, WireError> {
    let inner = if let DataType::Nullable(inner) = inner { inner } else { inner };
    if rows == 0 {
        let dictionary = Box::new(Data::empty(inner)?);
        return Ok(Data::LowCardinality { keys: Vec::new(), dictionary });
    }
    let flags = reader.u64()?;
    if flags & NEED_GLOBAL_DICTIONARY != 0 || flags & HAS_ADDITIONAL_KEYS == 0 {
        return Err(
            reader.malformed(format!("LowCardinality flags {flags:#x}: only keys of the block's own are known"))
        );
    }
    let key_count = reader.u64()?;
    let key_count = reader.limit("LowCardinality keys", key_count, reader.limits.rows_max)?;
    let dictionary = decode_values(reader, inner, key_count, no_states)?;
    let indexes = reader.u64()?;
    if indexes != rows as u64 {
        return Err(reader.malformed(format!("LowCardinality with {indexes} indexes for {rows} rows")));
    }
    let keys: Vec<u32> = match flags & 0xff {
        0 => reader.take(rows)?.iter().map(|key| u32::from(*key)).collect(),
        1 => match decode_fixed(reader.take_values(rows, 2)?, 2) {
            Data::W2(keys) => keys.into_iter().map(u32::from).collect(),
            _ => unreachable!("two bytes are W2"),
        },
        2 => match decode_fixed(reader.take_values(rows, 4)?, 4) {
            Data::W4(keys) => keys,
            _ => unreachable!("four bytes are W4"),
        },
        other => return Err(reader.malformed(format!("LowCardinality indexes of kind {other}"))),
    };
    match keys.iter().max() {
        Some(key) if *key as usize >= key_count => {
            Err(reader.malformed(format!("LowCardinality index {key} of {key_count} keys")))
        }
        _ => Ok(Data::LowCardinality { keys, dictionary: Box::new(dictionary) }),
    }
}

/// Appends `block` to `out`. States of aggregate functions are written as they are, back to back.
pub fn encode(block: &Block, out: &mut Vec<u8>) {
    write_varint(out, block.columns.len() as u64);
    write_varint(out, block.rows as u64);
    for column in &block.columns {
        write_string(out, column.name.as_bytes());
        write_string(out, column.type_.to_string().as_bytes());
        if block.rows > 0 {
            encode_prefix(&column.data, out);
            encode_values(&column.data, &column.type_, out);
        }
    }
}

fn encode_prefix(data: &Data, out: &mut Vec<u8>) {
    match data {
        Data::LowCardinality { .. } => out.extend_from_slice(&KEYS_VERSION.to_le_bytes()),
        Data::Nullable { values, .. } | Data::Array { values, .. } => encode_prefix(values, out),
        Data::Tuple(elements) => elements.iter().for_each(|element| encode_prefix(element, out)),
        _ => {}
    }
}

/// Panics when a nested column is not of its type's form: a bug of the caller.
fn encode_values(data: &Data, type_: &DataType, out: &mut Vec<u8>) {
    match (data, type_) {
        (data, DataType::Simple { inner, .. } | DataType::Named(_, inner)) => encode_values(data, inner, out),
        (Data::W1(values), _) => out.extend_from_slice(values),
        (Data::W2(values), _) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        (Data::W4(values), _) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        (Data::W8(values), _) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        (Data::W16(values), _) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        (Data::W32(values), _) => out.extend(values.iter().flatten().flat_map(|limb| limb.to_le_bytes())),
        (Data::Fixed { bytes, .. }, _) => out.extend_from_slice(bytes),
        (Data::Bytes(values), DataType::Aggregate(_)) => out.extend_from_slice(&values.bytes),
        (Data::Bytes(values), _) => values.iter().for_each(|value| write_string(out, value)),
        (Data::Nullable { nulls, values }, DataType::Nullable(inner)) => {
            out.extend_from_slice(nulls);
            encode_values(values, inner, out);
        }
        (Data::Array { ends, values }, DataType::Array(inner)) => {
            out.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
            encode_values(values, inner, out);
        }
        (Data::Array { ends, values }, DataType::Map(key_type, value_type)) => {
            out.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
            let Data::Tuple(entries) = values.as_ref() else { panic!("the entries of a map are tuples") };
            entries.iter().zip([key_type, value_type]).for_each(|(entries, type_)| encode_values(entries, type_, out));
        }
        (Data::Tuple(elements), DataType::Tuple(types)) => {
            elements.iter().zip(types).for_each(|(element, (_, type_))| encode_values(element, type_, out));
        }
        (Data::LowCardinality { keys, .. }, _) if keys.is_empty() => {}
        (Data::LowCardinality { keys, dictionary }, DataType::LowCardinality(inner)) => {
            let inner = if let DataType::Nullable(inner) = inner.as_ref() { inner } else { inner };
            let index_kind = match dictionary.len() {
                0..=0x100 => 0,
                0x101..=0x1_0000 => 1,
                _ => 2,
            };
            let flags = index_kind | HAS_ADDITIONAL_KEYS | NEED_UPDATE_DICTIONARY;
            out.extend_from_slice(&flags.to_le_bytes());
            out.extend_from_slice(&(dictionary.len() as u64).to_le_bytes());
            encode_values(dictionary, inner, out);
            out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
            match index_kind {
                0 => out.extend(keys.iter().map(|key| *key as u8)),
                1 => out.extend(keys.iter().flat_map(|key| (*key as u16).to_le_bytes())),
                _ => out.extend(keys.iter().flat_map(|key| key.to_le_bytes())),
            }
        }
        (data, type_) => panic!("a column of `{type_}` cannot hold {data:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_in_pieces_of_any_size_is_the_stream() {
        let strings: Bytes = (0..3000).map(|i| &b"xxxxxxx"[..i % 7]).collect();
        let column = Column { name: "s".into(), type_: DataType::String, data: Data::Bytes(strings) };
        let block = Block { columns: vec![column], rows: 3000 };
        let mut bytes = Vec::new();
        encode(&block, &mut bytes);
        encode(&block, &mut bytes);
        for size in [1, 7, 100, 3001, bytes.len() - 1, bytes.len()] {
            let mut decoder = Decoder::new(no_states);
            let mut blocks = Vec::new();
            for piece in bytes.chunks(size) {
                blocks.extend(decoder.push(piece).unwrap());
            }
            blocks.extend(decoder.finish().unwrap());
            assert!(blocks == [block.clone(), block.clone()], "pieces of {size} bytes");
        }
        let mut decoder = Decoder::new(no_states);
        decoder.push(&bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(decoder.finish(), Err(WireError::Incomplete { .. })));
    }
}
