//! The baseline: one growing table, cell by cell, in one thread.

use super::MergeError;
use super::batches::Batches;
use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;

pub(crate) fn merge<S: Space>(space: &S, batches: &Batches<S::Key>) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let mut cells = Cells::new(&batches.states);
    for (keys, lanes) in batches.keys.iter().zip(&batches.lanes) {
        for row in 0..keys.len() {
            cells.merge(space, &keys[row..row + 1], |lane| lanes[lane].slice(row..row + 1))?;
        }
    }
    Ok(vec![cells.finish()])
}
