//! The record of what a view's runs hold, kept in ClickHouse itself: `tributary.manifest`, one row per commit, the
//! latest version of a storage table in force. Sidecars keep no state of their own. A storage table stands for one
//! definition of a view, so that views of the same name in different databases, or an old and a new definition, do not
//! meet.
//!
//! A commit names its predecessor, and loses when another commit of the same predecessor came first. ClickHouse has no
//! transactions to do that with, but it drops an insert whose deduplication token it knows, atomically with the
//! commit of the part (`MergeTreeSink`, `MergeTreeDeduplicationLog`). So the token of a commit is table and version, and
//! whoever reads his own commit id back has won.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::OnceCell;

use super::coverage::SourceRecord;
use super::failpoint;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::storage::DATABASE;

pub const TABLE: &str = "tributary.manifest";

/// A run that is no longer named by the latest manifest is kept this long, for queries that were planned with an
/// earlier one and for sidecars that have not seen the new one yet. Queries that run longer keep the parts that they read.
/// Maintenance retires several runs a second, so that all of this time's are there at any moment.
pub const GRACE: Duration = Duration::from_secs(60);

/// The names of retired runs are kept this long after they were due, for commits whose outcome is not known yet.
const RETIRED_KEPT: Duration = Duration::from_secs(60);

/// The names of abandoned runs are kept this long, so that no late writer commits them.
const ABANDONED_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Commits after which the token of an old one is forgotten. A commit that is later than that names a version far
/// below the latest, and the latest wins.
const DEDUPLICATION_WINDOW: u32 = 10_000;

/// One commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Name of the storage table within [`DATABASE`].
    pub storage: String,
    /// The view's name, for people.
    pub view: String,
    /// Counts from 1.
    pub version: u64,
    /// Tells two commits of the same version apart; only one of them was taken.
    pub commit: String,
    /// Unix milliseconds by ClickHouse's clock.
    pub committed_at_ms: u64,
    pub body: Body,
    /// Contents have proved since that recorded parts bear other names now, which `body` says already. Nobody else knows
    /// before it is committed, and part merges may take the proof away.
    pub is_ahead: bool,
}

/// What a commit says, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The live runs. Together they hold each row of the sources' recorded parts exactly once.
    pub runs: Vec<Run>,
    /// The sources in the order of the view's FROM: the fact table, then joined tables.
    pub sources: Vec<SourceRecord>,
    /// Runs that no new query will read.
    #[serde(default)]
    pub retired: Vec<Retired>,
}

/// An immutable set of rows in the storage table. Rows carry the fact table's partition that they come from, so that those
/// of one partition can cease to count while the others stay: they are then called *dead*, and whoever reads the run must
/// leave them out ([`Body::dead`]). Compaction takes them away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub id: u64,
    /// Rows in the storage table, dead ones included.
    pub rows: u64,
    /// Partitions of the fact table whose rows in this run count, and the stretch of blocks that these rows come from: those
    /// of other runs may lie in between, but no other rows of a *part* that this run holds.
    #[serde(deserialize_with = "partitions_of_any_version")]
    pub partitions: BTreeMap<String, Blocks>,
    /// Partitions of which it holds rows that do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead: Vec<String>,
}

/// A stretch of block numbers, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Blocks(pub i64, pub i64);

impl Blocks {
    pub const ALL: Self = Self(i64::MIN, i64::MAX);

    pub fn overlap(self, other: Self) -> bool {
        self.0 <= other.1 && other.0 <= self.1
    }

    /// The stretch from the first to the last block of both.
    pub fn hull(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }
}

/// Early manifests only listed the partitions.
fn partitions_of_any_version<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Blocks>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Partitions {
        Blocks(BTreeMap<String, Blocks>),
        Names(Vec<String>),
    }
    Ok(match Partitions::deserialize(from)? {
        Partitions::Blocks(blocks) => blocks,
        Partitions::Names(names) => names.into_iter().map(|name| (name, Blocks::ALL)).collect(),
    })
}

/// Rows of runs that do not count, as (run, source partition).
pub fn dead(runs: &[Run]) -> Vec<(u64, String)> {
    runs.iter().flat_map(|run| run.dead.iter().map(|partition| (run.id, partition.clone()))).collect()
}

impl Run {
    /// From now on the rows of a partition do not count.
    pub fn bury(&mut self, partition: &str) {
        if self.partitions.remove(partition).is_some() {
            self.dead.push(partition.to_string());
        }
    }
}

/// A run that waits to be dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retired {
    pub run: u64,
    /// Unix milliseconds by ClickHouse's clock.
    pub since_ms: u64,
    /// Left by a rebuild that died: no query ever read it, and it must never be committed.
    #[serde(default)]
    pub abandoned: bool,
}

impl Retired {
    /// Nobody can be reading it any more.
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.abandoned || self.age(now_ms) >= GRACE
    }

    /// It was dropped long ago.
    pub fn is_forgotten(&self, now_ms: u64) -> bool {
        self.age(now_ms) >= if self.abandoned { ABANDONED_KEPT } else { GRACE + RETIRED_KEPT }
    }

    fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.since_ms))
    }
}

