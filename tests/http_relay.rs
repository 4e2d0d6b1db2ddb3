//! The HTTP proxy against the real server: whatever a client sends, it must see what it would see without the proxy.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use tokio::sync::watch;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::decider::Decider;
use tributary::proxy::http::Proxy;

use crate::support;

/// Starts a proxy before the ClickHouse on `upstream_port`, for as long as the process lives; returns its port.
pub fn start(upstream_port: u16, decider: Decider) -> u16 {
    let (port, started) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            port.send(listener.local_addr().unwrap().port()).unwrap();
            let upstream = HttpUpstream::new(format!("http://127.0.0.1:{upstream_port}/").parse().unwrap());
            let (_stop, stopping) = watch::channel(false);
            Arc::new(Proxy::new(upstream, decider)).serve(listener, stopping).await;
        });
    });
    started.recv().unwrap()
}

/// A plain proxy before the shared server.
pub fn plain() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(|| start(support::server().http_port(), Decider::PassThrough))
}

/// What came back on one connection, and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    end: &'static str,
}

/// What a client does on one connection.
#[derive(Default)]
struct Script {
    pieces: Vec<Vec<u8>>,
    half_closes: bool,
}

impl Script {
    fn new(text: impl AsRef<[u8]>) -> Self {
        Self { pieces: vec![text.as_ref().to_vec()], half_closes: false }
    }

    fn play(&self, port: u16) -> Seen {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        for (i, piece) in self.pieces.iter().enumerate() {
            if i > 0 {
                std::thread::sleep(Duration::from_millis(30));
            }
            // The server may have answered and closed already.
            let _ = stream.write_all(piece);
        }
        if self.half_closes {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break "closed",
                Ok(n) => bytes.extend_from_slice(&buffer[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break "open",
                Err(_) => break "reset",
            }
        };
        Seen { bytes, end }
    }
}

/// An answer, with what differs from one run to the next taken out.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    head: Vec<String>,
    body: String,
    end: &'static str,
}

impl Answer {
    fn of(seen: &Seen) -> Self {
        // An interim answer counts as part of the head.
        let interim: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let skipped = if seen.bytes.starts_with(interim) { interim.len() } else { 0 };
        let split = seen.bytes[skipped..]
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .map_or(seen.bytes.len(), |at| skipped + at + 4);
        let (head, body) = seen.bytes.split_at(split);
        let head = String::from_utf8_lossy(head);
        let tag = head.lines().find_map(|l| l.strip_prefix("X-ClickHouse-Exception-Tag: ")).unwrap_or("no tag");
        let body = if head.contains("Transfer-Encoding: chunked") { unchunk(body) } else { body.to_vec() };
        Self {
            head: head.lines().filter(|l| !l.starts_with("X-Tributary-Decision: ")).map(settled).collect(),
            body: String::from_utf8_lossy(&body).replace(tag, "TAG"),
            end: seen.end,
        }
    }
}

/// The payload of a chunked body; a body without its last chunk is marked, since nothing else tells it from a whole one.
pub fn unchunk(mut wire: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    while let Some(end) = wire.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&wire[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return payload;
        }
        let data = &wire[end + 2..];
        payload.extend_from_slice(&data[..size.min(data.len())]);
        wire = data.get(size + 2..).unwrap_or_default();
    }
    payload.extend_from_slice(b"<broken off>");
    payload
}

/// A header line without times, ids and sizes that no two runs share.
fn settled(line: &str) -> String {
    let name = line.split(':').next().unwrap_or_default();
    let varying = [
        "Date",
        "X-ClickHouse-Query-Id",
        "X-ClickHouse-Exception-Tag",
        "X-ClickHouse-Summary",
        "X-ClickHouse-Progress",
        "Keep-Alive",
    ];
    if varying.contains(&name) { name.to_owned() } else { line.to_owned() }
}

