//! Whether a view's runs still hold exactly what its sources hold. Pure: a record of what was built against what one
//! look at the server shows.
//!
//! The rule, per source partition, for recorded parts `R` and an active part `P` of blocks `[a, b]` and mutation `M`:
//! `P` holds the same rows as the recorded parts within `[a, b]` when these reach from `a` to `b`, none of them sticks
//! out, their rows add up to those of `P`, and each of them either has mutation `M` or was inserted after `M`
//! (`min_block > M`). Every recorded part must lie in exactly one active part, and nothing else may be active.
//!
//! ```text
//! recorded            2020_1_3_1      2020_4_4_0                10 + 5 rows
//! seen, covered       2020_1_4_2                                15 rows: a part merge of just those
//! seen, not covered   2020_1_5_2                                reaches further: block 5 was merged in
//! seen, not covered   2020_1_3_1_9    2020_4_4_0_9              mutation 9 rewrote them
//! ```
//!
//! Sums of rows and greatest blocks alone would not do: a mutation that has reached only some parts changes neither,
//! and a merge may drop as many rows (expired, deleted, replaced ones) as it takes in from a new block. `data_version`
//! is no help, as it is the block number for parts without mutations.
//!
//! All this rests on block numbers that name a block once and for all. A table that is loaded anew (a restart, DETACH
//! and ATTACH) counts on from the greatest number on its disks, so that those of dropped parts come again. A restart is
//! noticed by the time of the server's start, a part under the name of another by the time at which it was written; then
//! only equal contents count, and numbers below that of a part that has been there all the time.
//! Not noticed is a table that was emptied, detached, attached and filled again with as many rows per block *and* whose
//! new parts have all been merged into parts of other names, without a restart and within one look and the next.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::part::Part;
use crate::matching::schema::TableName;

/// Active parts by partition id.
pub type Parts = BTreeMap<String, Vec<Part>>;

/// A column that a view reads, as far as it can change what the view holds without any part changing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedColumn {
    pub name: String,
    #[serde(rename = "type")]
    pub type_name: String,
    /// `DEFAULT x + 1` and the like: parts written before the column existed are read through it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub default: String,
}

/// What identifies a source table beside its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uuid: String,
    pub engine: String,
    /// When the table's definition was last written, unix seconds; it moves with every ALTER.
    pub altered_at: u64,
    /// Part merges may change values and yet keep the number of rows: column TTLs, TTL .. GROUP BY.
    pub ttl_rewrites: bool,
    /// The columns that the view reads, by name.
    pub columns: Vec<UsedColumn>,
}

/// One source table of a view as it was when its run was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    pub table: TableName,
    pub identity: Identity,
    /// When the server was started that showed these parts, unix seconds: block numbers may be given out anew after a
    /// restart. `None`: not known well enough to tell it from an earlier or later start.
    pub server_started_at: Option<u64>,
    pub parts: Parts,
}

impl SourceRecord {
    pub fn rows(&self) -> u64 {
        self.parts.values().flatten().map(|part| part.rows).sum()
    }

    /// Contents that were compared prove more than names: takes over the parts as they are now where they are known to
    /// hold the recorded rows, so that later looks need not compare contents again.
    pub fn bring_forward(&mut self, seen: &SourceSeen) {
        let (rule, changes) = judge(self, seen);
        if changes.is_empty() {
            *self = seen.record(self.table.clone());
            return;
        }
        // Where numbers were given out anew, the time of the record still matters to the partitions that changed.
        if rule.numbers_unique_to.is_some() {
            return;
        }
        for (id, recorded) in &mut self.parts {
            let is_known = match changes.get(id) {
                None | Some(Change::Appended { .. }) => true,
                Some(_) => false,
            };
            if is_known {
                let now = seen.parts.get(id).into_iter().flatten();
                *recorded = now.filter(|part| recorded.iter().any(|known| known.overlaps(part))).cloned().collect();
            }
        }
    }
}

/// One source table as a look shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSeen {
    pub identity: Identity,
    pub server_started_at: Option<u64>,
    /// An ALTER that changes what columns mean (RENAME, DROP, MODIFY) has not reached all parts.
    pub alter_pending: bool,
    pub parts: Arc<Parts>,
}

