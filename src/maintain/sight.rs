//! What one look shows of one view: whether its runs hold what its sources hold, or all but rows that can be told apart.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::coverage::{self, Change, SourceRecord, SourceSeen, Staleness};
use super::cut::Cut;
use super::manifest::Manifest;
use super::observe::storage_table;
use crate::config::Consistency;
use crate::matching::schema::TableName;
use crate::views::catalog::Target;

/// What one look says about one view.
#[derive(Debug, Clone, PartialEq)]
pub enum Coverage {
    Covered(Covered),
    /// The runs lack some rows of the fact table, which can be told apart.
    Partial(Covered, Cut),
    Stale(Staleness),
}

/// The runs that together hold exactly what the sources hold, or the part of it that a [`Cut`] tells.
#[derive(Debug, Clone, PartialEq)]
pub struct Covered {
    pub storage: TableName,
    pub runs: Vec<u64>,
    /// Rows in these runs that do not count, as (run, source partition): see [`Run`](super::manifest::Run).
    pub dead: Vec<(u64, String)>,
    /// Rows in these runs; about how many of them count.
    pub rows: u64,
    /// Rows of the fact table.
    pub source_rows: u64,
    /// Version of the manifest that names the runs.
    pub version: u64,
    /// Nothing was proved: the view is as fresh as its last rebuild, on the operator's word.
    pub manual: bool,
}

/// What one look shows of one definition of a view.
#[derive(Debug, Clone)]
pub struct Sight {
    /// Name of the view.
    pub view: String,
    /// The manifest by which the coverage was judged.
    pub manifest: Option<Arc<Manifest>>,
    /// The sources in the order of the view's FROM, or why they cannot be told.
    pub sources: Result<Vec<SourceSeen>, Staleness>,
    /// Rows of each run in the storage table.
    pub rows_by_run: BTreeMap<u64, u64>,
    pub coverage: Coverage,
}

impl Sight {
    pub(super) fn new(
        target: &Target,
        manifest: Option<Arc<Manifest>>,
        sources: Result<Vec<SourceSeen>, Staleness>,
        rows_by_run: BTreeMap<u64, u64>,
    ) -> Self {
        let never_built = Coverage::Stale(Staleness::NeverBuilt);
        let mut sight = Sight { view: target.view.clone(), manifest, sources, rows_by_run, coverage: never_built };
        if let Some(manifest) = &sight.manifest {
            sight.coverage = coverage_of(target, manifest, &sight).unwrap_or_else(Coverage::Stale);
        }
        sight
    }

    /// Whether an answer by what an earlier look showed, and by the manifest of then, is right by this one as well.
    pub(super) fn confirms(&self, then: &Sight) -> Result<(), Staleness> {
        let (covered, cut) = match &then.coverage {
            Coverage::Covered(covered) => (covered, None),
            Coverage::Partial(covered, cut) => (covered, Some(cut)),
            // Not used then, so nothing depends on it.
            Coverage::Stale(_) => return Ok(()),
        };
        let Some(manifest) = &then.manifest else { return Err(Staleness::NeverBuilt) };
        if let Some(damage) = storage_damage(manifest, &self.rows_by_run) {
            return Err(damage);
        }
        if covered.manual {
            return Ok(());
        }
        let seen = self.sources.as_ref().map_err(Staleness::clone)?;
        for (at, (record, seen)) in manifest.body.sources.iter().zip(seen).enumerate() {
            match cut.filter(|_| at == 0) {
                Some(cut) => cut.holds(record, seen)?,
                None => coverage::source_change(record, seen).map_or(Ok(()), Err)?,
            }
        }
        Ok(())
    }

    /// Rows of live runs that somebody took away.
    pub(super) fn damage(&self) -> Option<Staleness> {
        match &self.coverage {
            Coverage::Stale(damage @ Staleness::StorageDamaged { .. }) => Some(damage.clone()),
            _ => None,
        }
    }

    /// Whether the runs that an earlier look named are all there still.
    pub(super) fn has_runs_of(&self, then: &Sight) -> Result<(), Staleness> {
        let Some(manifest) = &then.manifest else { return Err(Staleness::NeverBuilt) };
        storage_damage(manifest, &self.rows_by_run).map_or(Ok(()), Err)
    }

    /// Whether the contents of parts may still prove what their names alone did not.
    pub(super) fn may_need_hashes(&self) -> bool {
        let may_help = |change: &Change| matches!(change, Change::Unproven { .. } | Change::Mutated { .. });
        let manifest = self.manifest.as_ref();
        match (&self.coverage, manifest.and_then(|manifest| manifest.body.sources.first()), &self.sources) {
            (Coverage::Stale(Staleness::Partition { change, .. }), ..) => may_help(change),
            (Coverage::Partial(..), Some(record), Ok(seen)) => {
                coverage::partition_changes(record, &seen[0]).values().any(may_help)
            }
            _ => false,
        }
    }
}

fn coverage_of(target: &Target, manifest: &Manifest, sight: &Sight) -> Result<Coverage, Staleness> {
    let records = &manifest.body.sources;
    if records.len() != target.sources.len() {
        return Err(Staleness::NeverBuilt);
    }
    if let Some(damage) = storage_damage(manifest, &sight.rows_by_run) {
        return Err(damage);
    }
    let mut covered = Covered {
        storage: storage_table(&manifest.storage),
        runs: manifest.body.runs.iter().map(|run| run.id).collect(),
        dead: manifest.body.dead(),
        rows: manifest.body.rows(),
        source_rows: records.first().map_or(0, SourceRecord::rows),
        version: manifest.version,
        manual: target.consistency == Consistency::Manual,
    };
    if covered.manual {
        return Ok(Coverage::Covered(covered));
    }
    let seen = sight.sources.as_ref().map_err(Staleness::clone)?;
    let mut sources = records.iter().zip(seen);
    let fact = sources.next();
    // A row of a joined table may belong to any row of the fact table.
    if let Some(change) = sources.find_map(|(record, seen)| coverage::source_change(record, seen)) {
        return Err(change);
    }
    let Some((record, seen)) = fact else { return Ok(Coverage::Covered(covered)) };
    if let Some(change) = coverage::identity_change(record, seen) {
        return Err(change);
    }
    let Some(cut) = Cut::of(&manifest.body, seen) else { return Ok(Coverage::Covered(covered)) };
    covered.rows = (u128::from(covered.rows) * u128::from(cut.rows_held) / u128::from(record.rows().max(1))) as u64;
    covered.dead.extend(cut.dead.iter().cloned());
    covered.source_rows = seen.parts.values().flatten().map(|part| part.rows).sum();
    Ok(Coverage::Partial(covered, cut))
}

/// A run of which rows are missing, because somebody dropped or truncated what he should not have.
fn storage_damage(manifest: &Manifest, found: &BTreeMap<u64, u64>) -> Option<Staleness> {
    manifest.body.runs.iter().find_map(|run| {
        let rows_found = found.get(&run.id).copied().unwrap_or(0);
        (rows_found != run.rows).then_some(Staleness::StorageDamaged {
            run: run.id,
            rows_expected: run.rows,
            rows_found,
        })
    })
}
