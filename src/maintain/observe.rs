//! The questions that are asked of ClickHouse's system tables, and their answers as values.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::coverage::{Identity, Parts, UsedColumn};
use super::part::{Part, PartNameError, drop_spent_patches};
use crate::matching::schema::{Column, TableName};
use crate::sql::render::string_literal;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::schema;
use crate::views::storage::DATABASE;

/// Engines outside this family keep no parts.
const ENGINE_FAMILY: &str = "MergeTree";

/// Tables in databases without UUIDs (engine Ordinary) cannot be told from others of the same name.
const NO_UUID: &str = "00000000-0000-0000-0000-000000000000";

/// A server up for less than this may have been preceded by one whose start, a difference of whole seconds as well, looks
/// the same: the record of a server that was up for `n` seconds differs by `n - 1` or more from that of any later one.
const SERVER_YOUNG_SECONDS: u64 = 3;

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("table {table}: {error}")]
    PartName { table: TableName, error: PartNameError },
    #[error(
        "user {user} has settings under which answers are cut or filtered ({settings}), so that nothing could be proved; \
         give Tributary a user without them"
    )]
    Settings { user: String, settings: String },
}

/// A row of `system.tables`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRow {
    pub database: String,
    pub table: String,
    pub uuid: String,
    pub engine: String,
    /// Unix seconds, as are the next two.
    pub altered_at: u64,
    pub server_now: u64,
    pub server_uptime: u64,
    /// An ALTER that changes what columns mean has not reached all parts.
    pub alter_pending: bool,
}

impl TableRow {
    pub fn name(&self) -> TableName {
        TableName::new(&self.database, &self.table)
    }

    /// When the server was started, unix seconds; `None` while that cannot be told from a start just before.
    pub fn server_started_at(&self) -> Option<u64> {
        (self.server_uptime >= SERVER_YOUNG_SECONDS).then(|| self.server_now.saturating_sub(self.server_uptime))
    }

    pub fn keeps_parts(&self) -> bool {
        self.engine.ends_with(ENGINE_FAMILY)
    }

    pub fn has_uuid(&self) -> bool {
        self.uuid != NO_UUID
    }
}

/// What a table's definition says, which changes only when [`TableRow::altered_at`] does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    pub columns: Vec<Column>,
    pub ttl_rewrites: bool,
}

impl Definition {
    /// The identity of the table as far as a view that reads `columns` depends on it.
    pub fn identity(&self, row: &TableRow, columns: &[String]) -> Identity {
        let used = |column: &&Column| columns.contains(&column.name);
        // An expression may name any other column.
        let by_expression = self.columns.iter().filter(used).any(|column| !column.default_expression.is_empty());
        let columns = self.columns.iter().filter(|column| by_expression || used(column)).map(|column| UsedColumn {
            name: column.name.clone(),
            type_name: column.type_name.clone(),
            default: match column.default_kind.as_str() {
                "" => String::new(),
                kind => format!("{kind} {}", column.default_expression),
            },
        });
        Identity {
            uuid: row.uuid.clone(),
            engine: row.engine.clone(),
            altered_at: row.altered_at,
            ttl_rewrites: self.ttl_rewrites,
            columns: columns.collect(),
        }
    }
}

/// The active parts of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableParts {
    /// UUIDs in the paths of the parts: one, unless tables were exchanged while they were listed.
    pub uuids: BTreeSet<String>,
    pub parts: Arc<Parts>,
}

/// A row policy, whoever it concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPolicy {
    /// Empty: every database.
    pub database: String,
    /// Empty or `*`: every table of the database.
    pub table: String,
    pub name: String,
    /// Everybody but `except`; otherwise only `to`.
    pub to_all: bool,
    pub to: Vec<String>,
    pub except: Vec<String>,
}

impl RowPolicy {
    /// Whether it filters the rows that a user of this name and these roles sees.
    pub fn applies_to(&self, names: &[String]) -> bool {
        let among = |list: &[String]| names.iter().any(|name| list.contains(name));
        if self.to_all { !among(&self.except) } else { among(&self.to) }
    }

    pub fn concerns(&self, table: &TableName) -> bool {
        let any = |name: &str| name.is_empty() || name == "*";
        (any(&self.database) || self.database == table.database) && (any(&self.table) || self.table == table.table)
    }
}

