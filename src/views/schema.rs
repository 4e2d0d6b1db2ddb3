//! Reads the tables that views or queries name from ClickHouse's system tables.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::matching::schema::{Column, Schema, Table, TableName};
use crate::sql::render::string_literal;
use crate::upstream::{Upstream, UpstreamError};

#[derive(Deserialize)]
struct TableRow {
    database: String,
    name: String,
    uuid: String,
    engine: String,
}

#[derive(Deserialize)]
struct ZoneRow {
    time_zone: String,
}

#[derive(Deserialize)]
struct ColumnRow {
    database: String,
    table: String,
    name: String,
    #[serde(rename = "type")]
    type_name: String,
    default_kind: String,
    default_expression: String,
}

/// Those of `tables` that exist and that the user may see. Where one does not, the names of its neighbours come without
/// columns, so that messages can propose what was meant.
pub async fn load(upstream: &Upstream, tables: &[TableName]) -> Result<Schema, UpstreamError> {
    if tables.is_empty() {
        return Ok(Schema::default());
    }
    let databases = list(tables.iter().map(|table| table.database.as_str()));
    let names = list(tables.iter().map(|table| table.table.as_str()));
    let of_tables = format!(
        "SELECT database, name, toString(uuid) AS uuid, engine FROM system.tables WHERE database IN ({databases})"
    );
    let of_columns = format!("database IN ({databases}) AND table IN ({names})");
    let of_zone = "SELECT serverTimezone() AS time_zone";
    let (all, mut by_table, zone) = tokio::try_join!(
        upstream.rows::<TableRow>(&of_tables),
        columns(upstream, &of_columns),
        upstream.rows::<ZoneRow>(of_zone)
    )?;
    let found: BTreeSet<TableName> = all.iter().map(|row| TableName::new(&row.database, &row.name)).collect();
    let any_missing = tables.iter().any(|table| !found.contains(table));
    let time_zone = zone.into_iter().next().map(|row| row.time_zone).unwrap_or_default();
    let mut schema = Schema::default();
    schema.time_zone = time_zone;
    for row in all {
        let name = TableName::new(row.database, row.name);
        if any_missing || tables.contains(&name) {
            let columns = if tables.contains(&name) { by_table.remove(&name).unwrap_or_default() } else { Vec::new() };
            schema.insert(Table { name, uuid: row.uuid, engine: row.engine, columns });
        }
    }
    Ok(schema)
}

/// The columns, in order, of the tables for which a condition over `system.columns` holds.
pub async fn columns(upstream: &Upstream, condition: &str) -> Result<BTreeMap<TableName, Vec<Column>>, UpstreamError> {
    let sql = format!(
        "SELECT database, table, name, type, default_kind, default_expression FROM system.columns WHERE {condition} \
         ORDER BY database, table, position"
    );
    let mut by_table: BTreeMap<TableName, Vec<Column>> = BTreeMap::new();
    for row in upstream.rows::<ColumnRow>(&sql).await? {
        by_table.entry(TableName::new(row.database, row.table)).or_default().push(Column {
            name: row.name,
            type_name: row.type_name,
            default_kind: row.default_kind,
            default_expression: row.default_expression,
        });
    }
    Ok(by_table)
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(string_literal).collect::<Vec<_>>().join(", ")
}
