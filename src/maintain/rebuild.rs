//! Makes a view's runs hold what its sources hold: plan, build, commit, clean up.
//!
//! ```text
//! latest manifest + look at the sources -> plan (partitions to build, partitions whose rows stay)
//!   -> build into new runs (`build`) -> copy rows that stay out of runs that do not
//!   -> commit the manifest, unless another commit came first: then plan anew
//! ```
//! Killed at any point, nothing but runs without a manifest is left, which the next rebuild drops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::build::{Builder, Built, Limits};
use super::coverage::{self, Parts, SourceRecord, SourceSeen};
use super::manifest::{Body, Commit, GRACE, Manifest, ManifestError, Retired, Run, Store};
use super::observe::{ObserveError, Observer, rows_by_run};
use super::run;
use super::states::{self, StatesError};
use crate::matching::schema::TableName;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;
use crate::views::declaration::Consistency;

/// Times that a rebuild begins anew: a joined table changed, a definition was altered, another commit came first.
const ATTEMPTS_MAX: usize = 5;

/// With more live runs than this, a rebuild copies the smaller ones together.
const RUNS_MAX: usize = 8;

/// An ALTER under way is waited for this long, and so is a server that has just been started: see
/// [`TableRow::server_started_at`](super::observe::TableRow::server_started_at).
const ALTER_WAIT: Duration = Duration::from_secs(60);
const ALTER_POLL: Duration = Duration::from_millis(500);

/// The names of abandoned runs are kept this long after they were dropped, so that no late writer commits them.
const ABANDONED_KEPT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    States(#[from] StatesError),
    #[error("table {table} cannot be built from: {reason}")]
    Source { table: String, reason: String },
    #[error(
        "a row policy ({policy}) hides rows of {table} from user {user}; give Tributary a user who may read all rows"
    )]
    RowPolicy { table: String, policy: String, user: String },
    /// Begun anew a few times before it is shown.
    #[error("{table} was altered or changed while the view was being built; try again when it is quiet")]
    SourceMoved { table: String },
    #[error("other processes rebuilt the view at the same time, {ATTEMPTS_MAX} times in a row")]
    Outrun,
    #[error("partition {partition} does not exist; there are {existing}")]
    UnknownPartition { partition: String, existing: String },
    #[error(
        "the parts of partition {partition} were merged or mutated during each of {attempts} attempts; give --memory \
         enough for one pass, or stop merges of the table (SYSTEM STOP MERGES) for the time"
    )]
    PartsMoving { partition: String, attempts: usize },
    #[error(
        "the states of partition {partition} do not fit into {bytes_max} bytes even in small ranges of keys; give more \
         --memory"
    )]
    Memory { partition: String, bytes_max: usize },
    /// ClickHouse took fewer or more rows than were sent.
    #[error("run {run} has {found} rows in {storage}, {expected} were written; nothing was committed")]
    RowsLost { storage: String, run: u64, expected: u64, found: u64 },
    #[error("internal: a task ended early: {0}")]
    Task(String),
}

/// Told how far a rebuild is.
pub trait Progress: Send + Sync {
    /// A build begins that reads about this many rows; also called when it begins anew.
    fn begin(&self, view: &str, partitions: usize, source_rows: u64);
    fn advance(&self, source_rows: u64);
    fn end(&self);
}

/// Tells nobody.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: usize, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of partial states held at once.
    pub memory_bytes: usize,
    /// Queries under way at once.
    pub jobs: usize,
    /// About as many source rows are read by one query: a few seconds of work, which is what a part merge in the wrong
    /// moment throws away.
    pub chunk_rows: u64,
    /// Only these partitions of the fact table; empty: all.
    pub partitions: Vec<String>,
    /// Also what is covered already.
    pub full: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory_bytes: 1 << 30, jobs: 2, chunk_rows: 16_000_000, partitions: Vec::new(), full: false }
    }
}

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub partitions_built: usize,
    /// Rows of the fact table that were read for it.
    pub source_rows_read: u64,
    /// Rows in the live runs.
    pub rows: u64,
    pub runs: usize,
    pub version: u64,
    /// Partitions whose parts never stood still: some of their rows are not covered.
    pub incomplete: Vec<String>,
    pub seconds: f64,
}

