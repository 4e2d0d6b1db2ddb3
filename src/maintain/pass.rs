//! Takes the steps of a plan for one view: reads the states of stretches into a new run, commits, merges runs.
//!
//! ```text
//! plan -> read states (`delta`) -> what else the look showed still holds?
//!   -> merge -> one run -> commit: bury, keep, add what was proved -> merge runs that have become too many
//! ```
//! Parts that were gone before they were read are left for the next look, under their new names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::compact::Compactor;
use super::delta::{Delta, Reader};
use super::manifest::{Manifest, Run, Store};
use super::observe::Observer;
use super::part::Part;
use super::plan::{self, Plan, Step, blocks_of};
use super::rebuild::{Options, RebuildError, Silent, rebuild};
use super::run::{self, Heartbeat};
use super::sight::Sight;
use super::states::{States, StatesError};
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;
use crate::wire::Block;

/// How much maintenance may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that merge, and queries that read at once while a view is built.
    pub threads: usize,
    /// Bytes of states held at once.
    pub memory_bytes: usize,
}

/// What became of a plan.
#[derive(Debug, PartialEq)]
pub enum Passed {
    /// There was nothing to do that could be done.
    Idle,
    /// Runs and sources are nearer to each other.
    Advanced {
        /// Rows of the fact table that were read.
        rows: u64,
        version: u64,
    },
    /// Another process committed first.
    Outrun,
}

/// All that is needed to maintain one view.
#[derive(Clone)]
pub struct Pass {
    pub upstream: Upstream,
    pub observer: Observer,
    pub store: Store,
    pub view: CatalogView,
    pub states: Arc<States>,
    /// Views out of whose rows this one may be built.
    pub finer: Vec<CatalogView>,
    pub limits: Limits,
}

impl Pass {
    /// Takes the steps of `plan`, which was made by what `sight` shows.
    pub async fn take(&self, sight: &Sight, plan: &Plan) -> Result<Passed, RebuildError> {
        if plan.steps.iter().any(|step| matches!(step, Step::BuildAll { .. })) {
            return self.build(BTreeSet::new()).await;
        }
        let partitions = |with_reads: bool| -> BTreeSet<String> {
            let partition = |step: &Step| match step {
                Step::Build { partition, .. } => Some(partition.clone()),
                Step::Read { partition, .. } if with_reads => Some(partition.clone()),
                _ => None,
            };
            plan.steps.iter().filter_map(partition).collect()
        };
        match self.advance(sight, plan).await {
            Ok(Passed::Outrun) => Ok(Passed::Outrun),
            Ok(passed) if partitions(false).is_empty() => Ok(passed),
            Ok(_) => self.build(partitions(false)).await,
            // What does not fit into memory at once is built by ranges of keys.
            Err(RebuildError::States(StatesError::TooLarge { .. })) => self.build(partitions(true)).await,
            Err(error) => Err(error),
        }
    }

    /// Builds some partitions, or all of them, chunk by chunk.
    async fn build(&self, partitions: BTreeSet<String>) -> Result<Passed, RebuildError> {
        let options = Options {
            partitions: partitions.into_iter().collect(),
            jobs: self.limits.threads,
            memory_bytes: self.limits.memory_bytes,
            finer: self.finer.clone(),
            ..Options::default()
        };
        let report = rebuild(&self.upstream, &self.view, &options, Arc::new(Silent)).await?;
        Ok(Passed::Advanced { rows: report.source_rows_read, version: report.version })
    }

    /// The steps that read or forget stretches.
    async fn advance(&self, sight: &Sight, plan: &Plan) -> Result<Passed, RebuildError> {
        let (Some(manifest), Ok(seen)) = (&sight.manifest, &sight.sources) else { return Ok(Passed::Idle) };
        let wanted: Vec<Part> = plan
            .steps
            .iter()
            .flat_map(|step| match step {
                Step::Read { parts, .. } => parts.clone(),
                _ => Vec::new(),
            })
            .collect();
        let commits = plan.steps.iter().any(|step| matches!(step, Step::Forget { .. } | Step::Rename));
        if wanted.is_empty() && !commits {
            return Ok(Passed::Idle);
        }
        let reader = Reader { states: &self.states, observer: &self.observer, view: &self.view, seen };
        let delta = reader.read(wanted, self.limits.memory_bytes).await?;
        if delta.parts.is_empty() && !commits {
            return Ok(Passed::Idle);
        }
        let id = run::new_id();
        let _heartbeat = Heartbeat::start(&self.upstream, id).await?;
        let committed = self.write_and_commit(manifest, sight, plan, delta, id).await;
        match committed {
            Ok(Some((manifest, rows))) => {
                let version = self.compact(manifest).await?;
                Ok(Passed::Advanced { rows, version })
            }
            other => {
                self.states.drop_unseen(&self.store, &[id]).await?;
                other.map(|_| Passed::Outrun)
            }
        }
    }

    async fn write_and_commit(
        &self,
        manifest: &Manifest,
        sight: &Sight,
        plan: &Plan,
        delta: Delta,
        id: u64,
    ) -> Result<Option<(Manifest, u64)>, RebuildError> {
        let Ok(seen) = &sight.sources else { return Ok(None) };
        let rows_written = self.write(delta.blocks, id).await?;
        let rows_read = delta.parts.iter().map(|part| part.rows).sum();
        let mut body = manifest.body.clone();
        for (id, partition) in &plan.bury {
            body.runs.iter_mut().filter(|run| run.id == *id).for_each(|run| run.bury(partition));
        }
        let mut added: BTreeMap<String, Vec<Part>> = BTreeMap::new();
        for part in delta.parts {
            added.entry(part.name.partition.clone()).or_default().push(part);
        }
        let partitions = added.iter().filter_map(|(id, parts)| Some((id.clone(), blocks_of(parts)?))).collect();
        body.runs.push(Run { id, rows: rows_written, partitions, dead: Vec::new() });
        body.sources = self.view.view.tables.iter().zip(seen).map(|(table, seen)| seen.record(table.clone())).collect();
        body.sources[0].parts = plan.keep.clone();
        for (partition, parts) in added {
            body.sources[0].parts.entry(partition).or_default().extend(parts);
        }
        body.retire(Some(manifest), self.store.now_ms().await?);
        let storage = &self.view.storage.name.table;
        let committed = self.store.commit_runs(storage, self.view.name(), Some(manifest), &body, &[id]).await?;
        Ok(committed.map(|manifest| (manifest, rows_read)))
    }

    async fn write(&self, blocks: Vec<Block>, id: u64) -> Result<u64, RebuildError> {
        if blocks.is_empty() {
            return Ok(0);
        }
        let mut writer = self.states.writer(id);
        writer.write(self.states.merge_aside(blocks, self.limits.threads).await?).await?;
        Ok(writer.finish().await?)
    }

    /// Merges runs as long as there are too many of one level; returns the latest version.
    async fn compact(&self, mut manifest: Manifest) -> Result<u64, RebuildError> {
        let compactor = Compactor { upstream: &self.upstream, store: &self.store, states: &self.states };
        while let Some(runs) = plan::compaction(&manifest.body, false) {
            match compactor.compact(&self.view, &manifest, &runs, self.limits.threads).await? {
                Some(next) => manifest = next,
                None => break,
            }
        }
        Ok(manifest.version)
    }
}