impl Body {
    /// Rows in the live runs, dead ones included: what a query has to read.
    pub fn rows(&self) -> u64 {
        self.runs.iter().map(|run| run.rows).sum()
    }

    /// Rows of live runs that do not count, as (run, source partition). A reader's condition is
    /// `_run IN (runs) AND (_run, _sp) NOT IN (dead)`.
    pub fn dead(&self) -> Vec<(u64, String)> {
        dead(&self.runs)
    }

    /// Runs of `before` that are no longer live, and live ones without rows that count, wait from now on to be dropped.
    pub fn retire(&mut self, before: Option<&Manifest>, now_ms: u64) {
        let (stay, gone): (Vec<Run>, Vec<Run>) =
            std::mem::take(&mut self.runs).into_iter().partition(|run| run.rows > 0 && !run.partitions.is_empty());
        self.runs = stay;
        self.retired = before.map(|before| before.body.retired.clone()).unwrap_or_default();
        self.retired.retain(|run| !run.is_forgotten(now_ms));
        let before = before.into_iter().flat_map(|before| &before.body.runs).map(|run| run.id);
        let mut gone: Vec<u64> = before.chain(gone.iter().map(|run| run.id)).collect();
        gone.sort_unstable();
        gone.dedup();
        gone.retain(|id| !self.runs.iter().any(|live| live.id == *id));
        self.retired.extend(gone.into_iter().map(|run| Retired { run, since_ms: now_ms, abandoned: false }));
    }

    /// Runs that no manifest names are from now on known as left over.
    pub fn abandon(&mut self, runs: &[u64], now_ms: u64) {
        self.retired.retain(|retired| !retired.is_forgotten(now_ms));
        self.retired.extend(runs.iter().map(|run| Retired { run: *run, since_ms: now_ms, abandoned: true }));
    }

    /// Whether a commit with this run was taken, be it that a later one has replaced the run already.
    pub fn has_seen(&self, run: u64) -> bool {
        let retired = |retired: &Retired| retired.run == run && !retired.abandoned;
        self.runs.iter().any(|live| live.id == run) || self.retired.iter().any(retired)
    }
}

/// How a commit ended.
#[derive(Debug)]
pub enum Commit {
    Won(Manifest),
    /// Somebody else's commit has this version: decide anew on top of the latest one.
    Lost,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(
        "version {version} of {storage} in {TABLE} is not understood ({message}); was it written by a newer Tributary?"
    )]
    Body { storage: String, version: u64, message: String },
}

#[derive(Serialize, Deserialize)]
struct Row {
    storage: String,
    view: String,
    version: u64,
    commit: String,
    #[serde(skip_serializing)]
    committed_at_ms: u64,
    body: String,
}

/// Reads and writes the manifest table.
#[derive(Clone)]
pub struct Store {
    upstream: Upstream,
    /// The table was seen once.
    known: Arc<AtomicBool>,
    /// Newer servers have a second switch for what commits rely on, which a profile may have turned off.
    deduplicate_insert: Arc<OnceCell<bool>>,
}

impl Store {
    pub fn new(upstream: Upstream) -> Self {
        Self { upstream, known: Arc::default(), deduplicate_insert: Arc::default() }
    }

    /// Creates database and table unless they are there, so that a user without the right to create them can serve.
    pub async fn ensure(&self) -> Result<(), UpstreamError> {
        if self.exists().await? {
            return Ok(());
        }
        self.upstream.execute(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}")).await?;
        let ddl = format!(
            "CREATE TABLE IF NOT EXISTS {TABLE} (storage String, view String, version UInt64, commit String, \
             committed_at DateTime64(3, 'UTC') DEFAULT now64(3), body String CODEC(ZSTD)) \
             ENGINE = ReplacingMergeTree(version) ORDER BY storage \
             SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}"
        );
        self.upstream.execute(&ddl).await
    }

    /// Unix milliseconds by ClickHouse's clock.
    pub async fn now_ms(&self) -> Result<u64, UpstreamError> {
        #[derive(Deserialize)]
        struct Now {
            now: u64,
        }
        let rows = self.upstream.rows::<Now>("SELECT toUInt64(toUnixTimestamp64Milli(now64(3))) AS now").await?;
        Ok(rows.first().map_or(0, |row| row.now))
    }

    /// Whether anything was ever built by way of this server.
    pub async fn exists(&self) -> Result<bool, UpstreamError> {
        if self.known.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let sql = format!("SELECT count() AS n FROM system.tables WHERE database = '{DATABASE}' AND name = 'manifest'");
        #[derive(Deserialize)]
        struct Count {
            n: u64,
        }
        let exists = self.upstream.rows::<Count>(&sql).await?.iter().any(|count| count.n > 0);
        self.known.store(exists, Ordering::Relaxed);
        Ok(exists)
    }

    /// The manifest of a storage table in force.
    pub async fn latest(&self, storage: &str) -> Result<Option<Manifest>, ManifestError> {
        Ok(self.newer(&[(storage, 0)]).await?.pop())
    }

