//! Keeps the views in force: resolved at start, and again whenever a view file or a table's definition changes.
//!
//! Without ClickHouse, or with a broken view file, the proxy goes on: what cannot be used now is tried again, and the last
//! good version of a view stays in force while its file is broken.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, mpsc, watch};

use super::accelerator::Accelerator;
use super::client::HttpUpstream;
use super::query::{Decided, Decision, IncomingQuery};
use super::shadow::{Quarantined, Shadow};
use crate::config::Consistency;
use crate::matching::schema::Schema;
use crate::upstream::Upstream;
use crate::views::catalog::{self, Catalog, CatalogView};
use crate::views::declaration;
use crate::views::problem::Problem;

/// While ClickHouse does not answer, it is asked again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// Schemas and view files are compared again after this time.
const REFRESH: Duration = Duration::from_secs(30);

/// Editors write a file in several steps; it is read when it has been left alone for this long.
const SETTLED: Duration = Duration::from_millis(200);

/// The views in force, replaced as a whole.
pub struct Keeper {
    upstream: Upstream,
    client: HttpUpstream,
    path: PathBuf,
    consistency: Consistency,
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
    /// Tells whether files and server say the same as before.
    state: String,
    views: Vec<CatalogView>,
    schema: Schema,
}

impl Keeper {
    pub fn new(upstream: Upstream, client: HttpUpstream, path: PathBuf) -> Self {
        Self {
            upstream,
            client,
            path,
            consistency: Consistency::Exact,
            shadow: Arc::new(Shadow::new(0.0)),
            current: ArcSwapOption::empty(),
            views: watch::Sender::new(Arc::default()),
            outdated: Arc::default(),
        }
    }

    pub fn with(self, options: Options) -> Self {
        Self { consistency: options.consistency, shadow: Arc::new(Shadow::new(options.verify)), ..self }
    }

    /// Every view that was caught giving a wrong answer.
    pub fn quarantined(&self) -> Vec<(String, Quarantined)> {
        self.shadow.quarantined()
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
        let (changes, mut changed) = mpsc::channel(1);
        let watcher = watch(&self.path, changes);
        if let Err(error) = &watcher {
            tracing::warn!(
                "{} is not watched ({error}); changes are seen within {} s",
                self.path.display(),
                REFRESH.as_secs()
            );
        }
        let mut in_force = InForce::default();
        let mut wait = self.load(&mut in_force).await;
        tokio::spawn(async move {
            let watcher = watcher;
            loop {
                let change = tokio::select! {
                    change = tokio::time::timeout(wait, changed.recv()) => change,
                    () = self.outdated.notified() => Ok(Some(())),
                };
                if let Ok(Some(())) = change {
                    while let Ok(Some(())) = tokio::time::timeout(SETTLED, changed.recv()).await {}
                } else if watcher.is_err() {
                    // The channel is closed then, and would be received from at once.
                    tokio::time::sleep(wait).await;
                }
                wait = self.load(&mut in_force).await;
            }
        });
    }

    /// Puts the views into force if anything about them has changed; returns when to try again.
    async fn load(&self, in_force: &mut InForce) -> Duration {
        let attempt = async {
            let (catalog, state) = self.resolve(in_force).await?;
            if in_force.state != state {
                let (views, schema) = (catalog.views.clone(), catalog.schema.clone());
                self.put_in_force(catalog).await?;
                *in_force = InForce { state, views, schema };
            }
            Ok::<_, String>(())
        };
        match attempt.await {
            Ok(()) => REFRESH,
            Err(error) => {
                tracing::warn!("cannot load the views: {error}; trying again in {} s", RETRY.as_secs());
                RETRY
            }
        }
    }

    /// What files and server say now, and a text that tells whether it is the same as before.
    async fn resolve(&self, in_force: &InForce) -> Result<(Catalog, String), String> {
        let path = self.path.clone();
        let loaded = tokio::task::spawn_blocking(move || declaration::load(&path)).await.map_err(|e| e.to_string())?;
        let loaded = loaded.with_default(self.consistency);
        let mut catalog = catalog::resolve(&self.upstream, loaded).await.map_err(|error| error.to_string())?;
        keep_last_good(&mut catalog, in_force);
        let views: Vec<_> = catalog.views.iter().map(|v| (&v.declaration.consistency, &v.storage)).collect();
        let problems: Vec<String> = catalog.problems.iter().map(Problem::to_string).collect();
        let tables: Vec<_> = catalog.schema.tables().collect();
        let state = format!("{views:?}\n{problems:?}\n{tables:?}");
        Ok((catalog, state))
    }

    async fn put_in_force(&self, catalog: Catalog) -> Result<(), String> {
        for problem in &catalog.problems {
            tracing::error!("{problem}");
        }
        let views = Arc::new(catalog.views.clone());
        let accelerator = Accelerator::connect(self.upstream.clone(), self.client.clone(), catalog);
        let accelerator = accelerator.await.map_err(|error| error.to_string())?;
        self.current.store(Some(Arc::new(accelerator.with_shadow(self.shadow.clone()))));
        tracing::info!("{} views in force", views.len());
        self.views.send_replace(views);
        Ok(())
    }
}

/// Views in force whose file is now broken, or gone together with its folder, stay as they were.
fn keep_last_good(catalog: &mut Catalog, in_force: &InForce) {
    for view in &in_force.views {
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

/// Reports changes of the file or folder. Its parent is watched, since editors and config maps replace files by renaming.
fn watch(path: &Path, changes: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let is_read = event.is_ok_and(|event| event.kind.is_access());
        if !is_read {
            // A full channel already says that there is something to read.
            let _ = changes.try_send(());
        }
    })?;
    if path.is_dir() {
        watcher.watch(path, RecursiveMode::NonRecursive)?;
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(parent, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
