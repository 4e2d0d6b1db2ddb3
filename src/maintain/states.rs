//! Reads partial states of a view's source from ClickHouse, and writes merged ones into its storage table.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;

use super::chunk::Chunk;
use crate::merge::{self, Layout, MergeError};
use crate::sql::lexer::backquote;
use crate::sql::render::string_literal;
use crate::state;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;
use crate::views::neutral::neutral;
use crate::views::storage::{RUN, SOURCE_PARTITION, StorageColumn};
use crate::wire::native::{self, Decoder};
use crate::wire::{Block, DataType, WireError};

/// A piece of the key space: the keys whose hash modulo `of` is `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange {
    pub at: u64,
    pub of: u64,
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
    /// More bytes of states than the budget allows: to be read by ranges of keys.
    #[error("the states take more than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
}

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
        let upstream = neutral(&upstream).await?;
        Ok(Self { upstream, view, order, layout })
    }

    /// The states of a chunk's rows (`None`: of all rows) whose keys lie in `range`: at most `bytes_max` bytes of them.
    pub async fn read(
        &self,
        chunk: Option<&Chunk>,
        range: KeyRange,
        bytes_max: usize,
    ) -> Result<Vec<Block>, StatesError> {
        let sql = self.select(chunk, range);
        let mut stream = self.upstream.stream(&sql, "Native", &[])?;
        let mut decoder = Decoder::new(state::skip);
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while let Some(piece) = stream.next().await.map_err(|e| self.upstream.failed(&sql, e))? {
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
        let columns = &self.view.storage.columns;
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let predicate = chunk.map(Chunk::predicate);
        let states = self.view.view.state_select(&names, predicate.as_deref(), chunk.map(|_| SOURCE_PARTITION));
        let item = |at: &usize| {
            let name = backquote(&columns[*at].name);
            match self.carrier(&columns[*at]) {
                Some(select) => format!("{select} AS {name}"),
                None => name,
            }
        };
        // A source without parts has no partitions.
        let partition = if chunk.is_some() { SOURCE_PARTITION.into() } else { format!("'' AS {SOURCE_PARTITION}") };
        let items: Vec<String> = std::iter::once(partition).chain(self.order.iter().map(item)).collect();
        let mut sql = format!("SELECT {} FROM ({states})", items.join(", "));
        if range != ALL_KEYS {
            let keys: Vec<String> =
                self.order[..self.layout.key_count - 1].iter().map(|at| backquote(&columns[*at].name)).collect();
            sql += &format!(" WHERE sipHash64({}) % {} = {}", keys.join(", "), range.of, range.at);
        }
        sql
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

    /// A writer of run `run`, whose rows nobody sees before a manifest names them.
    pub fn writer(self: &Arc<Self>, run: u64) -> RunWriter {
        RunWriter { states: self.clone(), run, rows: 0, blocks: Vec::new(), bytes: 0, header: None }
    }

    /// Copies rows of `from` that belong to `partitions` into run `to`, inside ClickHouse.
    pub async fn copy(&self, from: u64, partitions: &[String], to: u64) -> Result<(), UpstreamError> {
        let columns: Vec<String> = self.view.storage.columns.iter().map(|column| backquote(&column.name)).collect();
        let (columns, table) = (columns.join(", "), self.view.storage.quoted());
        let list: Vec<String> = partitions.iter().map(|id| string_literal(id)).collect();
        // No alias for the new id: it would stand for the column in WHERE as well.
        self.upstream
            .execute(&format!(
                "INSERT INTO {table} ({RUN}, {SOURCE_PARTITION}, {columns}) SELECT {to}, {SOURCE_PARTITION}, \
                 {columns} FROM {table} WHERE {RUN} = {from} AND {SOURCE_PARTITION} IN ({})",
                list.join(", ")
            ))
            .await
    }

    /// Rows of a run by source partition, as the storage table has them.
    pub async fn rows_of_run(&self, run: u64) -> Result<BTreeMap<String, u64>, UpstreamError> {
        #[derive(Deserialize)]
        struct Rows {
            partition: String,
            rows: u64,
        }
        let sql = format!(
            "SELECT {SOURCE_PARTITION} AS partition, count() AS rows FROM {} WHERE {RUN} = {run} GROUP BY partition",
            self.view.storage.quoted()
        );
        Ok(self.upstream.rows::<Rows>(&sql).await?.into_iter().map(|row| (row.partition, row.rows)).collect())
    }

    /// Drops a run that no manifest names any more, or never named.
    pub async fn drop_run(&self, run: u64) -> Result<(), UpstreamError> {
        drop_run(&self.upstream, &self.view.storage.quoted(), run).await
    }
}

/// Drops a run from a storage table, whose quoted name is given.
pub async fn drop_run(upstream: &Upstream, table: &str, run: u64) -> Result<(), UpstreamError> {
    upstream.execute(&format!("ALTER TABLE {table} DROP PARTITION {run}")).await
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
        Ok(self.states.upstream.insert(&sql, std::mem::take(&mut self.blocks)).await?)
    }
}
