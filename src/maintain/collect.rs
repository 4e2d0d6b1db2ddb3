//! Drops runs that nobody reads any more: retired ones when their grace is over, and those of processes that died.

use std::collections::BTreeMap;

use super::failpoint;
use super::manifest::{Commit, Manifest, Store};
use super::observe::{Observer, rows_by_run};
use super::rebuild::RebuildError;
use super::run::Writers;
use super::states;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;

/// Times that another commit may come first.
const ATTEMPTS_MAX: usize = 5;

/// Drops what is due, and every run that no manifest names and nobody is writing. Before the latter a manifest is
/// committed that calls them abandoned.
pub async fn orphans(
    upstream: &Upstream,
    observer: &Observer,
    store: &Store,
    view: &CatalogView,
) -> Result<(), RebuildError> {
    let storage = &view.storage.name;
    for _ in 0..ATTEMPTS_MAX {
        // In this order: whoever wrote what is seen here is seen alive after it, or to have committed.
        let parts = observer.parts(std::slice::from_ref(storage), false).await?;
        let writers = Writers::alive(upstream).await?;
        let present = parts.get(storage).map(rows_by_run).unwrap_or_default();
        let manifest = store.latest(&storage.table).await?;
        let now_ms = store.now_ms().await?;
        if let Some(manifest) = &manifest {
            due(upstream, view, manifest, &present, now_ms).await?;
        }
        let mut body = manifest.as_ref().map(|manifest| manifest.body.clone()).unwrap_or_default();
        let live = |run: &u64| body.runs.iter().any(|live| live.id == *run);
        let retired = |run: &u64| body.retired.iter().any(|retired| retired.run == *run);
        let is_orphan = |run: &u64| !live(run) && !retired(run) && !writers.may_write(*run);
        let orphans: Vec<u64> = present.keys().copied().filter(is_orphan).collect();
        if orphans.is_empty() {
            return Ok(());
        }
        body.abandon(&orphans, now_ms);
        if let Commit::Won(_) = store.commit(&storage.table, view.name(), manifest.as_ref(), &body).await? {
            failpoint::reach("orphans.abandoned");
            tracing::info!("dropping {} runs of {storage}, which an unfinished process left", orphans.len());
            return Ok(states::drop_runs(upstream, &view.storage.quoted(), &orphans).await?);
        }
    }
    Ok(())
}

/// Drops those retired runs that nobody can be reading any more; `present` are the rows of runs in the storage table.
pub async fn due(
    upstream: &Upstream,
    view: &CatalogView,
    manifest: &Manifest,
    present: &BTreeMap<u64, u64>,
    now_ms: u64,
) -> Result<(), UpstreamError> {
    let due = manifest.body.retired.iter().filter(|retired| retired.is_due(now_ms));
    let due: Vec<u64> = due.map(|retired| retired.run).filter(|run| present.contains_key(run)).collect();
    if due.is_empty() {
        return Ok(());
    }
    failpoint::reach("collection.begun");
    states::drop_runs(upstream, &view.storage.quoted(), &due).await?;
    failpoint::reach("collection.done");
    Ok(())
}
