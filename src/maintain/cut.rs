//! Which rows of a fact table the runs of a view hold while the table has gone on, and the condition that selects the
//! others. Pure.
//!
//! A partition is either read raw as a whole, or its runs hold the blocks up to a number and what is missing are the
//! parts that begin above it:
//!
//! ```text
//! recorded            2020_1_3_1  2020_4_4_0                2021_2_2_0
//! seen                2020_1_4_2              2020_6_6_0    2021_2_2_0_5
//! runs hold           2020 up to block 4, of which 2020_6_6_0 is the rest; 2021 was mutated and is read raw
//! ```
//!
//! The condition goes by the names of parts, so ClickHouse picks the parts before it reads anything. `_block_number` would
//! be no better: parts that were attached from another table may keep the numbers of that one in it. A table without
//! Keeper numbers the blocks of all its partitions by one counter, so one number serves for all partitions in which
//! nothing older is missing, and rows inserted anywhere after the look are selected too.
//!
//! The raw side is read after the look, though, and a part merge that mixed held with missing blocks would hide the
//! latter. So an answer counts when a look that began after ClickHouse had picked the parts still finds the cut: see
//! [`Cut::holds`].

use std::collections::{BTreeMap, BTreeSet};

use super::coverage::{self, Change, SourceRecord, SourceSeen, Staleness};
use super::part::Part;
use crate::sql::render::string_literal;

/// A condition names at most this many partitions: the text of a query has a limit.
const PARTITIONS_MAX: usize = 500;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Partitions of which no row of the runs counts; they are read raw as a whole.
    pub whole: BTreeSet<String>,
    /// The last block that the runs hold of some other partitions.
    tails: BTreeMap<String, i64>,
    /// Runs hold no later block than this of the partitions that are left, and nothing older is missing. `None`: these
    /// partitions must stay as they are.
    others: Option<i64>,
    /// Rows that were missing at the time of the look.
    pub rows: u64,
    /// The first change that was found.
    pub because: Staleness,
}

impl Cut {
    /// `None` where nothing is missing. Presumes that the table as a whole is still the one recorded
    /// ([`coverage::identity_change`]).
    pub fn of(record: &SourceRecord, seen: &SourceSeen) -> Option<Self> {
        let (rule, changes) = coverage::judge(record, seen);
        let (partition, change) = changes.iter().next()?;
        let table = record.table.to_string();
        let because = Staleness::Partition { table, partition: partition.clone(), change: change.clone() };
        let held: BTreeMap<&str, i64> = record
            .parts
            .iter()
            .filter(|(id, parts)| match changes.get(*id) {
                None => true,
                Some(Change::Appended { .. }) => first_missing(record, seen, id) > last_block(parts),
                Some(_) => false,
            })
            .filter_map(|(id, parts)| Some((id.as_str(), last_block(parts)?)))
            .collect();
        let others = if rule.is_numbered_in_keeper() { None } else { held.values().max().copied() };
        let mut cut = Cut { whole: BTreeSet::new(), tails: BTreeMap::new(), others, rows: 0, because };
        for (id, change) in &changes {
            match (held.get(id.as_str()), change) {
                (Some(last), Change::Appended { rows }) => {
                    cut.rows += rows;
                    if others.is_none_or(|others| first_missing(record, seen, id) <= Some(others)) {
                        cut.tails.insert(id.clone(), *last);
                    }
                }
                _ => {
                    cut.rows += seen.parts.get(id).into_iter().flatten().map(|part| part.rows).sum::<u64>();
                    cut.whole.insert(id.clone());
                }
            }
        }
        Some(cut)
    }

    /// Whether runs that hold the recorded parts, and the rows that the condition selects, are still together what the
    /// table holds; else what has changed.
    pub fn holds(&self, record: &SourceRecord, seen: &SourceSeen) -> Result<(), Staleness> {
        if let Some(change) = coverage::identity_change(record, seen) {
            return Err(change);
        }
        let (_, changes) = coverage::judge(record, seen);
        for (id, change) in changes.into_iter().filter(|(id, _)| !self.whole.contains(id)) {
            let limit = self.tails.get(&id).copied().or(self.others);
            let is_selected = matches!(change, Change::Appended { .. })
                && limit.is_some_and(|limit| first_missing(record, seen, &id) > Some(limit));
            if !is_selected {
                return Err(Staleness::Partition { table: record.table.to_string(), partition: id, change });
            }
        }
        Ok(())
    }

    /// The condition on the fact table that selects what the runs lack; `{fact}` stands for the table's qualifier.
    /// `None`: it would name too many partitions.
    pub fn condition(&self) -> Option<String> {
        // The second field of a part's name is its first block.
        const FIRST_BLOCK: &str = "toInt64(splitByChar('_', {fact}._part)[2])";
        if self.whole.len() + self.tails.len() > PARTITIONS_MAX {
            return None;
        }
        let mut ways = Vec::new();
        if !self.whole.is_empty() {
            let list: Vec<String> = self.whole.iter().map(|id| string_literal(id)).collect();
            ways.push(format!("{{fact}}._partition_id IN ({})", list.join(", ")));
        }
        for (id, last) in &self.tails {
            ways.push(format!("({{fact}}._partition_id = {} AND {FIRST_BLOCK} > {last})", string_literal(id)));
        }
        ways.extend(self.others.map(|last| format!("{FIRST_BLOCK} > {last}")));
        Some(ways.join(" OR "))
    }
}

fn last_block(parts: &[Part]) -> Option<i64> {
    parts.iter().map(|part| part.name.max_block).max()
}

/// The first block of a partition that no recorded part has.
fn first_missing(record: &SourceRecord, seen: &SourceSeen, id: &str) -> Option<i64> {
    let recorded = record.parts.get(id).map_or(&[][..], Vec::as_slice);
    let missing = |part: &&Part| part.rows > 0 && !recorded.iter().any(|known| known.overlaps(part));
    seen.parts.get(id).into_iter().flatten().filter(missing).map(|part| part.name.min_block).min()
}
