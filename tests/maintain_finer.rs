//! Views built from the rows of finer ones, on a real server.

use std::process::Command;

use serde_json::{Value, json};
use tributary::maintain::finer::{derivation, order};
use tributary::maintain::rebuild::{Options, Report, preview};
use tributary::maintain::verify::{Verdict, verify};
use tributary::upstream::Upstream;
use tributary::views::catalog::CatalogView;

use crate::maintain_live::{build, build_by, views_of};
use crate::support::{Database, sql};

const VIEWS: &str = "
  - name: by_year
    query: SELECT toYear(d) AS y, sum(v) AS s, uniqExact(v), anyLast(v) AS last FROM t WHERE v != 13 GROUP BY y
  - name: finest
    query: |
      SELECT toYear(d) AS year, k, n, count(), sum(v) AS total, avg(v), uniqExact(v), anyLast(v)
      FROM t WHERE 13 != v GROUP BY year, k, n
  - name: total
    query: SELECT count() AS n, avg(v) AS mean FROM t WHERE v != 13
  - name: by_name
    query: SELECT n AS year, k, avg(v) FROM t WHERE v != 13 GROUP BY n, k
  - name: other_rows
    query: SELECT toYear(d) AS year, count() FROM t WHERE v != 14 GROUP BY year
  - name: other_state
    query: SELECT toYear(d) AS year, max(v) FROM t WHERE v != 13 GROUP BY year
  - name: other_key
    query: SELECT toMonth(d) AS month, count() FROM t WHERE v != 13 GROUP BY month
";

/// What of the source a build read, and what it took from another view.
fn took(report: &Report) -> (u64, Option<(&str, usize)>) {
    (report.source_rows_read, report.derived.as_ref().map(|(from, partitions)| (from.as_str(), *partitions)))
}

async fn build_from(upstream: &Upstream, view: &CatalogView, finer: &[CatalogView]) -> Report {
    let report = build_by(upstream, view, &Options { finer: finer.to_vec(), ..Options::default() }).await.unwrap();
    let verdict = verify(upstream, view).await.unwrap();
    assert!(matches!(verdict, Verdict::Equal { .. }), "{}: {verdict:?}", view.name());
    report
}

