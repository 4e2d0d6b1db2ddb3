//! What a rebuild costs beside ClickHouse itself:
//! `cargo bench --bench rebuild [-- --scale N] [--data FOLDER] [--json FILE]`.
//!
//! Three measurements on the Star Schema Benchmark's flat table and one on 50 million distinct keys:
//!
//! - ClickHouse: `INSERT .. SELECT .. GROUP BY` into one table for each view, sorted as the view is, one after the other;
//! - `tributary rebuild` of the same views, with its default budget and with `--memory 128MiB`;
//! - `tributary rebuild` of a view with as many keys as its source has rows.
//!
//! After each rebuild, outside the time taken, `rebuild --verify` compares every view with the answer of its query on the
//! source. Memory is the greatest resident size of the process (`VmHWM`).

// A benchmark fails as a test does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tributary::config::UpstreamConfig;
use tributary::embedded::{Options, Server};
use tributary::matching::view::Excerpt;
use tributary::sql::lexer::backquote;
use tributary::ssb::{self, Scale};
use tributary::upstream::Upstream;
use tributary::views::catalog::{self, CatalogView};
use tributary::views::declaration;

const DATABASE: &str = "ssb";
const VIEWS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/views/ssb_flat.yaml");

/// Distinct keys of the last measurement; its source has one row for each.
const KEYS: u64 = 50_000_000;
const KEYS_VIEW: &str =
    "views:\n  - name: keys\n    query: SELECT k, sum(v) AS total, count() AS n FROM many_keys GROUP BY k\n";

fn main() {
    let options = CommandLine::read();
    let folder = tempfile::tempdir().unwrap();
    let data = options.data.clone().unwrap_or_else(|| folder.path().to_path_buf());
    let server = Server::start(&Options::new(data.join("clickhouse"))).unwrap_or_else(|e| panic!("{e}"));
    let address = format!("{}?database={DATABASE}", server.http_url());
    let upstream = Upstream::new(UpstreamConfig::parse(&address).unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let views = runtime.block_on(async {
        ssb::ensure(&upstream, options.scale, &mut |_: &str, _: u64, _: u64| {}).await.unwrap();
        let loaded = declaration::load(Path::new(VIEWS));
        catalog::resolve(&upstream, loaded).await.unwrap().views
    });
    let forget =
        |upstream: &Upstream| runtime.block_on(upstream.execute("DROP DATABASE IF EXISTS tributary SYNC")).unwrap();

    let own = runtime.block_on(clickhouse_seconds(&upstream, &views));
    println!("ClickHouse, one INSERT .. SELECT for each of {} views {:7.1} s", views.len(), own.as_secs_f64());

    let mut runs = Vec::new();
    for memory in ["1GiB", "128MiB"] {
        forget(&upstream);
        let run = Rebuild::run(&address, Path::new(VIEWS), memory);
        println!(
            "tributary rebuild --memory {memory:7} {:7.1} s   {:.2} of ClickHouse's time   {:5.0} MiB",
            run.took.as_secs_f64(),
            run.took.as_secs_f64() / own.as_secs_f64(),
            run.mib()
        );
        runs.push(json!({
            "memory": memory, "seconds": round(run.took), "of_clickhouse": run.took.as_secs_f64() / own.as_secs_f64(),
            "peak_rss_mib": run.mib().round(), "equal": true,
        }));
    }

    forget(&upstream);
    let file = folder.path().join("keys.yaml");
    std::fs::write(&file, KEYS_VIEW).unwrap();
    runtime.block_on(make_keys(&upstream));
    let keys = Rebuild::run(&address, &file, "1GiB");
    println!("{KEYS} distinct keys, --memory 1GiB {:7.1} s   {:5.0} MiB", keys.took.as_secs_f64(), keys.mib());
    forget(&upstream);
    runtime.block_on(upstream.execute("DROP TABLE many_keys SYNC")).unwrap();

    if let Some(path) = options.json {
        let report = json!({
            "command": format!("cargo bench --bench rebuild -- --scale {}", options.scale),
            "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
            "scale": options.scale.factor(),
            "views": views.iter().map(CatalogView::name).collect::<Vec<_>>(),
            "clickhouse_seconds": round(own),
            "rebuilds": runs,
            "distinct_keys": {"keys": KEYS, "seconds": round(keys.took), "peak_rss_mib": keys.mib().round(), "equal": true},
        });
        std::fs::write(&path, format!("{report:#}\n")).unwrap();
    }
}

struct CommandLine {
    scale: Scale,
    data: Option<PathBuf>,
    json: Option<String>,
}

impl CommandLine {
    fn read() -> Self {
        let mut options = Self { scale: Scale::new(10.0).unwrap(), data: None, json: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--scale" => options.scale = words.next().expect("--scale N").parse().unwrap_or_else(|e| panic!("{e}")),
                "--data" => options.data = Some(words.next().expect("--data FOLDER").into()),
                "--json" => options.json = Some(words.next().expect("--json FILE")),
                // cargo bench adds this.
                "--bench" => {}
                other => panic!("unknown option {other}; --scale N, --data FOLDER and --json FILE are known"),
            }
        }
        options
    }
}

