//! The table that holds a view's runs.
//!
//! ```text
//! tributary.<view>_<16 hex digits of a hash of the definition>
//!   _run UInt64                      the run; one run is one partition
//!   _sp LowCardinality(String)       partition id of the fact table
//!   dimensions                       under the names and types that the view's query gives them
//!   aggregates                       SimpleAggregateFunction(f, T) or AggregateFunction(f, ..)
//! ```
//! A changed definition is another table, so that the old one can go on answering until the new one is built.

use serde::Deserialize;

use super::declaration::Declaration;
use crate::matching::schema::TableName;
use crate::matching::view::{ColumnKind, Excerpt, Storage as StateStorage, View};
use crate::sql::lexer::backquote;
use crate::upstream::{Upstream, UpstreamError};

/// The database that holds storage tables and the manifest.
pub const DATABASE: &str = "tributary";

pub const RUN: &str = "_run";
pub const SOURCE_PARTITION: &str = "_sp";

/// A view's storage table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageTable {
    pub name: TableName,
    /// The view's output columns, in order: name and storage type.
    pub columns: Vec<StorageColumn>,
    /// Positions in `columns` by which the table is sorted.
    pub sorting: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageColumn {
    pub name: String,
    /// As ClickHouse spells it.
    pub type_name: String,
    pub is_dimension: bool,
}

/// Why a view cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// `position` in `order_by` names no dimension.
    #[error("order_by: {name} is no dimension of the view")]
    OrderBy { position: usize, name: String, dimensions: Vec<String> },
    #[error("the query has {described} columns where {expected} were expected; is `*` or COLUMNS in it?")]
    Columns { described: usize, expected: usize },
    #[error("two columns of the view are called {0}; give one of them an alias")]
    SameName(String),
}

#[derive(Deserialize)]
struct Described {
    name: String,
    #[serde(rename = "type")]
    type_name: String,
}

impl StorageTable {
    /// Asks ClickHouse for the names and types of the view's columns and states. Creates nothing.
    pub async fn describe(upstream: &Upstream, declaration: &Declaration, view: &View) -> Result<Self, StorageError> {
        let query = declaration.query.trim().trim_end_matches(';');
        let outputs: Vec<Described> = upstream.rows(&format!("DESCRIBE TABLE ({query}\n)")).await?;
        let expected = view.columns.len();
        if outputs.len() != expected {
            return Err(StorageError::Columns { described: outputs.len(), expected });
        }
        let names: Vec<String> = outputs.iter().map(|column| column.name.clone()).collect();
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(StorageError::SameName(twice.1.clone()));
        }
        let select = view.state_select(&names, &Excerpt::default());
        let states: Vec<Described> = upstream.rows(&format!("DESCRIBE TABLE ({select})")).await?;
        if states.len() != expected {
            return Err(StorageError::Columns { described: states.len(), expected });
        }
        let columns: Vec<StorageColumn> = view
            .columns
            .iter()
            .zip(outputs)
            .zip(states)
            .map(|((column, output), state)| StorageColumn {
                name: output.name,
                is_dimension: matches!(column.kind, ColumnKind::Dimension),
                type_name: match &column.kind {
                    ColumnKind::Dimension => output.type_name,
                    ColumnKind::Aggregate { storage: StateStorage::Simple(merge), .. } => {
                        format!("SimpleAggregateFunction({merge}, {})", state.type_name)
                    }
                    ColumnKind::Aggregate { storage: StateStorage::State, .. } => state.type_name,
                },
            })
            .collect();
        let sorting = sorting(&columns, declaration.order_by.as_deref())?;
        let hash = definition_hash(&select, &columns, &sorting);
        let name = TableName::new(DATABASE, format!("{}_{hash:016x}", view.name));
        Ok(StorageTable { name, columns, sorting })
    }

    /// Creates the table unless it exists.
    pub async fn create(&self, upstream: &Upstream) -> Result<(), UpstreamError> {
        upstream.execute(&self.ddl()).await
    }

    /// The table's full name, quoted.
    pub fn quoted(&self) -> String {
        format!("{}.{}", backquote(&self.name.database), backquote(&self.name.table))
    }

    fn ddl(&self) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|column| format!("{} {}", backquote(&column.name), column.type_name)).collect();
        let sorting: Vec<String> = self.sorting.iter().map(|at| backquote(&self.columns[*at].name)).collect();
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({RUN} UInt64, {SOURCE_PARTITION} LowCardinality(String), {}) \
             ENGINE = MergeTree PARTITION BY {RUN} ORDER BY ({}) SETTINGS allow_nullable_key = 1",
            self.quoted(),
            columns.join(", "),
            sorting.join(", ")
        )
    }
}

fn sorting(columns: &[StorageColumn], order_by: Option<&[String]>) -> Result<Vec<usize>, StorageError> {
    let dimensions = || columns.iter().enumerate().filter(|(_, column)| column.is_dimension);
    let Some(order_by) = order_by else { return Ok(dimensions().map(|(at, _)| at).collect()) };
    let find = |(position, name): (usize, &String)| {
        dimensions().find(|(_, column)| column.name == *name).map(|(at, _)| at).ok_or_else(|| StorageError::OrderBy {
            position,
            name: name.clone(),
            dimensions: dimensions().map(|(_, column)| column.name.clone()).collect(),
        })
    };
    order_by.iter().enumerate().map(find).collect()
}

/// FNV-1a over all that makes up the definition: the same for ever, unlike the hashes of the standard library.
fn definition_hash(select: &str, columns: &[StorageColumn], sorting: &[usize]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let sorting: Vec<String> = sorting.iter().map(ToString::to_string).collect();
    let columns = columns.iter().flat_map(|column| [column.name.as_str(), column.type_name.as_str()]);
    let texts = std::iter::once(select).chain(columns).chain(sorting.iter().map(String::as_str));
    // Each text ends with a byte that occurs in none.
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> StorageTable {
        let column = |name: &str, type_name: &str, is_dimension| StorageColumn {
            name: name.into(),
            type_name: type_name.into(),
            is_dimension,
        };
        StorageTable {
            name: TableName::new("tributary", "v_0123"),
            columns: vec![
                column("year", "UInt16", true),
                column("sum(x)", "SimpleAggregateFunction(sum, UInt64)", false),
                column("city", "LowCardinality(String)", true),
            ],
            sorting: vec![2, 0],
        }
    }

    #[test]
    fn the_table_is_partitioned_by_run_and_sorted_as_declared() {
        assert_eq!(
            table().ddl(),
            "CREATE TABLE IF NOT EXISTS `tributary`.`v_0123` (_run UInt64, _sp LowCardinality(String), `year` UInt16, \
             `sum(x)` SimpleAggregateFunction(sum, UInt64), `city` LowCardinality(String)) ENGINE = MergeTree PARTITION BY \
             _run ORDER BY (`city`, `year`) SETTINGS allow_nullable_key = 1"
        );
    }

    #[test]
    fn only_dimensions_can_be_sorted_by() {
        let columns = table().columns;
        assert_eq!(sorting(&columns, None).unwrap(), [0, 2]);
        assert_eq!(sorting(&columns, Some(&["city".into()])).unwrap(), [2]);
        let error = sorting(&columns, Some(&["city".into(), "sum(x)".into()])).unwrap_err();
        assert_eq!(error.to_string(), "order_by: sum(x) is no dimension of the view");
    }

    #[test]
    fn the_hash_never_changes() {
        let table = table();
        assert_eq!(definition_hash("SELECT", &table.columns, &table.sorting), 2_674_530_491_804_723_663);
    }
}
