//! What to do so that a view's runs hold what its sources hold. Pure: a manifest and what is seen -> steps, which are
//! printed, tested, then applied.
//!
//! Within a partition, the blocks that runs, recorded parts and active parts have in common tie them together; what is
//! tied together is a *stretch*. Nothing crosses the border of one, so each is judged by itself:
//!
//! ```text
//! recorded     1-3     4-4               runs: 1-3 in run 70, 4-5 in run 71
//! active       1-3     4-6      7-7
//! stretches   [1-3]   [4-6]    [7-7]
//!             clean   straddled  new     -> read 4-6 anew and 7-7, bury the partition's rows in run 71
//! ```
//! So when ClickHouse merges new blocks with blocks of a short while ago, only these are read again, not the partition.
//! Whatever is not clean when a manifest is committed is forgotten by it: a manifest never records more than was proved.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::coverage::{self, Change, Parts, Rule, SourceSeen, Staleness};
use super::manifest::{Blocks, Body, Manifest, Run};
use super::part::{Part, PartName};

/// Partitions of which more rows are to be read are built chunk by chunk within the memory budget, like a whole view.
pub const READ_ROWS_MAX: u64 = 8_000_000;

/// Runs merged into one: the fan-in of the log-structured tree.
const FAN_IN: usize = 8;

/// More runs than this are not merged at once.
const FAN_IN_MAX: usize = 32;

/// The newest runs are left alone for a while: their blocks are those that part merges mix with new ones, and a run that
/// holds fewer blocks has fewer to be read again.
const RUNS_FRESH: usize = 4;

/// Runs of up to this many rows are of one level; each further level holds eight times as many.
const LEVEL_ROWS: u64 = 4096;

/// With more dead (run, partition) pairs than this in its condition, a query gets slow to plan.
const DEAD_MAX: usize = 32;

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// All partitions are built anew, the joined tables included.
    BuildAll { why: Staleness },
    /// One partition is built anew.
    Build { partition: String, rows: u64, why: Change },
    /// A stretch is read into a new run; what runs hold of it is buried.
    Read { partition: String, parts: Vec<Part>, why: Change },
    /// The rows of a stretch are gone, and so are those in runs.
    Forget { partition: String, why: Change },
    /// Parts are recorded under the names that contents have proved to mean the same rows.
    Rename,
    /// Nothing can be proved at present, whatever is built.
    Wait { partition: String, why: Change },
    /// Nothing can be built at present.
    Blocked { why: Staleness },
    /// Several runs are merged into one.
    Compact { runs: Vec<u64> },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::BuildAll { why } => write!(f, "build all: {why}"),
            Step::Build { partition, rows, why } => write!(f, "build partition {partition}, {rows} rows: {why}"),
            Step::Read { partition, parts, why } => {
                let names: Vec<String> = parts.iter().map(|part| part.name.to_string()).collect();
                write!(f, "read {} of partition {partition}: {why}", names.join(", "))
            }
            Step::Forget { partition, why } => write!(f, "forget blocks of partition {partition}: {why}"),
            Step::Rename => write!(f, "record parts under their new names"),
            Step::Wait { partition, why } => write!(f, "wait for partition {partition}: {why}"),
            Step::Blocked { why } => write!(f, "wait: {why}"),
            Step::Compact { runs } => write!(f, "merge {} runs", runs.len()),
        }
    }
}

/// Steps, and what stays while they are taken.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Parts that the live runs hold exactly, as they are called now.
    pub keep: Parts,
    /// Rows of runs that cease to count with the next commit, as (run, partition).
    pub bury: Vec<(u64, String)>,
}

impl Plan {
    pub fn blocked(why: Staleness) -> Self {
        Self { steps: vec![Step::Blocked { why }], ..Self::default() }
    }

    /// Whether there is a step that can be taken now.
    pub fn can_advance(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Wait { .. } | Step::Blocked { .. }))
    }

    /// Whether whole partitions are to be read.
    pub fn builds(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::BuildAll { .. } | Step::Build { .. }))
    }

    /// When the oldest part that is to be read was written, unix seconds.
    pub fn unread_since(&self) -> Option<u64> {
        let parts = |step: &Step| match step {
            Step::Read { parts, .. } => parts.iter().map(|part| part.written_at).min(),
            _ => None,
        };
        self.steps.iter().filter_map(parts).min()
    }

    /// Rows of the fact table that no run holds, as far as they are going to be read.
    pub fn rows_behind(&self) -> u64 {
        let rows = |step: &Step| match step {
            Step::Read { parts, .. } => parts.iter().map(|part| part.rows).sum(),
            Step::Build { rows, .. } => *rows,
            _ => 0,
        };
        self.steps.iter().map(rows).sum()
    }
}