/// With these in Tributary's own profile, an answer from the system tables might lack rows without saying so.
const CUTTING_SETTINGS: [&str; 7] = [
    "additional_result_filter",
    "additional_table_filters",
    "limit",
    "offset",
    "read_overflow_mode",
    "result_overflow_mode",
    "timeout_overflow_mode",
];

/// The server's time, in seconds since 1970, and since its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    pub now: u64,
    pub uptime: u64,
}

/// Asks one server's system tables.
#[derive(Clone)]
pub struct Observer {
    upstream: Upstream,
    /// Two expressions over `system.tables`; an ALTER is under way where one is not zero.
    alter_pending: &'static str,
}

impl Observer {
    /// Finds out what the server's system tables can tell.
    pub async fn connect(upstream: Upstream) -> Result<Self, ObserveError> {
        let names: Vec<String> = CUTTING_SETTINGS.into_iter().map(string_literal).collect();
        let sql = format!("SELECT name FROM system.settings WHERE changed AND name IN ({})", names.join(", "));
        let cutting = lines::<(String,)>(&upstream, &sql).await?;
        if !cutting.is_empty() {
            let settings: Vec<String> = cutting.into_iter().map(|(name,)| name).collect();
            let user = upstream.config().user.clone();
            return Err(ObserveError::Settings { user, settings: settings.join(", ") });
        }
        let sql = "SELECT count() FROM system.columns WHERE database = 'system' AND table = 'tables' \
                   AND name IN ('active_on_fly_alter_mutations', 'active_on_fly_metadata_mutations')";
        let knows_mutations = lines::<(u64,)>(&upstream, sql).await? == [(2,)];
        let alter_pending = if knows_mutations {
            "active_on_fly_alter_mutations, active_on_fly_metadata_mutations"
        } else {
            "(database, name) IN (SELECT database, table FROM system.mutations WHERE NOT is_done), 0"
        };
        Ok(Self { upstream, alter_pending })
    }

    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// The server's time and for how long it runs, both in seconds.
    pub async fn clock(&self) -> Result<Clock, UpstreamError> {
        let sql = "SELECT toUnixTimestamp(now()), uptime()";
        let rows = lines::<(u64, u64)>(&self.upstream, sql).await?;
        let (now, uptime) = rows.first().copied().unwrap_or_default();
        Ok(Clock { now, uptime })
    }

    /// The rows of `system.tables` for those of `tables` that exist, with the time of `clock`. The text is as plain as can
    /// be: every function in it costs ClickHouse some 50 to 200 microseconds of planning.
    pub async fn tables(
        &self,
        tables: &[TableName],
        clock: Clock,
    ) -> Result<HashMap<TableName, TableRow>, UpstreamError> {
        let sql = format!(
            "SELECT database, name, uuid, engine, metadata_modification_time, {} \
             FROM system.tables WHERE {} SETTINGS date_time_output_format = 'unix_timestamp'",
            self.alter_pending,
            named(tables, "name"),
        );
        type Line = (String, String, String, String, Seconds, u64, u64);
        let rows = lines::<Line>(&self.upstream, &sql).await?.into_iter().map(
            |(database, table, uuid, engine, altered_at, alters, others)| TableRow {
                database,
                table,
                uuid,
                engine,
                altered_at: altered_at.0,
                server_now: clock.now,
                server_uptime: clock.uptime,
                alter_pending: alters + others > 0,
            },
        );
        Ok(rows.map(|row| (row.name(), row)).filter(|(name, _)| tables.contains(name)).collect())
    }

    /// Columns and TTLs of those of `tables` that exist.
    pub async fn definitions(&self, tables: &[TableName]) -> Result<HashMap<TableName, Definition>, UpstreamError> {
        #[derive(Deserialize)]
        struct Ddl {
            database: String,
            table: String,
            create_table_query: String,
            engine_full: String,
        }
        let ddl = format!(
            "SELECT database, name AS table, create_table_query, engine_full FROM system.tables WHERE {}",
            named(tables, "name")
        );
        let of_columns = named(tables, "table");
        let (ddl, mut columns) =
            tokio::try_join!(self.upstream.rows::<Ddl>(&ddl), schema::columns(&self.upstream, &of_columns))?;
        let definitions = ddl.into_iter().map(|row| {
            let ttl_rewrites = ttl_rewrites(&row.create_table_query, &row.engine_full);
            let name = TableName::new(row.database, row.table);
            let columns = columns.remove(&name).unwrap_or_default();
            (name, Definition { columns, ttl_rewrites })
        });
        Ok(definitions.collect())
    }

