//! Makes a view's runs hold what its sources hold: plan, build, commit, clean up.
//!
//! ```text
//! latest manifest + look at the sources -> extent (partitions to build, partitions whose rows stay)
//!   -> build into new runs (`build`) -> bury the rows of live runs that do not stay
//!   -> commit the manifest, unless another commit came first: then begin anew -> merge small runs
//! ```
//! Killed at any point, nothing but runs without a manifest is left, which the next rebuild drops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::build::{Builder, Built, Limits, queries};
use super::collect;
use super::compact::Compactor;
use super::coverage::{self, Parts, SourceRecord, SourceSeen};
use super::finer::{self, Finer};
use super::look::LookError;
use super::manifest::{Blocks, Manifest, ManifestError, Run, Store};
use super::observe::{ObserveError, Observer, rows_by_run};
use super::plan::blocks_of;
use super::run;
use super::sources;
use super::states::{States, StatesError};
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;
use crate::views::neutral::neutral;
use crate::views::storage::{StorageError, StorageTable};

/// Times that a rebuild begins anew: a joined table changed, a definition was altered, another commit came first.
const ATTEMPTS_MAX: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    States(#[from] StatesError),
    #[error("table {table} cannot be built from: {reason}")]
    Source { table: String, reason: String },
    #[error(
        "a row policy ({policy}) hides rows of {table} from user {user}; give Tributary a user who may read all rows"
    )]
    RowPolicy { table: String, policy: String, user: String },
    #[error("the sources have other columns than when the view was loaded; it has to be loaded anew")]
    DefinitionMoved,
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
    /// Views out of whose rows this one may be built where they are finer and current: see [`finer`].
    pub finer: Vec<CatalogView>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            jobs: 2,
            chunk_rows: 16_000_000,
            partitions: Vec::new(),
            full: false,
            finer: Vec::new(),
        }
    }
}

