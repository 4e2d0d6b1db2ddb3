//! The baseline: one growing table in one thread, nothing ordered or fetched beforehand.

use super::MergeError;
use super::batches::Batches;
use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;

/// Rows that find their groups before their states are merged: one call per column for so many cells, so that calls do
/// not make the baseline slow.
const RUN_ROWS: usize = 1 << 10;

pub(crate) fn merge<S: Space>(space: &S, batches: &Batches<S::Key>) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let mut cells = Cells::new(&batches.states);
    for (keys, lanes) in batches.keys.iter().zip(&batches.lanes) {
        for start in (0..keys.len()).step_by(RUN_ROWS) {
            let run = start..keys.len().min(start + RUN_ROWS);
            cells.merge(space, &keys[run.clone()], |lane| lanes[lane].slice(run.clone()))?;
        }
    }
    Ok(vec![cells.finish()])
}
