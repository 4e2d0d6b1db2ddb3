//! What the matcher must know of the tables that a query reads.

use std::collections::BTreeMap;
use std::fmt;

/// A table's full name, as ClickHouse spells it (unquoted).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct TableName {
    pub database: String,
    pub table: String,
}

impl TableName {
    pub fn new(database: impl Into<String>, table: impl Into<String>) -> Self {
        Self { database: database.into(), table: table.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.table)
    }
}

/// One column of a table, from `system.columns`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    pub name: String,
    /// ClickHouse's own spelling of the type, such as `LowCardinality(String)`.
    pub type_name: String,
    /// `""`, `DEFAULT`, `MATERIALIZED`, `ALIAS` or `EPHEMERAL`.
    pub default_kind: String,
    pub default_expression: String,
}

/// One table, from `system.tables` and `system.columns`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Table {
    pub name: TableName,
    /// Identity of the table across renames; `00000000-..` in databases without UUIDs.
    pub uuid: String,
    pub engine: String,
    pub columns: Vec<Column>,
}

impl Table {
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|c| c.name == name)
    }
}

/// The tables known to the planner.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// The server's time zone, in which DateTime columns without one of their own are read; empty if unknown.
    pub time_zone: String,
    tables: BTreeMap<TableName, Table>,
}

impl Schema {
    pub fn insert(&mut self, table: Table) {
        self.tables.insert(table.name.clone(), table);
    }

    pub fn table(&self, name: &TableName) -> Option<&Table> {
        self.tables.get(name)
    }

    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.values()
    }
}