impl SourceSeen {
    /// The record of runs that hold exactly these parts.
    pub fn record(&self, table: TableName) -> SourceRecord {
        SourceRecord {
            table,
            identity: self.identity.clone(),
            server_started_at: self.server_started_at,
            parts: Parts::clone(&self.parts),
        }
    }
}

/// What happened to a partition since its run was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Rows came in parts of their own: inserted, attached or moved here.
    Appended { rows: u64 },
    /// A part merge mixed recorded blocks with others.
    Straddled { part: String },
    /// A mutation (ALTER UPDATE or DELETE, lightweight DELETE, MATERIALIZE, ..) rewrote a part.
    Mutated { part: String },
    /// A part merge dropped or added rows: TTL, deleted rows, a Replacing or Collapsing engine.
    RowsChanged { part: String },
    /// A recorded part is in no active part: dropped, detached, replaced, truncated.
    Gone { part: String },
    /// A lightweight UPDATE lies over the partition as patch parts.
    Patched,
    /// The engine or a TTL may change values in part merges, and a merge took place.
    Rewritten { part: String },
    /// Block numbers may have been given out anew (restart, DETACH and ATTACH), and nothing proves that they were not.
    Unproven { part: String },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Appended { rows } => write!(f, "{rows} rows were added"),
            Change::Straddled { part } => write!(f, "part {part} mixes covered with new blocks"),
            Change::Mutated { part } => write!(f, "a mutation rewrote part {part}"),
            Change::RowsChanged { part } => write!(f, "a part merge changed the number of rows in {part}"),
            Change::Gone { part } => write!(f, "part {part} was dropped, detached or replaced"),
            Change::Patched => write!(f, "a lightweight UPDATE left patch parts"),
            Change::Rewritten { part } => write!(f, "a part merge may have changed values in {part}"),
            Change::Unproven { part } => {
                write!(
                    f,
                    "the table was loaded anew since (restart or ATTACH), and part {part} cannot be proved to hold the \
                     same rows"
                )
            }
        }
    }
}

/// Why a view does not answer at the moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Staleness {
    /// Nothing was built for this definition of the view.
    NeverBuilt,
    SourceMissing {
        table: String,
    },
    /// DROP and CREATE, EXCHANGE or RENAME put another table under the name.
    SourceReplaced {
        table: String,
    },
    ColumnChanged {
        table: String,
        column: String,
    },
    AlterPending {
        table: String,
    },
    /// The database keeps no UUIDs (engine Ordinary), so that DROP and CREATE cannot be noticed.
    NoUuid {
        table: String,
    },
    /// The engine keeps no parts, so that nothing can be proved.
    NoParts {
        table: String,
        engine: String,
    },
    Partition {
        table: String,
        partition: String,
        change: Change,
    },
    /// Rows of a run are missing in the view's own storage table.
    StorageDamaged {
        run: u64,
        rows_expected: u64,
        rows_found: u64,
    },
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Staleness::NeverBuilt => write!(f, "never built"),
            Staleness::SourceMissing { table } => write!(f, "table {table} does not exist"),
            Staleness::SourceReplaced { table } => write!(f, "{table} is another table than when the view was built"),
            Staleness::ColumnChanged { table, column } => write!(f, "column {column} of {table} was altered"),
            Staleness::AlterPending { table } => write!(f, "an ALTER of {table} has not reached all its parts"),
            Staleness::NoUuid { table } => write!(f, "the database of {table} gives its tables no UUIDs"),
            Staleness::NoParts { table, engine } => write!(f, "engine {engine} of {table} keeps no parts"),
            Staleness::Partition { table, partition, change } => {
                write!(f, "partition {partition} of {table}: {change}")
            }
            Staleness::StorageDamaged { run, rows_expected, rows_found } => {
                write!(f, "run {run} has {rows_found} of {rows_expected} rows in the view's storage table")
            }
        }
    }
}

/// Engines whose part merges, as long as the number of rows stays, leave every row as it was. Others (Summing,
/// Aggregating, Coalescing, Graphite) may rewrite single rows.
const ENGINES_KEEPING_ROWS: [&str; 4] =
    ["MergeTree", "ReplacingMergeTree", "CollapsingMergeTree", "VersionedCollapsingMergeTree"];

