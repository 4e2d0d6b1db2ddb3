//! How states travel between ClickHouse and this process.

use super::is_mergeable;
use crate::wire::DataType;

/// How a column of a storage table is read and written, and whether this process can merge it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carrier {
    /// False: opaque. Such a column is carried along unmerged, and ClickHouse merges it when it is queried.
    pub mergeable: bool,
    /// What to select in place of the state expression, for `FORMAT Native`.
    pub select: String,
    /// Type under which the column arrives and is to be inserted. ClickHouse casts a `String` column of a Native
    /// INSERT to the `AggregateFunction` type of the table by itself (26.9), so inserting needs no expression.
    pub travels_as: DataType,
}

/// The carrier of `expression`, whose storage type is `storage`.
///
/// Aggregate states stand in a Native column without lengths, so that only a decoder of that very function can tell
/// them apart; as `String` they have a length each, and arrive ready to be referred to. `SimpleAggregateFunction`
/// columns and dimensions travel as they are.
pub fn carrier(storage: &DataType, expression: &str) -> Carrier {
    match storage {
        DataType::Aggregate(_) => Carrier {
            mergeable: is_mergeable(storage),
            select: format!("CAST({expression} AS String)"),
            travels_as: DataType::String,
        },
        other => Carrier { mergeable: is_mergeable(other), select: expression.to_string(), travels_as: other.clone() },
    }
}
