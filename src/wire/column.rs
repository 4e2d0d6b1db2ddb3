//! Columns and blocks in memory: contiguous buffers, told apart by the width of their values.

use super::{DataType, WireError};

/// Some rows of some columns, as one Native block carries them. All columns have `rows` values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    pub columns: Vec<Column>,
    pub rows: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub type_: DataType,
    pub data: Data,
}

/// The values of a column. Numbers are kept as their little-endian bit patterns, signed and floating-point ones too.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    W1(Vec<u8>),
    W2(Vec<u16>),
    W4(Vec<u32>),
    W8(Vec<u64>),
    W16(Vec<u128>),
    /// 256-bit numbers as four 64-bit limbs, least significant first.
    W32(Vec<[u64; 4]>),
    /// `FixedString(width)`: `width * rows` bytes.
    Fixed {
        width: usize,
        bytes: Vec<u8>,
    },
    /// Strings and aggregate states.
    Bytes(Bytes),
    /// `nulls[row]` is 1 for NULL; the value beside it is then a default.
    Nullable {
        nulls: Vec<u8>,
        values: Box<Data>,
    },
    /// Arrays, and maps as arrays of (key, value) tuples. `ends[row]` is where the row's elements end in `values`.
    Array {
        ends: Vec<u64>,
        values: Box<Data>,
    },
    Tuple(Vec<Data>),
    /// `keys[row]` points into the dictionary. Of a nullable type, key 0 is NULL and the dictionary holds plain values.
    LowCardinality {
        keys: Vec<u32>,
        dictionary: Box<Data>,
    },
}

/// Byte strings back to back: row `i` ends at `ends[i]` and begins where the row before it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes {
    pub ends: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Bytes {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        &self.bytes[start..self.ends[row] as usize]
    }

    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len() as u64);
    }

    /// Appends the bytes of a row to `out`. Most strings are short: a copy of constant length, more than wanted and then
    /// cut, is several times faster than one of any length.
    #[inline]
    pub fn append_row(&self, row: usize, out: &mut Vec<u8>) {
        #[inline]
        fn chunk<const N: usize>(rest: &[u8], length: usize, out: &mut Vec<u8>) -> bool {
            let Some(chunk) = rest.first_chunk::<N>().filter(|_| length <= N) else { return false };
            out.extend_from_slice(chunk);
            out.truncate(out.len() - (N - length));
            true
        }
        let start = if row == 0 { 0 } else { self.ends[row - 1] as usize };
        let (rest, length) = (&self.bytes[start..], self.ends[row] as usize - start);
        if !chunk::<32>(rest, length, out) && !chunk::<64>(rest, length, out) {
            out.extend_from_slice(&rest[..length]);
        }
    }

    /// Ends the row whose bytes were appended to `bytes`.
    pub fn end_row(&mut self) {
        self.ends.push(self.bytes.len() as u64);
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|row| self.get(row))
    }
}

impl<'a> FromIterator<&'a [u8]> for Bytes {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(values: I) -> Self {
        let mut bytes = Self::default();
        values.into_iter().for_each(|value| bytes.push(value));
        bytes
    }
}

impl Data {
    /// A column of `type_` without rows.
    pub fn empty(type_: &DataType) -> Result<Self, WireError> {
        Ok(match type_ {
            DataType::FixedString(width) => Self::Fixed { width: *width, bytes: Vec::new() },
            DataType::String | DataType::Aggregate(_) => Self::Bytes(Bytes::default()),
            DataType::Nullable(inner) => Self::Nullable { nulls: Vec::new(), values: Box::new(Self::empty(inner)?) },
            DataType::LowCardinality(inner) => {
                let inner = if let DataType::Nullable(inner) = inner.as_ref() { inner } else { inner };
                Self::LowCardinality { keys: Vec::new(), dictionary: Box::new(Self::empty(inner)?) }
            }
            DataType::Array(inner) => Self::Array { ends: Vec::new(), values: Box::new(Self::empty(inner)?) },
            DataType::Map(key, value) => {
                let entry = Self::Tuple(vec![Self::empty(key)?, Self::empty(value)?]);
                Self::Array { ends: Vec::new(), values: Box::new(entry) }
            }
            DataType::Tuple(elements) if !elements.is_empty() => {
                Self::Tuple(elements.iter().map(|(_, element)| Self::empty(element)).collect::<Result<_, _>>()?)
            }
            DataType::Named(_, inner) | DataType::Simple { inner, .. } => Self::empty(inner)?,
            other => match other.width() {
                Some(1) => Self::W1(Vec::new()),
                Some(2) => Self::W2(Vec::new()),
                Some(4) => Self::W4(Vec::new()),
                Some(8) => Self::W8(Vec::new()),
                Some(16) => Self::W16(Vec::new()),
                Some(32) => Self::W32(Vec::new()),
                _ => {
                    return Err(WireError::Type {
                        type_name: other.to_string(),
                        what: "no column form is known".into(),
                    });
                }
            },
        })
    }