/// Numbers of a restart must differ by more than this, as both are whole seconds of a computed difference.
const START_TOLERANCE_SECONDS: u64 = 1;

/// Engines of these families number blocks in Keeper, per partition, and may commit a lower number after a higher one.
const NUMBERED_IN_KEEPER: [&str; 2] = ["Replicated", "Shared"];

/// Whether the table as a whole is still the one that was recorded; nothing about its parts.
pub fn identity_change(record: &SourceRecord, seen: &SourceSeen) -> Option<Staleness> {
    let table = || record.table.to_string();
    let (was, is) = (&record.identity, &seen.identity);
    if was.uuid != is.uuid || was.engine != is.engine {
        return Some(Staleness::SourceReplaced { table: table() });
    }
    if seen.alter_pending {
        return Some(Staleness::AlterPending { table: table() });
    }
    let changed = was.columns.iter().find(|column| !is.columns.contains(column));
    changed.map(|column| Staleness::ColumnChanged { table: table(), column: column.name.clone() })
}

/// The partitions that changed, in the order of their ids; empty: the view covers the table. Presumes that
/// [`identity_change`] found none.
pub fn partition_changes(record: &SourceRecord, seen: &SourceSeen) -> BTreeMap<String, Change> {
    judge(record, seen).1
}

/// As [`partition_changes`], with the rule by which it was judged.
pub(super) fn judge(record: &SourceRecord, seen: &SourceSeen) -> (Rule, BTreeMap<String, Change>) {
    let mut rule = Rule::new(record, seen);
    let none = Vec::new();
    let changes = |rule: &Rule| -> BTreeMap<String, Change> {
        let partitions = record.parts.keys().chain(seen.parts.keys());
        partitions
            .filter_map(|id| {
                let (recorded, active) = (record.parts.get(id).unwrap_or(&none), seen.parts.get(id).unwrap_or(&none));
                Some((id.clone(), rule.change(recorded, active)?))
            })
            .collect()
    };
    let by_names = changes(&rule);
    let renumbered = by_names.values().any(|change| matches!(change, Change::Unproven { .. }));
    if !renumbered || rule.numbers_unique_to.is_some() {
        return (rule, by_names);
    }
    // One part that took another's name casts doubt on the numbers of all.
    rule.numbers_unique_to = Some(greatest_witness(record, seen));
    let changes = changes(&rule);
    (rule, changes)
}

/// The first reason for which the recorded source is not what the look shows.
pub fn source_change(record: &SourceRecord, seen: &SourceSeen) -> Option<Staleness> {
    identity_change(record, seen).or_else(|| {
        let (partition, change) = partition_changes(record, seen).into_iter().next()?;
        Some(Staleness::Partition { table: record.table.to_string(), partition, change })
    })
}

/// How much of a part's name proves that its rows are known.
pub(super) struct Rule {
    /// Part merges may rewrite rows: only parts with the recorded names count.
    same_names_only: bool,
    /// Block numbers are kept in Keeper. Then they are unique whatever happens to a server, and a part's time is that of
    /// one replica; but a number that is missing between recorded parts may still be committed later.
    in_keeper: bool,
    /// After a restart, or where a part took another's name: blocks up to this number cannot have been given out anew, since a part with a greater number
    /// has been there all the time. `None`: all numbers are unique.
    numbers_unique_to: Option<i64>,
}

impl Rule {
    pub(super) fn is_numbered_in_keeper(&self) -> bool {
        self.in_keeper
    }

    fn new(record: &SourceRecord, seen: &SourceSeen) -> Self {
        let (was, is) = (&record.identity, &seen.identity);
        let family = NUMBERED_IN_KEEPER.iter().find_map(|family| is.engine.strip_prefix(family));
        let engine = family.unwrap_or(&is.engine);
        // A TTL may have come and gone between two ALTERs, and merges in between may have applied it.
        let ttl = was.ttl_rewrites || is.ttl_rewrites || was.altered_at != is.altered_at;
        let restarted = match (record.server_started_at, seen.server_started_at) {
            (Some(was), Some(is)) => is.abs_diff(was) > START_TOLERANCE_SECONDS,
            _ => true,
        };
        Rule {
            same_names_only: ttl || !ENGINES_KEEPING_ROWS.contains(&engine),
            in_keeper: family.is_some(),
            numbers_unique_to: (restarted && family.is_none()).then(|| greatest_witness(record, seen)),
        }
    }

