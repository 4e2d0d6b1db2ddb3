//! One look at ClickHouse: what the sources hold now against what the views' runs hold. Queries that arrive while a
//! look is being prepared share it. Definitions of views are told apart by the names of their storage tables, since there
//! may be two of one view.
//!
//! A look is exact for a query that arrived before the look *started*. It asks for parts and tables at once, in no certain
//! order. That is made good by two facts: what is stale never becomes covered again (block
//! numbers only grow), and an ALTER writes the table's definition, whose time is compared, before it touches any part. Only
//! when that time moved are columns and TTLs read again, and then the parts after them. Row policies are asked for now and
//! then, as grants are.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::coverage::{SourceSeen, Staleness};
use super::lock;
use super::manifest::{Manifest, ManifestError, Store};
use super::observe::{
    Clock, Definition, ObserveError, Observer, RowPolicy, TableParts, TableRow, rows_by_run, storage_table,
};
pub use super::sight::{Coverage, Covered, Sight};
use crate::config::Consistency;
use crate::matching::schema::TableName;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::{SourceUse, Target};

/// A manifest that answers is asked for again after this time; far below `manifest::GRACE`, so that a run is never
/// dropped under a reader.
const MANIFEST_AGE_MAX: Duration = Duration::from_secs(1);

/// A view that may be answered from an old look is looked at this often nevertheless, again far below `manifest::GRACE`.
const LOOK_AGE_MAX: Duration = Duration::from_secs(20);

/// While a view is stale its manifest is asked for at most this often: so long after a rebuild it may still be called stale.
pub const MANIFEST_AGE_STALE: Duration = Duration::from_millis(100);

/// A definition written less than this before it was read may be written again within the same second.
const DEFINITION_SETTLED_SECONDS: u64 = 2;

/// While parts are not known by their names, their contents are compared at most this often: the server hashes the
/// checksums of all files of all parts for it.
const HASHES_AGE_MIN: Duration = Duration::from_secs(1);

/// Row policies are asked for again after this time; the proxy keeps what it knows of a user's rights just as long.
const POLICIES_AGE_MAX: Duration = Duration::from_secs(10);

/// The server's clock is read again after this time.
const CLOCK_AGE_MAX: Duration = Duration::from_millis(500);

/// Looks under way at the same time. One more begins when one of them ends, for all who came meanwhile.
const LOOKS_MAX: usize = 2;

/// What was seen; shared by all who asked for it.
#[derive(Debug, Clone)]
pub struct Look {
    pub started_at: Instant,
    /// By storage table.
    sights: HashMap<String, Arc<Sight>>,
    policies: Arc<Vec<RowPolicy>>,
}

impl Look {
    /// What the look says about the view with this storage table. One that it was not asked about counts as never built.
    pub fn coverage(&self, storage: &str) -> Coverage {
        self.sights.get(storage).map_or(Coverage::Stale(Staleness::NeverBuilt), |sight| sight.coverage.clone())
    }

    /// What was seen of the view with this storage table.
    pub fn sight(&self, storage: &str) -> Option<&Arc<Sight>> {
        self.sights.get(storage)
    }

    /// Who may not see every row, of whatever table.
    pub fn policies(&self) -> &[RowPolicy] {
        &self.policies
    }

    /// Whether a decision about a view that went by an `earlier` look, and by the manifest of then, is right by this one as
    /// well; else the reason.
    pub fn confirms(&self, earlier: &Look, storage: &str) -> Result<(), String> {
        if self.policies != earlier.policies {
            return Err("row policies have changed".into());
        }
        let (then, now) = self.with(earlier, storage)?;
        now.confirms(then).map_err(|why| format!("stale: view {}: {why}", now.view))
    }

    /// Whether the runs that an `earlier` look named are all there still; else which is not.
    pub fn has_runs_of(&self, earlier: &Look, storage: &str) -> Result<(), String> {
        let (then, now) = self.with(earlier, storage)?;
        now.has_runs_of(then).map_err(|why| format!("view {}: {why}", now.view))
    }

