//! Views on a real server through every kind of change to their sources.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use tributary::maintain::look::{Coverage, Look, Looker, MANIFEST_AGE_STALE};
use tributary::maintain::rebuild::{Options, RebuildError, Report, Silent, rebuild};
use tributary::maintain::verify::{Verdict, verify};
use tributary::proxy::accelerator::Accelerator;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::query::{Decision, IncomingQuery, Mode};
use tributary::upstream::Upstream;
use tributary::views::catalog::{self, CatalogView};
use tributary::views::declaration;

use crate::support::Database;

pub const BY_KEY: &str = "
  - name: by_key
    query: |
      SELECT toYear(d) AS year, k, sum(v) AS s, count(), avg(v), max(v), uniqExact(v) AS u
      FROM t GROUP BY year, k
";

pub const JOINED: &str = "
  - name: joined
    query: |
      SELECT name, sum(v) AS s, count() AS n, min(t.v)
      FROM t, dim WHERE t.k = dim.k GROUP BY name
";

/// The views of a YAML list, which must all be in order.
pub async fn views_of(upstream: &Upstream, list: &str) -> Vec<CatalogView> {
    let loaded = declaration::parse("views.yaml".as_ref(), format!("views:{list}"));
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let catalog = catalog::resolve(upstream, loaded).await.unwrap();
    assert!(catalog.problems.is_empty(), "{}", catalog.problems[0]);
    catalog.views
}

pub async fn build(upstream: &Upstream, view: &CatalogView) -> Result<Report, RebuildError> {
    build_by(upstream, view, &Options::default()).await
}

/// A rebuild that every looker takes notice of: one that has just asked for the manifest does not ask again at once, and
/// a rebuild of a small table may be over before.
pub async fn build_by(upstream: &Upstream, view: &CatalogView, options: &Options) -> Result<Report, RebuildError> {
    let outcome = rebuild(upstream, view, options, Arc::new(Silent)).await;
    tokio::time::sleep(MANIFEST_AGE_STALE).await;
    outcome
}

/// "covered", after the view was compared with its query; else the reason.
pub async fn state(upstream: &Upstream, view: &CatalogView, looker: &Looker) -> String {
    match looker.look(&[view.storage_name()]).await.unwrap().coverage(view.storage_name()) {
        Coverage::Stale(reason) => reason.to_string(),
        Coverage::Partial(_, cut) => cut.because.to_string(),
        Coverage::Covered(_) => match verify(upstream, view).await.unwrap() {
            Verdict::Equal { .. } => "covered".into(),
            other => panic!("{} is called covered: {other:?}", view.name()),
        },
    }
}

const OF_BY_KEY: [&str; 5] = [
    "SELECT sum(v), count(), max(v), avg(v) FROM t",
    "SELECT toYear(d) AS year, k, sum(v), avg(v), uniqExact(v) FROM t GROUP BY year, k ORDER BY year, k",
    "SELECT count(), sum(v), max(v) FROM t WHERE k = 'nobody'",
    "SELECT k, countIf(toYear(d) = 2021) AS c FROM t WHERE k IN (SELECT k FROM dim) GROUP BY k WITH TOTALS ORDER BY k",
    "SELECT DISTINCT k FROM t ORDER BY k",
];

const OF_JOINED: [&str; 2] = [
    "SELECT name, sum(v), count(), min(t.v) FROM t JOIN dim ON t.k = dim.k GROUP BY name ORDER BY name",
    "SELECT count() FROM dim, t WHERE t.k = dim.k AND name != 'eins'",
];

/// Asks as a client would. Every answer from a view must be that of the raw tables; says in which ways they were given.
async fn answers(database: &Database, list: &str) -> BTreeSet<&'static str> {
    let upstream = database.upstream();
    let loaded = declaration::parse("views.yaml".as_ref(), format!("views:{list}"));
    let catalog = catalog::resolve(&upstream, loaded).await.unwrap();
    let client = HttpUpstream::new(database.config().url);
    let accelerator = Accelerator::connect(upstream, client, catalog).await.unwrap();
    let mut modes = BTreeSet::new();
    for sql in if list == JOINED { &OF_JOINED[..] } else { &OF_BY_KEY[..] } {
        let query =
            IncomingQuery { sql: sql.to_string(), database: Some(database.name.clone()), ..IncomingQuery::default() };
        modes.insert(match accelerator.decide(query).await {
            Decision::View { mode, sql: rewritten, .. } => {
                let format = |sql: &str| format!("{sql} FORMAT TSVWithNamesAndTypes");
                assert_eq!(database.sql(&format(&rewritten)), database.sql(&format(sql)), "{sql}\n{rewritten}");
                if mode == Mode::Hybrid { "hybrid" } else { "full" }
            }
            _ => "raw",
        });
    }
    modes
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    engine: Option<String>,
    /// What stands after ORDER BY.
    #[serde(default)]
    settings: String,
    #[serde(default)]
    view: Option<String>,
    #[serde(default)]
    before_fill: Vec<String>,
    #[serde(default)]
    setup: Vec<String>,
    change: Vec<String>,
    verdict: String,
    #[serde(default)]
    rebuilt: Option<String>,
    #[serde(default)]
    partitions_built: Option<usize>,
    #[serde(default)]
    answered: Option<String>,
}

