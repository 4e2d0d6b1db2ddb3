//! ClickHouse's binary forms: data types, columns, blocks of `FORMAT Native`.
//!
//! A column is one typed, contiguous buffer ([`Data`]); its meaning stands beside it ([`DataType`]). Buffers are
//! told apart by the *width* of a value only, because merging, hashing and copying need no more: an Int64, a
//! DateTime64 and a Float64 column are all [`Data::W8`].

mod column;
pub mod native;
mod reader;
#[cfg(test)]
mod tests;
mod types;

pub use column::{Block, Bytes, Column, Data};
pub use reader::{Reader, write_string, write_varint};
pub use types::{AggregateType, DataType};

/// Why bytes or a type could not be read. Offsets count bytes from the start of the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end within a value: with at least `needed` more bytes reading can go on.
    #[error("the data ends at byte {offset}, at least {needed} bytes more were expected")]
    Incomplete { offset: usize, needed: usize },
    #[error("malformed data at byte {offset}: {what}")]
    Malformed { offset: usize, what: String },
    /// A length or count that no sane sender writes; nothing was allocated for it.
    #[error("{what} of {value} at byte {offset} is over the limit of {limit}")]
    Limit { offset: usize, what: &'static str, value: u64, limit: u64 },
    /// A type that the Native decoder does not know, or that has no such encoding.
    #[error("type `{type_name}`: {what}")]
    Type { type_name: String, what: String },
}

/// Bounds on what a stream may announce. The defaults are far above what ClickHouse sends by default
/// (`max_block_size` is 65 409 rows) and are there against garbage.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub columns_max: u64,
    /// Rows of one block, and elements of one nested column.
    pub rows_max: u64,
    /// Bytes of one string, state, name or type name.
    pub string_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { columns_max: 10_000, rows_max: 1 << 30, string_bytes_max: 1 << 30 }
    }
}