    /// A view as an earlier look and this one show it.
    fn with<'a>(&'a self, earlier: &'a Look, storage: &str) -> Result<(&'a Sight, &'a Sight), String> {
        let both = earlier.sights.get(storage).zip(self.sights.get(storage));
        let (then, now) = both.ok_or_else(|| format!("{storage} was not looked at"))?;
        Ok((then, now))
    }

    /// Whether another look saw the same of a view's sources.
    pub fn shows_same(&self, other: &Look, storage: &str) -> bool {
        match (self.sights.get(storage), other.sights.get(storage)) {
            (Some(now), Some(then)) => now.sources.is_ok() && now.sources == then.sources,
            _ => false,
        }
    }

    /// The row policies on a source of these views, whoever they concern.
    pub fn policies_on(&self, table: &TableName) -> impl Iterator<Item = &RowPolicy> {
        self.policies.iter().filter(move |policy| policy.concerns(table))
    }
}

/// Why a look failed; shared by all who waited for it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct LookError(Arc<str>);

impl From<UpstreamError> for LookError {
    fn from(error: UpstreamError) -> Self {
        Self(error.to_string().into())
    }
}

impl From<ManifestError> for LookError {
    fn from(error: ManifestError) -> Self {
        Self(error.to_string().into())
    }
}

impl From<ObserveError> for LookError {
    fn from(error: ObserveError) -> Self {
        Self(error.to_string().into())
    }
}

type Outcome = Result<Arc<Look>, LookError>;

/// Looks at the sources of a set of views. Cheap to clone.
#[derive(Clone)]
pub struct Looker {
    shared: Arc<Shared>,
}

struct Shared {
    observer: Observer,
    store: Store,
    /// By storage table.
    targets: HashMap<String, Target>,
    queue: Mutex<Queue>,
    memory: Mutex<Memory>,
}

/// Who waits, and for what.
#[derive(Default)]
struct Queue {
    next: Option<Waiting>,
    under_way: usize,
}

/// A look that has not started.
struct Waiting {
    storages: BTreeSet<String>,
    outcome: watch::Sender<Option<Outcome>>,
}

/// What need not be asked for in every look.
#[derive(Default)]
struct Memory {
    definitions: Definitions,
    /// By storage table.
    manifests: HashMap<String, Known>,
    /// By storage table.
    looks: HashMap<String, Arc<Look>>,
    policies: Option<(Instant, Arc<Vec<RowPolicy>>)>,
    clock: Option<(Instant, Clock)>,
}

/// The newest manifest of a view that was seen, and when it was asked for.
struct Known {
    /// Its record of the sources is brought forward when contents proved that other names mean the same rows.
    manifest: Option<Arc<Manifest>>,
    asked_at: Instant,
    /// When contents were last compared.
    hashed_at: Option<Instant>,
}

impl Looker {
    /// A looker for these views; the server is asked once what its system tables can tell.
    pub async fn connect(upstream: Upstream, targets: Vec<Target>) -> Result<Self, LookError> {
        let observer = Observer::connect(upstream.clone()).await?;
        let targets = targets.into_iter().map(|target| (target.storage.clone(), target)).collect();
        let shared = Shared {
            observer,
            store: Store::new(upstream),
            targets,
            queue: Mutex::default(),
            memory: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What holds for the views with these `storages` at a moment after this call began; for views declared `bounded`, at
    /// most that long before.
    pub async fn look(&self, storages: &[&str]) -> Outcome {
        match self.shared.young_enough(storages) {
            Some(look) => Ok(look),
            None => self.look_anew(storages).await,
        }
    }

    /// What holds at a moment after this call began.
    pub async fn look_anew(&self, storages: &[&str]) -> Outcome {
        let mut outcome = self.join_next(storages);
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(LookError("no outcome".into()))),
            Err(_) => Err(LookError("the look was abandoned".into())),
        }
    }

    /// What maintenance has to know of all views: a look of its own, by the latest manifests.
    pub async fn survey(&self, hashes: bool) -> Result<Look, LookError> {
        let targets: Vec<&Target> = self.shared.targets.values().collect();
        self.shared.look_at(&targets, Duration::ZERO, hashes).await
    }

