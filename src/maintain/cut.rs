//! Which rows of a fact table the runs of a view hold while the table has gone on, and the condition that selects the
//! others. Pure.
//!
//! A partition is either read raw as a whole, or its runs hold the blocks up to a number and what is missing are the
//! parts that begin above it. That number is the end of the last stretch of blocks (see [`plan`](super::plan)) before which
//! all is clean; the partition's rows in runs of later stretches do not count:
//!
//! ```text
//! recorded   2020_1_3_1  2020_4_4_0  2020_6_6_0      runs: 1-4 in run 70, 6-6 in run 71
//! seen       2020_1_4_2              2020_6_8_1      2020 up to block 4 is in run 70; raw: 2020_6_8_1
//! recorded   2021_2_2_0
//! seen       2021_2_2_0_5                            mutated: raw as a whole
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

use super::coverage::{self, Change, Parts, Rule, SourceRecord, SourceSeen, Staleness};
use super::manifest::Body;
use super::part::Part;
use super::plan::{Stretch, stretches};
use crate::sql::render::string_literal;

/// The second field of a part's name, its first block. Functions of a text that give a text are called once for each part;
/// one that gives an array would be called for each row, and took a third of the time of the raw side.
const FIRST_BLOCK: &str = "toInt64(extract({fact}._part, '_([0-9]+)_'))";

/// A condition names at most this many partitions: the text of a query has a limit.
const PARTITIONS_MAX: usize = 500;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Partitions of which no row of the runs counts; they are read raw as a whole.
    pub whole: BTreeSet<String>,
    /// Rows of other partitions that do not count, as (run, partition).
    pub dead: Vec<(u64, String)>,
    /// The last block that the runs hold of some partitions.
    tails: BTreeMap<String, i64>,
    /// Of the partitions that are left the runs hold all blocks up to this one. `None`: these must stay as they are.
    others: Option<i64>,
    /// Rows that were missing at the time of the look.
    pub rows: u64,
    /// Rows of the fact table that the runs held.
    pub rows_held: u64,
    /// The first change that was found.
    pub because: Staleness,
}