async fn run(case: Case) {
    let database = Database::new("changes");
    let upstream = database.upstream();
    let engine = case.engine.as_deref().unwrap_or("MergeTree");
    for table in ["t", "u"] {
        database.sql(&format!(
            "CREATE TABLE {table} (d Date, k String, v UInt32, w UInt32, extra UInt8) ENGINE = {engine} \
             PARTITION BY toYear(d) ORDER BY k {}",
            case.settings
        ));
    }
    database.sql("SYSTEM STOP MERGES u");
    database.sql("CREATE TABLE dim (k String, name String) ENGINE = MergeTree ORDER BY k");
    case.before_fill.iter().for_each(|sql| drop(database.sql(sql)));
    for shift in 0..3 {
        database.sql(&format!(
            "INSERT INTO t SELECT toDate('2020-01-01') + 7 * number, 'k' || toString(number % 5), number + {shift}, \
             100 * number, 1 FROM numbers(104)"
        ));
    }
    database.sql("INSERT INTO dim VALUES ('k0', 'null'), ('k1', 'eins'), ('k2', 'zwei')");
    case.setup.iter().for_each(|sql| drop(database.sql(sql)));
    let list = if case.view.as_deref() == Some("joined") { JOINED } else { BY_KEY };
    let view = views_of(&upstream, list).await.remove(0);
    build(&upstream, &view).await.unwrap();
    let looker = Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap();
    assert_eq!(state(&upstream, &view, &looker).await, "covered", "{}: before", case.name);

    for sql in &case.change {
        database.sql(&sql.replace("{storage}", &view.storage.quoted()));
    }
    let verdict = state(&upstream, &view, &looker).await;
    match case.verdict.as_str() {
        "any reason" => assert_ne!(verdict, "covered", "{}", case.name),
        expected => assert!(verdict.contains(expected), "{}: {verdict}", case.name),
    }
    let modes = answers(&database, list).await;
    let expected = case.answered.as_deref().unwrap_or(if verdict == "covered" { "full" } else { "raw" });
    assert!(modes.iter().all(|mode| *mode == expected), "{}: answered {modes:?}", case.name);
    let fresh = Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap();
    let verdict_anew = state(&upstream, &view, &fresh).await;
    assert_eq!(verdict == "covered", verdict_anew == "covered", "{}: by a new looker {verdict_anew}", case.name);

    if case.rebuilt.as_deref() == Some("skip") {
        return;
    }
    let report = build(&upstream, &view).await;
    match case.rebuilt.as_deref() {
        Some("fails") => assert!(report.is_err(), "{}", case.name),
        Some("any") => {}
        expected => {
            let report = report.unwrap_or_else(|error| panic!("{}: {error}", case.name));
            if let Some(partitions) = case.partitions_built {
                assert_eq!(report.partitions_built, partitions, "{}", case.name);
            }
            let verdict = state(&upstream, &view, &looker).await;
            assert!(verdict.contains(expected.unwrap_or("covered")), "{}: after a rebuild {verdict}", case.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_is_noticed() {
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("maintain/changes.yaml")).unwrap();
    let mut running = tokio::task::JoinSet::new();
    let mut failed = Vec::new();
    for case in cases {
        if running.len() >= 4 {
            failed.extend(running.join_next().await.unwrap().err());
        }
        running.spawn(run(case));
    }
    while let Some(ended) = running.join_next().await {
        failed.extend(ended.err());
    }
    assert!(failed.is_empty(), "{} cases failed, see above", failed.len());
}

/// An answer that begins late is looked after: did ClickHouse still find the runs that the decision named?
#[tokio::test(flavor = "multi_thread")]
async fn a_later_look_tells_whether_the_runs_of_an_earlier_one_are_still_there() {
    let database = Database::new("runs_stand");
    let upstream = database.upstream();
    database.sql("CREATE TABLE t (d Date, k UInt8, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    database.sql("INSERT INTO t SELECT '2020-01-01', number % 3, number FROM numbers(100)");
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    build(&upstream, &view).await.unwrap();
    let looker = Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap();
    let storage = view.storage_name();
    let earlier = looker.look_anew(&[storage]).await.unwrap();
    database.sql("INSERT INTO t VALUES ('2021-01-01', 1, 1)");
    let later = looker.look_anew(&[storage]).await.unwrap();
    assert!(later.confirms(&earlier, storage).is_err());
    assert_eq!(later.has_runs_of(&earlier, storage), Ok(()), "what the source holds now is another question");
    let Coverage::Covered(covered) = earlier.coverage(storage) else { panic!("not covered") };
    database.sql(&format!("ALTER TABLE {} DROP PARTITION {}", view.storage.quoted(), covered.runs[0]));
    let last = looker.look_anew(&[storage]).await.unwrap();
    let reason = format!("view by_key: run {} has 0 of 3 rows in the view's storage table", covered.runs[0]);
    assert_eq!(last.has_runs_of(&earlier, storage), Err(reason));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_view_is_not_looked_at_while_the_last_look_is_young() {
    let database = Database::new("bounded");
    let upstream = database.upstream();
    database.sql("CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    database.sql("INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number % 5), number FROM numbers(300)");
    let view = views_of(&upstream, &format!("{BY_KEY}    consistency: 'bounded: 1h'\n")).await.remove(0);
    build(&upstream, &view).await.unwrap();
    let looker = Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap();
    let storage = view.storage_name();
    let look = async || looker.look(&[storage]).await.unwrap();
    let is_covered = |look: &Look| matches!(look.coverage(storage), Coverage::Covered(_));
    let first = look().await;
    assert!(is_covered(&first));
    database.sql("INSERT INTO t VALUES ('2020-03-01', 'a', 1)");
    assert!(Arc::ptr_eq(&first, &look().await));
    // A hybrid answer is confirmed by a look of its own, which serves the others as well.
    let anew = looker.look_anew(&[storage]).await.unwrap();
    assert!(!is_covered(&anew) && Arc::ptr_eq(&anew, &look().await));
}
