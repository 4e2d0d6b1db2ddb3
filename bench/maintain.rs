//! What maintenance costs: inserts into the flat SSB table without views, with four views kept by Tributary, and with the
//! same four as ClickHouse's own materialized views; and how soon inserted rows are covered.
//!
//! Every mode gets the same inserts, in rounds after one that does not count; medians are printed. The CPU time of keeping views is
//! what ClickHouse's logs and the system say of it, until all has come to rest: of the sidecar, of its queries (it has a user
//! of its own), of writing through ClickHouse's views, and of part merges in the views' tables.
//!
//! `cargo bench --bench maintain [-- rounds inserts]`; 0 rounds measure freshness alone.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tributary::config::UpstreamConfig;
use tributary::embedded::{Options, Server};
use tributary::maintain::look::{Coverage, Looker};
use tributary::maintain::manifest::Store;
use tributary::maintain::verify::{Verdict, verify};
use tributary::matching::view::Excerpt;
use tributary::ssb::{self, Scale};
use tributary::upstream::Upstream;
use tributary::views::catalog::{self, CatalogView};
use tributary::views::declaration;

const VIEWS: [&str; 4] = ["flat_discounts_by_week", "flat_brands", "flat_nations", "flat_city_pairs"];
const ROWS_PER_INSERT: usize = 10_000;
/// Of the inserts whose freshness is measured. They go into the newest partition, as rows do that come all the time; two
/// cores do not take in twenty inserts a second that make seven parts each, with or without views.
const ROWS_PER_SMALL_INSERT: usize = 1_000;
const INSERT_INTERVAL: Duration = Duration::from_millis(50);
const FRESHNESS_TIME: Duration = Duration::from_secs(20);
/// Different batches; they are sent again and again.
const BATCHES: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    None,
    Tributary,
    Native,
}

/// One round of one mode.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "all of it is printed")]
struct Measured {
    rows_per_second: f64,
    /// CPU seconds for a million rows: of the server and the sidecar, and what keeping the views took of it.
    cpu: f64,
    keeping: f64,
    /// Of the latter: the sidecar, queries or views written through, part merges.
    shares: [f64; 3],
}

const SERVER_CONFIG: &str = "<clickhouse>
    <query_log><database>system</database><table>query_log</table></query_log>
    <query_views_log><database>system</database><table>query_views_log</table></query_views_log>
    <part_log><database>system</database><table>part_log</table></part_log>
</clickhouse>";

/// Of the sidecar, so that its queries can be told apart.
const SIDECAR_USER: &str = "sidecar";
const USERS_CONFIG: &str = "<clickhouse><users><sidecar>
    <password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
    <access_management>1</access_management>
</sidecar></users></clickhouse>";

struct Stand {
    server: Server,
    upstream: Upstream,
    batches: Vec<Bytes>,
    small_batches: Vec<Bytes>,
    folder: tempfile::TempDir,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let rounds = arguments.next().map_or(3, |text| text.parse().unwrap());
    let inserts = arguments.next().map_or(150, |text| text.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stand = Stand::set().await;
        let mut measured = [Mode::None, Mode::Tributary, Mode::Native].map(|mode| (mode, Vec::new()));
        for round in 0..=rounds {
            for (mode, measured) in &mut measured {
                let result = stand.throughput(*mode, inserts).await;
                println!("round {round} {mode:?}: {result:.2?}");
                if round > 0 {
                    measured.push(result);
                }
            }
        }
        let [none, tributary, native] = measured.map(|(_, measured)| {
            let median = |figure: fn(&Measured) -> f64| {
                let mut figures: Vec<f64> = measured.iter().map(figure).collect();
                figures.sort_by(f64::total_cmp);
                figures[figures.len() / 2]
            };
            (median(|m| m.rows_per_second), median(|m| m.keeping))
        });
        println!("inserts with 4 views, of those without: {:.1} %", 100.0 * tributary.0 / none.0);
        println!("with ClickHouse's own 4 views: {:.1} %", 100.0 * native.0 / none.0);
        println!("CPU of keeping views, of ClickHouse's own: {:.1} %", 100.0 * tributary.1 / native.1);
        stand.freshness().await;
    });
}