    /// The active parts of `tables`. With `hashes`, their contents' hashes too, which costs the server more.
    pub async fn parts(
        &self,
        tables: &[TableName],
        hashes: bool,
    ) -> Result<HashMap<TableName, TableParts>, ObserveError> {
        let hash = if hashes { ", hash_of_all_files" } else { "" };
        let sql = format!(
            "SELECT database, table, name, rows, path, modification_time{hash} FROM system.parts WHERE active AND {} \
             SETTINGS date_time_output_format = 'unix_timestamp'",
            named(tables, "table"),
        );
        let text = self.upstream.bytes(&sql, "JSONCompactEachRow").await?;
        let mut found = FoundParts::default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let undecoded = |e: serde_json::Error| self.upstream.undecoded(&sql, &e.to_string());
            type Line = (String, String, String, u64, String, Seconds);
            let ((database, table, name, rows, path, written_at), hash): (Line, String) = if hashes {
                let (database, table, name, rows, path, written_at, hash) =
                    serde_json::from_slice(line).map_err(undecoded)?;
                ((database, table, name, rows, path, written_at), hash)
            } else {
                (serde_json::from_slice(line).map_err(undecoded)?, String::new())
            };
            let part = Part::parse(&name, rows, &hash, written_at.0);
            found.add(TableName::new(database, table), part, &path)?;
        }
        Ok(found.of(tables))
    }

    /// All row policies of the server.
    pub async fn policies(&self) -> Result<Vec<RowPolicy>, UpstreamError> {
        let sql = "SELECT database, table, short_name, apply_to_all, apply_to_list, apply_to_except \
                   FROM system.row_policies";
        type Line = (String, String, String, u8, Vec<String>, Vec<String>);
        let rows = lines::<Line>(&self.upstream, sql).await?.into_iter();
        Ok(rows
            .map(|(database, table, name, to_all, to, except)| RowPolicy {
                database,
                table,
                name,
                to_all: to_all != 0,
                to,
                except,
            })
            .collect())
    }

    /// The user and the roles that these questions are asked as.
    pub async fn own_names(&self) -> Result<Vec<String>, UpstreamError> {
        let sql = "SELECT arrayConcat([currentUser()], enabledRoles())";
        let names = lines::<(Vec<String>,)>(&self.upstream, sql).await?;
        Ok(names.into_iter().flat_map(|(names,)| names).collect())
    }
}

/// Parts by table, as they are read.
#[derive(Default)]
struct FoundParts(HashMap<TableName, (BTreeSet<String>, Parts)>);

impl FoundParts {
    fn add(&mut self, table: TableName, part: Result<Part, PartNameError>, path: &str) -> Result<(), ObserveError> {
        let part = part.map_err(|error| ObserveError::PartName { table: table.clone(), error })?;
        let (uuids, parts) = self.0.entry(table).or_default();
        uuids.extend(uuid_in(path).map(str::to_string).filter(|uuid| !uuids.contains(uuid)));
        parts.entry(part.name.partition.clone()).or_default().push(part);
        Ok(())
    }

    fn of(self, tables: &[TableName]) -> HashMap<TableName, TableParts> {
        let wanted = self.0.into_iter().filter(|(name, _)| tables.contains(name));
        let parts = wanted.map(|(name, (uuids, mut parts))| {
            parts.values_mut().for_each(drop_spent_patches);
            (name, TableParts { uuids, parts: Arc::new(parts) })
        });
        parts.collect()
    }
}

/// All rows of a SELECT, as JSON arrays read into tuples.
async fn lines<T: DeserializeOwned>(upstream: &Upstream, sql: &str) -> Result<Vec<T>, UpstreamError> {
    let text = upstream.bytes(sql, "JSONCompactEachRow").await?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(|e| upstream.undecoded(sql, &e.to_string()))).collect()
}

/// Unix seconds, which ClickHouse prints in quotes.
struct Seconds(u64);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Seconds).map_err(serde::de::Error::custom)
    }
}

