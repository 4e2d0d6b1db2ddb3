//! Pairs of tables upward: for many tables that arrive one after the other, and to hold less at once than all of them.

use super::batches::Batches;
use super::hash::Space;
use super::keys::Finished;
use super::{MergeError, radix};
use crate::state::Word;

/// A leaf of the tree is made of neighbouring batches up to this many rows: blocks are smaller than tables.
const LEAF_ROWS: usize = 1 << 21;

pub(crate) fn merge<S: Space>(
    space: &S,
    batches: Batches<S::Key>,
    threads: usize,
) -> Result<Vec<Finished<S::Key>>, MergeError> {
    let functions = batches.states.functions();
    let mut level = Vec::new();
    for leaf in leaves(batches) {
        level.push(radix::merge(space, leaf, threads)?);
    }
    while level.len() > 1 {
        let mut next = Vec::with_capacity(level.len().div_ceil(2));
        let mut nodes = level.into_iter();
        while let Some(mut left) = nodes.next() {
            if let Some(right) = nodes.next() {
                left.extend(right);
                left = radix::merge(space, Batches::again(left, functions.clone(), threads)?, threads)?;
            }
            next.push(left);
        }
        level = next;
    }
    Ok(level.pop().unwrap_or_default())
}

/// Cuts the batches into leaves. References count batches from the first of all, so every leaf keeps all buffers.
fn leaves<K: Word>(batches: Batches<K>) -> Vec<Batches<K>> {
    let Batches { keys, lanes, states } = batches;
    let mut leaves: Vec<Batches<K>> = Vec::new();
    let mut room = 0;
    for (keys, lanes) in keys.into_iter().zip(lanes) {
        if room < keys.len() {
            leaves.push(Batches { keys: Vec::new(), lanes: Vec::new(), states: states.clone() });
            room = LEAF_ROWS;
        }
        room = room.saturating_sub(keys.len());
        if let Some(leaf) = leaves.last_mut() {
            leaf.keys.push(keys);
            leaf.lanes.push(lanes);
        }
    }
    leaves
}
