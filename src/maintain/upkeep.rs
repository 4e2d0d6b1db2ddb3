//! The loop that keeps views up to date while `serve` runs: look, plan, take steps, rest.
//!
//! One look serves all views; each view's steps are a task of its own. So many tasks run at once as there are threads, and
//! as many again that build whole partitions, so that a view that is being built does not hold up the others. After a task its view rests, so that maintenance takes no more than its share of the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::board::Board;
use super::collect;
use super::coverage::{SourceSeen, Staleness};
use super::finer;
use super::lease::Leases;
use super::look::{Look, LookError, Looker};
use super::manifest::Store;
use super::observe::Observer;
use super::pass::{Limits, Pass, Passed};
use super::plan::{Plan, plan};
use super::rebuild::RebuildError;
use super::run;
use super::sight::Sight;
use super::sources;
use super::states::States;
use crate::config::Consistency;
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;
use crate::views::neutral::in_background;

/// After an INSERT others may follow at once, and are read together with it.
const GATHER: Duration = Duration::from_millis(100);

/// After a failure a view, or all of them without ClickHouse, is left alone for so long, twice as long after each further
/// one.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// Views that other processes maintain are looked at this often.
const OTHERS_INTERVAL: Duration = Duration::from_secs(5);

/// Until the first answer about the leases.
const LEASE_POLL: Duration = Duration::from_millis(100);

/// Retired runs are dropped this often.
const COLLECTION: Duration = Duration::from_secs(5);

/// Runs that nobody writes or names are looked for this often.
const SWEEP: Duration = Duration::from_secs(600);

/// Contents of parts are hashed this often, so that most of them are known by it after a restart of ClickHouse.
const HASHES: Duration = Duration::from_secs(300);

/// How much maintenance may take, and how soon it begins.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two looks at the sources while nothing is known to have happened.
    pub interval: Duration,
    /// The share of the time in which views may be worked at, all together: 0.1 is a tenth.
    pub share: f64,
    pub limits: Limits,
}

/// What the loop shares with the rest of the process.
pub struct Upkeep {
    pub upstream: Upstream,
    pub settings: Settings,
    pub views: watch::Receiver<Arc<Vec<CatalogView>>>,
    /// Something may have been written.
    pub written: Arc<Notify>,
    /// Told when a view does not fit its sources any more and has to be loaded anew.
    pub outdated: Arc<Notify>,
    pub board: Arc<Board>,
}

impl Upkeep {
    /// Runs until the views' sender is gone.
    pub async fn run(mut self) {
        let mut back_off = BACK_OFF_MIN;
        loop {
            let views = self.views.borrow_and_update().clone();
            let began = Instant::now();
            match self.keep(&views).await {
                Ok(Ended::ViewsChanged) => {}
                Ok(Ended::NobodyLeft) => return,
                Err(error) => {
                    tracing::warn!("maintenance: {error}; trying again in {} s", back_off.as_secs());
                    self.board.upstream(Some(error.to_string()));
                    tokio::time::sleep(back_off).await;
                    back_off = if began.elapsed() > 2 * BACK_OFF_MAX { BACK_OFF_MIN } else { longer(back_off) };
                }
            }
        }
    }

