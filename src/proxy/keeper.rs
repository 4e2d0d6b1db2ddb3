//! Keeps the views in force: resolved at start, and again while anything is missing or has changed.
//!
//! Without ClickHouse, or with a broken view file, the proxy goes on; what cannot be used now is tried again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::accelerator::Accelerator;
use super::client::HttpUpstream;
use super::query::{Decided, Decision, IncomingQuery};
use crate::upstream::Upstream;
use crate::views::catalog::{self, Catalog};
use crate::views::declaration;
use crate::views::problem::Problem;

/// While ClickHouse does not answer, it is asked again after this time.
const RETRY: Duration = Duration::from_secs(2);

/// Schemas and view files are compared again after this time.
const REFRESH: Duration = Duration::from_secs(30);

/// The views in force, replaced as a whole.
pub struct Keeper {
    upstream: Upstream,
    client: HttpUpstream,
    path: PathBuf,
    current: ArcSwapOption<Accelerator>,
}

impl Keeper {
    pub fn new(upstream: Upstream, client: HttpUpstream, path: PathBuf) -> Self {
        Self { upstream, client, path, current: ArcSwapOption::empty() }
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
        let mut known = None;
        let mut wait = self.load(&mut known).await;
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(wait).await;
                wait = self.load(&mut known).await;
            }
        });
    }

    /// Puts the views into force if they are not the `known` ones; returns when to try again.
    async fn load(&self, known: &mut Option<String>) -> Duration {
        let attempt = async {
            let (catalog, state) = self.resolve().await?;
            if known.as_ref() != Some(&state) {
                self.put_in_force(catalog).await?;
                *known = Some(state);
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
    async fn resolve(&self) -> Result<(Catalog, String), String> {
        let path = self.path.clone();
        let loaded = tokio::task::spawn_blocking(move || declaration::load(&path)).await.map_err(|e| e.to_string())?;
        let mut catalog =
            catalog::resolve(&self.upstream, loaded.declarations).await.map_err(|error| error.to_string())?;
        catalog.problems.splice(0..0, loaded.problems);
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
        let views = catalog.views.len();
        let accelerator = Accelerator::connect(self.upstream.clone(), self.client.clone(), catalog);
        let accelerator = accelerator.await.map_err(|error| error.to_string())?;
        self.current.store(Some(Arc::new(accelerator)));
        tracing::info!("{views} views in force");
        Ok(())
    }
}