impl Cut {
    /// `None` where nothing is missing. Presumes that the table as a whole is still the one recorded
    /// ([`coverage::identity_change`]).
    pub fn of(body: &Body, seen: &SourceSeen) -> Option<Self> {
        let record = body.sources.first()?;
        let (rule, changes) = coverage::judge(record, seen);
        let (partition, change) = changes.iter().next()?;
        let table = record.table.to_string();
        let because = Staleness::Partition { table, partition: partition.clone(), change: change.clone() };
        let mut cut = Cut {
            whole: BTreeSet::new(),
            dead: Vec::new(),
            tails: BTreeMap::new(),
            others: None,
            rows: 0,
            rows_held: 0,
            because,
        };
        // By partition, the last block that is held.
        let mut held: BTreeMap<&str, i64> = BTreeMap::new();
        let ids: BTreeSet<&String> = record.parts.keys().chain(seen.parts.keys()).collect();
        for id in ids {
            let (recorded, active) = (parts_of(&record.parts, id), parts_of(&seen.parts, id));
            let (last, runs_after) = match changes.get(id) {
                None => (last_block(recorded), Vec::new()),
                Some(Change::Patched) => (None, Vec::new()),
                Some(_) => clean_blocks(&rule, body, id, recorded, active),
            };
            let Some(last) = last else {
                if changes.contains_key(id) {
                    cut.whole.insert(id.clone());
                    cut.rows += active.iter().map(|part| part.rows).sum::<u64>();
                }
                continue;
            };
            held.insert(id, last);
            cut.rows += active.iter().filter(|part| part.name.min_block > last).map(|part| part.rows).sum::<u64>();
            cut.rows_held +=
                recorded.iter().filter(|part| part.name.max_block <= last).map(|part| part.rows).sum::<u64>();
            if !runs_after.is_empty() || last_block(recorded).is_some_and(|recorded| recorded > last) {
                cut.tails.insert(id.clone(), last);
            }
            cut.dead.extend(runs_after.into_iter().map(|run| (run, id.clone())));
        }
        if !rule.is_numbered_in_keeper() {
            // Of every partition, as the condition does not leave out those that have a number of their own.
            cut.others = held.values().copied().max();
        }
        for (id, last) in held {
            let is_missing = |part: &Part| part.rows > 0 && part.name.min_block > last;
            let is_selected = |part: &Part| cut.others.is_some_and(|others| part.name.min_block > others);
            if parts_of(&seen.parts, id).iter().any(|part| is_missing(part) && !is_selected(part)) {
                cut.tails.insert(id.to_string(), last);
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
        let (rule, changes) = coverage::judge(record, seen);
        for (id, change) in changes.into_iter().filter(|(id, _)| !self.whole.contains(id)) {
            let (recorded, active) = (parts_of(&record.parts, &id), parts_of(&seen.parts, &id));
            let is_patched = change == Change::Patched;
            let limit = self.tails.get(&id).copied().or(self.others).filter(|_| !is_patched);
            let left = limit.map_or(Some(change), |limit| {
                let recorded: Vec<Part> =
                    recorded.iter().filter(|part| part.name.min_block <= limit).cloned().collect();
                let active: Vec<Part> = active.iter().filter(|part| part.name.min_block <= limit).cloned().collect();
                rule.change(&recorded, &active)
            });
            if let Some(change) = left {
                return Err(Staleness::Partition { table: record.table.to_string(), partition: id, change });
            }
        }
        Ok(())
    }

    /// The condition on the fact table that selects what the runs lack; `{fact}` stands for the table's qualifier.
    /// `None`: it would name too many partitions.
    pub fn condition(&self) -> Option<String> {
        if self.whole.len() + self.tails.len() > PARTITIONS_MAX {
            return None;
        }
        let mut ways = Vec::new();
        if !self.whole.is_empty() {
            let list: Vec<String> = self.whole.iter().map(|id| string_literal(id)).collect();
            ways.push(format!("{{fact}}._partition_id IN ({})", list.join(", ")));
        }
        for (id, last) in self.tails.iter().filter(|(_, last)| self.others != Some(**last)) {
            ways.push(format!("({{fact}}._partition_id = {} AND {FIRST_BLOCK} > {last})", string_literal(id)));
        }
        ways.extend(self.others.map(|last| format!("{FIRST_BLOCK} > {last}")));
        Some(ways.join(" OR "))
    }
}

/// The last block up to which a partition's recorded parts are still there, and the runs that hold later ones.
fn clean_blocks(rule: &Rule, body: &Body, id: &str, recorded: &[Part], active: &[Part]) -> (Option<i64>, Vec<u64>) {
    let stretches = stretches(&body.runs, id, recorded, active);
    let is_clean = |stretch: &&Stretch| rule.change(&stretch.recorded, &stretch.active).is_none();
    let clean = stretches.iter().take_while(is_clean).count();
    let (clean, after) = stretches.split_at(clean);
    let last = clean.iter().filter_map(|stretch| last_block(&stretch.recorded)).max();
    (last, after.iter().flat_map(|stretch| stretch.runs.iter().copied()).collect())
}

fn parts_of<'a>(parts: &'a Parts, id: &str) -> &'a [Part] {
    parts.get(id).map_or(&[], Vec::as_slice)
}