    /// The last look at all of `storages`, if it is younger than `age_max`: something to work with until a new one is there.
    pub fn last(&self, storages: &[&str], age_max: Duration) -> Option<Arc<Look>> {
        let memory = lock(&self.shared.memory);
        let first = memory.looks.get(*storages.first()?)?;
        let same =
            storages.iter().all(|storage| memory.looks.get(*storage).is_some_and(|look| Arc::ptr_eq(look, first)));
        (same && first.started_at.elapsed() < age_max).then(|| first.clone())
    }

    /// Joins the look that starts next, and starts it if few enough are under way.
    fn join_next(&self, storages: &[&str]) -> watch::Receiver<Option<Outcome>> {
        let mut queue = lock(&self.shared.queue);
        let waiting =
            queue.next.get_or_insert_with(|| Waiting { storages: BTreeSet::new(), outcome: watch::Sender::new(None) });
        waiting.storages.extend(storages.iter().map(ToString::to_string));
        let outcome = waiting.outcome.subscribe();
        if queue.under_way < LOOKS_MAX {
            queue.under_way += 1;
            // A task of its own: a client that goes away must not end the look of others.
            tokio::spawn(Shared::work_off(self.shared.clone()));
        }
        outcome
    }
}

impl Shared {
    async fn work_off(self: Arc<Self>) {
        loop {
            let waiting = {
                let mut queue = lock(&self.queue);
                match queue.next.take() {
                    Some(waiting) => waiting,
                    None => {
                        queue.under_way -= 1;
                        return;
                    }
                }
            };
            let outcome = self.take_look(&waiting.storages).await.map(Arc::new);
            if let Ok(look) = &outcome {
                let mut memory = lock(&self.memory);
                memory.looks.extend(waiting.storages.into_iter().map(|storage| (storage, look.clone())));
            }
            waiting.outcome.send_replace(Some(outcome));
        }
    }

    /// A look that is young enough for all of `storages`, if every one of them is content with an older one.
    fn young_enough(&self, storages: &[&str]) -> Option<Arc<Look>> {
        let memory = lock(&self.memory);
        let first = memory.looks.get(*storages.first()?)?;
        let content = |storage: &&str| {
            let known = memory.looks.get(*storage).zip(self.targets.get(*storage));
            let Some((look, target)) = known else { return false };
            let age_max = match target.consistency {
                Consistency::Exact => return false,
                Consistency::Bounded(age) => age.min(LOOK_AGE_MAX),
                Consistency::Manual => MANIFEST_AGE_MAX,
            };
            Arc::ptr_eq(look, first) && look.started_at.elapsed() < age_max
        };
        storages.iter().all(content).then(|| first.clone())
    }

    async fn take_look(&self, storages: &BTreeSet<String>) -> Result<Look, LookError> {
        let targets: Vec<&Target> = storages.iter().filter_map(|storage| self.targets.get(storage)).collect();
        self.look_at(&targets, MANIFEST_AGE_MAX, false).await
    }

    /// A look by manifests that are at most `manifest_age` old; with `hashes` parts are known by their contents too.
    async fn look_at(&self, targets: &[&Target], manifest_age: Duration, hashes: bool) -> Result<Look, LookError> {
        let started_at = Instant::now();
        let sources: BTreeSet<&TableName> =
            targets.iter().flat_map(|target| target.sources.iter().map(|source| &source.table)).collect();
        let sources: Vec<TableName> = sources.into_iter().cloned().collect();
        let mut listed = sources.clone();
        listed.extend(targets.iter().map(|target| storage_table(&target.storage)));

        let clock = self.clock().await?;
        let (policies, parts, tables, manifests) = tokio::join!(
            self.policies(),
            self.observer.parts(&listed, hashes),
            self.observer.tables(&sources, clock),
            self.ask_manifests(targets, manifest_age),
        );
        manifests?;
        let mut seen = Seen { tables: tables?, parts: parts? };
        if self.learn_definitions(&seen.tables).await? {
            seen.parts = self.observer.parts(&listed, hashes).await?;
        }
        let mut sights = self.judge(targets, &seen);

        // Somebody may have rebuilt what the known manifest calls stale.
        let is_stale = |target: &&Target| {
            sights.get(&target.storage).is_none_or(|sight| !matches!(sight.coverage, Coverage::Covered(_)))
        };
        let stale: Vec<&Target> = targets.iter().copied().filter(|target| is_stale(target)).collect();
        if self.ask_manifests(&stale, MANIFEST_AGE_STALE).await? {
            sights = self.judge(targets, &seen);
        }
        if self.wants_hashes(targets, &sights) {
            seen.parts = self.observer.parts(&listed, true).await?;
            sights = self.judge(targets, &seen);
            if self.bring_forward(targets, &sights) {
                sights = self.judge(targets, &seen);
            }
        }
        Ok(Look { started_at, sights, policies: policies? })
    }