impl Stand {
    async fn set() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&Options {
            server_config: Some(SERVER_CONFIG.into()),
            users_config: Some(USERS_CONFIG.into()),
            ..Options::new(folder.path().join("clickhouse"))
        })
        .unwrap();
        let upstream = Upstream::new(UpstreamConfig::parse(&server.http_url()).unwrap()).in_database("ssb");
        ssb::ensure(&upstream, Scale::new(0.05).unwrap(), &mut |_: &str, _: u64, _: u64| {}).await.unwrap();
        let batches = async |rows: usize, first_year: u32| {
            let mut batches = Vec::new();
            for at in 0..BATCHES {
                let sql = format!(
                    "SELECT * FROM lineorder_flat WHERE toYear(LO_ORDERDATE) >= {first_year}
                     ORDER BY cityHash64(LO_ORDERKEY, LO_LINENUMBER) LIMIT {rows} OFFSET {}",
                    at * rows
                );
                batches.push(upstream.bytes(&sql, "Native").await.unwrap());
            }
            batches
        };
        let (batches, small_batches) = (batches(ROWS_PER_INSERT, 0).await, batches(ROWS_PER_SMALL_INSERT, 1998).await);
        upstream.execute("CREATE TABLE empty AS lineorder_flat").await.unwrap();
        Self { server, upstream, batches, small_batches, folder }
    }

    async fn views(&self) -> Vec<CatalogView> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("views/ssb_flat.yaml");
        let catalog = catalog::resolve(&self.upstream, declaration::load(&path)).await.unwrap();
        catalog.views.into_iter().filter(|view| VIEWS.contains(&view.name())).collect()
    }

    /// An empty table, and nothing but the mode's views over it.
    async fn clean(&self, mode: Mode, views: &[CatalogView]) {
        let run = async |sql: &str| self.upstream.execute(sql).await.unwrap();
        for at in 0..VIEWS.len() {
            run(&format!("DROP TABLE IF EXISTS mv_{at} SYNC")).await;
            run(&format!("DROP TABLE IF EXISTS native_{at} SYNC")).await;
        }
        run("DROP DATABASE IF EXISTS tributary SYNC").await;
        run("DROP TABLE lineorder_flat SYNC").await;
        run("CREATE TABLE lineorder_flat AS empty").await;
        if mode == Mode::Native {
            for (at, view) in views.iter().enumerate() {
                let column = |column: &tributary::views::storage::StorageColumn| {
                    format!("`{}` {}", column.name, column.type_name)
                };
                let columns: Vec<String> = view.storage.columns.iter().map(column).collect();
                let names: Vec<String> = view.storage.columns.iter().map(|column| column.name.clone()).collect();
                let keys = view.storage.columns.iter().filter(|column| column.is_dimension);
                let keys: Vec<String> = keys.map(|column| format!("`{}`", column.name)).collect();
                run(&format!(
                    "CREATE TABLE native_{at} ({}) ENGINE = AggregatingMergeTree ORDER BY ({})",
                    columns.join(", "),
                    keys.join(", ")
                ))
                .await;
                let select = view.view.state_select(&names, &Excerpt::default());
                run(&format!("CREATE MATERIALIZED VIEW mv_{at} TO native_{at} AS {select}")).await;
            }
        }
    }

    fn sidecar(&self) -> Child {
        let views = self.folder.path().join("views.yaml");
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("views/ssb_flat.yaml");
        // The first four views of the file.
        let text = std::fs::read_to_string(path).unwrap();
        let end = text.match_indices("  - name: ").nth(VIEWS.len()).map_or(text.len(), |(at, _)| at);
        std::fs::write(&views, &text[..end]).unwrap();
        Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["serve", "--listen-http", "127.0.0.1:0", "--database", "ssb", "--log", "warn"])
            .args(["--user", SIDECAR_USER])
            .args(["--upstream", &self.server.http_url(), "--views"])
            .arg(views)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    async fn insert(&self, batches: &[Bytes], at: usize) {
        let batch = batches[at % BATCHES].clone();
        let sql = "INSERT INTO lineorder_flat SETTINGS async_insert = 0 FORMAT Native";
        self.upstream.insert(sql, [batch]).await.unwrap();
    }

    async fn throughput(&self, mode: Mode, inserts: usize) -> Measured {
        let views = self.views().await;
        self.clean(mode, &views).await;
        let sidecar = (mode == Mode::Tributary).then(|| self.sidecar());
        if sidecar.is_some() {
            self.covered(&views).await;
        }
        self.forget_logs().await;
        let cpu = || {
            let own = sidecar.as_ref().map_or(0.0, |child| cpu_seconds(child.id()));
            (cpu_seconds(self.server.pid().unwrap()) + own, own)
        };
        let before = cpu();
        let began = Instant::now();
        for at in 0..inserts {
            self.insert(&self.batches, at).await;
        }
        let rows = (inserts * ROWS_PER_INSERT) as f64;
        let rows_per_second = rows / began.elapsed().as_secs_f64();
        if sidecar.is_some() {
            self.covered(&views).await;
        }
        self.rest().await;
        let after = cpu();
        let per_million = |seconds: f64| seconds * 1e6 / rows;
        let [queries, merges] = self.logged_cpu().await.map(per_million);
        let shares = [per_million(after.1 - before.1), queries, merges];
        let measured =
            Measured { rows_per_second, cpu: per_million(after.0 - before.0), keeping: shares.iter().sum(), shares };
        if let Some(mut sidecar) = sidecar {
            for view in &views {
                let verdict = verify(&self.upstream, view).await.unwrap();
                assert!(matches!(verdict, Verdict::Equal { .. }), "{verdict:?}");
            }
            sidecar.kill().unwrap();
            sidecar.wait().unwrap();
        }
        measured
    }

    async fn forget_logs(&self) {
        self.upstream.execute("SYSTEM FLUSH LOGS").await.unwrap();
        for log in ["query_log", "query_views_log", "part_log"] {
            self.upstream.execute(&format!("TRUNCATE TABLE IF EXISTS system.{log}")).await.unwrap();
        }
    }

    /// CPU seconds since the logs were forgotten: of the sidecar's queries and ClickHouse's views, and of part merges in
    /// their tables.
    async fn logged_cpu(&self) -> [f64; 2] {
        self.upstream.execute("SYSTEM FLUSH LOGS").await.unwrap();
        let spent = "sum(ProfileEvents['UserTimeMicroseconds'] + ProfileEvents['SystemTimeMicroseconds']) / 1e6";
        let sql = format!(
            "SELECT (SELECT {spent} FROM system.query_log WHERE user = '{SIDECAR_USER}')
                + (SELECT {spent} FROM system.query_views_log),
                (SELECT {spent} FROM system.part_log
                 WHERE event_type = 'MergeParts' AND (database = 'tributary' OR startsWith(table, 'native_')))"
        );
        let line = self.upstream.bytes(&sql, "TabSeparated").await.unwrap();
        let figures = std::str::from_utf8(&line).unwrap().trim().split('\t').map(|figure| figure.parse().unwrap());
        figures.collect::<Vec<f64>>().try_into().unwrap()
    }

    /// Until no part merge has been under way for two seconds.
    async fn rest(&self) {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < Duration::from_secs(2) {
            let merges = self.upstream.bytes("SELECT count() FROM system.merges", "TabSeparated").await.unwrap();
            if merges.trim_ascii() != b"0" {
                quiet_since = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn covered(&self, views: &[CatalogView]) {
        let looker =
            Looker::connect(self.upstream.clone(), views.iter().map(CatalogView::target).collect()).await.unwrap();
        for view in views {
            let covered = async || {
                let look = looker.look(&[view.storage_name()]).await.unwrap();
                matches!(look.coverage(view.storage_name()), Coverage::Covered(_))
            };
            while !covered().await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// The time from the end of an insert until the manifests of all views record its rows, at 20 inserts a second.
    async fn freshness(&self) {
        let views = self.views().await;
        self.clean(Mode::Tributary, &views).await;
        let mut sidecar = self.sidecar();
        self.covered(&views).await;
        let storages: Vec<&str> = views.iter().map(|view| view.storage.name.table.as_str()).collect();
        let store = Store::new(self.upstream.clone());
        let mut known: Vec<(u64, u64)> = vec![(0, 0); storages.len()];
        let inserted: Mutex<Vec<Instant>> = Mutex::default();
        let is_over = AtomicBool::new(false);
        let insert = async {
            let began = Instant::now();
            for at in 0.. {
                tokio::time::sleep_until((began + INSERT_INTERVAL * at).into()).await;
                if began.elapsed() >= FRESHNESS_TIME {
                    break;
                }
                self.insert(&self.small_batches, at as usize).await;
                inserted.lock().unwrap().push(Instant::now());
            }
            is_over.store(true, Ordering::Relaxed);
        };
        let watch = async {
            let mut lags: Vec<Duration> = Vec::new();
            let give_up_at = Instant::now() + 3 * FRESHNESS_TIME;
            loop {
                let over = is_over.load(Ordering::Relaxed);
                let asked: Vec<(&str, u64)> =
                    storages.iter().zip(&known).map(|(storage, (version, _))| (*storage, *version)).collect();
                for manifest in store.newer(&asked).await.unwrap() {
                    let at = storages.iter().position(|storage| *storage == manifest.storage).unwrap();
                    known[at] = (manifest.version, manifest.body.sources[0].rows());
                }
                let recorded = known.iter().map(|(_, rows)| *rows).min().unwrap() as usize / ROWS_PER_SMALL_INSERT;
                let inserted = inserted.lock().unwrap().clone();
                lags.extend(inserted.iter().take(recorded).skip(lags.len()).map(Instant::elapsed));
                if over && lags.len() == inserted.len() {
                    return lags;
                }
                assert!(Instant::now() < give_up_at, "{} inserts are not covered", inserted.len() - lags.len());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ((), mut lags) = tokio::join!(insert, watch);
        sidecar.kill().unwrap();
        sidecar.wait().unwrap();
        lags.sort();
        let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize].as_millis();
        println!(
            "freshness at {:.1} inserts/s of {ROWS_PER_SMALL_INSERT} rows: median {} ms, 90 % {} ms, most {} ms",
            lags.len() as f64 / FRESHNESS_TIME.as_secs_f64(),
            at(0.5),
            at(0.9),
            at(1.0)
        );
    }
}

/// User and system time of a process so far.
fn cpu_seconds(pid: u32) -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / TICKS_PER_SECOND
}
