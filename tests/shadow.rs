//! Shadow verification: a view that gives wrong answers is found and not used again, a right one is left alone.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tributary::embedded::free_port;
use tributary::maintain::rebuild::{Options, Silent, rebuild};
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::keeper::{self, Keeper};
use tributary::proxy::query::{Decision, IncomingQuery};

use crate::http_serve::Served;
use crate::maintain_live::{BY_KEY, build_by, views_of};
use crate::support::{Database, exchange, folder, server};

const SQL: &str = "SELECT k, sum(v), avg(v) FROM t GROUP BY k ORDER BY k FORMAT Native";

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_gives_wrong_answers_is_quarantined_until_it_is_rebuilt() {
    let database = Database::new("shadow");
    let upstream = database.upstream();
    database.sql("CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    database.sql("INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number % 5), number FROM numbers(600)");
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    rebuild(&upstream, &view, &Options::default(), Arc::new(Silent)).await.unwrap();
    let files = folder("shadow");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("views.yaml"), format!("views:{BY_KEY}")).unwrap();
    let client = HttpUpstream::new(database.config().url);
    let keeper = Keeper::new(upstream.clone(), client, files);
    let keeper = Arc::new(keeper.with(keeper::Options { verify: 1.0, ..Default::default() }));
    keeper.clone().start().await;
    let reason = async || {
        let query =
            IncomingQuery { sql: SQL.into(), database: Some(database.name.clone()), ..IncomingQuery::default() };
        match keeper.decide(query).await.decision {
            Decision::Raw { reason } => reason,
            _ => String::new(),
        }
    };
    for _ in 0..3 {
        assert_eq!(reason().await, "");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(keeper.quarantined(), []);

    // As many rows as before, and no mutation: nothing that a look could see.
    let storage = view.storage.quoted();
    database.sql(&format!("CREATE TABLE copy AS {storage}"));
    database.sql(&format!("INSERT INTO copy SELECT * REPLACE (s + (k = '3') AS s) FROM {storage}"));
    let run = database.sql("SELECT any(_run) FROM copy");
    database.sql(&format!("ALTER TABLE {storage} REPLACE PARTITION {} FROM copy", run.trim()));
    let until = Instant::now() + Duration::from_secs(20);
    while reason().await.is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(reason().await, "quarantined: view by_key gave another answer than its sources");
    let [found] = &keeper.quarantined()[..] else { panic!("{:?}", keeper.quarantined()) };
    assert_eq!((found.view.as_str(), found.query.as_str()), ("by_key", SQL));
    assert!(found.difference.starts_with("row [Some(\"3\"), Some("), "{}", found.difference);

    build_by(&upstream, &view, &Options { full: true, ..Options::default() }).await.unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !reason().await.is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(reason().await, "", "none of the runs of then is live");
    assert_eq!(keeper.quarantined(), []);
}

#[test]
fn status_shows_the_wrong_answer_of_a_quarantined_view() {
    let database = Database::new("shadow_status");
    database.sql("CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    database.sql("INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number % 5), number FROM numbers(600)");
    let files = folder("shadow_status");
    std::fs::create_dir_all(&files).unwrap();
    let (views, config) = (files.join("views.yaml"), files.join("tributary.yaml"));
    std::fs::write(&views, format!("views:{BY_KEY}")).unwrap();
    std::fs::write(&config, "verify: 1\n").unwrap();
    let url = format!("{}?database={}", server().http_url(), database.name);
    let admin = format!("127.0.0.1:{}", free_port());
    let common = ["--upstream", &url, "--views", views.to_str().unwrap()];
    let program = || Command::new(env!("CARGO_BIN_EXE_tributary"));
    assert!(program().arg("rebuild").args(common).output().unwrap().status.success());
    let more = ["--config", config.to_str().unwrap(), "--listen-admin", &admin, "--no-maintenance"];
    let served = Served::start(&[&common[..], &more[..]].concat());

    let output = program().arg("status").args(common).args(["--format", "json"]).output().unwrap();
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let storage = seen["views"]["by_key"]["storage"].as_str().unwrap();
    database.sql(&format!("CREATE TABLE copy AS {storage}"));
    database.sql(&format!("INSERT INTO copy SELECT * REPLACE (s + (k = '3') AS s) FROM {storage}"));
    let run = database.sql("SELECT any(_run) FROM copy");
    database.sql(&format!("ALTER TABLE {storage} REPLACE PARTITION {} FROM copy", run.trim()));
    let until = Instant::now() + Duration::from_secs(20);
    let status = loop {
        let sql = "SELECT k, sum(v) FROM t GROUP BY k ORDER BY k FORMAT TSV";
        let request =
            format!("POST /?database={} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{sql}", database.name, sql.len());
        assert!(exchange(served.port, request.as_bytes()).starts_with("HTTP/1.0 200"));
        let output = program().arg("status").args(common).args(["--admin", &admin]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if text.contains("quarantined") || Instant::now() > until {
            break text;
        }
    };
    assert!(status.contains("by_key  quarantined"), "{status}");
    assert!(status.contains("wrong answer to: SELECT k, sum(v) FROM t GROUP BY k"), "{status}");
    assert!(status.contains("sent: SELECT") && status.contains("raw tables and view: row"), "{status}");
}
