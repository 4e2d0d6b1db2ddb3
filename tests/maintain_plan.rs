//! Plans of maintenance by part histories, and the number of runs that they leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use tributary::maintain::coverage::{Identity, SourceRecord, SourceSeen, Staleness, UsedColumn};
use tributary::maintain::manifest::{Blocks, Body, Manifest, Run};
use tributary::maintain::plan::{compaction, merged, plan};
use tributary::matching::schema::TableName;

use crate::maintain::{PartCase, parts};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default = "merge_tree")]
    engine: String,
    #[serde(default)]
    replaced: bool,
    #[serde(default)]
    alter_pending: bool,
    #[serde(default)]
    column_altered: bool,
    #[serde(default)]
    never_built: bool,
    #[serde(default)]
    damaged: bool,
    /// Contents have proved since that parts bear other names.
    #[serde(default)]
    is_ahead: bool,
    /// A joined table, of one part before and after.
    #[serde(default)]
    joined: Option<(PartCase, PartCase)>,
    /// Further partitions, unchanged.
    #[serde(default)]
    partitions: usize,
    /// `[id, {partition: [first block, last block]}]`
    #[serde(default)]
    runs: Vec<(u64, BTreeMap<String, Blocks>)>,
    recorded: Vec<PartCase>,
    seen: Vec<PartCase>,
    steps: Vec<String>,
    /// `run partition`
    #[serde(default)]
    bury: Vec<String>,
    /// Parts that stay recorded, those of further partitions left out.
    #[serde(default)]
    keep: Vec<String>,
}

fn merge_tree() -> String {
    "MergeTree".into()
}

fn identity(engine: &str, uuid: &str, column_type: &str) -> Identity {
    let column = UsedColumn { name: "v".into(), type_name: column_type.into(), default: String::new() };
    Identity { uuid: uuid.into(), engine: engine.into(), altered_at: 100, ttl_rewrites: false, columns: vec![column] }
}

fn source(name: &str, identity: Identity, cases: &[PartCase], more: usize) -> SourceRecord {
    let (table, parts) = (TableName::new("db", name), parts(cases, more));
    SourceRecord { table, identity, server_started_at: Some(50), parts }
}

fn seen(record: SourceRecord, alter_pending: bool) -> SourceSeen {
    let SourceRecord { identity, server_started_at, parts, .. } = record;
    SourceSeen { identity, server_started_at, alter_pending, parts: Arc::new(parts) }
}

fn manifest(body: Body, is_ahead: bool) -> Manifest {
    let (storage, view, commit) = ("v_0".to_string(), "v".to_string(), String::new());
    Manifest { storage, view, version: 1, commit, committed_at_ms: 0, body, is_ahead }
}

#[test]
fn part_histories_give_the_steps_as_written() {
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("maintain/plan.yaml")).unwrap();
    for case in cases {
        let was = identity(&case.engine, "a", "UInt32");
        let is = identity(
            &case.engine,
            if case.replaced { "b" } else { "a" },
            if case.column_altered { "UInt64" } else { "UInt32" },
        );
        let mut records = vec![source("t", was.clone(), &case.recorded, case.partitions)];
        let mut now = vec![seen(source("t", is, &case.seen, case.partitions), case.alter_pending)];
        if let Some((before, after)) = &case.joined {
            records.push(source("dim", was.clone(), std::slice::from_ref(before), 0));
            now.push(seen(source("dim", was, std::slice::from_ref(after), 0), false));
        }
        let run = |(id, partitions): &(u64, BTreeMap<String, Blocks>)| Run {
            id: *id,
            rows: 1,
            partitions: partitions.clone(),
            dead: Vec::new(),
        };
        let body = Body { runs: case.runs.iter().map(run).collect(), sources: records, retired: Vec::new() };
        let damage = Staleness::StorageDamaged { run: 70, rows_expected: 5, rows_found: 4 };
        let manifest = (!case.never_built).then(|| manifest(body, case.is_ahead));
        let plan = plan(manifest.as_ref(), &now, case.damaged.then_some(damage));
        let steps: Vec<String> =
            plan.steps.iter().map(|step| step.to_string().replace(" of db.t:", ":").replace("db.", "")).collect();
        assert_eq!(steps, case.steps, "{}", case.name);
        let bury: Vec<String> = plan.bury.iter().map(|(run, partition)| format!("{run} {partition}")).collect();
        assert_eq!(bury, case.bury, "{}", case.name);
        let further = |name: &String| name.starts_with('p') && name.ends_with("_9_9_0");
        let keep = plan.keep.values().flatten().map(|part| part.name.to_string()).filter(|name| !further(name));
        assert_eq!(keep.collect::<Vec<_>>(), case.keep, "{}", case.name);
    }
}

/// Ten thousand deltas, one after the other, each with the rows that `rows` says; merged ones have `merge` of theirs.
fn runs_of_ten_thousand_deltas(rows: fn(u64) -> u64, merge: fn(u64) -> u64) -> (usize, u64) {
    let mut body = Body::default();
    let (mut most, mut written) = (0, 0);
    for delta in 1..=10_000 {
        let partitions = BTreeMap::from([("2020".to_string(), Blocks(delta, delta))]);
        body.runs.push(Run { id: delta as u64 * 100, rows: rows(delta as u64), partitions, dead: Vec::new() });
        for merge_number in 1.. {
            let Some(chosen) = compaction(&body, false) else { break };
            let (gone, stay): (Vec<Run>, Vec<Run>) = body.runs.into_iter().partition(|run| chosen.contains(&run.id));
            assert_eq!(gone.len(), chosen.len());
            let rows = merge(gone.iter().map(|run| run.rows).sum());
            written += rows;
            body.runs = stay;
            let id = delta as u64 * 100 + merge_number;
            body.runs.push(Run { id, rows, partitions: merged(&gone), dead: Vec::new() });
        }
        most = most.max(body.runs.len());
    }
    (most, written)
}

#[test]
fn ten_thousand_deltas_leave_few_runs() {
    // Every delta has new keys: each row is written once per level.
    let (most, written) = runs_of_ten_thousand_deltas(|_| 1000, |rows| rows);
    assert!(most <= 64 && written < 10_000 * 1000 * 6, "{most} runs, {written} rows written");
    // All deltas have the same keys.
    let (most, _) = runs_of_ten_thousand_deltas(|_| 5000, |rows| rows.min(5000));
    assert!(most <= 64, "{most} runs");
    // Sizes of all kinds.
    let (most, _) = runs_of_ten_thousand_deltas(|delta| 1 << (delta * 7 % 22), |rows| rows);
    assert!(most <= 64, "{most} runs");
}

#[test]
fn runs_with_many_dead_partitions_are_merged() {
    let run = |id: u64| Run {
        id,
        rows: 10,
        partitions: BTreeMap::from([("2020".to_string(), Blocks(1, 9))]),
        dead: (0..20).map(|year| (1990 + year).to_string()).collect(),
    };
    let body = Body { runs: vec![run(1), run(2), Run { dead: Vec::new(), ..run(3) }], ..Body::default() };
    assert_eq!(compaction(&body, false), Some(vec![1, 2]));
}
