//! The commands that bring everything up by themselves.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::support::{alive, ask, folder, server, signal};

fn tributary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(arguments).env_remove("TRIBUTARY_UPSTREAM");
    command
}

/// Runs a command to its end; standard output as one JSON object.
fn json(arguments: &[&str]) -> Value {
    let output = tributary(arguments).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn assert_all_from_views(report: &Value) {
    let queries = report["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 26);
    for query in queries {
        assert_eq!((&query["identical"], &query["accelerated"]), (&true.into(), &true.into()), "{query}");
        assert!(query["view"].as_str().unwrap().starts_with(query["form"].as_str().unwrap()), "{query}");
        assert!(query["raw_ms"].as_f64().unwrap() > 0.0 && query["tributary_ms"].as_f64().unwrap() > 0.0, "{query}");
        assert!(query["rows_read"].as_u64().unwrap() > 0, "{query}");
    }
    for form in ["flat", "star"] {
        assert_eq!(report["total"][form]["identical"], 13);
        assert_eq!(report["total"][form]["accelerated"], 13);
    }
}

#[test]
fn demo_answers_all_26_queries_from_views() {
    let report = json(&["demo", "--scale", "0.01", "--runs", "1", "--format", "json"]);
    assert_eq!(report["scale"], 0.01);
    assert_all_from_views(&report);
    assert!(report["queries"].as_array().unwrap().iter().all(|query| query["projection_ms"].is_null()));
}

#[test]
fn bench_measures_projections_on_a_server_that_runs_already() {
    let upstream = format!("{}?database=bench_ssb", server().http_url());
    let arguments = [
        "bench",
        "ssb",
        "--scale",
        "0.01",
        "--runs",
        "1",
        "--projections",
        "--format",
        "json",
        "--upstream",
        &upstream,
    ];
    let report = json(&arguments);
    assert_all_from_views(&report);
    for query in report["queries"].as_array().unwrap() {
        assert_eq!(query["projection_ms"].is_f64(), query["form"] == "flat", "{query}");
    }
    let data = ask(&server().http_url(), "SELECT count() > 0 FROM bench_ssb.lineorder_flat").unwrap();
    assert_eq!(data, "1\n", "the data stays for the next run");
}

/// A `demo --keep` that has told how to connect.
struct Kept {
    child: Child,
    _errors: BufReader<ChildStderr>,
    clickhouse: String,
    tributary: String,
    data: std::path::PathBuf,
}

impl Kept {
    fn start(name: &str) -> Self {
        let data = folder(name);
        let mut child = tributary(&["demo", "--scale", "0.01", "--runs", "1", "--keep", "--data"])
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut after = |label: &str| loop {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).unwrap() > 0, "demo ended before it told '{label}'");
            if let Some(rest) = line.trim().strip_prefix(label) {
                break rest.trim().split(',').next().unwrap().to_string();
            }
        };
        let (clickhouse, tributary) = (after("ClickHouse "), after("through Tributary "));
        Self { child, _errors: errors, clickhouse, tributary, data }
    }

    fn server_pid(&self) -> u32 {
        std::fs::read_to_string(self.data.join("clickhouse/server.pid")).unwrap().trim().parse().unwrap()
    }
}

#[test]
fn demo_keeps_everything_running_until_it_is_interrupted() {
    let mut kept = Kept::start("kept");
    let sql = "SELECT sum(LO_REVENUE), toYear(LO_ORDERDATE) AS year FROM lineorder_flat GROUP BY year ORDER BY year";
    let answers = [&kept.clickhouse, &kept.tributary].map(|url| ask(&format!("{url}?database=ssb"), sql).unwrap());
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].lines().count(), 7);
    let pid = kept.server_pid();
    signal("INT", kept.child.id());
    assert!(kept.child.wait().unwrap().success());
    assert!(!alive(pid), "the server is gone when the command has ended");
    assert!(Path::new(&kept.data).join("clickhouse/data").exists(), "a given data folder stays");
}

#[test]
fn a_killed_demo_leaves_no_server() {
    let mut kept = Kept::start("killed");
    let pid = kept.server_pid();
    assert!(alive(pid));
    signal("KILL", kept.child.id());
    kept.child.wait().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while alive(pid) {
        assert!(std::time::Instant::now() < deadline, "the server outlived its parent");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn wrong_arguments_are_told_with_what_is_right() {
    let output = tributary(&["demo", "--scale", "1000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("from 0.01"));
    let output = tributary(&["bench", "ssb", "--upstream", "http://127.0.0.1:1/"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"));
}