/// What is to be done about a view.
/// `damage`: rows of its runs that somebody took away.
pub fn plan(manifest: Option<&Manifest>, seen: &[SourceSeen], damage: Option<Staleness>) -> Plan {
    let whole = |why| Plan { steps: vec![Step::BuildAll { why }], ..Plan::default() };
    let Some(manifest) = manifest.filter(|manifest| manifest.body.sources.len() == seen.len()) else {
        return whole(Staleness::NeverBuilt);
    };
    if let Some(why) = damage {
        return whole(why);
    }
    let sources = || manifest.body.sources.iter().zip(seen);
    match sources().find_map(|(record, seen)| coverage::identity_change(record, seen)) {
        Some(why @ Staleness::AlterPending { .. }) => {
            return Plan::blocked(why);
        }
        Some(why) => return whole(why),
        None => {}
    }
    // Joined rows went into every partition.
    if let Some(why) = sources().skip(1).find_map(|(record, seen)| coverage::source_change(record, seen)) {
        return whole(why);
    }
    let Some((record, fact)) = sources().next() else { return Plan::default() };
    let (rule, changes) = coverage::judge(record, fact);
    let none = Vec::new();
    let mut plan = Plan::default();
    for (id, active) in &*fact.parts {
        if !changes.contains_key(id) {
            plan.keep.insert(id.clone(), forward(record.parts.get(id).unwrap_or(&none), active));
        }
    }
    for (id, change) in changes {
        let recorded = record.parts.get(&id).unwrap_or(&none);
        let active = fact.parts.get(&id).unwrap_or(&none);
        if change == Change::Patched {
            plan.bury_all(&manifest.body, &id);
            plan.steps.push(Step::Wait { partition: id, why: change });
        } else {
            plan.partition(&manifest.body, &rule, &id, recorded, active);
        }
    }
    if plan.steps.is_empty() && manifest.is_ahead {
        plan.steps.push(Step::Rename);
    }
    plan
}

impl Plan {
    /// The steps for one partition, in which something changed.
    fn partition(&mut self, body: &Body, rule: &Rule, id: &str, recorded: &[Part], active: &[Part]) {
        let mut reads = Vec::new();
        for stretch in stretches(&body.runs, id, recorded, active) {
            let Some(why) = rule.change(&stretch.recorded, &stretch.active) else {
                let kept = forward(&stretch.recorded, &stretch.active);
                self.keep.entry(id.to_string()).or_default().extend(kept);
                continue;
            };
            self.bury.extend(stretch.runs.iter().map(|run| (*run, id.to_string())));
            let partition = id.to_string();
            if stretch.active.is_empty() {
                self.steps.push(Step::Forget { partition, why });
            } else {
                reads.push(Step::Read { partition, parts: stretch.active, why });
            }
        }
        let rows = |step: &Step| match step {
            Step::Read { parts, .. } => parts.iter().map(|part| part.rows).sum::<u64>(),
            _ => 0,
        };
        match reads.first() {
            Some(Step::Read { why, .. }) if reads.iter().map(rows).sum::<u64>() > READ_ROWS_MAX => {
                let rows = active.iter().map(|part| part.rows).sum();
                self.steps.push(Step::Build { partition: id.to_string(), rows, why: why.clone() });
            }
            _ => self.steps.extend(reads),
        }
    }

    fn bury_all(&mut self, body: &Body, id: &str) {
        let holding = body.runs.iter().filter(|run| run.partitions.contains_key(id));
        self.bury.extend(holding.map(|run| (run.id, id.to_string())));
    }
}

/// Parts and runs of one partition that have blocks in common.
pub(super) struct Stretch {
    blocks: Blocks,
    pub(super) recorded: Vec<Part>,
    pub(super) active: Vec<Part>,
    pub(super) runs: Vec<u64>,
}