/// The sum of the times of ClickHouse's own statements.
async fn clickhouse_seconds(upstream: &Upstream, views: &[CatalogView]) -> Duration {
    upstream.execute("CREATE DATABASE IF NOT EXISTS own").await.unwrap();
    let mut total = Duration::ZERO;
    for view in views {
        let table = format!("own.{}", backquote(view.name()));
        let storage = &view.storage;
        let column = |at: usize| format!("{} {}", backquote(&storage.columns[at].name), storage.columns[at].type_name);
        let columns: Vec<String> = (0..storage.columns.len()).map(column).collect();
        let sorting: Vec<String> = storage.sorting.iter().map(|at| backquote(&storage.columns[*at].name)).collect();
        let names: Vec<String> = storage.columns.iter().map(|column| column.name.clone()).collect();
        upstream.execute(&format!("DROP TABLE IF EXISTS {table} SYNC")).await.unwrap();
        let (columns, sorting) = (columns.join(", "), sorting.join(", "));
        upstream
            .execute(&format!("CREATE TABLE {table} ({columns}) ENGINE = MergeTree ORDER BY ({sorting})"))
            .await
            .unwrap();
        let insert = format!("INSERT INTO {table} {}", view.view.state_select(&names, &Excerpt::default()));
        let begin = Instant::now();
        upstream.execute(&insert).await.unwrap();
        total += begin.elapsed();
    }
    upstream.execute("DROP DATABASE own SYNC").await.unwrap();
    total
}

async fn make_keys(upstream: &Upstream) {
    upstream.execute("DROP TABLE IF EXISTS many_keys SYNC").await.unwrap();
    upstream.execute("CREATE TABLE many_keys (k UInt64, v UInt32) ENGINE = MergeTree ORDER BY ()").await.unwrap();
    // intHash64 is a bijection: as many keys as rows.
    let fill = format!("INSERT INTO many_keys SELECT intHash64(number), number % 1000 FROM numbers({KEYS})");
    upstream.execute(&fill).await.unwrap();
}

/// One run of the program, as a user runs it.
struct Rebuild {
    took: Duration,
    peak_bytes: u64,
}

impl Rebuild {
    /// Builds all views of `views`, and then has them verified.
    fn run(address: &str, views: &Path, memory: &str) -> Self {
        let begin = Instant::now();
        let mut process = rebuild(address, views, &["--memory", memory]);
        let mut peak_bytes = 0;
        let status = loop {
            peak_bytes = peak_memory(&process).unwrap_or(0).max(peak_bytes);
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let took = begin.elapsed();
        assert!(status.success(), "rebuild with --memory {memory}");
        assert!(rebuild(address, views, &["--verify"]).wait().unwrap().success(), "verify after --memory {memory}");
        Self { took, peak_bytes }
    }

    fn mib(&self) -> f64 {
        self.peak_bytes as f64 / f64::from(1 << 20)
    }
}

fn rebuild(address: &str, views: &Path, options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["rebuild", "--upstream", address, "--views"]).arg(views).args(options);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// The kernel's own high-water mark; `None` once the process has ended.
fn peak_memory(process: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// Seconds, to hundredths.
fn round(time: Duration) -> f64 {
    (time.as_secs_f64() * 100.0).round() / 100.0
}