/// What a rebuild did.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub partitions_built: usize,
    /// The view out of whose rows some of them were built, and how many.
    pub derived: Option<(String, usize)>,
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
    collect::orphans(upstream, &observer, &store, view).await?;
    let job = Job { upstream, view, progress, store, observer, began: Instant::now() };
    let mut options_left = options.clone();
    let mut last = RebuildError::Outrun;
    for _ in 0..ATTEMPTS_MAX {
        match job.attempt(&options_left).await {
            Ok(Some(report)) => return job.settle(report).await,
            // Whoever came first has built all that a full rebuild would.
            Ok(None) => options_left.full = false,
            Err(error @ RebuildError::SourceMoved { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// What a rebuild would do, as far as it is known before states are read.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// Partitions of the fact table to be read, their rows, and the queries that read them.
    pub scan: Vec<String>,
    pub source_rows: u64,
    pub queries: usize,
    /// The view out of whose rows partitions are built, and which.
    pub derive: Option<(String, Vec<String>)>,
    /// Partitions that are covered already.
    pub keep: usize,
}

/// What [`rebuild`] would do now; changes nothing. `built_before`: finer views that will be current by then.
pub async fn preview(
    upstream: &Upstream,
    view: &CatalogView,
    options: &Options,
    built_before: &[CatalogView],
) -> Result<Preview, RebuildError> {
    let (store, observer) = (Store::new(upstream.clone()), Observer::connect(upstream.clone()).await?);
    let seen = sources::look(upstream, &observer, view).await?;
    let manifest = store.latest(&view.storage.name.table).await?;
    let live = usable(&observer, view, manifest.as_ref(), &seen).await?;
    let extent = extent(live, &seen[0], options)?;
    let derive = match built_before.iter().find(|fine| finer::derivation(view, fine).is_some()) {
        Some(fine) => Some((fine.name().to_string(), extent.build.clone())),
        None => finer::choose((upstream, &observer, &store), view, &options.finer, &seen, &extent.build)
            .await?
            .map(|finer| (finer.view.name().to_string(), finer.parts.into_keys().collect())),
    };
    let derived = |id: &String| derive.as_ref().is_some_and(|(_, partitions)| partitions.contains(id));
    let scan: Vec<String> = extent.build.into_iter().filter(|id| !derived(id)).collect();
    Ok(Preview {
        source_rows: rows_of(&seen[0].parts, &scan),
        queries: queries(&seen[0].parts, &scan, options.chunk_rows),
        derive: derive.filter(|(_, partitions)| !partitions.is_empty()),
        keep: extent.keep.len(),
        scan,
    })
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
struct Extent {
    build: Vec<String>,
    /// Partitions that the live runs hold exactly, with their parts as they are now.
    keep: Parts,
    /// Something in the live runs is to go, whether or not anything is to be built.
    drops: bool,
}

impl Job<'_> {
    /// One attempt; `None`: another commit came first.
    async fn attempt(&self, options: &Options) -> Result<Option<Report>, RebuildError> {
        let seen = sources::look(self.upstream, &self.observer, self.view).await?;
        let manifest = self.store.latest(self.storage()).await?;
        let whole = !self.view.view.tables.is_empty() && !is_merge_tree(&seen[0]);
        let live = usable(&self.observer, self.view, manifest.as_ref(), &seen).await?;
        if live.is_none() {
            self.refuse_moved_definition().await?;
        }
        let extent = extent(live, &seen[0], options)?;
        if let Some(manifest) =
            manifest.as_ref().filter(|_| extent.build.is_empty() && !extent.drops && !whole && live.is_some())
        {
            return Ok(Some(self.report(manifest, &[], 0)));
        }
        let tools = (self.upstream, &self.observer, &self.store);
        let finer = finer::choose(tools, self.view, &options.finer, &seen, &extent.build).await?;
        let derived = |id: &&String| finer.as_ref().is_some_and(|finer| finer.parts.contains_key(*id));
        let scan: Vec<String> = extent.build.iter().filter(|id| !derived(id)).cloned().collect();
        let source_rows = rows_of(&seen[0].parts, &scan);
        self.progress.begin(self.view.name(), scan.len(), source_rows);
        let limits = Limits { memory_bytes: options.memory_bytes, jobs: options.jobs, chunk_rows: options.chunk_rows };
        let (upstream, observer, view) = (self.upstream.clone(), self.observer.clone(), self.view.clone());
        let builder = Builder::start(upstream, observer, view, seen, &scan, limits, self.progress.clone()).await?;
        let builder = Arc::new(builder);
        let outcome = self.build_and_commit(&builder, manifest.as_ref(), live, extent, finer.as_ref(), whole).await;
        self.progress.end();
        match outcome {
            Ok(Some((manifest, built))) => {
                let derived = finer.map(|finer| (finer.view.name().to_string(), finer.parts.len()));
                Ok(Some(Report { derived, ..self.report(&manifest, &built, source_rows) }))
            }
            other => {
                // Best effort: what remains is dropped by the next rebuild.
                if let Err(error) = builder.states.drop_unseen(&self.store, &builder.runs().await).await {
                    tracing::warn!("dropping unfinished runs of {}: {error}", self.storage());
                }
                other.map(|_| None)
            }
        }
    }

    async fn build_and_commit(
        &self,
        builder: &Arc<Builder>,
        manifest: Option<&Manifest>,
        live: Option<&Manifest>,
        extent: Extent,
        finer: Option<&Finer>,
        whole: bool,
    ) -> Result<Option<(Manifest, Vec<Built>)>, RebuildError> {
        let mut built = if whole {
            builder.build_whole().await?;
            Vec::new()
        } else {
            builder.build().await?
        };
        if let Some(finer) = finer {
            built.extend(builder.derive(finer, &self.store).await?);
        }
        let mut body = live.map(|manifest| manifest.body.clone()).unwrap_or_default();
        body.runs.iter_mut().for_each(|run| {
            let stay = |id: &&String| extent.keep.contains_key(*id);
            let gone: Vec<String> = run.partitions.keys().filter(|id| !stay(id)).cloned().collect();
            gone.iter().for_each(|id| run.bury(id));
        });
        for (id, rows) in builder.rows_written().await {
            builder.states.expect_rows(id, rows).await?;
            let own = built.iter().filter(|built| built.run == id);
            let partitions = match whole {
                true => BTreeMap::from([(String::new(), Blocks::ALL)]),
                false => own.filter_map(|built| Some((built.partition.clone(), blocks_of(&built.parts)?))).collect(),
            };
            body.runs.push(Run { id, rows, partitions, dead: Vec::new() });
        }
        let mut records: Vec<SourceRecord> =
            self.view.view.tables.iter().zip(&builder.seen).map(|(table, seen)| seen.record(table.clone())).collect();
        records[0].parts = extent.keep;
        records[0].parts.extend(built.iter().map(|built| (built.partition.clone(), built.parts.clone())));
        body.sources = records;
        // Without a usable manifest none of its runs stays.
        body.retire(manifest, self.store.now_ms().await?);
        let runs = builder.runs().await;
        let committed = self.store.commit_runs(self.storage(), self.view.name(), manifest, &body, &runs).await?;
        Ok(committed.map(|manifest| (manifest, built)))
    }

    /// Merges small runs, so that many rebuilds leave few.
    async fn settle(&self, report: Report) -> Result<Report, RebuildError> {
        let states = Arc::new(States::new(self.upstream.clone(), self.view.clone()).await?);
        let compactor = Compactor { upstream: self.upstream, store: &self.store, states: &states };
        Ok(match compactor.settle(self.view).await? {
            Some(manifest) => Report {
                rows: manifest.body.rows(),
                runs: manifest.body.runs.len(),
                version: manifest.version,
                ..report
            },
            None => report,
        })
    }

    /// The types of the sources' columns may have changed since the view was resolved.
    async fn refuse_moved_definition(&self) -> Result<(), RebuildError> {
        let upstream = neutral(self.upstream).await?;
        let described = StorageTable::describe(&upstream, &self.view.declaration, &self.view.view).await;
        match described {
            Ok(storage) if storage == self.view.storage => Ok(()),
            Err(StorageError::Upstream(error)) if error.exception().is_none() => Err(error.into()),
            _ => Err(RebuildError::DefinitionMoved),
        }
    }

    fn storage(&self) -> &str {
        &self.view.storage.name.table
    }

    fn report(&self, manifest: &Manifest, built: &[Built], source_rows_read: u64) -> Report {
        Report {
            partitions_built: built.len(),
            derived: None,
            source_rows_read,
            rows: manifest.body.rows(),
            runs: manifest.body.runs.len(),
            version: manifest.version,
            incomplete: built.iter().filter(|built| built.incomplete).map(|built| built.partition.clone()).collect(),
            seconds: self.began.elapsed().as_secs_f64(),
        }
    }
}

/// The manifest, if its runs are complete and hold what the joined tables hold, so that partitions can be kept.
pub(super) async fn usable<'m>(
    observer: &Observer,
    view: &CatalogView,
    manifest: Option<&'m Manifest>,
    seen: &[SourceSeen],
) -> Result<Option<&'m Manifest>, RebuildError> {
    let Some(manifest) = manifest.filter(|manifest| manifest.body.sources.len() == seen.len()) else {
        return Ok(None);
    };
    let sources = manifest.body.sources.iter().zip(seen);
    let moved = sources.clone().any(|(record, seen)| coverage::identity_change(record, seen).is_some())
        || sources.skip(1).any(|(record, seen)| coverage::source_change(record, seen).is_some());
    let storage = &view.storage.name;
    let parts = observer.parts(std::slice::from_ref(storage), false).await?;
    let found = parts.get(storage).map(rows_by_run).unwrap_or_default();
    let complete = manifest.body.runs.iter().all(|run| found.get(&run.id).copied().unwrap_or(0) == run.rows);
    Ok((!moved && complete).then_some(manifest))
}

fn rows_of(parts: &Parts, ids: &[String]) -> u64 {
    ids.iter().flat_map(|id| parts.get(id)).flatten().map(|part| part.rows).sum()
}

fn is_merge_tree(seen: &SourceSeen) -> bool {
    seen.identity.engine.ends_with("MergeTree")
}

/// Which partitions to build. Pure. `live`: the manifest whose runs can be kept in part.
fn extent(live: Option<&Manifest>, fact: &SourceSeen, options: &Options) -> Result<Extent, RebuildError> {
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
    let mut extent = Extent::default();
    for id in existing {
        let covered = record.is_some_and(|record| record.parts.contains_key(id)) && !changed.contains_key(id);
        let wanted = options.partitions.is_empty() || options.partitions.contains(id);
        if wanted && (options.full || !covered) {
            extent.build.push(id.clone());
        } else if covered {
            extent.keep.insert(id.clone(), fact.parts[id].clone());
        }
    }
    let held = live.into_iter().flat_map(|manifest| &manifest.body.runs).flat_map(|run| run.partitions.keys());
    extent.drops = held.into_iter().any(|id| !extent.keep.contains_key(id) && !extent.build.contains(id));
    Ok(extent)
}
