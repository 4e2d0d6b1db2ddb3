//! The baseline: one growing table, cell by cell, in one thread.

use super::cells::Cells;
use super::hash::Space;
use super::keys::Finished;
use super::{MergeError, States};
use crate::state::{Lane, LaneSlice};

pub(crate) fn merge<S: Space>(
    space: &S,
    keys: &[Vec<S::Key>],
    lanes: &[Vec<Lane>],
    states: &States,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let mut cells = Cells::new(states);
    for (keys, lanes) in keys.iter().zip(lanes) {
        for row in 0..keys.len() {
            let words: Vec<LaneSlice<'_>> = lanes.iter().map(|lane| lane.slice(row..row + 1)).collect();
            cells.merge(space, &keys[row..row + 1], &words)?;
        }
    }
    Ok(vec![cells.finish()])
}
