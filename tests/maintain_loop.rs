//! The loop of maintenance on a real server: views are built and follow their sources by themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tributary::embedded::free_port;
use tributary::maintain::board::{Board, State};
use tributary::maintain::look::{Coverage, Looker};
use tributary::maintain::manifest::{Manifest, Store};
use tributary::maintain::pass::Limits;
use tributary::maintain::upkeep::{Settings, Upkeep};
use tributary::maintain::verify::{Verdict, verify};
use tributary::upstream::Upstream;
use tributary::views::catalog::CatalogView;

use crate::http_serve::Served;
use crate::maintain_live::{BY_KEY, JOINED, views_of};
use crate::support::{Database, ask, exchange, folder, server, signal, sql, times};

/// Longer than anything here should take, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The loop over some views, and what looks at it.
pub struct Loop {
    pub upstream: Upstream,
    pub views: Vec<CatalogView>,
    pub board: Arc<Board>,
    pub written: Arc<Notify>,
    looker: Looker,
    task: JoinHandle<()>,
    _sender: watch::Sender<Arc<Vec<CatalogView>>>,
}

impl Loop {
    pub async fn start(upstream: Upstream, views: Vec<CatalogView>) -> Self {
        let (sender, receiver) = watch::channel(Arc::new(views.clone()));
        let (board, written) = (Arc::<Board>::default(), Arc::<Notify>::default());
        let limits = Limits { threads: 1, memory_bytes: 256 << 20 };
        let settings = Settings { interval: Duration::from_millis(200), share: 0.9, limits };
        let upkeep = Upkeep {
            upstream: upstream.clone(),
            settings,
            views: receiver,
            written: written.clone(),
            outdated: Arc::default(),
            board: board.clone(),
        };
        let looker = Looker::connect(upstream.clone(), views.iter().map(CatalogView::target).collect()).await.unwrap();
        Self { upstream, views, board, written, looker, task: tokio::spawn(upkeep.run()), _sender: sender }
    }

