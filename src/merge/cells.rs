//! A table of groups: an index from keys to group numbers, and one table of states per column.

use super::batches::States;
use super::hash::Space;
use super::keys::Finished;
use super::opaque::Unmerged;
use crate::state::{LaneSlice, Run, StateError, Table, Word};

/// Slots per group that are reserved. Most keys are then found in the first slot that is looked at; with half as many
/// slots `radix` took a third longer (bench/results/2026-11-30-2core/merge.md).
const SLOTS_PER_GROUP: usize = 4;
const SLOTS_MIN: usize = 16;
/// Lanes of one column at most: the flag and the six moments of corr.
const LANES_MAX: usize = 8;

/// Open addressing with linear probing; a slot holds the group's number plus one, 0 is empty.
pub(crate) struct Index<K> {
    slots: Vec<u32>,
    keys: Vec<K>,
}

impl<K: Word> Index<K> {
    pub fn new() -> Self {
        Self { slots: vec![0; SLOTS_MIN], keys: Vec::new() }
    }

    /// Empties the index and makes room for `groups` groups.
    pub fn reset(&mut self, groups: usize) {
        let slots = (groups * SLOTS_PER_GROUP).next_power_of_two().max(SLOTS_MIN);
        self.slots.clear();
        self.slots.resize(slots, 0);
        self.keys = Vec::with_capacity(groups);
    }

    /// The group numbers of `keys`, appended to `groups`; new keys get the next number.
    pub fn assign<S: Space<Key = K>>(&mut self, space: &S, keys: &[K], groups: &mut Vec<u32>) {
        groups.reserve(keys.len());
        for key in keys {
            if (self.keys.len() + 1) * 2 > self.slots.len() {
                // More groups than were reserved for.
                self.grow(space);
            }
            let mask = self.slots.len() - 1;
            let mut at = space.hash(*key) as usize & mask;
            let group = loop {
                let slot = self.slots[at];
                if slot == 0 {
                    self.keys.push(*key);
                    self.slots[at] = self.keys.len() as u32;
                    break self.keys.len() as u32 - 1;
                }
                if space.same(self.keys[slot as usize - 1], *key) {
                    break slot - 1;
                }
                at = (at + 1) & mask;
            };
            groups.push(group);
        }
    }

    fn grow<S: Space<Key = K>>(&mut self, space: &S) {
        let slots = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(slots, 0);
        for (group, key) in self.keys.iter().enumerate() {
            let mut at = space.hash(*key) as usize & (slots - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = group as u32 + 1;
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Groups and their states.
pub(crate) struct Cells<'a, K> {
    index: Index<K>,
    /// One per state column that is merged, in order.
    tables: Vec<Box<dyn Table>>,
    unmerged: Unmerged,
    states: &'a States,
    groups: Vec<u32>,
    /// Groups that the tables have room for.
    sized: usize,
}

impl<'a, K: Word> Cells<'a, K> {
    pub fn new(states: &'a States) -> Self {
        let functions = states.columns.iter().filter_map(|column| column.kind.as_ref().ok());
        let tables: Vec<_> = functions.map(|function| function.table()).collect();
        let unmerged = Unmerged::new(states.columns.len() - tables.len());
        Self { index: Index::new(), tables, unmerged, states, groups: Vec::new(), sized: 0 }
    }

    /// Makes room for `groups` groups in empty cells.
    pub fn reserve(&mut self, groups: usize) {
        self.index.reset(groups);
        self.tables.iter_mut().for_each(|table| table.reserve(groups));
    }

    /// Merges one run of rows: `keys[row]` with word `row` of every lane. Allocates nothing but room for new groups.
    pub fn merge<'r, S: Space<Key = K>>(
        &mut self,
        space: &S,
        keys: &[K],
        lane: impl Fn(usize) -> LaneSlice<'r>,
    ) -> Result<(), StateError> {
        self.groups.clear();
        self.index.assign(space, keys, &mut self.groups);
        if self.index.len() > self.sized {
            self.sized = self.index.len();
            self.tables.iter_mut().for_each(|table| table.resize(self.sized));
        }
        let mut tables = self.tables.iter_mut();
        let mut opaque = 0;
        for column in &self.states.columns {
            let mut lanes = [LaneSlice::W1(&[]); LANES_MAX];
            let lanes = &mut lanes[..column.lanes.len()];
            lanes.iter_mut().zip(&column.lanes).for_each(|(slice, at)| *slice = lane(*at));
            match &column.kind {
                Ok(_) => {
                    let Some(table) = tables.next() else { unreachable!("every merged column has a table") };
                    table.merge(&Run { groups: &self.groups, lanes, sources: &column.sources })?;
                }
                Err(_) => {
                    self.unmerged.push(&self.groups, opaque, &lanes[0]);
                    opaque += 1;
                }
            }
        }
        Ok(())
    }

    /// Keys and states of all groups; the cells are left empty.
    pub fn finish(&mut self) -> Finished<K> {
        let mut keys = std::mem::take(&mut self.index.keys);
        self.index.reset(0);
        self.sized = 0;
        let rows = self.states.has_opaque().then(|| self.unmerged.rows(keys.len()));
        let mut tables = self.tables.iter_mut();
        let mut opaque = 0;
        let mut states = Vec::with_capacity(self.states.columns.len());
        for column in &self.states.columns {
            states.push(match (&column.kind, &rows) {
                (Ok(function), rows) => {
                    let merged = tables.next().map(|table| table.finish(&column.sources));
                    match (merged, rows) {
                        (Some(merged), Some(rows)) => rows.fill(function.as_ref(), merged),
                        (Some(merged), None) => merged,
                        (None, _) => unreachable!("every merged column has a table"),
                    }
                }
                (Err(form), Some(rows)) => {
                    opaque += 1;
                    self.unmerged.column(opaque - 1, form, &column.sources, rows)
                }
                (Err(_), None) => unreachable!("an opaque column has rows"),
            });
        }
        if let Some(rows) = rows {
            let rest: Vec<K> = rows.rest_groups.iter().map(|group| keys[*group as usize]).collect();
            keys.extend(rest);
            self.unmerged.clear();
        }
        Finished { keys, states }
    }
}
