//! Rebuilds on a real server: every kind of state, little memory, rivals, kills, restarts, random histories.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tributary::config::UpstreamConfig;
use tributary::embedded::{Options as ServerOptions, Server};
use tributary::maintain::look::{Coverage, Looker};
use tributary::maintain::rebuild::{Options, Report, Silent, rebuild};
use tributary::maintain::verify::{Verdict, verify};
use tributary::upstream::Upstream;
use tributary::views::catalog::CatalogView;

use crate::maintain_live::{BY_KEY, JOINED, build, build_by, state, views_of};
use crate::support::{Database, ask, folder, server, sql};

async fn build_with(upstream: &Upstream, view: &CatalogView, options: Options) -> Report {
    build_by(upstream, view, &options).await.unwrap()
}

async fn looker(upstream: &Upstream, view: &CatalogView) -> Looker {
    Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap()
}

/// Runs that the storage table has and that the latest manifest does not know of.
fn orphans(view: &CatalogView) -> Vec<String> {
    let storage = &view.storage.name.table;
    let present = sql(&format!(
        "SELECT DISTINCT partition_id FROM system.parts WHERE active AND database = 'tributary' AND table = '{storage}'"
    ));
    let body =
        sql(&format!("SELECT body FROM tributary.manifest WHERE storage = '{storage}' ORDER BY version DESC LIMIT 1"));
    present.lines().filter(|run| !body.contains(*run)).map(str::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_equals_its_query_for_every_kind_of_state_and_key() {
    let database = Database::new("states");
    let upstream = database.upstream();
    database.sql(
        "CREATE TABLE t (day Date, at DateTime64(3), n Nullable(Int32), low LowCardinality(String), fixed FixedString(3), \
         id UUID, price Decimal(18, 4), f Float64, s Nullable(String), e Enum8('a' = 1, 'b' = 2), big UInt64, tags \
         Array(String)) ENGINE = MergeTree PARTITION BY toYYYYMM(day) ORDER BY at",
    );
    database.sql("SYSTEM STOP MERGES t");
    for seed in 0..4 {
        database.sql(&format!(
            "INSERT INTO t SELECT toDate('2024-01-01') + cityHash64(number, {seed}) % 60, now64(3), \
             if(number % 7 = 0, NULL, number % 11), ['x', 'y', ''][1 + number % 3], substring('abcdef', 1 + number % 4, 3), \
             toUUID('00000000-0000-0000-0000-00000000000' || toString(number % 3)), number / 8, number / 7, \
             if(number % 5 = 0, NULL, toString(number % 13)), 1 + number % 2, cityHash64(number), \
             [toString(number % 4)] FROM numbers(2000)"
        ));
    }
    let view = views_of(
        &upstream,
        "
  - name: every_state
    query: |
      SELECT toMonth(day) AS month, n, low, fixed, id, e, toStartOfHour(at) > '2000-01-01' AS recent,
        count(), count(n), sum(n), sum(price), sum(f), min(s), max(s), min(at), max(price), avg(n), avg(price),
        any(low), anyLast(s), groupBitXor(big), sumIf(big, n > 3), countIf(n > 3), avgIf(f, e = 'a'), maxIf(big, n > 20),
        uniqExact(big), uniq(big), uniqCombined(s), uniqHLL12(big), quantile(0.9)(f), quantileTDigest(0.5)(f),
        groupUniqArray(low), argMax(low, big), stddevPop(f), varSamp(n), groupArray(e), sumMap(tags, [1])
      FROM t
      WHERE big % 10 != 3
      GROUP BY month, n, low, fixed, id, e, recent
  - name: total
    query: SELECT count() AS n, sum(big), uniqExact(s), max(f) FROM t
  - name: all_keys
    query: SELECT day, low FROM t GROUP BY day, low
",
    )
    .await;
    for view in &view {
        // Few rows per query, so that states are merged here; and one query per partition.
        for chunk_rows in [1000, 1_000_000] {
            let options = Options { chunk_rows, full: true, ..Options::default() };
            let report = build_with(&upstream, view, options).await;
            assert_eq!((report.partitions_built, report.source_rows_read), (2, 8000), "{}", view.name());
            match verify(&upstream, view).await.unwrap() {
                Verdict::Equal { groups, .. } => assert!(groups > 0),
                other => panic!("{} in chunks of {chunk_rows}: {other:?}", view.name()),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_source_is_covered_by_no_rows() {
    let database = Database::new("empty");
    let upstream = database.upstream();
    database.sql("CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree ORDER BY k");
    let list = format!("{BY_KEY}  - {{name: total, query: 'SELECT count() AS n FROM t'}}\n");
    for view in views_of(&upstream, &list).await {
        build(&upstream, &view).await.unwrap();
        let look = looker(&upstream, &view).await.look(&[view.storage_name()]).await.unwrap();
        let Coverage::Covered(covered) = look.coverage(view.storage_name()) else {
            panic!("{:?}", look.coverage(view.storage_name()))
        };
        assert_eq!((covered.rows, covered.source_rows, covered.runs.len()), (0, 0, 0));
        assert_eq!(build(&upstream, &view).await.unwrap().partitions_built, 0);
        assert_eq!(build(&upstream, &view).await.unwrap().version, covered.version, "nothing to do, nothing committed");
    }
}

fn wide_table(database: &Database, partition_by: &str, rows: u64) {
    database.sql(&format!(
        "CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY {partition_by} ORDER BY k"
    ));
    database.sql("CREATE TABLE dim (k String, name String) ENGINE = MergeTree ORDER BY k");
    database.sql("INSERT INTO dim SELECT toString(number), 'name ' || toString(number % 10) FROM numbers(1000)");
    for part in 0..3 {
        database.sql(&format!(
            "INSERT INTO t SELECT toDate('2020-01-01') + 7 * number % 700, toString(number % {rows}), number + {part} \
             FROM numbers({rows})"
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn states_larger_than_the_memory_are_built_by_ranges_of_keys() {
    let database = Database::new("memory");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 20_000);
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    let options = Options { memory_bytes: 1 << 20, jobs: 2, chunk_rows: 10_000, ..Options::default() };
    let report = build_with(&upstream, &view, options).await;
    assert_eq!((report.partitions_built, report.runs), (2, 2), "a run for each partition that did not fit");
    assert_eq!(state(&upstream, &view, &looker(&upstream, &view).await).await, "covered");
    let options = Options { memory_bytes: 1 << 10, full: true, ..Options::default() };
    let error = rebuild(&upstream, &view, &options, Arc::new(Silent)).await.unwrap_err();
    assert!(error.to_string().contains("give more --memory"), "{error}");
    assert_eq!(orphans(&view), Vec::<String>::new());
    assert_eq!(state(&upstream, &view, &looker(&upstream, &view).await).await, "covered", "by the runs of before");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_partition_can_be_rebuilt_and_many_rebuilds_leave_few_runs() {
    let database = Database::new("partitions");
    let upstream = database.upstream();
    wide_table(&database, "toYYYYMM(d)", 2000);
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    let looker = looker(&upstream, &view).await;
    build(&upstream, &view).await.unwrap();
    for month in 1..=12 {
        database.sql(&format!("INSERT INTO t VALUES ('2020-{month:02}-10', 'x', 1), ('2023-{month:02}-10', 'x', 1)"));
        let only = Options { partitions: vec![format!("2020{month:02}")], ..Options::default() };
        let report = build_with(&upstream, &view, only).await;
        assert_eq!(report.partitions_built, 1);
        let reason = state(&upstream, &view, &looker).await;
        assert!(reason.contains(&format!("partition 2023{month:02} of")), "{reason}");
        assert_eq!(build(&upstream, &view).await.unwrap().partitions_built, 1);
        assert_eq!(state(&upstream, &view, &looker).await, "covered");
    }
    let report = build(&upstream, &view).await.unwrap();
    assert!(report.runs <= 8, "{} runs", report.runs);
    let wrong = Options { partitions: vec!["199901".into()], ..Options::default() };
    let error = rebuild(&upstream, &view, &wrong, Arc::new(Silent)).await.unwrap_err();
    assert!(error.to_string().starts_with("partition 199901 does not exist; there are 202001, 202002"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilds_of_the_same_view_at_once_do_not_corrupt_it() {
    let database = Database::new("rivals");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 5000);
    let view = views_of(&upstream, JOINED).await.remove(0);
    for _ in 0..3 {
        let mut rivals = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (upstream, view) = (upstream.clone(), view.clone());
            rivals.spawn(async move { build(&upstream, &view).await });
        }
        while let Some(ended) = rivals.join_next().await {
            ended.unwrap().unwrap();
        }
        assert_eq!(state(&upstream, &view, &looker(&upstream, &view).await).await, "covered");
        database.sql("INSERT INTO t VALUES ('2020-05-05', '7', 1)");
    }
    assert_eq!(orphans(&view), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn inserts_and_merges_during_a_rebuild_never_make_it_wrong() {
    let database = Database::new("busy");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 5000);
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    let looker = looker(&upstream, &view).await;
    let url = format!("{}?database={}", server().http_url(), database.name);
    let until = Instant::now() + Duration::from_secs(4);
    let writer = std::thread::spawn(move || {
        for at in 0.. {
            if Instant::now() > until {
                return;
            }
            let text = match at % 9 {
                8 => "OPTIMIZE TABLE t FINAL".to_string(),
                5 => "ALTER TABLE t UPDATE v = v + 1 WHERE k = '3' SETTINGS mutations_sync = 0".to_string(),
                _ => format!("INSERT INTO t SELECT toDate('2020-01-01') + number, toString({at}), 5 FROM numbers(700)"),
            };
            ask(&url, &text).unwrap();
        }
    });
    let mut covered = 0;
    while !writer.is_finished() {
        let options = Options { chunk_rows: 3000, ..Options::default() };
        rebuild(&upstream, &view, &options, Arc::new(Silent)).await.unwrap();
        // `verify` looks before and after, so that what it calls different was covered all the time.
        covered += usize::from(matches!(verify(&upstream, &view).await.unwrap(), Verdict::Equal { .. }));
        assert!(!matches!(verify(&upstream, &view).await.unwrap(), Verdict::Differs { .. }));
    }
    writer.join().unwrap();
    database.sql("ALTER TABLE t UPDATE v = v + 1 WHERE 0 SETTINGS mutations_sync = 2");
    build(&upstream, &view).await.unwrap();
    assert_eq!(state(&upstream, &view, &looker).await, "covered", "{covered} times before");
    assert_eq!(orphans(&view), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_rebuild_leaves_nothing_that_counts() {
    let database = Database::new("killed");
    let upstream = database.upstream();
    wide_table(&database, "toYYYYMM(d)", 60_000);
    let views = folder("killed").with_extension("yaml");
    std::fs::write(&views, format!("views:{BY_KEY}")).unwrap();
    let view = views_of(&upstream, BY_KEY).await.remove(0);
    let url = format!("{}?database={}", server().http_url(), database.name);
    for round in 0..12_u64 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["rebuild", "--full", "--upstream", &url, "--views"])
            .arg(&views)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(30 + 45 * round)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        // Whatever the kill left, what counts is whole.
        let verdict = state(&upstream, &view, &looker(&upstream, &view).await).await;
        assert!(["covered", "never built"].contains(&verdict.as_str()), "{verdict}");
    }
    build(&upstream, &view).await.unwrap();
    assert_eq!(orphans(&view), Vec::<String>::new(), "the next rebuild drops what the killed ones left");
    assert_eq!(state(&upstream, &view, &looker(&upstream, &view).await).await, "covered");
}

/// A random number below `below`; the same sequence for the same state.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[tokio::test(flavor = "multi_thread")]
async fn random_histories_are_never_covered_wrongly() {
    let database = Database::new("random");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 500);
    let views = views_of(&upstream, &format!("{BY_KEY}{JOINED}")).await;
    let looker = Looker::connect(upstream.clone(), views.iter().map(CatalogView::target).collect()).await.unwrap();
    let mut seed = 20_240_229;
    let mut covered = 0;
    for step in 0..60 {
        let year = 2020 + random(&mut seed, 3);
        let key = random(&mut seed, 50);
        let text = match random(&mut seed, 12) {
            0..3 => format!("INSERT INTO t SELECT '{year}-02-03', toString({key} + number), {step} FROM numbers(20)"),
            3 | 4 => "OPTIMIZE TABLE t FINAL".into(),
            5 => format!("ALTER TABLE t UPDATE v = v + 1 WHERE k = '{key}' SETTINGS mutations_sync = 2"),
            6 => format!("DELETE FROM t WHERE k = '{key}'"),
            7 => format!("ALTER TABLE t DROP PARTITION {year}"),
            8 => format!("INSERT INTO dim VALUES ('{key}', 'new')"),
            9 => "OPTIMIZE TABLE dim FINAL".into(),
            _ => "SELECT 1".into(),
        };
        database.sql(&text);
        for view in &views {
            covered += usize::from(state(&upstream, view, &looker).await == "covered");
            if random(&mut seed, 3) == 0 {
                build(&upstream, view).await.unwrap();
                assert_eq!(state(&upstream, view, &looker).await, "covered", "step {step}: {text}");
            }
        }
    }
    assert!(covered > 10, "only {covered} times covered before a rebuild: the test tests little");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_contents_prove_what_numbers_no_longer_do() {
    let options = ServerOptions { memory_bytes_max: Some(2 << 30), ..ServerOptions::new(folder("restarted")) };
    let url = |server: &Server| format!("{}?database=r", server.http_url());
    let ask_at = |server: &Server, text: &str| ask(&url(server), text).unwrap();
    let upstream_of = |server: &Server| Upstream::new(UpstreamConfig::parse(&url(server)).unwrap());
    let first = Server::start(&options).unwrap();
    ask(&first.http_url(), "CREATE DATABASE r").unwrap();
    ask_at(&first, "CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
    for year in [2020, 2020, 2021] {
        ask_at(&first, &format!("INSERT INTO t SELECT '{year}-01-01', toString(number), 1 FROM numbers(10)"));
    }
    let view = views_of(&upstream_of(&first), BY_KEY).await.remove(0);
    build(&upstream_of(&first), &view).await.unwrap();
    first.stop();

    let second = Server::start(&options).unwrap();
    // Contents are compared once a second, and a young server's parts are known by nothing else.
    while ask_at(&second, "SELECT uptime()").trim().parse::<u32>().unwrap() < 3 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let upstream = upstream_of(&second);
    let looker = looker(&upstream, &view).await;
    assert_eq!(state(&upstream, &view, &looker).await, "covered", "the same files");
    ask_at(&second, "OPTIMIZE TABLE t PARTITION 2020");
    assert_eq!(state(&upstream, &view, &looker).await, "covered", "merged below a part that was there all the time");
    build(&upstream, &view).await.unwrap();
    ask_at(&second, "TRUNCATE TABLE t");
    second.stop();

    // Another load in the same blocks, which may get the numbers of the first one.
    let third = Server::start(&options).unwrap();
    for year in [2020, 2020, 2021] {
        ask_at(&third, &format!("INSERT INTO t SELECT '{year}-01-01', toString(number), 7 FROM numbers(10)"));
    }
    let upstream = upstream_of(&third);
    let looker = Looker::connect(upstream.clone(), vec![view.target()]).await.unwrap();
    assert_ne!(state(&upstream, &view, &looker).await, "covered");
    build(&upstream, &view).await.unwrap();
    assert_eq!(state(&upstream, &view, &looker).await, "covered");
    third.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn views_over_joins_of_every_kind_equal_their_queries() {
    let database = Database::new("joins");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 1000);
    database.sql("INSERT INTO dim VALUES ('5', 'twice'), ('nowhere', 'nobody')");
    database.sql("INSERT INTO t VALUES ('2020-01-01', 'without', 9), ('2021-01-01', 'without', 9)");
    let views = views_of(
        &upstream,
        "
  - {name: comma, query: 'SELECT name, sum(v), count() AS n FROM t, dim WHERE t.k = dim.k GROUP BY name'}
  - {name: inner_on, query: 'SELECT name, toYear(d) AS y, sum(v) FROM t INNER JOIN dim ON t.k = dim.k WHERE v > 5 GROUP BY name, y'}
  - {name: left_on, query: 'SELECT name, sum(v), count() AS n FROM t LEFT JOIN dim ON t.k = dim.k GROUP BY name'}
  - {name: right_on, query: 'SELECT name, sum(v), count() AS n FROM t RIGHT JOIN dim ON t.k = dim.k GROUP BY name'}
",
    )
    .await;
    let looker = Looker::connect(upstream.clone(), views.iter().map(CatalogView::target).collect()).await.unwrap();
    for view in &views {
        build_with(&upstream, view, Options { chunk_rows: 500, ..Options::default() }).await;
        assert_eq!(state(&upstream, view, &looker).await, "covered", "{}", view.name());
    }
    database.sql("INSERT INTO dim VALUES ('6', 'twice')");
    for view in &views {
        assert!(state(&upstream, view, &looker).await.contains("1 rows were added"), "{}", view.name());
        build(&upstream, view).await.unwrap();
        assert_eq!(state(&upstream, view, &looker).await, "covered", "{}", view.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_view_is_as_fresh_as_its_last_rebuild() {
    let database = Database::new("manual");
    let upstream = database.upstream();
    database.sql("CREATE TABLE l (k String, v UInt32) ENGINE = Log");
    database.sql("INSERT INTO l SELECT toString(number % 10), number FROM numbers(1000)");
    let list = "\n  - {name: by_hand, consistency: manual, query: 'SELECT k, sum(v) AS s FROM l GROUP BY k'}\n";
    let view = views_of(&upstream, list).await.remove(0);
    let storage = view.storage_name();
    let rows = async || match looker(&upstream, &view).await.look(&[storage]).await.unwrap().coverage(storage) {
        Coverage::Covered(covered) => (covered.manual, covered.rows),
        other => panic!("{other:?}"),
    };
    build(&upstream, &view).await.unwrap();
    assert_eq!(rows().await, (true, 10));
    database.sql("INSERT INTO l VALUES ('new', 1)");
    assert_eq!(rows().await, (true, 10), "nobody looks at the source");
    build(&upstream, &view).await.unwrap();
    assert_eq!(rows().await, (true, 11));
    assert!(matches!(verify(&upstream, &view).await.unwrap(), Verdict::Equal { groups: 11, .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_share_looks_that_began_after_they_asked() {
    let database = Database::new("shared_looks");
    let upstream = database.upstream();
    wide_table(&database, "toYear(d)", 100);
    let views = views_of(&upstream, &format!("{BY_KEY}{JOINED}")).await;
    for view in &views {
        build(&upstream, view).await.unwrap();
    }
    let looker = Looker::connect(upstream, views.iter().map(CatalogView::target).collect()).await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for at in 0..64 {
        let looker = looker.clone();
        let storage = views[at % 2].storage_name().to_string();
        callers.spawn(async move {
            let mut starts = std::collections::BTreeSet::new();
            for _ in 0..5 {
                let asked_at = Instant::now();
                let look = looker.look(&[&storage]).await.unwrap();
                assert!(look.started_at >= asked_at, "a look that began before it was asked for");
                assert!(matches!(look.coverage(&storage), Coverage::Covered(_)), "{:?}", look.coverage(&storage));
                starts.insert(look.started_at);
            }
            starts
        });
    }
    let looks: std::collections::BTreeSet<Instant> = callers.join_all().await.into_iter().flatten().collect();
    assert!(looks.len() < 200, "{} looks for 320 calls", looks.len());
}

/// The program's exit code, standard output and standard error.
fn tributary(database: &Database, arguments: &[&str]) -> (i32, String, String) {
    let url = format!("{}?database={}", server().http_url(), database.name);
    let output =
        Command::new(env!("CARGO_BIN_EXE_tributary")).args(arguments).args(["--upstream", &url]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_say_what_they_did_to_people_and_to_machines() {
    let database = Database::new("commands");
    wide_table(&database, "toYear(d)", 100);
    let file = folder("commands").with_extension("yaml");
    std::fs::write(&file, format!("views:{BY_KEY}")).unwrap();
    let views = ["--views", file.to_str().unwrap()];
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();

    let (code, text, _) = tributary(&database, &[&["check"], &views[..]].concat());
    assert!(code == 0 && text.contains("never built: run tributary rebuild"), "{code} {text}");
    let (code, text, _) = tributary(&database, &[&["rebuild", "by_key", "--verify"], &views[..]].concat());
    assert_eq!(code, 0);
    assert!(text.starts_with("by_key: 100 rows from 300 rows of 2 partitions in "), "{text}");
    assert!(text.contains("equal to the source in all 100 groups"), "{text}");
    let (code, text, _) = tributary(&database, &[&["check", "--format", "json"], &views[..]].concat());
    let check = json(&text);
    assert_eq!((code, &check["ok"], &check["views"][0]["state"]), (0, &true.into(), &"covered".into()), "{text}");
    assert_eq!(check["views"][0]["source_rows"], 300);
    database.sql("INSERT INTO t VALUES ('2021-05-05', 'x', 1)");
    let (_, text, _) = tributary(&database, &[&["check"], &views[..]].concat());
    assert!(text.contains("stale: partition 2021 of"), "{text}");
    let (code, text, _) = tributary(&database, &[&["rebuild", "--format", "json", "--verify"], &views[..]].concat());
    let built = &json(&text)["views"][0];
    assert_eq!((code, &built["partitions_built"], &built["verified"]), (0, &1.into(), &true.into()), "{text}");

    let (code, _, error) = tributary(&database, &[&["rebuild", "by_kee"], &views[..]].concat());
    assert!(code == 2 && error.contains("there is no view by_kee; declared are by_key"), "{code} {error}");
    let (code, _, error) = tributary(&database, &[&["rebuild", "--partition", "1999"], &views[..]].concat());
    assert!(code == 1 && error.contains("partition 1999 does not exist; there are 2020, 2021"), "{code} {error}");
    std::fs::write(&file, format!("views:{BY_KEY}  - name: wrong\n    query: SELECT v FROM t\n")).unwrap();
    let (code, text, error) = tributary(&database, &[&["check"], &views[..]].concat());
    assert!(code == 1 && error.contains("view wrong: ") && error.contains("commands.yaml:7:12"), "{code} {error}");
    assert!(text.contains("1 view in order, 1 problem"), "{text}");
    let (code, text, _) = tributary(&database, &[&["rebuild"], &views[..]].concat());
    assert!(code == 1 && text.starts_with("by_key: up to date"), "what is in order is built: {code} {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_own_user_may_have_odd_settings_but_must_see_every_row() {
    sql("CREATE DATABASE with_policies");
    sql("CREATE TABLE with_policies.t (at DateTime, k String, v UInt32) ENGINE = MergeTree ORDER BY k");
    sql("CREATE TABLE with_policies.dim (k String, n UInt8) ENGINE = MergeTree ORDER BY k");
    sql("INSERT INTO with_policies.t SELECT '2024-01-01 10:00:00', toString(number % 5), number FROM numbers(100)");
    sql("INSERT INTO with_policies.dim VALUES ('1', 1), ('2', 2)");
    let as_user = |user: &str| {
        let url = format!("{}?database=with_policies&user={user}", server().http_url());
        Upstream::new(UpstreamConfig::parse(&url).unwrap())
    };
    let list = "
  - name: under_odd_settings
    query: |
      SELECT toStartOfDay(at) AS day, t.k, n, sum(v) AS s, sumIf(v, v > 1000) AS none
      FROM t LEFT JOIN dim ON t.k = dim.k GROUP BY day, t.k, n
";
    let view = views_of(&as_user("default"), list).await.remove(0);
    let as_odd = views_of(&as_user("odd"), list).await.remove(0);
    assert_eq!(as_odd.storage, view.storage, "names and types do not depend on the profile");
    build(&as_user("odd"), &as_odd).await.unwrap();
    let upstream = as_user("default");
    assert_eq!(state(&upstream, &view, &looker(&upstream, &view).await).await, "covered");

    let error = build(&as_user("pruned"), &view).await.unwrap_err().to_string();
    assert!(error.starts_with("a row policy (") && error.contains("hides rows of with_policies.t"), "{error}");
    let error = build(&as_user("cut"), &view).await.unwrap_err().to_string();
    assert!(error.starts_with("user cut has settings under which answers are cut or filtered (limit"), "{error}");
    let look = looker(&upstream, &view).await.look(&[view.storage_name()]).await.unwrap();
    let policies: Vec<_> = look.policies_on(&view.view.tables[0]).collect();
    assert_eq!((policies.len(), policies[0].applies_to(&["pruned".to_string()])), (1, true));
    sql("DROP DATABASE with_policies");
}