/// Brings one view up to date. Safe beside readers, and beside other rebuilds of the same view.
pub async fn rebuild(
    upstream: &Upstream,
    view: &CatalogView,
    options: &Options,
    progress: Arc<dyn Progress>,
) -> Result<Report, RebuildError> {
    let store = Store::new(upstream.clone());
    store.ensure().await?;
    run::ensure(upstream).await?;
    view.storage.create(upstream).await?;
    let observer = Observer::connect(upstream.clone()).await?;
    let job = Job { upstream, view, progress, store, observer, began: Instant::now() };
    job.drop_leftovers().await?;
    let mut options_left = options.clone();
    let mut last = RebuildError::Outrun;
    for _ in 0..ATTEMPTS_MAX {
        match job.attempt(&options_left).await {
            Ok(Some(report)) => return Ok(report),
            // Whoever came first has built all that a full rebuild would.
            Ok(None) => options_left.full = false,
            Err(error @ RebuildError::SourceMoved { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

struct Job<'a> {
    upstream: &'a Upstream,
    view: &'a CatalogView,
    progress: Arc<dyn Progress>,
    store: Store,
    observer: Observer,
    began: Instant,
}

/// What to build, and what of the live runs stays.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    build: Vec<String>,
    /// Partitions that the live runs hold exactly, with their parts as they are now.
    keep: Parts,
    /// Something in the live runs is to go, whether or not anything is to be built.
    drops: bool,
}

/// What becomes of the live runs.
struct Carried {
    /// Those that stay live.
    runs: Vec<Run>,
    retired: Vec<u64>,
    /// Rows of the others that were copied into the new run.
    rows_copied: u64,
}

impl Job<'_> {
    /// One attempt; `None`: another commit came first.
    async fn attempt(&self, options: &Options) -> Result<Option<Report>, RebuildError> {
        let seen = self.look().await?;
        let manifest = self.store.latest(self.storage()).await?;
        let whole = !self.view.view.tables.is_empty() && !is_merge_tree(&seen[0]);
        let live = self.usable(manifest.as_ref(), &seen).await?;
        let plan = plan(live, &seen[0], options)?;
        if let Some(manifest) =
            manifest.as_ref().filter(|_| plan.build.is_empty() && !plan.drops && !whole && live.is_some())
        {
            return Ok(Some(self.report(manifest, &[], 0)));
        }
        let rows_of = |ids: &[String]| -> u64 {
            ids.iter().flat_map(|id| seen[0].parts.get(id)).flatten().map(|part| part.rows).sum()
        };
        let source_rows = rows_of(&plan.build);
        self.progress.begin(self.view.name(), plan.build.len(), source_rows);
        let limits = Limits { memory_bytes: options.memory_bytes, jobs: options.jobs, chunk_rows: options.chunk_rows };
        let (upstream, observer, view) = (self.upstream.clone(), self.observer.clone(), self.view.clone());
        let builder =
            Builder::start(upstream, observer, view, seen, &plan.build, limits, self.progress.clone()).await?;
        let builder = Arc::new(builder);
        let outcome = self.build_and_commit(&builder, manifest.as_ref(), live, plan, whole).await;
        self.progress.end();
        match outcome {
            Ok(Some((manifest, built))) => Ok(Some(self.report(&manifest, &built, source_rows))),
            other => {
                // Best effort: what remains is dropped by the next rebuild.
                if let Err(error) = self.drop_unseen(&builder).await {
                    tracing::warn!("dropping unfinished runs of {}: {error}", self.storage());
                }
                other.map(|_| None)
            }
        }
    }

    /// Drops the runs of an attempt that failed, unless its commit was taken after all.
    async fn drop_unseen(&self, builder: &Builder) -> Result<(), RebuildError> {
        let latest = self.store.latest(self.storage()).await?;
        let seen = |run: &u64| latest.as_ref().is_some_and(|latest| latest.body.has_seen(*run));
        for run in builder.runs().await.into_iter().filter(|run| !seen(run)) {
            builder.states.drop_run(run).await?;
        }
        Ok(())
    }

    async fn build_and_commit(
        &self,
        builder: &Arc<Builder>,
        manifest: Option<&Manifest>,
        live: Option<&Manifest>,
        plan: Plan,
        whole: bool,
    ) -> Result<Option<(Manifest, Vec<Built>)>, RebuildError> {
        let built = if whole {
            builder.build_whole().await?;
            Vec::new()
        } else {
            builder.build().await?
        };
        let shared = builder.shared_run().await;
        let Carried { mut runs, retired, rows_copied } = self.carry_over(builder, live, &plan, shared).await?;
        for (id, rows_written) in builder.rows_written().await {
            let partitions = builder.states.rows_of_run(id).await?;
            let rows = partitions.values().sum();
            let expected = rows_written + if id == shared { rows_copied } else { 0 };
            if rows != expected {
                let storage = self.view.storage.name.to_string();
                return Err(RebuildError::RowsLost { storage, run: id, expected, found: rows });
            }
            runs.push(Run { id, rows, partitions: partitions.into_keys().collect() });
        }
        let mut records: Vec<SourceRecord> =
            self.view.view.tables.iter().zip(&builder.seen).map(|(table, seen)| seen.record(table.clone())).collect();
        records[0].parts = plan.keep;
        records[0].parts.extend(built.iter().map(|built| (built.partition.clone(), built.parts.clone())));
        let body = Body {
            runs: runs.into_iter().filter(|run| run.rows > 0).collect(),
            sources: records,
            retired: self.retired(manifest, live, &retired).await?,
        };
        Ok(match self.store.commit(self.storage(), self.view.name(), manifest, &body).await? {
            Commit::Won(manifest) => Some((manifest, built)),
            Commit::Lost => {
                // A commit of ours that was followed at once by another one looks the same at first.
                let latest = self.store.latest(self.storage()).await?;
                let ours = builder.runs().await;
                let seen = |latest: &Manifest| ours.iter().any(|run| latest.body.has_seen(*run));
                latest.filter(seen).map(|latest| (latest, built))
            }
        })
    }

    /// Leaves runs alone of which every partition stays, and copies the staying partitions of others into run `shared`.
    async fn carry_over(
        &self,
        builder: &Builder,
        live: Option<&Manifest>,
        plan: &Plan,
        shared: u64,
    ) -> Result<Carried, RebuildError> {
        let mut stay: Vec<Run> = Vec::new();
        let mut copy: Vec<Run> = Vec::new();
        for run in live.into_iter().flat_map(|manifest| &manifest.body.runs) {
            let intact = run.partitions.iter().all(|id| plan.keep.contains_key(id));
            if intact { stay.push(run.clone()) } else { copy.push(run.clone()) }
        }
        if stay.len() >= RUNS_MAX {
            stay.sort_by_key(|run| std::cmp::Reverse(run.rows));
            copy.extend(stay.split_off(RUNS_MAX / 2));
        }
        let mut rows_copied = 0;
        for run in &copy {
            let rows = builder.states.rows_of_run(run.id).await?;
            let (partitions, rows): (Vec<String>, Vec<u64>) =
                rows.into_iter().filter(|(id, _)| plan.keep.contains_key(id)).unzip();
            if !partitions.is_empty() {
                builder.states.copy(run.id, &partitions, shared).await?;
                rows_copied += rows.into_iter().sum::<u64>();
            }
        }
        Ok(Carried { runs: stay, retired: copy.into_iter().map(|run| run.id).collect(), rows_copied })
    }

    /// Runs that wait to be dropped after this commit.
    async fn retired(
        &self,
        manifest: Option<&Manifest>,
        live: Option<&Manifest>,
        retired_now: &[u64],
    ) -> Result<Vec<Retired>, RebuildError> {
        let now_ms = self.store.now_ms().await?;
        let mut retired: Vec<Retired> = manifest.map(|manifest| manifest.body.retired.clone()).unwrap_or_default();
        retired.retain(|run| !run.is_forgotten(now_ms));
        // Without a usable manifest none of its runs stays.
        let unusable = manifest.filter(|_| live.is_none()).into_iter().flat_map(|manifest| &manifest.body.runs);
        let gone = retired_now.iter().copied().chain(unusable.map(|run| run.id));
        retired.extend(gone.map(|run| Retired { run, since_ms: now_ms, abandoned: false }));
        Ok(retired)
    }

    fn storage(&self) -> &str {
        &self.view.storage.name.table
    }

    fn report(&self, manifest: &Manifest, built: &[Built], source_rows_read: u64) -> Report {
        Report {
            partitions_built: built.len(),
            source_rows_read,
            rows: manifest.body.rows(),
            runs: manifest.body.runs.len(),
            version: manifest.version,
            incomplete: built.iter().filter(|built| built.incomplete).map(|built| built.partition.clone()).collect(),
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }

    /// The sources as they are now, contents' hashes included. Waits for ALTERs to end, and for a young server.
    async fn look(&self) -> Result<Vec<SourceSeen>, RebuildError> {
        let tables = &self.view.view.tables;
        let until = Instant::now() + ALTER_WAIT;
        let rows = loop {
            let rows = self.observer.tables(tables, self.observer.clock().await?).await?;
            let young = rows.values().any(|row| row.server_started_at().is_none());
            let pending = rows.values().find(|row| row.alter_pending);
            let Some(pending) = pending else {
                if !young || Instant::now() > until {
                    break rows;
                }
                tokio::time::sleep(ALTER_POLL).await;
                continue;
            };
            if Instant::now() > until {
                let reason = "an ALTER has not reached all its parts".to_string();
                return Err(RebuildError::Source { table: pending.name().to_string(), reason });
            }
            tokio::time::sleep(ALTER_POLL).await;
        };
        let definitions = self.observer.definitions(tables).await?;
        self.refuse_policies(tables).await?;
        let mut parts = self.observer.parts(tables, true).await?;
        let manual = self.view.declaration.consistency == Consistency::Manual;
        let mut seen = Vec::new();
        for source in self.view.target().sources {
            let refuse = |reason: &str| {
                let table = source.table.to_string();
                Err(RebuildError::Source { table, reason: reason.into() })
            };
            let (Some(row), Some(definition)) = (rows.get(&source.table), definitions.get(&source.table)) else {
                return refuse("it does not exist");
            };
            if !manual && !row.keeps_parts() {
                return refuse(&format!("engine {} keeps no parts", row.engine));
            }
            if !manual && !row.has_uuid() {
                return refuse("its database gives tables no UUIDs (engine Ordinary); use an Atomic database");
            }
            seen.push(SourceSeen {
                identity: definition.identity(row, &source.columns),
                server_started_at: row.server_started_at(),
                alter_pending: false,
                parts: parts.remove(&source.table).unwrap_or_default().parts,
            });
        }
        Ok(seen)
    }

    async fn refuse_policies(&self, tables: &[TableName]) -> Result<(), RebuildError> {
        let policies = self.observer.policies().await?;
        let names = self.observer.own_names().await?;
        let hit = policies.iter().filter(|policy| policy.applies_to(&names)).find_map(|policy| {
            let table = tables.iter().find(|table| policy.concerns(table))?;
            Some((table.to_string(), policy.name.clone()))
        });
        match hit {
            Some((table, policy)) => {
                Err(RebuildError::RowPolicy { table, policy, user: self.upstream.config().user.clone() })
            }
            None => Ok(()),
        }
    }

    /// The manifest, if its runs are complete and hold what the joined tables hold, so that partitions can be kept.
    async fn usable<'m>(
        &self,
        manifest: Option<&'m Manifest>,
        seen: &[SourceSeen],
    ) -> Result<Option<&'m Manifest>, RebuildError> {
        let Some(manifest) = manifest.filter(|manifest| manifest.body.sources.len() == seen.len()) else {
            return Ok(None);
        };
        let sources = manifest.body.sources.iter().zip(seen);
        let moved = sources.clone().any(|(record, seen)| coverage::identity_change(record, seen).is_some())
            || sources.skip(1).any(|(record, seen)| coverage::source_change(record, seen).is_some());
        let storage = &self.view.storage.name;
        let parts = self.observer.parts(std::slice::from_ref(storage), false).await?;
        let found = parts.get(storage).map(rows_by_run).unwrap_or_default();
        let complete = manifest.body.runs.iter().all(|run| found.get(&run.id).copied().unwrap_or(0) == run.rows);
        Ok((!moved && complete).then_some(manifest))
    }

    /// Drops runs whose grace is over, and those that a rebuild left which died.
    async fn drop_leftovers(&self) -> Result<(), RebuildError> {
        let storage = &self.view.storage.name;
        for _ in 0..ATTEMPTS_MAX {
            let manifest = self.store.latest(self.storage()).await?;
            let alive: BTreeSet<u64> = run::alive(self.upstream, self.storage()).await?.into_iter().collect();
            let parts = self.observer.parts(std::slice::from_ref(storage), false).await?;
            let present: BTreeSet<u64> = parts.get(storage).map(rows_by_run).unwrap_or_default().into_keys().collect();
            let now_ms = self.store.now_ms().await?;
            let body = manifest.as_ref().map(|manifest| manifest.body.clone()).unwrap_or_default();
            let live = |run: &u64| body.runs.iter().any(|live| live.id == *run);
            let retired = |run: &u64| body.retired.iter().any(|retired| retired.run == *run);
            let orphans: Vec<u64> =
                present.iter().copied().filter(|run| !live(run) && !retired(run) && !alive.contains(run)).collect();
            let due = body.retired.iter().filter(|retired| retired.is_due(now_ms) && present.contains(&retired.run));
            for retired in due {
                states::drop_run(self.upstream, &self.view.storage.quoted(), retired.run).await?;
            }
            if orphans.is_empty() {
                return Ok(());
            }
            let mut next = body.clone();
            next.retired.retain(|retired| !retired.is_forgotten(now_ms));
            next.retired.extend(orphans.iter().map(|run| Retired { run: *run, since_ms: now_ms, abandoned: true }));
            let commit = self.store.commit(self.storage(), self.view.name(), manifest.as_ref(), &next).await?;
            if let Commit::Won(_) = commit {
                for run in orphans {
                    tracing::info!("dropping run {run} of {storage}, which an unfinished rebuild left");
                    states::drop_run(self.upstream, &self.view.storage.quoted(), run).await?;
                }
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Retired {
    /// Nobody can be reading it any more.
    fn is_due(&self, now_ms: u64) -> bool {
        self.abandoned || self.age(now_ms) >= GRACE
    }

    /// It was dropped long ago.
    fn is_forgotten(&self, now_ms: u64) -> bool {
        self.age(now_ms) >= if self.abandoned { ABANDONED_KEPT } else { GRACE + ABANDONED_KEPT }
    }

    fn age(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.since_ms))
    }
}

fn is_merge_tree(seen: &SourceSeen) -> bool {
    seen.identity.engine.ends_with("MergeTree")
}

/// Which partitions to build. Pure. `live`: the manifest whose runs can be kept in part.
fn plan(live: Option<&Manifest>, fact: &SourceSeen, options: &Options) -> Result<Plan, RebuildError> {
    let holds_rows = |id: &&String| fact.parts.get(*id).is_some_and(|parts| parts.iter().any(|part| part.rows > 0));
    let existing: Vec<&String> = fact.parts.keys().filter(holds_rows).collect();
    if let Some(unknown) = options.partitions.iter().find(|id| !existing.contains(id)) {
        let names: Vec<&str> = existing.iter().take(20).map(|id| id.as_str()).collect();
        let more = if existing.len() > names.len() { ", .." } else { "" };
        let existing = if names.is_empty() { "none".into() } else { names.join(", ") + more };
        return Err(RebuildError::UnknownPartition { partition: unknown.clone(), existing });
    }
    let record = live.map(|manifest| &manifest.body.sources[0]);
    let changed = record.map(|record| coverage::partition_changes(record, fact)).unwrap_or_default();
    let mut plan = Plan::default();
    for id in existing {
        let covered = record.is_some_and(|record| record.parts.contains_key(id)) && !changed.contains_key(id);
        let wanted = options.partitions.is_empty() || options.partitions.contains(id);
        if wanted && (options.full || !covered) {
            plan.build.push(id.clone());
        } else if covered {
            plan.keep.insert(id.clone(), fact.parts[id].clone());
        }
    }
    let held = live.into_iter().flat_map(|manifest| &manifest.body.runs).flat_map(|run| &run.partitions);
    plan.drops = held.into_iter().any(|id| !plan.keep.contains_key(id) && !plan.build.contains(id));
    Ok(plan)
}