    /// Keeps the views, which may change meanwhile, until ClickHouse fails.
    async fn keep(&mut self, views: &[CatalogView]) -> Result<Ended, RebuildError> {
        self.board.retain(views);
        if views.is_empty() {
            return Ok(self.changed().await);
        }
        let store = Store::new(self.upstream.clone());
        store.ensure().await?;
        run::ensure(&self.upstream).await?;
        let observer = Observer::connect(self.upstream.clone()).await?;
        let mut looker = self.looker(views).await?;
        let background = in_background(&self.upstream).await?;
        let mut keeper = Keeper::new(self, background, observer, store);
        keeper.take(views).await;
        let mut leases = Leases::claim(self.upstream.clone(), storages(views));
        let mut look_at = Instant::now();
        let mut back_off = BACK_OFF_MIN;
        loop {
            let wake = tokio::select! {
                () = self.written.notified() => Wake::Written,
                () = tokio::time::sleep_until(look_at.into()) => Wake::Time,
                ended = self.views.changed() => {
                    if ended.is_err() {
                        return Ok(Ended::NobodyLeft);
                    }
                    let views = self.views.borrow_and_update().clone();
                    self.board.retain(&views);
                    looker = self.looker(&views).await?;
                    keeper.take(&views).await;
                    leases.change(storages(&views));
                    Wake::Ended
                }
                Some(ended) = keeper.running.join_next(), if !keeper.running.is_empty() => {
                    match ended {
                        Ok(done) => keeper.ended(done),
                        Err(error) if error.is_cancelled() => {}
                        Err(error) => return Err(RebuildError::Task(error.to_string())),
                    }
                    Wake::Ended
                }
            };
            let now = Instant::now();
            // Without a view that could be worked at there is nothing to look for.
            let ready_at = keeper.ready_at();
            match (wake, ready_at) {
                (Wake::Written, Some(ready_at)) => look_at = look_at.min(ready_at.max(now + GATHER)),
                (Wake::Ended, Some(ready_at)) => look_at = look_at.min(ready_at.max(now)),
                (Wake::Time, Some(ready_at)) if ready_at <= now => {
                    look_at = match keeper.look(&looker, &leases).await {
                        Ok(again_at) => again_at,
                        Err(error) => {
                            tracing::warn!("maintenance: {error}; trying again in {} s", back_off.as_secs());
                            self.board.upstream(Some(error.to_string()));
                            let again_at = now + back_off;
                            back_off = longer(back_off);
                            again_at
                        }
                    };
                    if self.board.upstream_error().is_none() {
                        back_off = BACK_OFF_MIN;
                    }
                }
                (Wake::Time, Some(ready_at)) => look_at = ready_at,
                (_, None) => look_at = look_at.max(now + self.settings.interval),
            }
        }
    }

    async fn looker(&self, views: &[CatalogView]) -> Result<Looker, LookError> {
        Looker::connect(self.upstream.clone(), views.iter().map(CatalogView::target).collect()).await
    }

    async fn changed(&mut self) -> Ended {
        match self.views.changed().await {
            Ok(()) => Ended::ViewsChanged,
            Err(_) => Ended::NobodyLeft,
        }
    }
}

/// Why the loop stopped.
enum Ended {
    ViewsChanged,
    NobodyLeft,
}

enum Wake {
    Written,
    Time,
    Ended,
}

fn storages(views: &[CatalogView]) -> Vec<String> {
    views.iter().map(|view| view.storage_name().to_string()).collect()
}

/// What is remembered between looks.
struct Keeper {
    upstream: Upstream,
    /// The same, for what other queries go before.
    background: Upstream,
    settings: Settings,
    board: Arc<Board>,
    outdated: Arc<Notify>,
    observer: Observer,
    store: Store,
    /// Finer views first.
    views: Vec<Kept>,
    running: JoinSet<Done>,
    looked_at: Option<Instant>,
    hashed_at: Instant,
    collected_at: Instant,
    swept_at: Instant,
}

/// One definition of a view.
struct Kept {
    pass: Arc<Pass>,
    /// The task that works at it.
    task: Option<(Kind, AbortHandle)>,
    /// Views that there was something to do about when it was begun, itself included: they share the time.
    company: usize,
    ready_at: Instant,
    back_off: Duration,
    /// A damage must be seen twice: a run may be seen in a manifest that was committed after the storage was looked at.
    damage: Option<Staleness>,
}

/// Tasks of one kind wait for each other; a build, which may take hours, does not hold up deltas.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Build,
    Delta,
}

/// How a task ended.
struct Done {
    storage: String,
    busy: Duration,
    outcome: Result<Passed, RebuildError>,
}

impl Keeper {
    fn new(upkeep: &Upkeep, background: Upstream, observer: Observer, store: Store) -> Self {
        let now = Instant::now();
        let (views, running) = (Vec::new(), JoinSet::new());
        Self {
            upstream: upkeep.upstream.clone(),
            background,
            settings: upkeep.settings.clone(),
            board: upkeep.board.clone(),
            outdated: upkeep.outdated.clone(),
            observer,
            store,
            views,
            running,
            looked_at: None,
            hashed_at: now,
            collected_at: now,
            swept_at: now,
        }
    }

