//! Reads partial states of a view's source from ClickHouse, and writes merged ones into its storage table.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::chunk::Chunk;
use super::failpoint;
use super::finer::Finer;
use super::manifest::{Run, Store, dead};
use super::rebuild::RebuildError;
use crate::matching::rewrite;
use crate::matching::schema::TableName;
use crate::matching::view::Excerpt;
use crate::merge::{self, Layout, MergeError};
use crate::sql::lexer::backquote;
use crate::sql::render::string_literal;
use crate::state;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;
use crate::views::neutral::grouping;
use crate::views::storage::{RUN, SOURCE_PARTITION, StorageColumn};
use crate::wire::native::{self, Decoder};
use crate::wire::{Block, Data, DataType, WireError};

/// A piece of the key space: the keys whose hash modulo `of` is `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange {
    pub at: u64,
    pub of: u64,
}

impl KeyRange {
    /// All keys, in `of` pieces.
    pub fn all(of: u64) -> impl Iterator<Item = Self> {
        (0..of).map(move |at| Self { at, of })
    }
}

/// All keys.
pub const ALL_KEYS: KeyRange = KeyRange { at: 0, of: 1 };

#[derive(Debug, thiserror::Error)]
pub enum StatesError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("partial states that ClickHouse sent cannot be read: {0}")]
    Wire(#[from] WireError),
    #[error("partial states cannot be merged: {0}")]
    Merge(#[from] MergeError),
    /// ClickHouse took fewer or more rows than were sent.
    #[error("run {run} has {found} rows in {storage}, {expected} were written; nothing was committed")]
    RowsLost { storage: String, run: u64, expected: u64, found: u64 },
    /// More bytes of states than the budget allows: to be read by ranges of keys.
    #[error("the states take more than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
}

/// Name under which the part that a row was read from arrives.
const PART: &str = "_tributary_part";

/// Name under which the number of rows that a state was made of arrives.
const ROWS: &str = "_tributary_rows";

/// How one view's states travel.
pub struct States {
    upstream: Upstream,
    view: CatalogView,
    /// Positions of the storage columns in the order of the blocks, which begin with the source partition: dimensions,
    /// then aggregates.
    order: Vec<usize>,
    layout: Layout,
}

impl States {
    pub async fn new(upstream: Upstream, view: CatalogView) -> Result<Self, StatesError> {
        let columns = &view.storage.columns;
        let positions = |dimension: bool| {
            columns.iter().enumerate().filter(move |(_, column)| column.is_dimension == dimension).map(|(at, _)| at)
        };
        let order: Vec<usize> = positions(true).chain(positions(false)).collect();
        // The source partition is part of the key.
        let key_count = 1 + positions(true).count();
        let types: Result<Vec<DataType>, WireError> =
            positions(false).map(|at| DataType::parse(&columns[at].type_name)).collect();
        let layout = Layout { key_count, state_types: types? };
        let upstream = grouping(&upstream).await?;
        Ok(Self { upstream, view, order, layout })
    }

    /// The states of a chunk's rows (`None`: of all rows) whose keys lie in `range`: at most `bytes_max` bytes of them.
    pub async fn read(
        &self,
        chunk: Option<&Chunk>,
        range: KeyRange,
        bytes_max: usize,
    ) -> Result<Vec<Block>, StatesError> {
        self.fetch(&self.select(chunk, range), bytes_max).await
    }

    /// As [`States::read`], and how many rows of each partition the states were made of.
    pub async fn read_counted(
        &self,
        chunk: &Chunk,
        bytes_max: usize,
    ) -> Result<(Vec<Block>, BTreeMap<String, u64>), StatesError> {
        let mut blocks = self.fetch(&self.select_from(chunk, Some(ROWS)), bytes_max).await?;
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for block in &mut blocks {
            let Some(Data::W8(rows)) = block.columns.pop().map(|column| column.data) else { continue };
            let Some(partitions) = block.columns.first().map(|column| &column.data) else { continue };
            for (row, rows) in rows.iter().enumerate() {
                let partition = text(partitions, row);
                match counted.get_mut(&*partition) {
                    Some(counted) => *counted += rows,
                    None => drop(counted.insert(partition.into_owned(), *rows)),
                }
            }
        }
        Ok((blocks, counted))
    }

    /// As [`States::read`], and the parts that the rows were read from, by name.
    pub async fn read_by_part(
        &self,
        chunk: &Chunk,
        bytes_max: usize,
    ) -> Result<(Vec<Block>, HashSet<String>), StatesError> {
        let origins = [("_partition_id", SOURCE_PARTITION), ("_part", PART)];
        let predicate = chunk.predicate();
        let excerpt = Excerpt { fact_predicate: Some(&predicate), origins: &origins, rows: None };
        let states = self.view.view.state_select(&self.names(), &excerpt);
        let mut items = self.items(SOURCE_PARTITION.into());
        items.push(PART.into());
        let mut blocks = self.fetch(&format!("SELECT {} FROM ({states})", items.join(", ")), bytes_max).await?;
        let mut parts = HashSet::new();
        for block in &mut blocks {
            let names = block.columns.pop().map(|column| column.data);
            parts.extend(names.as_ref().map(texts).unwrap_or_default());
        }
        Ok((blocks, parts))
    }

    /// The rows of some runs that count, of the keys in `range`.
    pub async fn read_runs(&self, runs: &[Run], range: KeyRange) -> Result<Vec<Block>, StatesError> {
        let items = self.items(SOURCE_PARTITION.into()).join(", ");
        let mut sql = format!("SELECT {items} FROM {} WHERE {}", self.view.storage.quoted(), that_count(runs));
        if range != ALL_KEYS {
            sql += &format!(" AND {}", self.in_range(range));
        }
        // Rows of one key are merged in the order of their runs, which is what anyLast goes by.
        sql += &format!(" ORDER BY {RUN}");
        self.fetch(&sql, usize::MAX).await
    }

    /// As [`States::read_runs`], but out of a finer view's runs: those of its rows that come from `partitions`, with the
    /// dimensions and states that this view has. Several rows may have the same key.
    pub async fn read_finer(
        &self,
        finer: &Finer,
        partitions: &[String],
        range: KeyRange,
    ) -> Result<Vec<Block>, StatesError> {
        let theirs = &finer.view.storage;
        let column = |(own, at): (&StorageColumn, &usize)| {
            format!("_finer.{} AS {}", backquote(&theirs.columns[*at].name), backquote(&own.name))
        };
        let columns: Vec<String> = self.view.storage.columns.iter().zip(&finer.columns).map(column).collect();
        let runs: Vec<Run> = finer.runs(partitions).cloned().collect();
        let partitions: Vec<String> = partitions.iter().map(|partition| string_literal(partition)).collect();
        let mut sql = format!(
            "SELECT {} FROM (SELECT {RUN}, {SOURCE_PARTITION}, {} FROM {} AS _finer WHERE {} AND {SOURCE_PARTITION} IN ({}))",
            self.items(SOURCE_PARTITION.into()).join(", "),
            columns.join(", "),
            theirs.quoted(),
            that_count(&runs),
            partitions.join(", "),
        );
        if range != ALL_KEYS {
            sql += &format!(" WHERE {}", self.in_range(range));
        }
        sql += &format!(" ORDER BY {RUN}");
        self.fetch(&sql, usize::MAX).await
    }

    /// Uncompressed bytes of some runs in a view's storage table.
    pub async fn bytes_of_runs(&self, table: &TableName, runs: &[Run]) -> Result<u64, UpstreamError> {
        #[derive(Deserialize)]
        struct Bytes {
            bytes: u64,
        }
        let ids: Vec<String> = runs.iter().map(|run| string_literal(&run.id.to_string())).collect();
        let sql = format!(
            "SELECT sum(data_uncompressed_bytes) AS bytes FROM system.parts WHERE active AND database = {} AND table = {} \
             AND partition_id IN ({})",
            string_literal(&table.database),
            string_literal(&table.table),
            ids.join(", ")
        );
        Ok(self.upstream.rows::<Bytes>(&sql).await?.first().map_or(0, |row| row.bytes))
    }

    async fn fetch(&self, sql: &str, bytes_max: usize) -> Result<Vec<Block>, StatesError> {
        let mut stream = self.upstream.stream(sql, "Native", &[])?;
        let mut decoder = Decoder::new(state::skip);
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = stream.next().await.map_err(|e| self.upstream.failed(sql, e))? {
            for block in decoder.push(&piece)?.into_iter().filter(|block| block.rows > 0) {
                bytes += block.byte_size();
                blocks.push(block);
            }
            if bytes > bytes_max {
                return Err(StatesError::TooLarge { bytes_max });
            }
        }
        blocks.extend(decoder.finish()?.into_iter().filter(|block| block.rows > 0));
        Ok(blocks)
    }

    /// Whether the keys can be divided into ranges.
    pub fn has_keys(&self) -> bool {
        self.layout.key_count > 1
    }

    fn select(&self, chunk: Option<&Chunk>, range: KeyRange) -> String {
        let mut sql = match chunk {
            Some(chunk) => self.select_from(chunk, None),
            None => {
                let states = self.view.view.state_select(&self.names(), &Excerpt::default());
                // A source without parts has no partitions.
                let items = self.items(format!("'' AS {SOURCE_PARTITION}"));
                format!("SELECT {} FROM ({states})", items.join(", "))
            }
        };
        if range != ALL_KEYS {
            sql += &format!(" WHERE {}", self.in_range(range));
        }
        sql
    }

    /// `rows`: the name of a last column with the number of rows that a state was made of.
    fn select_from(&self, chunk: &Chunk, rows: Option<&str>) -> String {
        // One more key, and a text at that, makes ClickHouse group in a slower way.
        let single = chunk.partition();
        let origins: &[(&str, &str)] = if single.is_none() { &[("_partition_id", SOURCE_PARTITION)] } else { &[] };
        let predicate = chunk.predicate();
        let excerpt = Excerpt { fact_predicate: Some(&predicate), origins, rows };
        let states = self.view.view.state_select(&self.names(), &excerpt);
        let mut items = self.items(match single {
            None => SOURCE_PARTITION.into(),
            Some(id) => format!("toLowCardinality({}) AS {SOURCE_PARTITION}", string_literal(id)),
        });
        items.extend(rows.map(String::from));
        format!("SELECT {} FROM ({states})", items.join(", "))
    }

    /// Of the storage columns.
    fn names(&self) -> Vec<String> {
        self.view.storage.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// What to select for the columns of a block: the source partition, dimensions, states in their carriers.
    fn items(&self, partition: String) -> Vec<String> {
        let columns = &self.view.storage.columns;
        let item = |at: &usize| {
            let name = backquote(&columns[*at].name);
            match self.carrier(&columns[*at]) {
                Some(select) => format!("{select} AS {name}"),
                None => name,
            }
        };
        std::iter::once(partition).chain(self.order.iter().map(item)).collect()
    }

    fn in_range(&self, range: KeyRange) -> String {
        let columns = &self.view.storage.columns;
        let keys: Vec<String> =
            self.order[..self.layout.key_count - 1].iter().map(|at| backquote(&columns[*at].name)).collect();
        format!("sipHash64({}) % {} = {}", keys.join(", "), range.of, range.at)
    }

    /// What to select in place of an aggregate whose states need a length in front.
    fn carrier(&self, column: &StorageColumn) -> Option<String> {
        if column.is_dimension {
            return None;
        }
        let storage = DataType::parse(&column.type_name).ok()?;
        let name = backquote(&column.name);
        let select = state::carrier(&storage, &name).select;
        (select != name).then_some(select)
    }

    /// Merges blocks of several chunks into one row per key (opaque states excepted).
    pub fn merge(&self, blocks: Vec<Block>, threads: usize) -> Result<Vec<Block>, MergeError> {
        let options = merge::Options { threads, ..merge::Options::default() };
        merge::merge(blocks, &self.layout, &options)
    }

    /// As [`States::merge`], on a thread that may block.
    pub async fn merge_aside(self: &Arc<Self>, blocks: Vec<Block>, threads: usize) -> Result<Vec<Block>, RebuildError> {
        let states = self.clone();
        let merged = tokio::task::spawn_blocking(move || states.merge(blocks, threads));
        Ok(merged.await.map_err(|e| RebuildError::Task(e.to_string()))?.map_err(StatesError::from)?)
    }

    /// Ranges of keys to merge `bytes` of states in, one after the other, so that they and what comes out of them stay
    /// within the budget.
    pub fn passes(&self, bytes: u64, bytes_max: u64) -> u64 {
        if self.has_keys() { (2 * bytes).div_ceil(bytes_max).max(1) } else { 1 }
    }

    /// A writer of run `run`, whose rows nobody sees before a manifest names them.
    pub fn writer(self: &Arc<Self>, run: u64) -> RunWriter {
        RunWriter { states: self.clone(), run, rows: 0, blocks: Vec::new(), bytes: 0, header: None }
    }

    async fn rows_of_run(&self, run: u64) -> Result<u64, UpstreamError> {
        #[derive(Deserialize)]
        struct Rows {
            rows: u64,
        }
        let sql = format!("SELECT count() AS rows FROM {} WHERE {RUN} = {run}", self.view.storage.quoted());
        Ok(self.upstream.rows::<Rows>(&sql).await?.first().map_or(0, |row| row.rows))
    }

    /// Makes sure that ClickHouse took all rows of a run.
    pub async fn expect_rows(&self, run: u64, expected: u64) -> Result<(), StatesError> {
        let found = self.rows_of_run(run).await?;
        failpoint::reach("run.written");
        let storage = self.view.storage.name.to_string();
        if found == expected { Ok(()) } else { Err(StatesError::RowsLost { storage, run, expected, found }) }
    }

    /// Drops the runs of an attempt that failed, unless its commit was taken after all.
    pub async fn drop_unseen(&self, store: &Store, runs: &[u64]) -> Result<(), RebuildError> {
        let latest = store.latest(&self.view.storage.name.table).await?;
        let seen = |run: &u64| latest.as_ref().is_some_and(|latest| latest.body.has_seen(*run));
        let unseen: Vec<u64> = runs.iter().copied().filter(|run| !seen(run)).collect();
        Ok(drop_runs(&self.upstream, &self.view.storage.quoted(), &unseen).await?)
    }

    /// Drops a run that no manifest names any more, or never named.
    pub async fn drop_run(&self, run: u64) -> Result<(), UpstreamError> {
        drop_runs(&self.upstream, &self.view.storage.quoted(), &[run]).await
    }
}

/// The condition that selects those rows of some runs that count.
fn that_count(runs: &[Run]) -> String {
    let ids: Vec<u64> = runs.iter().map(|run| run.id).collect();
    rewrite::that_count("", &ids, &dead(runs))
}

/// Drops runs from a storage table, whose quoted name is given.
pub async fn drop_runs(upstream: &Upstream, table: &str, runs: &[u64]) -> Result<(), UpstreamError> {
    for runs in runs.chunks(100) {
        let drops: Vec<String> = runs.iter().map(|run| format!("DROP PARTITION {run}")).collect();
        upstream.execute(&format!("ALTER TABLE {table} {}", drops.join(", "))).await?;
    }
    Ok(())
}

/// A value of a column of strings.
pub(super) fn text(data: &Data, row: usize) -> Cow<'_, str> {
    match data {
        Data::LowCardinality { keys, dictionary } => text(dictionary, keys[row] as usize),
        Data::Bytes(values) => String::from_utf8_lossy(values.get(row)),
        _ => Cow::Borrowed(""),
    }
}

/// The distinct values of a column of strings.
fn texts(data: &Data) -> HashSet<String> {
    let rows: Vec<usize> = match data {
        Data::LowCardinality { keys, .. } => {
            let mut first: BTreeMap<u32, usize> = BTreeMap::new();
            for (row, key) in keys.iter().enumerate() {
                first.entry(*key).or_insert(row);
            }
            first.into_values().collect()
        }
        _ => (0..data.len()).collect(),
    };
    rows.into_iter().map(|row| text(data, row).into_owned()).collect()
}

/// Collects blocks and sends them by INSERTs of a good size: each INSERT makes at least one part.
pub struct RunWriter {
    states: Arc<States>,
    run: u64,
    rows: u64,
    blocks: Vec<Bytes>,
    bytes: usize,
    /// Names and types of the columns, by the first block.
    header: Option<Vec<(String, DataType)>>,
}

/// Bytes per INSERT.
const INSERT_BYTES: usize = 64 << 20;

impl RunWriter {
    pub fn run(&self) -> u64 {
        self.run
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Takes rows, the source partition being their first column.
    pub async fn write(&mut self, blocks: Vec<Block>) -> Result<(), StatesError> {
        for block in blocks {
            self.header.get_or_insert_with(|| {
                block.columns.iter().map(|column| (column.name.clone(), column.type_.clone())).collect()
            });
            let mut encoded = Vec::new();
            native::encode(&block, &mut encoded);
            self.rows += block.rows as u64;
            self.bytes += encoded.len();
            self.blocks.push(Bytes::from(encoded));
            if self.bytes >= INSERT_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends the rest, and makes sure that ClickHouse took all rows; returns their number.
    pub async fn finish(mut self) -> Result<u64, StatesError> {
        self.flush().await?;
        self.states.expect_rows(self.run, self.rows).await?;
        Ok(self.rows)
    }

    /// Sends what was collected.
    pub async fn flush(&mut self) -> Result<(), StatesError> {
        let Some(header) = &self.header else { return Ok(()) };
        if self.blocks.is_empty() {
            return Ok(());
        }
        let storage = &self.states.view.storage;
        let structure: Vec<String> =
            header.iter().map(|(name, type_)| format!("{} {type_}", backquote(name))).collect();
        let names: Vec<String> = header.iter().map(|(name, _)| backquote(name)).collect();
        let value = |name: &String| {
            let column = storage.columns.iter().find(|column| backquote(&column.name) == *name);
            match column.filter(|column| column.type_name.starts_with("AggregateFunction(")) {
                Some(column) => format!("CAST({name} AS {})", column.type_name),
                None => name.clone(),
            }
        };
        let values: Vec<String> = names.iter().map(value).collect();
        let sql = format!(
            "INSERT INTO {} ({RUN}, {}) SELECT {} AS {RUN}, {} FROM input({}) \
             SETTINGS async_insert = 0 FORMAT Native",
            storage.quoted(),
            names.join(", "),
            self.run,
            values.join(", "),
            string_literal(&structure.join(", ")),
        );
        self.bytes = 0;
        failpoint::reach("run.begun");
        self.states.upstream.insert(&sql, std::mem::take(&mut self.blocks)).await?;
        failpoint::reach("run.sent");
        Ok(())
    }
}