/// The stretches of a partition, in order.
pub(super) fn stretches(runs: &[Run], id: &str, recorded: &[Part], active: &[Part]) -> Vec<Stretch> {
    let holding: Vec<(u64, Blocks)> = runs.iter().filter_map(|run| Some((run.id, *run.partitions.get(id)?))).collect();
    let counts = |part: &&Part| part.rows > 0 && part.name.patch.is_none();
    let mut blocks: Vec<Blocks> = holding.iter().map(|(_, blocks)| *blocks).collect();
    blocks.extend(recorded.iter().chain(active).filter(counts).map(self::blocks));
    blocks.sort_unstable();
    let mut stretches: Vec<Stretch> = Vec::new();
    for blocks in blocks {
        match stretches.last_mut().filter(|last| last.blocks.overlap(blocks)) {
            Some(last) => last.blocks = last.blocks.hull(blocks),
            None => stretches.push(Stretch { blocks, recorded: vec![], active: vec![], runs: vec![] }),
        }
    }
    // They are in order and apart, so each thing lies in just one.
    fn find(stretches: &mut [Stretch], blocks: Blocks) -> &mut Stretch {
        let at = stretches.partition_point(|stretch| stretch.blocks.1 < blocks.0);
        &mut stretches[at]
    }
    for part in recorded.iter().filter(counts) {
        find(&mut stretches, self::blocks(part)).recorded.push(part.clone());
    }
    for part in active.iter().filter(counts) {
        find(&mut stretches, self::blocks(part)).active.push(part.clone());
    }
    for (run, blocks) in holding {
        find(&mut stretches, blocks).runs.push(run);
    }
    stretches
}

fn blocks(part: &Part) -> Blocks {
    Blocks(part.name.min_block, part.name.max_block)
}

/// The blocks from the first to the last of some parts; `None` without parts.
pub fn blocks_of(parts: &[Part]) -> Option<Blocks> {
    parts.iter().map(blocks).reduce(Blocks::hull)
}

/// Active parts that hold what the recorded ones do. Where a part is the same, its record stays, which may know the hash
/// of its contents.
fn forward(recorded: &[Part], active: &[Part]) -> Vec<Part> {
    let known: HashMap<&PartName, &Part> = recorded.iter().map(|part| (&part.name, part)).collect();
    let forward = |part: &Part| {
        let same = known.get(&part.name).filter(|known| part.hash.is_empty() && known.is_still(part));
        same.map_or_else(|| part.clone(), |known| (*known).clone())
    };
    active.iter().filter(|part| part.rows > 0).map(forward).collect()
}

/// The next runs to merge into one, level by level. With `settle` those of a short while ago are not spared.
pub fn compaction(body: &Body, settle: bool) -> Option<Vec<u64>> {
    let mut runs: Vec<&Run> = body.runs.iter().collect();
    runs.sort_by_key(|run| run.id);
    let fresh = if settle { 0 } else { RUNS_FRESH };
    let settled = &runs[..runs.len().saturating_sub(fresh)];
    let mut levels: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for run in settled {
        levels.entry(level(run.rows)).or_default().push(run.id);
    }
    let full = levels.into_values().find(|level| level.len() >= FAN_IN);
    let chosen = full.or_else(|| {
        let dying: Vec<u64> = runs.iter().filter(|run| !run.dead.is_empty()).map(|run| run.id).collect();
        let dead: usize = runs.iter().map(|run| run.dead.len()).sum();
        (dead > DEAD_MAX).then_some(dying)
    });
    chosen.map(|mut runs| {
        runs.truncate(FAN_IN_MAX);
        runs
    })
}

fn level(rows: u64) -> u32 {
    let over = rows.saturating_sub(1) / LEVEL_ROWS;
    if over == 0 { 0 } else { 1 + over.ilog2() / FAN_IN.ilog2() }
}

/// The run that takes the place of several: what it holds, without its rows.
pub fn merged(runs: &[Run]) -> BTreeMap<String, Blocks> {
    let mut partitions: BTreeMap<String, Blocks> = BTreeMap::new();
    for (id, blocks) in runs.iter().flat_map(|run| &run.partitions) {
        partitions.entry(id.clone()).and_modify(|known| *known = known.hull(*blocks)).or_insert(*blocks);
    }
    partitions
}
