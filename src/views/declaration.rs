//! View declarations as operators write them.

use std::time::Duration;

/// How old the state may be that an accelerated answer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// No older than the arrival of the query.
    #[default]
    Exact,
    /// At most this much older.
    Bounded(Duration),
    /// As of the last rebuild, on the operator's word.
    Manual,
}
