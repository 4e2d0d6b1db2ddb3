//! Keeps the views in force: resolved at start, and again whenever a view file or a table's definition changes.
//!
//! Without ClickHouse, or with a broken view file, the proxy goes on: what cannot be used now is tried again, and the last
//! good version of a view stays in force while its file is broken. A view that is declared anew goes on answering by its
//! previous definition, which is kept up to date as well, until the new one is built.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, watch};

use super::accelerator::{Accelerator, Standing};
use super::changes::Changes;
use super::client::HttpUpstream;
use super::query::{Decided, Decision, IncomingQuery};
use super::shadow::{Quarantined, Shadow};
use crate::config::Consistency;
use crate::matching::schema::Schema;
use crate::upstream::Upstream;
use crate::views::catalog::{self, Catalog, CatalogView};
use crate::views::declaration::{self, Loaded};
use crate::views::problem::Problem;

/// While ClickHouse does not answer, it is asked again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// Schemas and view files are compared again after this time.
const REFRESH: Duration = Duration::from_secs(30);

/// While a redefined view is being built, a look tells this often whether it may answer.
const SWITCH: Duration = Duration::from_millis(500);

/// The views in force, replaced as a whole.
pub struct Keeper {
    upstream: Upstream,
    client: HttpUpstream,
    path: PathBuf,
    options: ArcSwap<Options>,
    /// What was found wrong is known to all that come into force later.
    shadow: Arc<Shadow>,
    current: ArcSwapOption<Accelerator>,
    /// The views in force, for maintenance.
    views: watch::Sender<Arc<Vec<CatalogView>>>,
    /// Told to load the views anew.
    pub outdated: Arc<Notify>,
}

/// What a configuration says of all views.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Of views that do not say it themselves.
    pub consistency: Consistency,
    /// The share of answers from views that is compared with the raw tables' answers.
    pub verify: f64,
}

/// What is in force, to compare with.
#[derive(Default)]
struct InForce {
    /// As in a [`Catalog`].
    views: Vec<CatalogView>,
    schema: Schema,
    problems: Vec<String>,
}

impl InForce {
    /// The same text for the same state of files and server.
    fn text(&self) -> String {
        let views: Vec<_> =
            self.views.iter().map(|v| (&v.declaration.consistency, &v.storage, v.is_previous)).collect();
        let tables: Vec<_> = self.schema.tables().collect();
        format!("{views:?}\n{:?}\n{tables:?}", self.problems)
    }

    /// Redefined views that are not built yet, each with the definition that answers meanwhile.
    fn redefined(&self) -> impl Iterator<Item = (&CatalogView, &CatalogView)> {
        let previous = self.views.iter().filter(|view| view.is_previous);
        previous.filter_map(|previous| Some((self.views.iter().find(|view| view.name() == previous.name())?, previous)))
    }

    /// Other definitions of a view, the newest first.
    fn others<'a>(&'a self, view: &'a CatalogView) -> impl DoubleEndedIterator<Item = &'a CatalogView> {
        let is_other = |known: &&CatalogView| known.name() == view.name() && known.storage.name != view.storage.name;
        self.views.iter().filter(is_other)
    }
}

impl Keeper {
    pub fn new(upstream: Upstream, client: HttpUpstream, path: PathBuf) -> Self {
        Self {
            upstream,
            client,
            path,
            options: ArcSwap::default(),
            shadow: Arc::new(Shadow::new(0.0)),
            current: ArcSwapOption::empty(),
            views: watch::Sender::new(Arc::default()),
            outdated: Arc::default(),
        }
    }

    pub fn with(self, options: Options) -> Self {
        self.set(options);
        self
    }

    /// Changes what holds of all views.
    pub fn reconfigure(&self, options: Options) {
        self.set(options);
        self.outdated.notify_one();
    }

    fn set(&self, options: Options) {
        self.shadow.take_share(options.verify);
        self.options.store(Arc::new(options));
    }