/// The table's UUID in `../store/d22/d22d595f-0ccf-465d-be07-df877b55eaa2/all_1_1_0/`, where databases have UUIDs.
fn uuid_in(path: &str) -> Option<&str> {
    const UUID_LEN: usize = 36;
    let folder = path.trim_end_matches('/').rsplit('/').nth(1)?;
    let is_uuid = folder.len() == UUID_LEN && folder.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit());
    is_uuid.then_some(folder)
}

/// `database IN (..) AND table IN (..)`: two plain conditions, which system tables can look up by. May be true for
/// tables that were not named.
fn named(tables: &[TableName], column: &str) -> String {
    let databases: BTreeSet<&str> = tables.iter().map(|table| table.database.as_str()).collect();
    let names: BTreeSet<&str> = tables.iter().map(|table| table.table.as_str()).collect();
    let list = |names: BTreeSet<&str>| names.into_iter().map(string_literal).collect::<Vec<_>>().join(", ");
    format!("database IN ({}) AND {column} IN ({})", list(databases), list(names))
}

/// The storage table of that name.
pub fn storage_table(name: &str) -> TableName {
    TableName::new(DATABASE, name)
}

/// Whether part merges may change values without changing the number of rows: a TTL on a column, or TTL .. GROUP BY.
/// ClickHouse prints keywords in capitals; a name that looks like one only makes the answer more careful.
fn ttl_rewrites(create_table_query: &str, engine_full: &str) -> bool {
    const TTL: &str = " TTL ";
    let column_ttl = create_table_query.matches(TTL).count() > engine_full.matches(TTL).count();
    let grouping = engine_full.find(TTL).is_some_and(|at| engine_full[at..].contains(" GROUP BY "));
    column_ttl || grouping
}

/// The rows of each run in a storage table, by run id. Runs are never changed: what somebody's mutation or lightweight
/// update has touched counts as lost.
pub fn rows_by_run(storage: &TableParts) -> BTreeMap<u64, u64> {
    let rows = |parts: &[Part]| -> u64 {
        let patched = parts.iter().any(|part| part.name.patch.is_some());
        parts.iter().filter(|part| !patched && part.name.mutation == 0).map(|part| part.rows).sum()
    };
    storage.parts.iter().filter_map(|(partition, parts)| Some((partition.parse().ok()?, rows(parts)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_name_users_roles_or_everybody_else() {
        let policy = |to_all, to: &[&str], except: &[&str]| RowPolicy {
            database: "db".into(),
            table: String::new(),
            name: "p".into(),
            to_all,
            to: to.iter().map(ToString::to_string).collect(),
            except: except.iter().map(ToString::to_string).collect(),
        };
        let names = ["anna".to_string(), "reader".to_string()];
        assert!(policy(true, &[], &["bob"]).applies_to(&names) && policy(false, &["reader"], &[]).applies_to(&names));
        assert!(!policy(true, &[], &["anna"]).applies_to(&names) && !policy(false, &["bob"], &[]).applies_to(&names));
        assert!(policy(true, &[], &[]).concerns(&TableName::new("db", "any table")));
    }

    #[test]
    fn the_uuid_is_found_in_the_path_of_a_part() {
        let uuid = "d22d595f-0ccf-465d-be07-df877b55eaa2";
        assert_eq!(uuid_in(&format!("/var/lib/clickhouse/store/d22/{uuid}/all_1_1_0/")), Some(uuid));
        assert_eq!(uuid_in("/var/lib/clickhouse/data/db/t/all_1_1_0/"), None);
    }

    #[test]
    fn only_ttls_that_rewrite_rows_are_found() {
        let engine = "MergeTree ORDER BY d TTL d + toIntervalDay(1)";
        let create = |columns: &str, engine: &str| format!("CREATE TABLE a.b ({columns}) ENGINE = {engine}");
        assert!(!ttl_rewrites(&create("`d` Date", "MergeTree ORDER BY d"), "MergeTree ORDER BY d"));
        assert!(!ttl_rewrites(&create("`d` Date", engine), engine));
        assert!(ttl_rewrites(&create("`d` Date, `v` UInt8 TTL d + toIntervalDay(1)", engine), engine));
        let grouping = "MergeTree ORDER BY d TTL d + toIntervalDay(1) GROUP BY d SET v = max(v)";
        assert!(ttl_rewrites(&create("`d` Date", grouping), grouping));
    }
}
