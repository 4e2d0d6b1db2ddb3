//! A table of groups: an index from keys to group numbers, and one table of states per column.

use super::hash::Space;
use super::{States, keys::Finished};
use crate::state::{LaneSlice, Run, StateError, Table, Word};

/// Slots per group at least: a load factor of at most one half keeps probes short.
const SLOTS_PER_GROUP: usize = 2;
const SLOTS_MIN: usize = 16;

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
            if (self.keys.len() + 1) * SLOTS_PER_GROUP > self.slots.len() {
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
    tables: Vec<Box<dyn Table>>,
    states: &'a States,
    groups: Vec<u32>,
}

impl<'a, K: Word> Cells<'a, K> {
    pub fn new(states: &'a States) -> Self {
        let tables = states.functions.iter().map(|function| function.table()).collect();
        Self { index: Index::new(), tables, states, groups: Vec::new() }
    }

    /// Makes room for `groups` groups in empty cells.
    pub fn reserve(&mut self, groups: usize) {
        self.index.reset(groups);
    }

    /// Merges one run of rows: `keys[row]` with the words of all lanes in that row.
    pub fn merge<S: Space<Key = K>>(
        &mut self,
        space: &S,
        keys: &[K],
        lanes: &[LaneSlice<'_>],
    ) -> Result<(), StateError> {
        self.groups.clear();
        self.index.assign(space, keys, &mut self.groups);
        let count = self.index.len();
        for (column, table) in self.tables.iter_mut().enumerate() {
            table.resize(count);
            let lanes = &lanes[self.states.lanes[column].clone()];
            table.merge(&Run { groups: &self.groups, lanes, sources: &self.states.sources[column] })?;
        }
        Ok(())
    }

    /// Keys and states of all groups; the cells are left empty.
    pub fn finish(&mut self) -> Finished<K> {
        let keys = std::mem::take(&mut self.index.keys);
        self.index.reset(0);
        let states = self.tables.iter_mut().zip(&self.states.sources).map(|(table, sources)| table.finish(sources));
        Finished { keys, states: states.collect() }
    }
}
