//! Builds a view from the rows of a finer one on the same source, so that one reading of the source feeds both.
//!
//! ```text
//! finer     SELECT year, C_NATION, C_CITY, sum(revenue), count()  GROUP BY year, C_NATION, C_CITY
//! coarser   SELECT year, C_CITY, sum(revenue)                     GROUP BY year, C_CITY
//! ```
//! Filter and joins are the same, every dimension of the coarser view is one of the finer, and so is every aggregate.
//! The states of a group of the coarser view are then those of several groups of the finer, merged. What the finer
//! view's manifest proves about its rows holds for these as well, so the new run records its parts.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::coverage::{self, Parts, SourceSeen};
use super::manifest::{Manifest, Run, Store};
use super::observe::Observer;
use super::rebuild::{RebuildError, usable};
use super::sources;
use crate::matching::block::Block;
use crate::matching::view::ColumnKind;
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;

/// A view together with what its runs prove about the source at the moment.
#[derive(Debug, Clone)]
pub struct Finer {
    pub view: CatalogView,
    pub manifest: Manifest,
    /// For each storage column of the coarser view, the position of its like in the finer.
    pub columns: Vec<usize>,
    /// Partitions whose rows it holds exactly, with their parts.
    pub parts: Parts,
}

impl Finer {
    /// Live runs with rows of `partitions`.
    pub fn runs<'a>(&'a self, partitions: &'a [String]) -> impl Iterator<Item = &'a Run> {
        let holds = |run: &&Run| partitions.iter().any(|partition| run.partitions.contains_key(partition));
        self.manifest.body.runs.iter().filter(holds)
    }

    /// Makes sure that none of its runs was dropped while it was read.
    pub async fn still_stands(&self, store: &Store) -> Result<(), RebuildError> {
        let latest = store.latest(&self.manifest.storage).await?;
        let now_ms = store.now_ms().await?;
        let stands = |run: &Run| {
            latest.as_ref().is_some_and(|latest| {
                let waits = latest.body.retired.iter().any(|retired| retired.run == run.id && !retired.is_due(now_ms));
                waits || latest.body.runs.iter().any(|live| live.id == run.id)
            })
        };
        match self.manifest.body.runs.iter().all(stands) {
            true => Ok(()),
            false => Err(RebuildError::SourceMoved { table: self.view.storage.name.to_string() }),
        }
    }
}

/// For each storage column of `coarse`, the position of its like in `fine`; `None` where one is missing, where the two
/// do not hold the same rows of the source, or where `fine` is no finer.
pub fn derivation(coarse: &CatalogView, fine: &CatalogView) -> Option<Vec<usize>> {
    let (of_coarse, of_fine) = (&coarse.view.block, &fine.view.block);
    let filters =
        |block: &Block| -> HashSet<Arc<str>> { block.conjuncts.iter().map(|conjunct| conjunct.key.clone()).collect() };
    let joins = |block: &Block| -> Vec<_> {
        block.outer_joins.iter().map(|(right, kind, on)| (*right, *kind, on.key.clone())).collect()
    };
    let same_rows = coarse.view.tables == fine.view.tables
        && filters(of_coarse) == filters(of_fine)
        && joins(of_coarse) == joins(of_fine);
    if !same_rows || fineness(coarse) >= fineness(fine) {
        return None;
    }
    let is_dimension = |kind: &ColumnKind| matches!(kind, ColumnKind::Dimension);
    let column = |at: usize| {
        let wanted = &coarse.view.columns[at];
        fine.view.columns.iter().enumerate().position(|(other, column)| {
            column.expr.key == wanted.expr.key
                && is_dimension(&column.kind) == is_dimension(&wanted.kind)
                && fine.storage.columns[other].type_name == coarse.storage.columns[at].type_name
        })
    };
    (0..coarse.view.columns.len()).map(column).collect()
}

/// Dimensions, then columns: what is derived from a view has fewer.
fn fineness(view: &CatalogView) -> (usize, usize) {
    (view.storage.columns.iter().filter(|column| column.is_dimension).count(), view.storage.columns.len())
}

/// Finer views before those that can be built from them; otherwise as given.
pub fn order(mut views: Vec<CatalogView>) -> Vec<CatalogView> {
    views.sort_by_key(|view| std::cmp::Reverse(fineness(view)));
    views
}

/// Of `candidates`, the one from which most of `partitions` can be built, and the smallest of those.
/// `seen`: the sources of `view` as they were looked at for building it.
pub async fn choose(
    (upstream, observer, store): (&Upstream, &Observer, &Store),
    view: &CatalogView,
    candidates: &[CatalogView],
    seen: &[SourceSeen],
    partitions: &[String],
) -> Result<Option<Finer>, RebuildError> {
    let mut best: Option<Finer> = None;
    if partitions.is_empty() {
        return Ok(best);
    }
    for fine in candidates {
        let Some(columns) = derivation(view, fine) else { continue };
        let Some(manifest) = store.latest(&fine.storage.name.table).await? else { continue };
        let now = sources::look(upstream, observer, fine).await?;
        if !same_definitions(seen, &now) || usable(observer, fine, Some(&manifest), &now).await?.is_none() {
            continue;
        }
        let parts = held(&manifest, &now[0], partitions);
        let is_better = |best: &Finer| {
            let rank = |parts: &Parts, rows: u64| (parts.len(), std::cmp::Reverse(rows));
            rank(&parts, manifest.body.rows()) > rank(&best.parts, best.manifest.body.rows())
        };
        if !parts.is_empty() && best.as_ref().is_none_or(is_better) {
            best = Some(Finer { view: fine.clone(), manifest, columns, parts });
        }
    }
    Ok(best)
}

/// Whether two looks, each at the columns of another view, show the same definitions and joined rows.
fn same_definitions(one: &[SourceSeen], other: &[SourceSeen]) -> bool {
    let same = |(one, other): (&SourceSeen, &SourceSeen)| {
        one.identity.uuid == other.identity.uuid && one.identity.altered_at == other.identity.altered_at
    };
    let joined = |seen: &[SourceSeen]| seen.iter().skip(1).map(|seen| seen.parts.clone()).collect::<Vec<_>>();
    one.iter().zip(other).all(same) && joined(one) == joined(other)
}

/// Those of `partitions` that the runs of a manifest hold exactly, with their parts as they are called now.
fn held(manifest: &Manifest, fact: &SourceSeen, partitions: &[String]) -> Parts {
    let record = &manifest.body.sources[0];
    let (_, changes) = coverage::judge(record, fact);
    let is_held = |id: &&String| record.parts.contains_key(*id) && !changes.contains_key(*id);
    let parts = partitions.iter().filter(is_held).filter_map(|id| Some((id.clone(), fact.parts.get(id)?.clone())));
    parts.collect::<BTreeMap<_, _>>()
}
