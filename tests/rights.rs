//! Who may be answered from a view: grants, row policies, settings and sessions of real users, through the proxy.

use std::sync::Arc;
use std::sync::mpsc;

use tokio::sync::watch;
use tributary::config::UpstreamConfig;
use tributary::maintain::rebuild;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::decider::Decider;
use tributary::proxy::http::Proxy;
use tributary::proxy::keeper::Keeper;
use tributary::upstream::Upstream;
use tributary::views::{catalog, declaration};

use crate::support::{self, exchange, server, sql};

/// Users' grants name this database, so it is not one of `support::Database`.
const DATABASE: &str = "rights";

const VIEWS: &str = "views:
  - name: rights_by_region
    query: SELECT region, toYear(day) AS year, sum(price) AS s, count() AS c, max(price) AS m FROM sales GROUP BY region, year
";

/// A proxy with one view of `rights.sales`, built.
fn start() -> u16 {
    sql(&format!("CREATE DATABASE {DATABASE}"));
    sql(&format!(
        "CREATE TABLE {DATABASE}.sales (day Date, region String, price UInt32) ENGINE = MergeTree PARTITION BY toYear(day) ORDER BY day"
    ));
    insert(5000);
    let folder = support::folder("rights");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("views.yaml"), VIEWS).unwrap();
    let config = UpstreamConfig::parse(&format!("{}?database={DATABASE}", server().http_url())).unwrap();
    let (port, started) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let upstream = Upstream::new(config.clone());
            build(&upstream).await;
            let client = HttpUpstream::new(config.url);
            let keeper = Arc::new(Keeper::new(upstream, client.clone(), folder));
            keeper.clone().start().await;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            port.send(listener.local_addr().unwrap().port()).unwrap();
            let (_stop, stopping) = watch::channel(false);
            Arc::new(Proxy::new(client, Decider::Views(keeper))).serve(listener, stopping).await;
        });
    });
    started.recv().unwrap()
}

async fn build(upstream: &Upstream) {
    let loaded = declaration::parse("views.yaml".as_ref(), VIEWS.into());
    let catalog = catalog::resolve(upstream, loaded).await.unwrap();
    for view in &catalog.views {
        rebuild::rebuild(upstream, view, &rebuild::Options::default(), Arc::new(rebuild::Silent)).await.unwrap();
    }
}

fn insert(rows: u32) {
    sql(&format!(
        "INSERT INTO {DATABASE}.sales SELECT toDate('2020-01-01') + number % 900, ['north', 'south', 'east'][number % 3 + 1], number FROM numbers({rows})"
    ));
}

struct Answer {
    status: String,
    decision: String,
    body: String,
}

/// Asks over one connection of its own; `target` follows `/?`.
fn ask(port: u16, target: &str, headers: &str, text: &str) -> Answer {
    let request = format!(
        "POST /?database={DATABASE}&{target} HTTP/1.0\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n{text}",
        text.len()
    );
    let answer = exchange(port, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let decision = head.lines().find_map(|l| l.strip_prefix("X-Tributary-Decision: ")).unwrap_or_default();
    Answer { status: head.split(' ').nth(1).unwrap().into(), decision: decision.into(), body: body.into() }
}

const QUERY: &str = "SELECT region, sum(price) FROM sales GROUP BY region ORDER BY region";
const FROM_VIEW: &str = "view=rights_by_region; mode=full";

#[test]
fn only_who_may_read_all_of_the_raw_rows_is_answered_from_a_view() {
    let port = start();
    let direct = |target: &str, text: &str| ask(server().http_port(), target, "", text);
    let same = |target: &str, text: &str, decision: &str| {
        let (got, wanted) = (ask(port, target, "", text), direct(target, text));
        assert_eq!((&got.status, &got.body), (&wanted.status, &wanted.body), "{target} {text}: {}", got.decision);
        assert!(got.decision.contains(decision), "{target} {text}: {}", got.decision);
    };

    same("", QUERY, FROM_VIEW);
    same("", "SELECT count(), max(price) FROM sales", FROM_VIEW);
    same("max_threads=1&wait_end_of_query=1", QUERY, FROM_VIEW);

    // Grants: a column of the raw table, or the view's table, that the user may not read.
    same("user=limited&password=p", QUERY, "may not read rights.sales");
    assert!(direct("user=limited&password=p", QUERY).body.contains("Code: 497"));
    same("user=limited&password=p", "SELECT region, count() FROM sales GROUP BY region ORDER BY region", FROM_VIEW);
    same("user=outsider&password=p", QUERY, "raw; reason=");
    same("user=nobody&password=p", QUERY, "raw; reason=");

    // Row policies: for the user they concern, and only for that one.
    same("user=filtered&password=p", QUERY, "row polic");
    same("user=filtered&password=p", "SELECT count() FROM sales", "row polic");
    assert_eq!(direct("user=filtered&password=p", QUERY).body.lines().count(), 1);

    // Settings: in the address, in the text, in the user's profile, in the session.
    same("final=1", QUERY, "the setting final");
    same("", &format!("{QUERY} SETTINGS transform_null_in = 1"), "the setting transform_null_in");
    same("", &format!("{QUERY} SETTINGS extremes = 1"), FROM_VIEW);
    same("user=strange&password=p", QUERY, "the setting transform_null_in of user strange");
    same("session_id=plain", QUERY, FROM_VIEW);
    assert_eq!(ask(port, "session_id=changed", "", "SET max_rows_to_group_by = 2").status, "200");
    same("session_id=changed", QUERY, "the setting max_rows_to_group_by");
    let temporary = "CREATE TEMPORARY TABLE sales (region String, price UInt32)";
    assert_eq!(ask(port, "session_id=hidden", "", temporary).status, "200");
    same("session_id=hidden", QUERY, "temporary tables");

    // What the client asks of Tributary itself.
    assert!(ask(port, "tributary=off", "", QUERY).decision.contains("opted out"));
    assert!(ask(port, "", "X-Tributary: off\r\n", QUERY).decision.contains("opted out"));
    assert_eq!(ask(port, "tributary=require", "", QUERY).decision, FROM_VIEW);
    assert_ne!(ask(port, "tributary=require", "", "SELECT region FROM sales").status, "200");

    // New rows are read beside the view, changed ones make it stale, and it serves again when it was rebuilt.
    for round in 1..=3 {
        insert(10 * round);
        same("", QUERY, "");
        same("", QUERY, "view=rights_by_region; mode=hybrid");
        same("", "SELECT count(), max(price) FROM sales", "view=rights_by_region; mode=hybrid");
        // Which parts a query reads may only be said by those who may read the whole table.
        let columns = "SELECT region, count() FROM sales GROUP BY region ORDER BY region";
        same("user=limited&password=p", columns, "raw; reason=view");
        same("user=filtered&password=p", QUERY, "row polic");
        sql(&format!(
            "ALTER TABLE {DATABASE}.sales UPDATE price = price + 1 WHERE region = 'east' SETTINGS mutations_sync = 2"
        ));
        same("", QUERY, "stale");
        let config = UpstreamConfig::parse(&format!("{}?database={DATABASE}", server().http_url())).unwrap();
        tokio::runtime::Runtime::new().unwrap().block_on(build(&Upstream::new(config)));
        std::thread::sleep(std::time::Duration::from_millis(1200));
        same("", QUERY, FROM_VIEW);
    }
    sql(&format!("DROP DATABASE {DATABASE}"));
}