    /// The latest manifest of each storage table that is newer than the version given with it.
    pub async fn newer(&self, known: &[(&str, u64)]) -> Result<Vec<Manifest>, ManifestError> {
        let conditions: Vec<String> =
            known.iter().map(|(table, version)| format!("(storage = '{table}' AND version > {version})")).collect();
        let sql = format!(
            "SELECT storage, view, version, commit, toUnixTimestamp64Milli(committed_at) AS committed_at_ms, body \
             FROM {TABLE} WHERE {} ORDER BY version DESC LIMIT 1 BY storage",
            conditions.join(" OR ")
        );
        match self.upstream.rows::<Row>(&sql).await {
            Ok(rows) => rows.into_iter().map(Manifest::try_from).collect(),
            Err(error)
                if error.exception().is_some_and(|text| {
                    ["(UNKNOWN_TABLE)", "(UNKNOWN_DATABASE)"].iter().any(|code| text.contains(code))
                }) =>
            {
                // Somebody dropped the table, or the database: whatever was built is gone.
                self.known.store(false, Ordering::Relaxed);
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes `body` the successor of `predecessor`, unless that one already has a successor.
    pub async fn commit(
        &self,
        storage: &str,
        view: &str,
        predecessor: Option<&Manifest>,
        body: &Body,
    ) -> Result<Commit, ManifestError> {
        let version = predecessor.map_or(0, |manifest| manifest.version) + 1;
        let text = serde_json::to_string(body).map_err(|e| ManifestError::Body {
            storage: storage.into(),
            version,
            message: e.to_string(),
        })?;
        let commit = self.put(storage, view, version, text).await?;
        match self.latest(storage).await? {
            Some(latest) if latest.commit == commit => Ok(Commit::Won(latest)),
            _ => Ok(Commit::Lost),
        }
    }

    /// As [`Store::commit`], for a body that names new `runs`; `None`: another commit came first.
    pub async fn commit_runs(
        &self,
        storage: &str,
        view: &str,
        predecessor: Option<&Manifest>,
        body: &Body,
        runs: &[u64],
    ) -> Result<Option<Manifest>, ManifestError> {
        if let Commit::Won(manifest) = self.commit(storage, view, predecessor, body).await? {
            return Ok(Some(manifest));
        }
        // A commit of ours that was followed at once by another one looks the same at first.
        let seen = |latest: &Manifest| runs.iter().any(|run| latest.body.has_seen(*run));
        Ok(self.latest(storage).await?.filter(seen))
    }

    /// Writes a row unless another one has its version; whoever reads the commit id back that this returns has won.
    pub(super) async fn put(
        &self,
        storage: &str,
        view: &str,
        version: u64,
        body: String,
    ) -> Result<String, ManifestError> {
        let row =
            Row { storage: storage.into(), view: view.into(), version, commit: commit_id(), committed_at_ms: 0, body };
        let knows = self.deduplicate_insert.get_or_try_init(|| self.knows_deduplicate_insert()).await?;
        let enable = if *knows { ", deduplicate_insert = 'enable'" } else { "" };
        let sql = format!(
            "INSERT INTO {TABLE} (storage, view, version, commit, body) SETTINGS async_insert = 0, \
             insert_deduplicate = 1, insert_deduplication_token = '{storage}:{version}'{enable} FORMAT JSONEachRow"
        );
        let line = serde_json::to_vec(&row).map_err(|e| ManifestError::Body {
            storage: storage.into(),
            version,
            message: e.to_string(),
        })?;
        failpoint::reach("commit.begun");
        self.upstream.insert(&sql, [Bytes::from(line)]).await?;
        failpoint::reach("commit.sent");
        Ok(row.commit)
    }
}

impl Store {
    async fn knows_deduplicate_insert(&self) -> Result<bool, UpstreamError> {
        #[derive(Deserialize)]
        struct Setting {
            name: String,
        }
        let sql = "SELECT name FROM system.settings WHERE name = 'deduplicate_insert'";
        Ok(self.upstream.rows::<Setting>(sql).await?.iter().any(|setting| !setting.name.is_empty()))
    }
}

impl TryFrom<Row> for Manifest {
    type Error = ManifestError;

    fn try_from(row: Row) -> Result<Self, ManifestError> {
        let body = serde_json::from_str(&row.body).map_err(|e| ManifestError::Body {
            storage: row.storage.clone(),
            version: row.version,
            message: e.to_string(),
        })?;
        Ok(Manifest {
            storage: row.storage,
            view: row.view,
            version: row.version,
            commit: row.commit,
            committed_at_ms: row.committed_at_ms,
            body,
            is_ahead: false,
        })
    }
}

/// Unique among all processes that may commit at the same moment: time, process, a counter.
fn commit_id() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = std::hash::BuildHasher::hash_one(&foldhash::fast::RandomState::default(), now);
    format!("{:x}-{:x}-{random:x}-{:x}", now.as_nanos(), std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}