    /// The server's clock, which is read now and then: it tells whether the server was started anew, and whether an ALTER is
    /// long enough ago, for which an older time is the careful one. Parts that a quick restart let have old names are told
    /// by their times.
    async fn clock(&self) -> Result<Clock, LookError> {
        if let Some((read_at, clock)) = lock(&self.memory).clock
            && read_at.elapsed() < CLOCK_AGE_MAX
        {
            return Ok(clock);
        }
        let read_at = Instant::now();
        let clock = self.observer.clock().await?;
        lock(&self.memory).clock = Some((read_at, clock));
        Ok(clock)
    }

    /// The row policies of the server. Like grants, which the proxy asks for itself, they take effect after a short time.
    async fn policies(&self) -> Result<Arc<Vec<RowPolicy>>, LookError> {
        if let Some((asked_at, policies)) = &lock(&self.memory).policies
            && asked_at.elapsed() < POLICIES_AGE_MAX
        {
            return Ok(policies.clone());
        }
        let asked_at = Instant::now();
        let policies = Arc::new(self.observer.policies().await?);
        lock(&self.memory).policies = Some((asked_at, policies.clone()));
        Ok(policies)
    }

    /// Fetches newer manifests of those of `targets` whose manifest was last asked for `age` ago or longer; says whether
    /// there were any.
    async fn ask_manifests(&self, targets: &[&Target], age: Duration) -> Result<bool, LookError> {
        let asked_at = Instant::now();
        let ask: Vec<(&str, u64)> = {
            let memory = lock(&self.memory);
            let old = |known: &Known| known.asked_at.elapsed() >= age;
            let known = |target: &Target| memory.manifests.get(&target.storage);
            let ask = targets.iter().filter(|target| known(target).is_none_or(old));
            let version = |known: &Known| known.manifest.as_ref().map(|manifest| manifest.version);
            ask.map(|target| (target.storage.as_str(), known(target).and_then(version).unwrap_or(0))).collect()
        };
        if ask.is_empty() {
            return Ok(false);
        }
        let newer = if self.store.exists().await? { self.store.newer(&ask).await? } else { Vec::new() };
        let any = !newer.is_empty();
        let mut memory = lock(&self.memory);
        for (storage, _) in ask {
            let known = memory.manifests.entry(storage.to_string());
            known.or_insert(Known { manifest: None, asked_at, hashed_at: None }).asked_at = asked_at;
        }
        for manifest in newer {
            let storage = manifest.storage.clone();
            memory.manifests.insert(storage, Known { manifest: Some(Arc::new(manifest)), asked_at, hashed_at: None });
        }
        Ok(any)
    }

    /// Reads columns and TTLs of tables whose definition was written since they were last read; says whether any was.
    async fn learn_definitions(&self, tables: &HashMap<TableName, TableRow>) -> Result<bool, LookError> {
        let same = |was: &TableRow, is: &TableRow| {
            (&was.uuid, was.altered_at, was.alter_pending) == (&is.uuid, is.altered_at, is.alter_pending)
        };
        let unknown: Vec<TableName> = {
            let memory = lock(&self.memory);
            let settled = |was: &TableRow| was.server_now >= was.altered_at + DEFINITION_SETTLED_SECONDS;
            let known = |row: &TableRow| {
                let known = memory.definitions.get(&row.name());
                !row.alter_pending && known.is_some_and(|(was, _)| same(was, row) && settled(was))
            };
            tables.values().filter(|row| !known(row)).map(TableRow::name).collect()
        };
        if unknown.is_empty() {
            return Ok(false);
        }
        let definitions = self.observer.definitions(&unknown).await?;
        let mut memory = lock(&self.memory);
        for (table, definition) in definitions {
            if let Some(row) = tables.get(&table) {
                memory.definitions.insert(table, (row.clone(), Arc::new(definition)));
            }
        }
        Ok(true)
    }
}

