//! Answers through the proxy while writers insert, ClickHouse merges parts and the view is rebuilt. Each must be a state of
//! the raw tables between the arrival of its query and its end.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tributary::config::UpstreamConfig;
use tributary::maintain::rebuild::{Options, Silent, rebuild};
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::decider::Decider;
use tributary::proxy::http::Proxy;
use tributary::proxy::keeper::{self, Keeper};
use tributary::upstream::Upstream;
use tributary::views::{catalog, declaration};

use crate::support::{self, Database, exchange};

const VIEWS: &str = "views:
  - name: by_writer
    query: SELECT p, writer, sum(n) AS s, count() AS c, max(n) AS m FROM t GROUP BY p, writer
";

const WRITERS: usize = 2;
const READERS: usize = 2;
const ROWS_PER_BATCH: u64 = 3;
const LASTS: Duration = Duration::from_secs(10);

/// A proxy with the view in force, which also compares as many of its answers as it can with the raw tables' answers; ends
/// with the process.
fn start(config: UpstreamConfig) -> (u16, Arc<Keeper>) {
    let folder = support::folder("hybrid");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("views.yaml"), VIEWS).unwrap();
    let (port, started) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let client = HttpUpstream::new(config.url.clone());
            let keeper = Keeper::new(Upstream::new(config), client.clone(), folder);
            let keeper = Arc::new(keeper.with(keeper::Options { verify: 1.0, ..Default::default() }));
            keeper.clone().start().await;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            port.send((listener.local_addr().unwrap().port(), keeper.clone())).unwrap();
            let (_stop, stopping) = watch::channel(false);
            Arc::new(Proxy::new(client, Decider::Views(keeper))).serve(listener, stopping).await;
        });
    });
    started.recv().unwrap()
}

async fn build(config: &UpstreamConfig) {
    let upstream = Upstream::new(config.clone());
    let loaded = declaration::parse("views.yaml".as_ref(), VIEWS.into());
    let view = catalog::resolve(&upstream, loaded).await.unwrap().views.remove(0);
    rebuild(&upstream, &view, &Options::default(), Arc::new(Silent)).await.unwrap();
}

/// Batches of one writer: how many were begun, and how many had been acknowledged.
#[derive(Default)]
struct Batches {
    begun: AtomicU64,
    done: AtomicU64,
}

#[test]
fn every_answer_is_a_state_of_the_raw_tables_while_they_change() {
    let database = Database::new("hybrid");
    // Consecutive batches go to different partitions, so that half a state shows.
    database.sql(
        "CREATE TABLE t (p UInt8, writer UInt8, n UInt64) ENGINE = MergeTree PARTITION BY p ORDER BY n \
         SETTINGS max_bytes_to_merge_at_max_space_in_pool = 100000",
    );
    // Rows of nobody, so that what is missing is a small part of the table, in parts too large to be merged with others.
    database.sql("INSERT INTO t SELECT number % 4, 100, rand64() FROM numbers(400000)");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(build(&database.config()));
    let (port, keeper) = start(database.config());
    let batches: [Batches; WRITERS] = Default::default();
    let over = AtomicBool::new(false);
    let modes: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let faults: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for (writer, batches) in batches.iter().enumerate() {
            let (database, over) = (&database, &over);
            scope.spawn(move || {
                for n in 1.. {
                    if over.load(SeqCst) {
                        return;
                    }
                    batches.begun.store(n, SeqCst);
                    let p = n % 4;
                    let values = vec![format!("({p}, {writer}, {n})"); ROWS_PER_BATCH as usize].join(", ");
                    database.sql(&format!("INSERT INTO t VALUES {values}"));
                    batches.done.store(n, SeqCst);
                }
            });
        }
        for _ in 0..READERS {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    match read(port, &database.name, &batches) {
                        Ok(mode) => *modes.lock().unwrap().entry(mode).or_insert(0) += 1,
                        Err(fault) => faults.lock().unwrap().push(fault),
                    }
                }
            });
        }
        scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            while !over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1000));
                runtime.block_on(build(&database.config()));
            }
        });
        let until = Instant::now() + LASTS;
        while Instant::now() < until && faults.lock().unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.store(true, SeqCst);
    });
    let (modes, faults) = (modes.into_inner().unwrap(), faults.into_inner().unwrap());
    assert!(faults.is_empty(), "{modes:?}\n{}", faults.join("\n"));
    assert_eq!(keeper.quarantined(), []);
    assert!(modes.get("hybrid").is_some_and(|answers| *answers > 10), "{modes:?}");
}

/// Asks once and checks the answer; says how it was made.
fn read(port: u16, database: &str, batches: &[Batches; WRITERS]) -> Result<String, String> {
    // No view can answer the second block: it must see the same state as the first one.
    const SQL: &str = "SELECT toUInt16(writer), sum(n), count(), max(n) FROM t WHERE writer < 100 GROUP BY writer \
                       UNION ALL \
                       SELECT toUInt16(writer + 200), sum(n), count(), max(n) FROM t WHERE writer < 100 AND n > 0 GROUP BY writer";
    let before: Vec<u64> = batches.iter().map(|batches| batches.done.load(SeqCst)).collect();
    let answer = exchange(
        port,
        format!("POST /?database={database} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{SQL}", SQL.len())
            .as_bytes(),
    );
    let after: Vec<u64> = batches.iter().map(|batches| batches.begun.load(SeqCst)).collect();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let decision = head.lines().find_map(|line| line.strip_prefix("X-Tributary-Decision: ")).unwrap_or(head);
    if head.split(' ').nth(1) != Some("200") {
        return Err(format!("{head}\n{body}"));
    }
    let rows: Vec<Vec<u64>> =
        body.lines().map(|line| line.split('\t').map(|value| value.parse().unwrap()).collect()).collect();
    for writer in 0..WRITERS {
        let row = rows.iter().find(|row| row[0] == writer as u64).cloned().unwrap_or(vec![writer as u64, 0, 0, 0]);
        let last = row[3];
        let other = rows.iter().find(|other| other[0] == writer as u64 + 200).map_or(&[0, 0, 0][..], |row| &row[1..]);
        if row[1..] != *other {
            return Err(format!("writer {writer}: {:?} and {other:?} in one answer; {decision}", &row[1..]));
        }
        let is_state = row[1] == ROWS_PER_BATCH * last * (last + 1) / 2 && row[2] == ROWS_PER_BATCH * last;
        if !is_state || last < before[writer] || last > after[writer] {
            let allowed = format!("{} to {} batches", before[writer], after[writer]);
            return Err(format!("writer {writer}, {allowed}: sum, count, max are {:?}; {decision}", &row[1..]));
        }
    }
    let mode = decision.rsplit("mode=").next().filter(|_| decision.contains("mode=")).unwrap_or("raw");
    Ok(mode.to_string())
}