    /// What happened to some parts of one partition: all of it, or all parts within a stretch of blocks that no part crosses.
    pub(super) fn change(&self, recorded: &[Part], active: &[Part]) -> Option<Change> {
        if active.iter().any(|part| part.name.patch.is_some()) {
            return Some(Change::Patched);
        }
        // Parts without rows are left by DROP PARTITION for a while and hold nothing.
        let active: Vec<&Part> = active.iter().filter(|part| part.rows > 0).collect();
        let lost = recorded.iter().find(|part| part.rows > 0 && !active.iter().any(|seen| part.lies_in(seen)));
        if let Some(lost) = lost {
            let straddling = active.iter().find(|seen| seen.overlaps(lost));
            return Some(match straddling {
                Some(seen) => Change::Straddled { part: seen.name.to_string() },
                None => Change::Gone { part: lost.name.to_string() },
            });
        }
        let mut appended_rows = 0;
        for part in active {
            let inside: Vec<&Part> = recorded.iter().filter(|known| known.overlaps(part)).collect();
            if inside.is_empty() {
                appended_rows += part.rows;
            } else if let Some(change) = self.part_change(part, &inside) {
                return Some(change);
            }
        }
        (appended_rows > 0).then_some(Change::Appended { rows: appended_rows })
    }

    /// `inside`: the recorded parts that have a block in common with `part`; at least one.
    fn part_change(&self, part: &Part, inside: &[&Part]) -> Option<Change> {
        let name = || part.name.to_string();
        if let [known] = inside
            && known.lies_in(part)
            && part.lies_in(known)
            && known.rows == part.rows
            && !known.hash.is_empty()
            && known.hash == part.hash
        {
            return None; // The very same files, whatever a mutation that had nothing to do called them.
        }
        if inside.iter().any(|known| !known.lies_in(part)) || !self.tiles(part, inside) {
            return Some(Change::Straddled { part: name() });
        }
        let mutation = part.name.mutation;
        let untouched = |known: &&Part| {
            known.name.mutation == mutation || (known.name.mutation < mutation && known.name.min_block > mutation)
        };
        if !inside.iter().all(untouched) {
            return Some(Change::Mutated { part: name() });
        }
        if inside.iter().map(|known| known.rows).sum::<u64>() != part.rows {
            return Some(Change::RowsChanged { part: name() });
        }
        let same_name = inside.len() == 1 && inside[0].name == part.name;
        if self.same_names_only && !same_name {
            return Some(Change::Rewritten { part: name() });
        }
        if same_name && !self.in_keeper && !inside[0].is_still(part) {
            return Some(Change::Unproven { part: name() });
        }
        match self.numbers_unique_to {
            Some(limit) if part.name.max_block > limit => Some(Change::Unproven { part: name() }),
            _ => None,
        }
    }

    /// Whether the recorded parts reach from the part's first block to its last.
    fn tiles(&self, part: &Part, inside: &[&Part]) -> bool {
        let mut blocks: Vec<(i64, i64)> =
            inside.iter().map(|known| (known.name.min_block, known.name.max_block)).collect();
        blocks.sort_unstable();
        let gap = blocks.windows(2).any(|pair| pair[0].1 + 1 < pair[1].0);
        let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return false };
        first.0 == part.name.min_block && last.1 == part.name.max_block && !(gap && self.in_keeper)
    }
}

/// The greatest block number of an active part that is the recorded one by name and contents.
fn greatest_witness(record: &SourceRecord, seen: &SourceSeen) -> i64 {
    let recorded: std::collections::HashMap<&super::part::PartName, &str> =
        record.parts.values().flatten().map(|part| (&part.name, part.hash.as_str())).collect();
    let same = |part: &&Part| !part.hash.is_empty() && recorded.get(&part.name).is_some_and(|hash| *hash == part.hash);
    seen.parts.values().flatten().filter(same).map(|part| part.name.max_block).max().unwrap_or(i64::MIN)
}