    /// Waits until a look finds the views covered, and compares them with their queries.
    pub async fn catch_up(&self, after: &str) {
        let until = Instant::now() + PATIENCE;
        for view in &self.views {
            loop {
                let coverage = self.looker.look(&[view.storage_name()]).await.unwrap().coverage(view.storage_name());
                if let Coverage::Covered(_) = coverage {
                    match verify(&self.upstream, view).await.unwrap() {
                        Verdict::Equal { .. } => break,
                        Verdict::SourceChanged => {}
                        differs => panic!("after {after}: {} is called covered: {differs:?}", view.name()),
                    }
                }
                let entry = self.board.entries().remove(view.name());
                assert!(Instant::now() < until, "after {after}: {}: {coverage:?}\n{entry:?}", view.name());
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
    }

    pub async fn manifest(&self, view: &CatalogView) -> Manifest {
        Store::new(self.upstream.clone()).latest(&view.storage.name.table).await.unwrap().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn tables(database: &Database) {
    for table in ["t", "u"] {
        database.sql(&format!(
            "CREATE TABLE {table} (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k"
        ));
    }
    database.sql("CREATE TABLE dim (k String, name String) ENGINE = MergeTree ORDER BY k");
    database.sql("INSERT INTO dim SELECT toString(number), 'name ' || toString(number % 10) FROM numbers(100)");
    database.sql(
        "INSERT INTO t SELECT toDate('2020-01-01') + number % 900, toString(number % 70), number FROM numbers(5000)",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn views_follow_every_kind_of_change_by_themselves() {
    let database = Database::new("follow");
    tables(&database);
    let views = views_of(&database.upstream(), &format!("{BY_KEY}{JOINED}")).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up("nothing").await;
    for change in [
        "INSERT INTO t VALUES ('2020-03-01', 'a', 1)",
        "INSERT INTO t VALUES ('2029-03-01', '7', 1)",
        "OPTIMIZE TABLE t FINAL",
        "INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number), 3 FROM numbers(1500)",
        "ALTER TABLE t UPDATE v = v + 1 WHERE k = '3' SETTINGS mutations_sync = 2",
        "DELETE FROM t WHERE k = '4'",
        "ALTER TABLE t DROP PARTITION 2021",
        "INSERT INTO u SELECT '2021-05-05', toString(number), 9 FROM numbers(50)",
        "ALTER TABLE t REPLACE PARTITION 2021 FROM u",
        "ALTER TABLE t ATTACH PARTITION 2021 FROM u",
        "ALTER TABLE t DETACH PARTITION 2020",
        "ALTER TABLE t ATTACH PARTITION 2020",
        "INSERT INTO dim VALUES ('5', 'twice')",
        "ALTER TABLE dim DELETE WHERE k = '6' SETTINGS mutations_sync = 2",
        "ALTER TABLE t MODIFY COLUMN v UInt32 DEFAULT 7",
        "ALTER TABLE t ADD COLUMN other UInt8 DEFAULT 1",
        "ALTER TABLE t DROP COLUMN other SETTINGS alter_sync = 2",
        "EXCHANGE TABLES t AND u",
        "INSERT INTO t SELECT '2021-05-05', toString(number), 9 FROM numbers(50)",
        "TRUNCATE TABLE t",
        "INSERT INTO t SELECT '2021-05-05', toString(number), 9 FROM numbers(50)",
    ] {
        database.sql(change);
        upkeep.catch_up(change).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_one_partition_makes_only_that_one_be_read() {
    let database = Database::new("one_partition");
    tables(&database);
    let views = views_of(&database.upstream(), BY_KEY).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up("nothing").await;
    let before = upkeep.manifest(&upkeep.views[0]).await;
    database.sql("ALTER TABLE t UPDATE v = v + 1 IN PARTITION 2021 WHERE k = '3' SETTINGS mutations_sync = 2");
    upkeep.catch_up("an update").await;
    let after = upkeep.manifest(&upkeep.views[0]).await;
    let [old, new] = &after.body.runs[..] else { panic!("{:?}", after.body.runs) };
    assert_eq!(old.id, before.body.runs[0].id, "the run stays");
    assert_eq!((&old.dead[..], old.rows), (&["2021".to_string()][..], before.body.runs[0].rows));
    assert_eq!(new.partitions.keys().collect::<Vec<_>>(), ["2021"], "the new run holds one partition");
}

/// A mutation gives parts new names even where it changes nothing; contents prove that. Who looks first when the parts
/// have been merged as well can only go by what is recorded.
#[tokio::test(flavor = "multi_thread")]
async fn what_contents_prove_is_recorded_before_part_merges_hide_it() {
    let database = Database::new("renamed");
    tables(&database);
    database.sql("SYSTEM STOP MERGES t");
    database.sql("INSERT INTO t SELECT toDate('2020-01-01') + number, '1', 1 FROM numbers(300)");
    let views = views_of(&database.upstream(), BY_KEY).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up("nothing").await;
    let view = &upkeep.views[0];
    let before = upkeep.manifest(view).await;
    database.sql("SYSTEM START MERGES t");
    database.sql("ALTER TABLE t DELETE WHERE k = 'nobody' SETTINGS mutations_sync = 2");
    let until = Instant::now() + PATIENCE;
    loop {
        let now = upkeep.manifest(view).await;
        if now.body.sources[0].parts.values().flatten().all(|part| part.name.mutation > 0) {
            assert_eq!(now.body.runs, before.body.runs, "nothing was read");
            break;
        }
        assert!(Instant::now() < until, "not recorded: {:?}", now.body.sources[0].parts);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    database.sql("OPTIMIZE TABLE t FINAL");
    let looker = Looker::connect(database.upstream(), vec![view.target()]).await.unwrap();
    let coverage = looker.look(&[view.storage_name()]).await.unwrap().coverage(view.storage_name());
    assert!(matches!(coverage, Coverage::Covered(_)), "{coverage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_inserts_leave_few_runs_and_few_parts() {
    // Of two writers together.
    let inserts = times("TRIBUTARY_SMALL_INSERTS", 800);
    let database = Database::new("small_inserts");
    tables(&database);
    let views = views_of(&database.upstream(), BY_KEY).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    let url = format!("{}?database={}", server().http_url(), database.name);
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (url, written) = (url.clone(), upkeep.written.clone());
            std::thread::spawn(move || {
                for at in 0..inserts / 2 {
                    let text = format!(
                        "INSERT INTO t SELECT toDate('2020-01-01') + (number * 37 + {at}) % 1400, \
                         toString((number + {writer}) % 50), {at} FROM numbers(20)"
                    );
                    ask(&url, &text).unwrap();
                    written.notify_one();
                }
            })
        })
        .collect();
    let mut compared = 0;
    while writers.iter().any(|writer| !writer.is_finished()) {
        match verify(&upkeep.upstream, &upkeep.views[0]).await.unwrap() {
            Verdict::SourceChanged => {}
            Verdict::Equal { .. } => compared += 1,
            differs => panic!("while rows come in: {differs:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    upkeep.catch_up("all inserts").await;
    let view = &upkeep.views[0];
    let manifest = upkeep.manifest(view).await;
    let parts = sql(&format!(
        "SELECT count() FROM system.parts WHERE active AND database = 'tributary' AND table = '{}'",
        view.storage.name.table
    ));
    assert!(manifest.body.runs.len() <= 64, "{} runs, {compared} times covered meanwhile", manifest.body.runs.len());
    assert!(parts.trim().parse::<usize>().unwrap() <= 300, "{parts} parts");
    assert_eq!(upkeep.board.entries()[view.name()].state, State::Current);
}

/// Asks through a proxy; the decision and the answer.
pub fn ask_proxy(served: &Served, database: &Database, text: &str) -> (String, String) {
    let request = format!(
        "POST /?database={} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{text}",
        database.name,
        text.len()
    );
    let answer = exchange(served.port, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let decision = head.lines().find_map(|line| line.strip_prefix("X-Tributary-Decision: ")).unwrap_or_default();
    (decision.to_string(), body.to_string())
}

/// Asks until the answer comes from the view alone; it must be the raw tables' answer at every time.
pub fn ask_until_covered(served: &Served, database: &Database, text: &str) -> Duration {
    let began = Instant::now();
    loop {
        let raw = database.sql(text);
        let (decision, answer) = ask_proxy(served, database, text);
        assert_eq!(answer, raw, "{decision}");
        if decision == "view=by_key; mode=full" {
            return began.elapsed();
        }
        assert!(began.elapsed() < PATIENCE, "{decision}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const BY_YEAR: &str = "SELECT toYear(d) AS year, sum(v) AS s, count() FROM t GROUP BY year ORDER BY year";

#[test]
fn serve_builds_views_and_reads_what_is_inserted_through_it_at_once() {
    let database = Database::new("served");
    tables(&database);
    let file = folder("served").with_extension("yaml");
    std::fs::write(&file, format!("views:{BY_KEY}")).unwrap();
    let url = format!("{}?database={}", server().http_url(), database.name);
    let served = Served::start(&["--upstream", &url, "--views", file.to_str().unwrap()]);
    ask_until_covered(&served, &database, BY_YEAR);
    for year in 2024..2034 {
        let (decision, _) = ask_proxy(&served, &database, &format!("INSERT INTO t VALUES ('{year}-01-01', 'x', 1)"));
        assert_eq!(decision, "", "an INSERT is none of the proxy's business");
        ask_until_covered(&served, &database, BY_YEAR);
    }
    // Another type makes another definition, which is loaded and built without a word.
    database.sql("ALTER TABLE t MODIFY COLUMN v Int64 SETTINGS mutations_sync = 2, alter_sync = 2");
    database.sql("INSERT INTO t VALUES ('2024-01-01', 'x', -100000)");
    ask_until_covered(&served, &database, BY_YEAR);
}

#[test]
fn one_of_several_maintains_and_another_one_takes_over_when_it_stops_or_dies() {
    let database = Database::new("several");
    tables(&database);
    let file = folder("several").with_extension("yaml");
    std::fs::write(&file, format!("views:{BY_KEY}")).unwrap();
    let url = format!("{}?database={}", server().http_url(), database.name);
    let start = || Served::start(&["--upstream", &url, "--views", file.to_str().unwrap()]);
    let insert = |year: u32| database.sql(&format!("INSERT INTO t VALUES ('{year}-01-01', 'x', 1)"));
    let mut sidecars = vec![start(), start(), start()];
    ask_until_covered(&sidecars[0], &database, BY_YEAR);
    // Whoever holds the lease, after two have stood still and one is dead the last one has it.
    for (year, stopped) in [(2031, 0), (2032, 1)] {
        signal("STOP", sidecars[stopped].process_id());
        insert(year);
        let took = ask_until_covered(&sidecars[2], &database, BY_YEAR);
        assert!(took < Duration::from_secs(15), "taken over after {took:?}");
    }
    for sidecar in &sidecars[..2] {
        signal("CONT", sidecar.process_id());
    }
    insert(2033);
    for sidecar in &sidecars {
        ask_until_covered(sidecar, &database, BY_YEAR);
    }
    drop(sidecars.pop());
    insert(2034);
    let took = ask_until_covered(&sidecars[0], &database, BY_YEAR);
    assert!(took < Duration::from_secs(15), "taken over after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_can_be_built_from_a_finer_one_waits_for_it() {
    let database = Database::new("finer_first");
    tables(&database);
    let coarse = "
  - name: by_year
    query: SELECT toYear(d) AS year, sum(v) AS s, max(v) FROM t GROUP BY year
";
    let views = views_of(&database.upstream(), &format!("{coarse}{BY_KEY}")).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up("nothing").await;
    let (coarse, fine) = (upkeep.manifest(&upkeep.views[0]).await, upkeep.manifest(&upkeep.views[1]).await);
    assert_eq!((coarse.version, fine.version), (1, 1));
    assert!(fine.committed_at_ms <= coarse.committed_at_ms);
    database.sql("ALTER TABLE t UPDATE v = v + 1 WHERE k = '3' SETTINGS mutations_sync = 2");
    upkeep.catch_up("a mutation of every partition").await;
}

#[test]
fn status_tells_how_far_a_view_is_and_what_a_running_process_has_counted() {
    let database = Database::new("status");
    tables(&database);
    let file = folder("status").with_extension("yaml");
    std::fs::write(&file, format!("views:{BY_KEY}")).unwrap();
    let url = format!("{}?database={}", server().http_url(), database.name);
    let admin = format!("127.0.0.1:{}", free_port());
    let views = file.to_str().unwrap();
    let status = |args: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["status", "--upstream", &url, "--views", views])
            .args(args)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let view = |args: &[&str]| {
        let (_, text) = status(&[&["--format", "json"], args].concat());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let before = &view(&[])["views"]["by_key"];
    assert_eq!((&before["state"], &before["steps"][0]), (&"building".into(), &"build all: never built".into()));

    let served = Served::start(&["--upstream", &url, "--views", views, "--listen-admin", &admin]);
    ask_until_covered(&served, &database, BY_YEAR);
    ask_proxy(&served, &database, "SELECT count() FROM t /* tributary: off */");
    let now = view(&["--admin", &admin]);
    let current = &now["views"]["by_key"];
    assert_eq!(
        (&current["state"], &current["rows_behind"], &current["runs"]),
        (&"current".into(), &0.into(), &1.into())
    );
    assert!(current["rows"] == 210 && current["bytes"].as_u64() > Some(1000), "{current}");
    assert!(now["running"]["views"]["by_key"]["hits"]["full"].as_u64() >= Some(1), "{now}");
    assert_eq!(now["running"]["reasons"]["opted out"], 1, "{now}");
    let (_, text) = status(&["--admin", &admin]);
    assert!(text.contains("by_key  current") && text.contains("raw: opted out"), "{text}");
    let health = exchange(admin.rsplit(':').next().unwrap().parse().unwrap(), b"GET /healthz HTTP/1.0\r\n\r\n");
    assert!(health.starts_with("HTTP/1.0 200"), "{health}");
    drop(served);

    database.sql("INSERT INTO t VALUES ('2021-03-01', 'a', 1), ('2021-03-01', 'b', 1)");
    let behind = &view(&[])["views"]["by_key"];
    assert_eq!((&behind["state"], &behind["rows_behind"]), (&"behind".into(), &2.into()));
    assert!(behind["steps"][0].as_str().unwrap().ends_with("of partition 2021: 2 rows were added"), "{behind}");
    assert!(!status(&["--admin", &admin]).0, "nobody listens there any more");
}