fn filled(name: &str) -> Database {
    let database = Database::new(name);
    database.sql("CREATE TABLE t (d Date, k UInt8, n Nullable(String), v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    database.sql(
        "INSERT INTO t SELECT toDate('2020-01-01') + number % 1000, number % 7, if(number % 5 = 0, NULL, toString(number % 3)), \
         number % 101 FROM numbers(10000)",
    );
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_view_with_the_same_rows_and_all_that_is_needed_is_finer() {
    let database = filled("finer_which");
    let views = views_of(&database.upstream(), VIEWS).await;
    let view = |name: &str| views.iter().find(|view| view.name() == name).unwrap();
    let finest = view("finest");
    let derived: Vec<&str> =
        views.iter().filter(|view| derivation(view, finest).is_some()).map(CatalogView::name).collect();
    assert_eq!(derived, ["by_year", "total", "by_name"]);
    assert_eq!(
        derivation(view("by_name"), finest),
        Some(vec![2, 1, 5]),
        "by what the columns are, not what they are called"
    );
    assert_eq!(derivation(finest, view("by_year")), None, "the other way round");
    let names: Vec<String> = order(views.clone()).iter().map(|view| view.name().to_string()).collect();
    assert_eq!(names[0], "finest", "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coarser_view_is_built_without_reading_the_source() {
    let database = filled("finer_build");
    let upstream = database.upstream();
    let views = views_of(&upstream, VIEWS).await;
    let view = |name: &str| views.iter().find(|view| view.name() == name).unwrap();
    let (finest, by_year) = (view("finest"), view("by_year"));
    assert_eq!(took(&build_from(&upstream, by_year, &views).await), (10000, None), "the finer one is not built");
    build(&upstream, finest).await.unwrap();
    for name in ["total", "by_name"] {
        assert_eq!(took(&build_from(&upstream, view(name), &views).await), (0, Some(("finest", 3))), "{name}");
    }

    // The finer view lags behind in one partition, in another it has rows that no longer count.
    database.sql("INSERT INTO t VALUES ('2022-05-05', 1, 'new', 5)");
    database.sql("ALTER TABLE t DELETE WHERE toYear(d) = 2021 AND k = 3 SETTINGS mutations_sync = 2");
    let only_2021 = Options { partitions: vec!["2021".into()], ..Options::default() };
    build_by(&upstream, finest, &only_2021).await.unwrap();
    let rows = database.sql("SELECT count() FROM t WHERE toYear(d) = 2022").trim().parse().unwrap();
    assert_eq!(took(&build_from(&upstream, by_year, &views).await), (rows, Some(("finest", 1))));
    assert_eq!(took(&build_from(&upstream, view("total"), &views).await), (rows, Some(("finest", 1))));

    // Rows of the finer view are missing: it proves nothing.
    let storage = finest.storage.quoted();
    sql(&format!("ALTER TABLE {storage} DELETE WHERE k = 1 SETTINGS mutations_sync = 2"));
    let all = Options { full: true, finer: views.clone(), ..Options::default() };
    let report = build_by(&upstream, by_year, &all).await.unwrap();
    assert_eq!(took(&report).1, None);
    assert!(matches!(verify(&upstream, by_year).await.unwrap(), Verdict::Equal { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coarser_view_is_built_by_ranges_of_keys_when_memory_is_short() {
    let database = Database::new("finer_ranges");
    let upstream = database.upstream();
    database.sql("CREATE TABLE t (k UInt32, g UInt32, v UInt64) ENGINE = MergeTree ORDER BY k");
    database.sql("INSERT INTO t SELECT number, number % 20000, number FROM numbers(60000)");
    let views = views_of(
        &upstream,
        "
  - name: fine
    query: SELECT k, g, sum(v), uniqExact(v) FROM t GROUP BY k, g
  - name: coarse
    query: SELECT g, uniqExact(v), sum(v) FROM t GROUP BY g
",
    )
    .await;
    build(&upstream, &views[0]).await.unwrap();
    let options = Options { memory_bytes: 1 << 20, finer: views.clone(), ..Options::default() };
    let report = build_by(&upstream, &views[1], &options).await.unwrap();
    assert_eq!(took(&report), (0, Some(("fine", 1))));
    assert_eq!(report.rows, 20000);
    assert!(matches!(verify(&upstream, &views[1]).await.unwrap(), Verdict::Equal { groups: 20000, .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_what_would_be_read_and_changes_nothing() {
    let database = filled("finer_dry");
    let upstream = database.upstream();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("views.yaml");
    std::fs::write(&file, format!("views:{VIEWS}")).unwrap();
    let address = upstream.config();
    let address = format!("{}?database={}", address.url, address.database);
    let run = |options: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["rebuild", "--upstream", &address, "--format", "json", "--views"]).arg(&file).args(options);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let dry = run(&["--dry-run", "finest", "by_year"]);
    assert_eq!(
        (&dry["views"][0]["view"], &dry["views"][0]["scan"]),
        (&json!("finest"), &json!({ "partitions": ["2020", "2021", "2022"], "source_rows": 10000, "queries": 1 }))
    );
    let derived = json!({ "from": "finest", "partitions": ["2020", "2021", "2022"] });
    assert_eq!((&dry["views"][1]["derive"], &dry["views"][1]["scan"]["queries"]), (&derived, &json!(0)));
    let storage = dry["views"][0]["storage"].as_str().unwrap().to_string();
    assert_eq!(sql(&format!("EXISTS TABLE {storage}")).trim(), "0");

    let built = run(&["finest", "by_year"]);
    assert_eq!(built["views"][1]["derived"], json!({ "from": "finest", "partitions": 3 }));
    let again = run(&["--dry-run", "finest", "by_year"]);
    assert_eq!((&again["views"][1]["keep"], &again["views"][1]["derive"]), (&json!(3), &Value::Null));
    // What --full distrusts is no source for another view, unless it was built before.
    let views = views_of(&upstream, VIEWS).await;
    let full = Options { full: true, ..Options::default() };
    let by_year = views.iter().find(|view| view.name() == "by_year").unwrap();
    assert_eq!(preview(&upstream, by_year, &full, &[]).await.unwrap().source_rows, 10000);
}
