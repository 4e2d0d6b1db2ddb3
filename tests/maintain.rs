//! Maintenance: coverage by part histories, and views on a real server through every kind of change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use tributary::maintain::coverage::{Identity, Parts, SourceRecord, SourceSeen, UsedColumn, source_change};
use tributary::maintain::part::Part;
use tributary::matching::schema::TableName;

/// A part as `[name, rows]`, `[name, rows, hash]` or `[name, rows, hash, second it was written in]`.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum PartCase {
    Short(String, u64),
    Hashed(String, u64, String),
    Timed(String, u64, String, u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CoverageCase {
    name: String,
    #[serde(default = "merge_tree")]
    engine: String,
    #[serde(default)]
    ttl_rewrites: bool,
    #[serde(default)]
    altered: bool,
    #[serde(default)]
    restarted: bool,
    /// The server had just been started when the parts were recorded.
    #[serde(default)]
    young: bool,
    #[serde(default)]
    replaced: bool,
    #[serde(default)]
    alter_pending: bool,
    #[serde(default = "uint32")]
    column_type: String,
    /// Further partitions, unchanged.
    #[serde(default)]
    partitions: usize,
    recorded: Vec<PartCase>,
    seen: Vec<PartCase>,
    verdict: String,
}

fn merge_tree() -> String {
    "MergeTree".into()
}

fn uint32() -> String {
    "UInt32".into()
}

pub fn parts(cases: &[PartCase], more: usize) -> Parts {
    let mut parts: Parts = BTreeMap::new();
    let mut add = |name: &str, rows, hash: &str, written_at| {
        let part = Part::parse(name, rows, hash, written_at).unwrap();
        parts.entry(part.name.partition.clone()).or_default().push(part);
    };
    for case in cases {
        match case {
            PartCase::Short(name, rows) => add(name, *rows, "", 40),
            PartCase::Hashed(name, rows, hash) => add(name, *rows, hash, 40),
            PartCase::Timed(name, rows, hash, written_at) => add(name, *rows, hash, *written_at),
        }
    }
    (0..more).for_each(|at| add(&format!("p{at}_9_9_0"), 1, "", 40));
    parts
}

#[test]
fn part_histories_are_judged_as_written() {
    let cases: Vec<CoverageCase> = serde_yaml::from_str(include_str!("maintain/coverage.yaml")).unwrap();
    for case in cases {
        let column =
            |type_name: &str| UsedColumn { name: "v".into(), type_name: type_name.into(), default: String::new() };
        let identity = |uuid: &str, altered_at, type_name: &str| Identity {
            uuid: uuid.into(),
            engine: case.engine.clone(),
            altered_at,
            ttl_rewrites: case.ttl_rewrites,
            columns: vec![column(type_name)],
        };
        let record = SourceRecord {
            table: TableName::new("db", "t"),
            identity: identity("a", 100, "UInt32"),
            server_started_at: (!case.young).then_some(50),
            parts: parts(&case.recorded, case.partitions),
        };
        let seen = SourceSeen {
            identity: identity(
                if case.replaced { "b" } else { "a" },
                if case.altered { 200 } else { 100 },
                &case.column_type,
            ),
            server_started_at: Some(if case.restarted { 500 } else { 51 }),
            alter_pending: case.alter_pending,
            parts: Arc::new(parts(&case.seen, case.partitions)),
        };
        let verdict = source_change(&record, &seen).map_or("covered".to_string(), |change| change.to_string());
        let verdict = verdict.replace(" of db.t:", ":").replace("db.t is another", "is another");
        assert_eq!(verdict, case.verdict, "{}", case.name);
    }
}