    /// Every view in force that was caught giving a wrong answer.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        let views = self.views.borrow().clone();
        self.shadow.quarantined(&views.iter().map(CatalogView::storage_name).collect::<Vec<_>>())
    }

    /// The views in force, and every change of them.
    pub fn views(&self) -> watch::Receiver<Arc<Vec<CatalogView>>> {
        self.views.subscribe()
    }

    pub async fn decide(&self, query: IncomingQuery) -> Decided {
        let current = self.current.load_full();
        match current {
            Some(accelerator) => accelerator.decide_ahead(&query).await,
            None => Decision::Raw { reason: "the views are not loaded yet".into() }.into(),
        }
    }

    /// Loads the views and then keeps them loaded for ever; returns after the first attempt.
    pub async fn start(self: Arc<Self>) {
        let mut changes = Changes::of(&self.path);
        let mut in_force = InForce::default();
        let mut load_at = Instant::now() + self.load(&mut in_force).await;
        tokio::spawn(async move {
            loop {
                let is_redefined = in_force.redefined().next().is_some();
                let wake_at = if is_redefined { load_at.min(Instant::now() + SWITCH) } else { load_at };
                tokio::select! {
                    () = changes.next() => {}
                    () = self.outdated.notified() => {}
                    () = tokio::time::sleep_until(wake_at.into()) => if wake_at < load_at {
                        self.switch(&mut in_force).await;
                        continue;
                    }
                }
                changes.settle().await;
                load_at = Instant::now() + self.load(&mut in_force).await;
            }
        });
    }

    /// Puts the views into force if anything about them has changed; returns when to try again.
    async fn load(&self, in_force: &mut InForce) -> Duration {
        let attempt = async {
            let next = self.resolve(in_force).await?;
            if self.current.load().is_some() && next.text() == in_force.text() {
                return Ok(());
            }
            next.problems.iter().for_each(|problem| tracing::error!("{problem}"));
            for (view, _) in next.redefined() {
                tracing::info!("view {}: the previous definition answers until the new one is built", view.name());
            }
            self.put_in_force(in_force, next).await
        };
        match attempt.await {
            Ok(()) => REFRESH,
            Err(error) => {
                tracing::warn!("cannot load the views: {error}; trying again in {} s", RETRY.as_secs());
                RETRY
            }
        }
    }

    /// What files and server say now, with what stays of that which is in force.
    async fn resolve(&self, in_force: &InForce) -> Result<InForce, String> {
        let path = self.path.clone();
        let loaded = tokio::task::spawn_blocking(move || declaration::load(&path)).await.map_err(|e| e.to_string())?;
        let loaded = loaded.with_default(self.options.load().consistency);
        let mut catalog = catalog::resolve(&self.upstream, loaded).await.map_err(|error| error.to_string())?;
        keep_last_good(&mut catalog, in_force);
        self.keep_previous(&mut catalog, in_force).await?;
        let problems = catalog.problems.iter().map(Problem::to_string).collect();
        Ok(InForce { views: catalog.views, schema: catalog.schema, problems })
    }

    /// Of a view that was declared anew, the definition that has been answering stays until the new one is built.
    async fn keep_previous(&self, catalog: &mut Catalog, in_force: &InForce) -> Result<(), String> {
        let is_redefined = |view: &&CatalogView| in_force.others(view).next().is_some();
        let redefined: Vec<&CatalogView> = catalog.views.iter().filter(is_redefined).collect();
        let Some(accelerator) = self.current.load_full().filter(|_| !redefined.is_empty()) else { return Ok(()) };
        let known = in_force.views.iter().chain(redefined.iter().copied()).collect::<Vec<_>>();
        let standings = accelerator.standings(&known).await.map_err(|error| error.to_string())?;
        let standing = |view: &CatalogView| standings.get(view.storage_name()).copied().unwrap_or(Standing::NeverBuilt);
        let waiting = redefined.into_iter().filter(|view| standing(view) < Standing::MayAnswer);
        // Of equal ones the last, which is the newest here.
        let previous = waiting.filter_map(|view| in_force.others(view).rev().max_by_key(|known| standing(known)));
        let previous: Vec<&CatalogView> = previous.filter(|known| standing(known) > Standing::NeverBuilt).collect();
        // The tables may have other columns by now, and then it is another definition.
        let declarations = previous.iter().map(|known| known.declaration.clone()).collect();
        let loaded = Loaded { declarations, problems: Vec::new() };
        let again = catalog::resolve(&self.upstream, loaded).await.map_err(|error| error.to_string())?;
        for table in again.schema.tables() {
            if catalog.schema.table(&table.name).is_none() {
                catalog.schema.insert(table.clone());
            }
        }
        let same = again.views.into_iter().filter(|view| previous.iter().any(|known| known.storage == view.storage));
        let same: Vec<_> = same.map(|view| CatalogView { is_previous: true, ..view }).collect();
        catalog.views.extend(same);
        Ok(())
    }

    /// Lets previous definitions go whose views may answer by the new ones.
    async fn switch(&self, in_force: &mut InForce) {
        let Some(accelerator) = self.current.load_full() else { return };
        let redefined: Vec<&CatalogView> = in_force.redefined().map(|(view, _)| view).collect();
        // Without ClickHouse nothing is built.
        let Ok(standings) = accelerator.standings(&redefined).await else { return };
        let may_answer = |view: &CatalogView| standings.get(view.storage_name()) == Some(&Standing::MayAnswer);
        let built = redefined.into_iter().filter(|view| may_answer(view));
        let built: Vec<String> = built.map(|view| view.name().to_string()).collect();
        if built.is_empty() {
            return;
        }
        let stays = |view: &&CatalogView| !view.is_previous || !built.iter().any(|name| name == view.name());
        let views = in_force.views.iter().filter(stays).cloned().collect();
        let next = InForce { views, schema: in_force.schema.clone(), problems: in_force.problems.clone() };
        match self.put_in_force(in_force, next).await {
            Ok(()) => built.iter().for_each(|name| tracing::info!("view {name}: the new definition answers now")),
            Err(error) => tracing::warn!("cannot switch to new definitions: {error}"),
        }
    }

    async fn put_in_force(&self, in_force: &mut InForce, next: InForce) -> Result<(), String> {
        let catalog = Catalog { schema: next.schema.clone(), views: next.views.clone(), problems: Vec::new() };
        let accelerator = Accelerator::connect(self.upstream.clone(), self.client.clone(), catalog);
        let accelerator = accelerator.await.map_err(|error| error.to_string())?;
        self.current.store(Some(Arc::new(accelerator.with_shadow(self.shadow.clone()))));
        tracing::info!("{} views in force", next.views.iter().filter(|view| !view.is_previous).count());
        self.views.send_replace(Arc::new(next.views.clone()));
        *in_force = next;
        Ok(())
    }
}

/// Views in force whose file is now broken, or gone together with its folder, stay as they were.
fn keep_last_good(catalog: &mut Catalog, in_force: &InForce) {
    for view in in_force.views.iter().filter(|view| !view.is_previous) {
        let file = &view.declaration.file.path;
        let is_broken = catalog.problems.iter().any(|p| p.file.path == *file || file.starts_with(&p.file.path));
        let is_there = catalog.views.iter().any(|known| known.name() == view.name());
        if is_broken && !is_there {
            for table in &view.view.tables {
                if catalog.schema.table(table).is_none()
                    && let Some(known) = in_force.schema.table(table)
                {
                    catalog.schema.insert(known.clone());
                }
            }
            catalog.views.push(view.clone());
        }
    }
}