    /// Rows.
    pub fn len(&self) -> usize {
        match self {
            Self::W1(values) => values.len(),
            Self::W2(values) => values.len(),
            Self::W4(values) => values.len(),
            Self::W8(values) => values.len(),
            Self::W16(values) => values.len(),
            Self::W32(values) => values.len(),
            Self::Fixed { width, bytes } => bytes.len() / width,
            Self::Bytes(values) => values.len(),
            Self::Nullable { nulls, .. } => nulls.len(),
            Self::Array { ends, .. } => ends.len(),
            Self::Tuple(elements) => elements.first().map_or(0, Data::len),
            Self::LowCardinality { keys, .. } => keys.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the buffers hold (not their capacity).
    pub fn byte_size(&self) -> usize {
        match self {
            Self::W1(values) => values.len(),
            Self::W2(values) => values.len() * 2,
            Self::W4(values) => values.len() * 4,
            Self::W8(values) => values.len() * 8,
            Self::W16(values) => values.len() * 16,
            Self::W32(values) => values.len() * 32,
            Self::Fixed { bytes, .. } => bytes.len(),
            Self::Bytes(values) => values.bytes.len() + values.ends.len() * 8,
            Self::Nullable { nulls, values } => nulls.len() + values.byte_size(),
            Self::Array { ends, values } => ends.len() * 8 + values.byte_size(),
            Self::Tuple(elements) => elements.iter().map(Data::byte_size).sum(),
            Self::LowCardinality { keys, dictionary } => keys.len() * 4 + dictionary.byte_size(),
        }
    }

    /// The rows `rows` of the column, in that order. Panics when a row is out of range, as an index does.
    pub fn gather(&self, rows: &[u32]) -> Self {
        fn pick<T: Copy>(values: &[T], rows: &[u32]) -> Vec<T> {
            rows.iter().map(|row| values[*row as usize]).collect()
        }
        match self {
            Self::W1(values) => Self::W1(pick(values, rows)),
            Self::W2(values) => Self::W2(pick(values, rows)),
            Self::W4(values) => Self::W4(pick(values, rows)),
            Self::W8(values) => Self::W8(pick(values, rows)),
            Self::W16(values) => Self::W16(pick(values, rows)),
            Self::W32(values) => Self::W32(pick(values, rows)),
            Self::Fixed { width, bytes } => Self::Fixed {
                width: *width,
                bytes: rows.iter().flat_map(|row| &bytes[*row as usize * width..][..*width]).copied().collect(),
            },
            Self::Bytes(values) => Self::Bytes(rows.iter().map(|row| values.get(*row as usize)).collect()),
            Self::Nullable { nulls, values } => {
                Self::Nullable { nulls: pick(nulls, rows), values: Box::new(values.gather(rows)) }
            }
            Self::Array { ends, values } => {
                let mut picked = Vec::new();
                let ends = rows.iter().map(|row| {
                    let row = *row as usize;
                    let start = if row == 0 { 0 } else { ends[row - 1] };
                    picked.extend((start..ends[row]).map(|element| element as u32));
                    picked.len() as u64
                });
                let ends = ends.collect();
                Self::Array { ends, values: Box::new(values.gather(&picked)) }
            }
            Self::Tuple(elements) => Self::Tuple(elements.iter().map(|element| element.gather(rows)).collect()),
            Self::LowCardinality { keys, dictionary } => {
                Self::LowCardinality { keys: pick(keys, rows), dictionary: dictionary.clone() }
            }
        }
    }

    /// Appends the rows of `other`, a column of the same type. Panics when the forms differ: a bug of the caller.
    pub fn append(&mut self, other: &Data) {
        match (self, other) {
            (Self::W1(to), Self::W1(from)) => to.extend_from_slice(from),
            (Self::W2(to), Self::W2(from)) => to.extend_from_slice(from),
            (Self::W4(to), Self::W4(from)) => to.extend_from_slice(from),
            (Self::W8(to), Self::W8(from)) => to.extend_from_slice(from),
            (Self::W16(to), Self::W16(from)) => to.extend_from_slice(from),
            (Self::W32(to), Self::W32(from)) => to.extend_from_slice(from),
            (Self::Fixed { bytes: to, .. }, Self::Fixed { bytes: from, .. }) => to.extend_from_slice(from),
            (Self::Bytes(to), Self::Bytes(from)) => {
                let base = to.bytes.len() as u64;
                to.bytes.extend_from_slice(&from.bytes);
                to.ends.extend(from.ends.iter().map(|end| base + end));
            }
            (Self::Nullable { nulls, values }, Self::Nullable { nulls: more_nulls, values: more_values }) => {
                nulls.extend_from_slice(more_nulls);
                values.append(more_values);
            }
            (Self::Array { ends, values }, Self::Array { ends: more_ends, values: more_values }) => {
                let base = values.len() as u64;
                ends.extend(more_ends.iter().map(|end| base + end));
                values.append(more_values);
            }
            (Self::Tuple(to), Self::Tuple(from)) => to.iter_mut().zip(from).for_each(|(to, from)| to.append(from)),
            (
                Self::LowCardinality { keys, dictionary },
                Self::LowCardinality { keys: more_keys, dictionary: more_dictionary },
            ) => {
                // Key 0 stays 0: it is the default value, or NULL, in every dictionary.
                let base = dictionary.len() as u32;
                keys.extend(more_keys.iter().map(|key| if *key == 0 && base > 0 { 0 } else { base + key }));
                dictionary.append(more_dictionary);
            }
            (to, from) => panic!("columns of different forms: {to:?} and {from:?}"),
        }
    }
}

impl Block {
    /// The column of that name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub fn byte_size(&self) -> usize {
        self.columns.iter().map(|column| column.data.byte_size()).sum()
    }

    /// The rows `rows`, in that order. Panics when a row is out of range, as an index does.
    pub fn gather(&self, rows: &[u32]) -> Self {
        let gather = |column: &Column| Column {
            name: column.name.clone(),
            type_: column.type_.clone(),
            data: column.data.gather(rows),
        };
        Self { columns: self.columns.iter().map(gather).collect(), rows: rows.len() }
    }

    /// Appends the rows of `other`, which has the same columns.
    pub fn append(&mut self, other: &Block) {
        self.columns.iter_mut().zip(&other.columns).for_each(|(to, from)| to.data.append(&from.data));
        self.rows += other.rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_picks_rows_of_nested_columns() {
        let strings: Bytes = [b"a".as_slice(), b"bc", b""].into_iter().collect();
        let array = Data::Array { ends: vec![1, 1, 3], values: Box::new(Data::Bytes(strings)) };
        let picked = array.gather(&[2, 1]);
        let expected: Bytes = [b"bc".as_slice(), b""].into_iter().collect();
        assert_eq!(picked, Data::Array { ends: vec![2, 2], values: Box::new(Data::Bytes(expected)) });
    }

    #[test]
    fn append_shifts_offsets_and_dictionary_keys() {
        let dictionary = |words: &[&str]| Box::new(Data::Bytes(words.iter().map(|word| word.as_bytes()).collect()));
        let mut column = Data::LowCardinality { keys: vec![0, 1], dictionary: dictionary(&["", "x"]) };
        column.append(&Data::LowCardinality { keys: vec![1, 0], dictionary: dictionary(&["", "y"]) });
        assert_eq!(
            column,
            Data::LowCardinality { keys: vec![0, 1, 3, 0], dictionary: dictionary(&["", "x", "", "y"]) }
        );
    }
}
