//! Views and queries from tests/matching/*.yaml on a real server: is the query answered from the view that a person
//! named, or left alone for the reason that a person named, and is the answer the raw tables' own, names and types
//! included?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tributary::maintain::rebuild;
use tributary::proxy::accelerator::Accelerator;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::query::{Decision, Identity, IncomingQuery, Mode, Wish};
use tributary::views::{catalog, declaration};

use crate::support::{Database, ask, server};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "views")]
    _views: serde_yaml::Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    query: String,
    /// Name of the view, `raw`, or `any` where both are right.
    answer: String,
    /// A part of the reason why the query is left alone.
    because: Option<String>,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    /// Whether ClickHouse itself refuses the query.
    #[serde(default)]
    fails: bool,
}

#[test]
fn queries_are_answered_from_views_exactly_where_a_person_said_so() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/matching");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut faults = Vec::new();
    // How many were answered in which way after the tables changed.
    let mut modes: BTreeMap<&str, usize> = BTreeMap::new();
    for file in ["rollup", "choices", "windows", "predicates", "joins", "names", "time", "attacks"] {
        let data = if file == "attacks" { "attacks.sql" } else { "data.sql" };
        let rows = std::fs::read_to_string(folder.join(data)).unwrap();
        let database = Database::new(&format!("matching_{file}"));
        rows.split(";\n").filter(|s| !s.trim().is_empty()).for_each(|s| _ = database.sql(s));
        let path = folder.join(format!("{file}.yaml"));
        let text = std::fs::read_to_string(&path).unwrap();
        let cases: File = serde_yaml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let views = serde_yaml::to_string(&BTreeMap::from([("views", &cases._views)])).unwrap();
        let loaded = declaration::parse(&path, views);
        assert!(loaded.problems.is_empty(), "{file}: {:?}", loaded.problems);
        runtime.block_on(async {
            let catalog = catalog::resolve(&database.upstream(), loaded).await.unwrap();
            assert!(catalog.problems.is_empty(), "{file}: {:?}", catalog.problems);
            for view in &catalog.views {
                let options = rebuild::Options::default();
                rebuild::rebuild(&database.upstream(), view, &options, Arc::new(rebuild::Silent)).await.unwrap();
            }
            let client = HttpUpstream::new(database.config().url);
            let accelerator = Accelerator::connect(database.upstream(), client, catalog).await.unwrap();
            for case in &cases.cases {
                if let Err(fault) = judge(&accelerator, &database, case).await {
                    faults.push(format!("{file}: {}: {fault}", case.name));
                }
            }
            let changes = std::fs::read_to_string(folder.join(data.replace(".sql", "_changes.sql"))).unwrap();
            changes.split(";\n").filter(|s| !s.trim().is_empty()).for_each(|s| _ = database.sql(s));
            for case in &cases.cases {
                match judge(&accelerator, &database, case).await {
                    Ok(mode) => *modes.entry(mode).or_insert(0) += 1,
                    Err(fault) => faults.push(format!("{file}, rows missing: {}: {fault}", case.name)),
                }
            }
        });
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(modes["hybrid"] >= 60, "{modes:?}");
}

/// Says how the query was answered: raw, full or hybrid.
async fn judge(accelerator: &Accelerator, database: &Database, case: &Case) -> Result<&'static str, String> {
    let parameters: Vec<(String, String)> = case.parameters.clone().into_iter().collect();
    let query = IncomingQuery {
        sql: case.query.clone(),
        database: Some(database.name.clone()),
        settings: Vec::new(),
        parameters,
        format: None,
        identity: Arc::new(Identity::default()),
        session_id: None,
        wish: Wish::Normal,
    };
    let (used, mode, sql) = match accelerator.decide(query).await {
        Decision::View { views, mode: Mode::Full, sql } => (views.join(","), "full", sql),
        Decision::View { views, mode: Mode::Hybrid, sql } => (views.join(","), "hybrid", sql),
        Decision::Raw { reason } if case.because.as_ref().is_some_and(|b| !reason.contains(b)) => {
            return Err(format!("left alone for another reason: {reason}"));
        }
        Decision::Raw { reason } if case.answer != "raw" && case.answer != "any" => {
            return Err(format!("left alone: {reason}"));
        }
        Decision::Raw { .. } => ("raw".to_string(), "raw", case.query.clone()),
        Decision::NotAQuery => return Err("not a query".into()),
    };
    if case.answer != "any" && used != case.answer {
        return Err(format!("answered from {used}: {sql}"));
    }
    let answer = |sql: &str| {
        let parameters: String = case.parameters.iter().map(|(n, v)| format!("&param_{n}={v}")).collect();
        let url = format!("{}?database={}&default_format=JSONCompact{parameters}", server().http_url(), database.name);
        ask(&url, sql)
    };
    if used == "raw" {
        return match answer(&case.query) {
            Err(_) if case.fails => Ok(mode),
            Ok(_) if !case.fails => Ok(mode),
            other => Err(format!("the query itself: {other:?}")),
        };
    }
    match (answer(&case.query), answer(&sql)) {
        (Err(_), Err(_)) if case.fails => Ok(mode),
        (Ok(raw), Ok(rewritten)) if !case.fails => {
            same(&raw, &rewritten, case).map(|()| mode).map_err(|e| format!("{e}\n  {sql}"))
        }
        (raw, rewritten) => Err(format!("raw {raw:?}, rewritten {rewritten:?}")),
    }
}

/// Names, types, rows and totals; the order of rows where the query orders.
fn same(raw: &str, rewritten: &str, case: &Case) -> Result<(), String> {
    let read = |text: &str| -> (String, Vec<String>, String) {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut rows: Vec<String> = value["data"].as_array().unwrap().iter().map(ToString::to_string).collect();
        if !case.query.contains("ORDER BY") {
            rows.sort();
        }
        (value["meta"].to_string(), rows, format!("{}{}", value["totals"], value["extremes"]))
    };
    let ((meta, rows, totals), (other_meta, other_rows, other_totals)) = (read(raw), read(rewritten));
    if meta != other_meta {
        return Err(format!("columns {meta} and {other_meta}"));
    }
    if rows.len() != other_rows.len() || totals != other_totals {
        return Err(format!("{} and {} rows, totals {totals} and {other_totals}", rows.len(), other_rows.len()));
    }
    match rows.iter().zip(&other_rows).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("row {a} and {b}")),
        None => Ok(()),
    }
}