fn last_block(parts: &[Part]) -> Option<i64> {
    parts.iter().map(|part| part.name.max_block).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintain::coverage::Identity;
    use crate::maintain::manifest::{Blocks, Run};
    use crate::matching::schema::TableName;

    fn parts(names: &[&str]) -> Parts {
        let mut parts = Parts::new();
        for name in names {
            let part = Part::parse(name, 10, "", 1).unwrap();
            parts.entry(part.name.partition.clone()).or_default().push(part);
        }
        parts
    }

    fn seen(engine: &str, names: &[&str]) -> SourceSeen {
        let identity = Identity {
            uuid: "u".into(),
            engine: engine.into(),
            altered_at: 1,
            ttl_rewrites: false,
            columns: Vec::new(),
        };
        SourceSeen { identity, server_started_at: Some(50), alter_pending: false, parts: parts(names).into() }
    }

    /// Runs of one block each, and one that holds what has fewer than 10 blocks.
    fn body(engine: &str, names: &[&str]) -> Body {
        let record = seen(engine, names).record(TableName::new("db", "t"));
        let mut base = Run { id: 1, rows: 1, partitions: BTreeMap::new(), dead: Vec::new() };
        let mut runs = Vec::new();
        for (id, parts) in &record.parts {
            for part in parts {
                let blocks = Blocks(part.name.min_block, part.name.max_block);
                if part.name.max_block < 10 {
                    base.partitions.entry(id.clone()).and_modify(|known| *known = known.hull(blocks)).or_insert(blocks);
                } else {
                    let partitions = BTreeMap::from([(id.clone(), blocks)]);
                    runs.push(Run { id: part.name.min_block as u64, rows: 1, partitions, dead: Vec::new() });
                }
            }
        }
        runs.push(base);
        Body { runs, sources: vec![record], retired: Vec::new() }
    }

    #[test]
    fn conditions_select_what_runs_lack() {
        let of = |engine: &str, recorded: &[&str], now: &[&str]| {
            let cut = Cut::of(&body(engine, recorded), &seen(engine, now)).unwrap();
            let dead: Vec<String> = cut.dead.iter().map(|(run, id)| format!("{run} in {id}, ")).collect();
            format!("{}{} rows: {}", dead.concat(), cut.rows, cut.condition().unwrap().replace(FIRST_BLOCK, "first"))
        };
        let recorded = ["a_1_2_1", "b_3_3_0", "b_11_11_0", "b_12_12_0"];
        let with = |engine: &str, more: &[&str]| of(engine, &recorded, &[&recorded[..], more].concat());
        assert_eq!(with("MergeTree", &["b_13_13_0"]), "10 rows: first > 12");
        assert_eq!(with("MergeTree", &["c_13_13_0"]), "10 rows: {fact}._partition_id IN ('c') OR first > 12");
        assert_eq!(
            with("MergeTree", &["a_10_10_0", "a_13_13_0"]),
            "20 rows: ({fact}._partition_id = 'a' AND first > 2) OR first > 12",
            "block 10 was missed when the others were recorded"
        );
        assert_eq!(
            with("ReplicatedMergeTree", &["b_13_13_0"]),
            "10 rows: ({fact}._partition_id = 'b' AND first > 12)",
            "numbers of different partitions cannot be compared, so the others must stay as they are"
        );
        assert_eq!(
            of("MergeTree", &recorded, &["a_1_2_1", "b_3_3_0", "b_11_11_0", "b_12_14_1"]),
            "12 in b, 10 rows: first > 11",
            "a part merge mixed block 12 with new ones, and blocks 3 and 11 are held"
        );
        assert_eq!(
            of("MergeTree", &recorded, &["a_1_2_1", "b_3_3_0", "b_12_12_0"]),
            "11 in b, 12 in b, 10 rows: first > 3",
            "part 11 was dropped"
        );
        assert_eq!(
            of("MergeTree", &recorded, &["a_1_2_1_13", "b_3_3_0", "b_11_11_0", "b_12_12_0"]),
            "10 rows: {fact}._partition_id IN ('a') OR first > 12",
            "a mutation of partition a"
        );
        assert_eq!(of("MergeTree", &recorded, &["a_1_2_1"]), "0 rows: {fact}._partition_id IN ('b') OR first > 2");
        assert_eq!(Cut::of(&body("MergeTree", &recorded), &seen("MergeTree", &recorded)), None);
    }

    /// Whether the condition selects a part, and whether the runs that count hold it.
    fn read(cut: &Cut, body: &Body, part: &Part) -> (bool, bool) {
        let (id, first) = (&part.name.partition, part.name.min_block);
        let is_whole = cut.whole.contains(id);
        let after = |last: Option<&i64>| last.is_some_and(|last| first > *last);
        let is_selected = is_whole || after(cut.tails.get(id)) || after(cut.others.as_ref());
        let is_recorded = |recorded: &&Part| recorded.name.partition == *id && recorded.overlaps(part);
        let recorded = body.sources[0].parts.values().flatten().find(is_recorded);
        let holds = |run: &Run, block: i64| run.partitions.get(id).is_some_and(|b| (b.0..=b.1).contains(&block));
        let is_dead = |run: &Run| cut.dead.contains(&(run.id, id.clone()));
        let is_held = recorded
            .is_some_and(|recorded| body.runs.iter().any(|run| holds(run, recorded.name.min_block) && !is_dead(run)));
        (is_selected, is_held && !is_whole)
    }

    #[test]
    fn every_row_is_read_once() {
        // All that may have become of three partitions since they were recorded.
        let recorded = ["a_1_2_1", "a_12_12_0", "b_3_3_0", "b_11_11_0", "b_14_14_0", "c_4_4_0"];
        let a = [&["a_1_2_1", "a_12_12_0"][..], &["a_1_2_1", "a_12_16_1"], &["a_1_12_2"], &["a_1_2_1"], &[]];
        let b = [
            &["b_3_3_0", "b_11_11_0", "b_14_14_0"][..],
            &["b_3_3_0", "b_11_11_0", "b_14_19_1"],
            &["b_3_3_0", "b_11_18_1"],
            &["b_3_11_1", "b_14_14_0", "b_20_20_0"],
            &["b_3_3_0_17", "b_11_11_0_17", "b_14_14_0_17"],
        ];
        let c = [&["c_4_4_0"][..], &["c_4_4_0", "c_13_13_0"], &["c_4_4_0", "c_21_21_0", "d_22_22_0"], &["c_4_13_1"]];
        for engine in ["MergeTree", "ReplicatedMergeTree"] {
            let body = body(engine, &recorded);
            let mut histories: Vec<Vec<&'static str>> = vec![Vec::new()];
            for partition in [&a[..], &b, &c] {
                let with = |before: &Vec<&'static str>| partition.iter().map(|now| [before, *now].concat()).collect();
                histories = histories.iter().flat_map::<Vec<_>, _>(with).collect();
            }
            for now in histories {
                let seen = seen(engine, &now);
                let Some(cut) = Cut::of(&body, &seen) else { continue };
                for part in seen.parts.values().flatten() {
                    let (is_selected, is_held) = read(&cut, &body, part);
                    assert!(is_selected != is_held, "{engine} {now:?}: {} {cut:?}", part.name);
                }
            }
        }
    }

    #[test]
    fn a_cut_holds_while_only_selected_rows_change() {
        let recorded = ["a_1_2_1", "b_3_3_0", "b_11_11_0"];
        let body = body("MergeTree", &recorded);
        let cut = Cut::of(&body, &seen("MergeTree", &["a_1_2_1", "b_3_3_0", "b_11_13_1"])).unwrap();
        let holds = |now: &[&str]| cut.holds(&body.sources[0], &seen("MergeTree", now)).is_ok();
        assert!(holds(&["a_1_2_1", "b_3_3_0", "b_11_13_1"]));
        assert!(holds(&["a_1_2_2", "b_3_3_0", "b_11_20_2"]), "merges on both sides of the cut");
        assert!(holds(&["a_1_2_1", "a_21_21_0", "b_3_3_0", "c_22_22_0"]), "new blocks anywhere, and raw ones gone");
        assert!(!holds(&["a_1_2_1", "b_3_20_2"]), "a merge across the cut");
        assert!(!holds(&["a_1_2_1_21", "b_3_3_0", "b_11_13_1"]), "a mutation");
        assert!(!holds(&["b_3_3_0", "b_11_13_1"]), "a partition that is gone");
        assert!(!holds(&["a_1_2_1", "a_2_2_0", "b_3_3_0"]), "a block with an old number");
    }
}