fn get(query: &str) -> String {
    let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
    format!("GET /?query={query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

fn post(target: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chunked(target: &str, headers: &str, chunks: &[&str]) -> String {
    let chunks: String = chunks.iter().map(|c| format!("{:x}\r\n{c}\r\n", c.len())).collect();
    format!(
        "POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}

/// Every way in which clients talk to ClickHouse that we could think of, by name.
fn requests(database: &str) -> BTreeMap<&'static str, Script> {
    let db = |rest: &str| format!("/?database={database}{rest}");
    let mut all: BTreeMap<&'static str, Script> = BTreeMap::new();
    let mut add = |name, script: Script| assert!(all.insert(name, script).is_none(), "{name} twice");
    let mut text = |name, text: String| add(name, Script::new(text));

    text("query in the URL", get("SELECT 1, 'ä'"));
    text("query in the body", post("/", "", "SELECT 1"));
    text("query in both", post("/?query=SELECT+number+FROM+", "", "numbers(3)"));
    text("query in both, cut inside a string", post("/?query=SELECT+hex('", "", "')"));
    text("query in chunks", chunked("/", "", &["SEL", "ECT 1", " + 1"]));
    text("empty chunked body", chunked("/?query=SELECT+1", "", &[]));
    text("several queries in the URL", get("SELECT 1&query=SELECT 2").replace("%26query%3D", "&query="));
    text("no query", "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("empty query", post("/?query=", "", ""));
    text("GET with a body", get("SELECT 1").replace("\r\n\r\n", "\r\nContent-Length: 3\r\n\r\n, 2"));
    text("POST without a length", "POST /?query=SELECT+1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("comments before the query", post("/", "", "-- a\n/* b */ # c\n SELECT 1"));
    text("only a comment", post("/", "", "-- a"));
    text("a statement that is no query", post("/", "", "SHOW DATABASES LIKE 'system'"));
    text("EXPLAIN", post("/", "", "EXPLAIN SYNTAX SELECT 1"));
    text("syntax error", get("SELEC 1"));
    text("syntax error in a query", get("SELECT FROM WHERE"));
    text("unknown table", get("SELECT * FROM no_such_table"));
    text("unknown setting", post("/?no_such_setting=1", "", "SELECT 1"));
    text("DDL by GET", get("CREATE TABLE t (x UInt8) ENGINE = Memory"));
    text("bad percent-encoding", "GET /?query=SELECT+%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("URL that is no UTF-8", "GET /?query=SELECT+'%ff' HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text(
        "odd characters in the URL",
        "GET /?query=SELECT+'{}<>\"|^' HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into(),
    );
    text("fragment in the URL", "GET /?query=SELECT+1#x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("long URL", get(&format!("SELECT length('{}')", "x".repeat(100_000))));
    text("too long URL", get(&format!("SELECT length('{}')", "x".repeat(1_100_000))));
    text("long query in the body", post("/", "", &format!("SELECT length('{}')", "x".repeat(200_000))));
    text("too long query in the body", post("/", "", &format!("SELECT length('{}')", "x".repeat(300_000))));
    text(
        "too long query, limit raised",
        post("/?max_query_size=1000000", "", &format!("SELECT length('{}')", "x".repeat(400_000))),
    );
    text(
        "many header lines",
        get("SELECT 1").replace("Host: x\r\n", &format!("Host: x\r\n{}", "X-A: b\r\n".repeat(400))),
    );

    text("wrong password by URL", post("/?user=reader&password=no", "", "SELECT 1"));
    text("wrong password by header", post("/", "X-ClickHouse-User: reader\r\nX-ClickHouse-Key: no\r\n", "SELECT 1"));
    text("wrong password by Basic", post("/", "Authorization: Basic cmVhZGVyOm5v\r\n", "SELECT 1"));
    text("unknown user", post("/?user=nobody", "", "SELECT 1"));
    text("right password by URL", post("/?user=reader&password=reader", "", "SELECT currentUser()"));
    text(
        "right password by header",
        post("/", "X-ClickHouse-User: reader\r\nX-ClickHouse-Key: reader\r\n", "SELECT currentUser()"),
    );
    text("right password by Basic", post("/", "Authorization: Basic cmVhZGVyOnJlYWRlcg==\r\n", "SELECT currentUser()"));
    text("two kinds of credentials", post("/?user=default", "X-ClickHouse-User: reader\r\n", "SELECT 1"));
    text("bearer token", post("/", "Authorization: Bearer abc\r\n", "SELECT 1"));
    text("setting that a user may not change", post("/?user=reader&password=reader&max_threads=1", "", "SELECT 1"));

    text("database by URL", post(&db(""), "", "SELECT currentDatabase() = 'default'"));
    text(
        "database by header",
        post("/", &format!("X-ClickHouse-Database: {database}\r\n"), "SELECT currentDatabase() = 'default'"),
    );
    text("database that is missing", post("/?database=nowhere", "", "SELECT 1"));
    text("format by URL", post("/?default_format=JSONCompact&output_format_write_statistics=0", "", "SELECT 1 AS x"));
    text("format by header", post("/?default_format=JSONCompact", "X-ClickHouse-Format: CSV\r\n", "SELECT 1, 'a'"));
    text("format in the query", post("/", "", "SELECT 1 FORMAT TSKV"));
    text("unknown format", post("/", "", "SELECT 1 FORMAT Nope"));
    text(
        "settings and parameters",
        post("/?param_x=7&max_block_size=2&limit=3", "", "SELECT number, {x:UInt8} FROM numbers(10)"),
    );
    text("missing parameter", post("/", "", "SELECT {x:UInt8}"));
    text("given query id", post("/?query_id=given-id-1", "", "SELECT 1"));
    text("session", post("/?session_id=relay&session_timeout=5", "", "SELECT 1"));
    text("session that must exist", post("/?session_id=missing&session_check=1", "", "SELECT 1"));
    text("CORS", post("/?add_http_cors_header=1", "Origin: http://example.org\r\n", "SELECT 1"));
    text("response headers", post("/?http_response_headers={'X-My':'1'}", "", "SELECT 1"));
    text("wait for the end", post("/?wait_end_of_query=1", "", "SELECT number FROM numbers(5)"));
    text(
        "native protocol version",
        post("/?client_protocol_version=54460", "", "SELECT toLowCardinality('x') FORMAT Native"),
    );
    text("result compressed by gzip", post("/", "Accept-Encoding: gzip\r\n", "SELECT number FROM numbers(1000)"));
    text("result compressed by zstd", post("/", "Accept-Encoding: zstd, gzip\r\n", "SELECT number FROM numbers(1000)"));
    text("result in compressed blocks", post("/?compress=1", "", "SELECT number FROM numbers(1000)"));
    text("error in compressed blocks", post("/?compress=1", "", "SELECT throwIf(1)"));
    text("error with accepted compression", post("/", "Accept-Encoding: gzip\r\n", "SELECT throwIf(1)"));
    text("error at once", get("SELECT throwIf(1)"));
    text(
        "late error",
        post(
            "/?max_block_size=1&http_response_buffer_size=1&max_threads=1",
            "",
            "SELECT throwIf(number = 5), sleepEachRow(0.05) FROM numbers(10)",
        ),
    );
    text(
        "late error in the format",
        post(
            "/?max_block_size=1&http_response_buffer_size=1&max_threads=1&http_write_exception_in_output_format=1&output_format_write_statistics=0",
            "",
            "SELECT throwIf(number = 5), sleepEachRow(0.05) FROM numbers(10) FORMAT JSON",
        ),
    );
    text(
        "late error in a binary format",
        post(
            "/?max_block_size=1&http_response_buffer_size=1&max_threads=1",
            "",
            "SELECT throwIf(number = 5), sleepEachRow(0.05) FROM numbers(10) FORMAT RowBinary",
        ),
    );
    text("late error over HTTP/1.0", get("SELECT throwIf(number = 5), sleepEachRow(0.05) FROM numbers(10) SETTINGS max_block_size = 1, http_response_buffer_size = 1, max_threads = 1").replace("HTTP/1.1", "HTTP/1.0"));

    text("insert of values", post(&db(""), "", "INSERT INTO sink VALUES (1), (2)"));
    text("insert by URL", post(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "", "1\n2\n"));
    text("insert by URL in chunks", chunked(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "", &["1\n", "2", "\n3\n"]));
    text("insert of bad data", post(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "", "1\nx\n"));
    text(
        "insert of bad data, much",
        post(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "", &format!("x\n{}", "1\n".repeat(2_000_000))),
    );
    text("insert into a missing table", post(&db("&query=INSERT+INTO+nowhere+FORMAT+CSV"), "", &"1\n".repeat(500_000)));
    text("insert without rights", post("/?user=reader&password=reader&query=INSERT+INTO+sink+FORMAT+CSV", "", "1\n"));
    text("insert from a select", post(&db(""), "", "INSERT INTO sink SELECT number FROM numbers(10)"));
    text(
        "insert with a compressed body that is none",
        post(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "Content-Encoding: gzip\r\n", "1\n2\n"),
    );
    text("compressed query that is none", post("/", "Content-Encoding: gzip\r\n", "SELECT 1"));
    text("compressed blocks that are none", post("/?decompress=1", "", "SELECT 1"));
    let form = "--b\r\nContent-Disposition: form-data; name=\"t\"; filename=\"t\"\r\n\r\n1\n2\n\r\n--b--\r\n";
    text(
        "external table",
        post(
            "/?query=SELECT+sum(x)+FROM+t&t_structure=x+UInt8",
            "Content-Type: multipart/form-data; boundary=b\r\n",
            form,
        ),
    );
    text("form", post("/", "Content-Type: application/x-www-form-urlencoded\r\n", "SELECT 1"));

    for (name, path) in [
        ("ping", "/ping"),
        ("replicas", "/replicas_status"),
        ("play", "/play"),
        ("dashboard", "/dashboard"),
        ("unknown path", "/nowhere?query=SELECT+1"),
        ("double slash", "//?query=SELECT+1"),
        ("whole URL as target", "http://x/?query=SELECT+1"),
    ] {
        text(name, format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    }
    for method in ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "SELECT"] {
        text(
            method,
            format!("{method} /?query=SELECT+1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
        );
    }
    text("HEAD of a path", "HEAD /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("OPTIONS with an origin", "OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: y\r\nConnection: close\r\n\r\n".into());
    text("HTTP/1.0", "GET /?query=SELECT+1 HTTP/1.0\r\n\r\n".into());
    text("HTTP/1.0 kept alive", "GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".into());
    text(
        "upgrade to h2c",
        get("SELECT 1")
            .replace("close", "close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"),
    );
    text("line end before the request", format!("\r\n{}", get("SELECT 1")));
    text("expects to be told to go on", post("/", "Expect: 100-continue\r\n", "SELECT 1"));
    text(
        "expects to be told to go on, refused",
        post("/?user=nobody", "Expect: 100-continue\r\n", "INSERT INTO sink VALUES"),
    );

    text("length and chunks", "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\nSELECT 1".into());
    text(
        "length that is none",
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: x\r\n\r\nSELECT 1".into(),
    );
    text(
        "chunk that is none",
        "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nSELECT 1\r\n"
            .into(),
    );
    text("space in the target", "GET /?query=SELECT 1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into());
    text("header without a colon", "GET /?query=SELECT+1 HTTP/1.1\r\nHost\r\nConnection: close\r\n\r\n".into());
    text("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into());
    text("no HTTP at all", "hello\r\n\r\n".into());

    let half = |text: String| Script { half_closes: true, ..Script::new(text) };
    add("client that says no more", half(get("SELECT sleep(0.3)")));
    add("client that stops in a head", half("GET /?query=SELECT+1 HTT".into()));
    add(
        "client that stops in a body",
        half(post("/", "", "SELECT 1").replace("Content-Length: 8", "Content-Length: 20")),
    );
    add(
        "client that stops in an insert",
        half(
            post(&db("&query=INSERT+INTO+sink+FORMAT+CSV"), "", "1\n2\n")
                .replace("Content-Length: 4", "Content-Length: 9"),
        ),
    );
    let bytes = post("/?database=system", "X-Slow: 1\r\n", "SELECT currentDatabase()").into_bytes();
    add(
        "request in small pieces",
        Script { pieces: bytes.chunks(11).map(<[u8]>::to_vec).collect(), half_closes: false },
    );
    add("native protocol", Script::new([0, 11, b'C', b'l', b'i', b'e', b'n', b't', 1, 1]));
    all
}

/// Times that ClickHouse is asked again where its answer was another one than through the proxy.
const REPETITIONS: usize = 10;

#[test]
fn every_request_gets_the_answer_that_it_would_get_without_the_proxy() {
    let database = support::Database::new("http_relay");
    database.sql("CREATE TABLE sink (x UInt32) ENGINE = Null");
    let (direct, proxy) = (support::server().http_port(), plain());
    let requests = requests(&database.name);
    let names: Vec<_> = requests.keys().copied().collect();
    // Requests wait for timeouts more than for work: several at once.
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = names
            .chunks(names.len().div_ceil(8))
            .map(|names| {
                let requests = &requests;
                scope.spawn(move || {
                    let failed = |name: &&&str| {
                        let script = &requests[**name];
                        let (expected, got) = (Answer::of(&script.play(direct)), Answer::of(&script.play(proxy)));
                        // How many rows go out before a late error depends on ClickHouse's threads.
                        let is_another = || (0..REPETITIONS).any(|_| Answer::of(&script.play(direct)) == got);
                        let differs = expected != got && !is_another();
                        differs.then(|| format!("{name}:\n direct {expected:?}\n proxy  {got:?}"))
                    };
                    names.iter().filter_map(|name| failed(&name)).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    let short = |text: &String| text.chars().take(3000).collect::<String>();
    assert!(
        failures.is_empty(),
        "{} of {} differ\n{}",
        failures.len(),
        names.len(),
        failures.iter().map(short).collect::<Vec<_>>().join("\n")
    );
}