    /// Maintains these views from now on. What is being built of those that were maintained before goes on.
    async fn take(&mut self, views: &[CatalogView]) {
        let mut before = std::mem::take(&mut self.views);
        for view in &finer::order(views.to_vec()) {
            let kept = match before.iter().position(|kept| kept.storage() == view.storage_name()) {
                Some(at) => Ok(before.swap_remove(at)),
                None => self.begin_with(view).await,
            };
            match kept {
                Ok(mut kept) => {
                    let finer = views.iter().filter(|other| finer::derivation(view, other).is_some()).cloned();
                    kept.pass = Arc::new(Pass { view: view.clone(), finer: finer.collect(), ..(*kept.pass).clone() });
                    self.views.push(kept);
                }
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!("view {} is not maintained: {error}", view.name());
                    self.board.excluded(view, error);
                }
            }
        }
        before.iter().filter_map(|gone| gone.task.as_ref()).for_each(|(_, task)| task.abort());
    }

    async fn begin_with(&self, view: &CatalogView) -> Result<Kept, RebuildError> {
        view.storage.create(&self.upstream).await?;
        collect::orphans(&self.upstream, &self.observer, &self.store, view).await?;
        let pass = Pass {
            upstream: self.upstream.clone(),
            observer: self.observer.clone(),
            store: self.store.clone(),
            states: Arc::new(States::new(self.background.clone(), view.clone()).await?),
            view: view.clone(),
            finer: Vec::new(),
            limits: self.settings.limits.clone(),
        };
        let (pass, ready_at) = (Arc::new(pass), Instant::now());
        Ok(Kept { pass, task: None, company: 1, ready_at, back_off: BACK_OFF_MIN, damage: None })
    }

    /// When the first view that is not being worked at has rested enough.
    fn ready_at(&self) -> Option<Instant> {
        self.views.iter().filter(|kept| !kept.is_running()).map(|kept| kept.ready_at).min()
    }

    fn wants_hashes(&mut self) -> bool {
        let wants = self.hashed_at.elapsed() >= HASHES;
        if wants {
            self.hashed_at = Instant::now();
        }
        wants
    }

    /// Looks, and begins what is necessary; returns when to look again.
    async fn look(&mut self, looker: &Looker, leases: &Leases) -> Result<Instant, RebuildError> {
        let now = Instant::now();
        if !leases.holds_any() && self.looked_at.is_none_or(|at| at + OTHERS_INTERVAL > now) {
            self.looked_at.get_or_insert(now);
            return Ok(now + LEASE_POLL);
        }
        self.looked_at = Some(now);
        let hashes = self.wants_hashes();
        let look = looker.survey(hashes).await?;
        self.board.upstream(None);
        self.collect(&look, leases).await?;
        Ok(self.begin(&look, leases))
    }

    /// Begins as many tasks as may run at once. Views that have to wait are looked at anew when it is their turn: parts
    /// merge away quickly.
    fn begin(&mut self, look: &Look, leases: &Leases) -> Instant {
        let now = Instant::now();
        let mut again_at = now + self.settings.interval;
        let mut due = Vec::new();
        for (at, kept) in self.views.iter_mut().enumerate() {
            let Some(sight) = look.sight(kept.storage()) else { continue };
            let plan = kept.plan(sight);
            self.board.note(&kept.pass.view, sight, &plan);
            if kept.is_running() || !plan.can_advance() || !leases.holds(kept.storage()) {
                continue;
            }
            if kept.ready_at > now {
                again_at = again_at.min(kept.ready_at);
                continue;
            }
            due.push((at, sight.clone(), plan));
        }
        due.sort_by_key(|(at, ..)| self.views[*at].ready_at);
        let company = due.len() + self.running.len();
        for (at, sight, plan) in due {
            let kind = if plan.builds() { Kind::Build } else { Kind::Delta };
            let is_of_kind = |kept: &&Kept| kept.task.as_ref().is_some_and(|(other, _)| *other == kind);
            let running = self.views.iter().filter(is_of_kind).count();
            if running >= self.settings.limits.threads.max(1) || (kind == Kind::Build && self.awaits_finer(at)) {
                continue;
            }
            let kept = &mut self.views[at];
            let (pass, storage) = (kept.pass.clone(), kept.storage().to_string());
            let steps = || plan.steps.iter().map(ToString::to_string).collect::<Vec<_>>();
            tracing::debug!(storage, steps = ?steps(), "maintenance");
            let policies = look.policies().to_vec();
            let task = self.running.spawn(async move {
                let began = Instant::now();
                let outcome = async {
                    let tables = &pass.view.view.tables;
                    sources::refuse_policies(&pass.upstream, &pass.observer, &policies, tables).await?;
                    pass.take(&sight, &plan).await
                };
                Done { storage, outcome: outcome.await, busy: began.elapsed() }
            });
            (kept.task, kept.company) = (Some((kind, task)), company);
        }
        again_at
    }

    /// Whether a finer view is being worked at: once it is current, this one is built without reading the source.
    fn awaits_finer(&self, at: usize) -> bool {
        let is_running = |storage: &str| self.views.iter().any(|kept| kept.is_running() && kept.storage() == storage);
        self.views[at].pass.finer.iter().any(|finer| is_running(finer.storage_name()))
    }

    fn ended(&mut self, done: Done) {
        let Some(kept) = self.views.iter_mut().find(|kept| kept.storage() == done.storage) else { return };
        kept.task = None;
        match done.outcome {
            Ok(passed) => {
                tracing::debug!(storage = done.storage, ?passed, busy_ms = done.busy.as_millis(), "maintenance");
                let share = self.settings.share.clamp(0.01, 1.0);
                let rest = done.busy.mul_f64(kept.company as f64 / share - 1.0);
                // Nothing came of it: parts went away before they were read.
                let rest = if passed == Passed::Idle { rest.max(self.settings.interval) } else { rest };
                kept.ready_at = Instant::now() + rest;
                kept.back_off = BACK_OFF_MIN;
                self.board.ended(&done.storage, None);
            }
            // Nothing went wrong; there was just no moment of rest.
            Err(RebuildError::SourceMoved { .. } | RebuildError::Outrun) => {
                kept.ready_at = Instant::now() + BACK_OFF_MIN;
            }
            Err(error) => {
                if matches!(error, RebuildError::DefinitionMoved) {
                    self.outdated.notify_one();
                }
                tracing::warn!(
                    "view {}: {error}; trying again in {} s",
                    kept.pass.view.name(),
                    kept.back_off.as_secs()
                );
                kept.ready_at = Instant::now() + kept.back_off;
                kept.back_off = longer(kept.back_off);
                self.board.ended(&done.storage, Some(error.to_string()));
            }
        }
    }

    /// Drops retired runs whose grace is over, and now and then what a cancelled task may have left.
    async fn collect(&mut self, look: &Look, leases: &Leases) -> Result<(), RebuildError> {
        if self.swept_at.elapsed() >= SWEEP {
            self.swept_at = Instant::now();
            for kept in self.views.iter().filter(|kept| !kept.is_running() && leases.holds(kept.storage())) {
                collect::orphans(&self.upstream, &self.observer, &self.store, &kept.pass.view).await?;
            }
        }
        if self.collected_at.elapsed() < COLLECTION {
            return Ok(());
        }
        self.collected_at = Instant::now();
        let now_ms = self.store.now_ms().await?;
        let idle = |kept: &Kept| !kept.is_running() && leases.holds(kept.storage());
        for kept in self.views.iter().filter(|kept| idle(kept)) {
            let sight = look.sight(kept.storage());
            if let Some(Sight { manifest: Some(manifest), rows_by_run, .. }) = sight.map(Arc::as_ref) {
                collect::due(&self.upstream, &kept.pass.view, manifest, rows_by_run, now_ms).await?;
            }
        }
        Ok(())
    }
}