impl Shared {
    fn judge(&self, targets: &[&Target], seen: &Seen) -> HashMap<String, Arc<Sight>> {
        let memory = lock(&self.memory);
        let judge = |target: &&Target| {
            let manifest = memory.manifests.get(&target.storage).and_then(|known| known.manifest.clone());
            let sources = target.sources.iter().map(|used| source_seen(used, seen, &memory.definitions));
            let storage = seen.parts.get(&storage_table(&target.storage));
            let rows_by_run = storage.map(rows_by_run).unwrap_or_default();
            (target.storage.clone(), Arc::new(Sight::new(target, manifest, sources.collect(), rows_by_run)))
        };
        targets.iter().map(judge).collect()
    }

    /// Whether the contents of parts may still prove what their names alone did not.
    fn wants_hashes(&self, targets: &[&Target], sights: &HashMap<String, Arc<Sight>>) -> bool {
        let mut memory = lock(&self.memory);
        let mut any = false;
        for target in targets {
            let Some(sight) = sights.get(&target.storage) else { continue };
            let Some(known) = memory.manifests.get_mut(&target.storage) else { continue };
            if sight.may_need_hashes() && known.hashed_at.is_none_or(|at| at.elapsed() >= HASHES_AGE_MIN) {
                known.hashed_at = Some(Instant::now());
                any = true;
            }
        }
        any
    }

    /// What contents proved of parts whose names alone did not is known from now on. Says whether there was any.
    fn bring_forward(&self, targets: &[&Target], sights: &HashMap<String, Arc<Sight>>) -> bool {
        let mut memory = lock(&self.memory);
        let mut any = false;
        for target in targets {
            let Some(sight) = sights.get(&target.storage) else { continue };
            let known = memory.manifests.get_mut(&target.storage).and_then(|known| known.manifest.as_mut());
            let (Some(known), Ok(sources)) = (known, &sight.sources) else { continue };
            let is_proved = match &sight.coverage {
                Coverage::Covered(covered) => !covered.manual,
                Coverage::Partial(..) => true,
                Coverage::Stale(_) => false,
            };
            if is_proved {
                let known = Arc::make_mut(known);
                known.body.sources.iter_mut().zip(sources).for_each(|(record, seen)| record.bring_forward(seen));
                known.is_ahead = true;
                any = true;
            }
        }
        any
    }
}

/// What the questions of one look brought.
struct Seen {
    tables: HashMap<TableName, TableRow>,
    parts: HashMap<TableName, TableParts>,
}

type Definitions = HashMap<TableName, (TableRow, Arc<Definition>)>;

/// One source as the look shows it, or why it cannot be told what it holds.
fn source_seen(used: &SourceUse, seen: &Seen, definitions: &Definitions) -> Result<SourceSeen, Staleness> {
    let table = used.table.to_string();
    let Some(row) = seen.tables.get(&used.table) else { return Err(Staleness::SourceMissing { table }) };
    if !row.keeps_parts() {
        return Err(Staleness::NoParts { table, engine: row.engine.clone() });
    }
    if !row.has_uuid() {
        return Err(Staleness::NoUuid { table });
    }
    let Some((_, definition)) = definitions.get(&used.table) else { return Err(Staleness::SourceMissing { table }) };
    let parts = seen.parts.get(&used.table).cloned().unwrap_or_default();
    if parts.uuids.iter().any(|uuid| !uuid.is_empty() && *uuid != row.uuid) {
        return Err(Staleness::SourceReplaced { table });
    }
    Ok(SourceSeen {
        identity: definition.identity(row, &used.columns),
        server_started_at: row.server_started_at(),
        alter_pending: row.alter_pending,
        parts: parts.parts,
    })
}
