//! Merges runs into larger ones: the levels of a log-structured tree whose values are partial states.

use std::sync::Arc;

use super::failpoint;
use super::manifest::{Manifest, Run, Store};
use super::plan;
use super::rebuild::RebuildError;
use super::run::{self, Heartbeat};
use super::states::{KeyRange, States};
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;

/// Bytes of states that a compaction holds at once; larger runs are merged by ranges of keys.
const MEMORY_BYTES: u64 = 256 << 20;

/// Compacts the runs of one view.
pub struct Compactor<'a> {
    pub upstream: &'a Upstream,
    pub store: &'a Store,
    pub states: &'a Arc<States>,
}

impl Compactor<'_> {
    /// Merges until every level has fewer runs than its fan-in; the latest manifest, if anything was merged.
    pub async fn settle(&self, view: &CatalogView) -> Result<Option<Manifest>, RebuildError> {
        let mut last = None;
        while let Some(manifest) = self.store.latest(&view.storage.name.table).await? {
            let Some(runs) = plan::compaction(&manifest.body, true) else { break };
            match self.compact(view, &manifest, &runs, 1).await? {
                Some(manifest) => last = Some(manifest),
                // Somebody else maintains the view, and will go on.
                None => break,
            }
        }
        Ok(last)
    }

    /// Merges some live runs of `manifest` into one; `None`: another commit came first.
    pub async fn compact(
        &self,
        view: &CatalogView,
        manifest: &Manifest,
        runs: &[u64],
        threads: usize,
    ) -> Result<Option<Manifest>, RebuildError> {
        let (chosen, mut others): (Vec<Run>, Vec<Run>) =
            manifest.body.runs.iter().cloned().partition(|run| runs.contains(&run.id));
        let id = run::new_id();
        let _heartbeat = Heartbeat::start(self.upstream, id).await?;
        failpoint::reach("compaction.begun");
        let outcome = async {
            let rows = self.write(view, &chosen, id, threads).await?;
            others.push(Run { id, rows, partitions: plan::merged(&chosen), dead: Vec::new() });
            let mut body = manifest.body.clone();
            body.runs = others;
            body.retire(Some(manifest), self.store.now_ms().await?);
            let storage = &view.storage.name.table;
            let committed = self.store.commit_runs(storage, view.name(), Some(manifest), &body, &[id]).await?;
            if committed.is_some() {
                failpoint::reach("compaction.committed");
            }
            Ok(committed)
        };
        let outcome: Result<Option<Manifest>, RebuildError> = outcome.await;
        if !matches!(outcome, Ok(Some(_))) {
            self.states.drop_unseen(self.store, &[id]).await?;
        }
        outcome
    }

    /// Writes the merged rows of `runs` into run `id`; returns their number.
    async fn write(&self, view: &CatalogView, runs: &[Run], id: u64, threads: usize) -> Result<u64, RebuildError> {
        let bytes = self.states.bytes_of_runs(&view.storage.name, runs).await?;
        let mut writer = self.states.writer(id);
        for range in KeyRange::all(self.states.passes(bytes, MEMORY_BYTES)) {
            let blocks = self.states.read_runs(runs, range).await?;
            writer.write(self.states.merge_aside(blocks, threads).await?).await?;
        }
        Ok(writer.finish().await?)
    }
}