impl Kept {
    fn storage(&self) -> &str {
        self.pass.view.storage_name()
    }

    fn is_running(&self) -> bool {
        self.task.is_some()
    }

    fn plan(&mut self, sight: &Sight) -> Plan {
        let damage = sight.damage();
        let is_new = damage.is_some() && self.damage != damage;
        self.damage = damage;
        // It cannot be told yet what a restart has left.
        let is_young = |seen: &[SourceSeen]| seen.iter().any(|seen| seen.server_started_at.is_none());
        let is_early = sight.manifest.is_some() && sight.sources.as_deref().is_ok_and(is_young);
        if is_new || is_early { Plan::default() } else { plan_of(&self.pass.view, sight) }
    }
}

/// What is to be done about a view by what was seen of it.
pub fn plan_of(view: &CatalogView, sight: &Sight) -> Plan {
    if view.declaration.consistency == Some(Consistency::Manual) && sight.manifest.is_some() {
        return Plan::default();
    }
    let seen = match &sight.sources {
        Ok(seen) => seen,
        // A source without parts is read as a whole, once.
        Err(Staleness::NoParts { .. }) if view.declaration.consistency == Some(Consistency::Manual) => &Vec::new(),
        Err(why) => return Plan::blocked(why.clone()),
    };
    plan(sight.manifest.as_deref(), seen, sight.damage())
}

fn longer(back_off: Duration) -> Duration {
    (2 * back_off).min(BACK_OFF_MAX)
}
