//! The HTTP proxy in time: what is streamed, who waits for whom, who notices whose end; and what happens to queries that
//! are rewritten.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tributary::embedded::free_port;
use tributary::embedded::{Options, Server};
use tributary::proxy::decider::Decider;
use tributary::proxy::query::{Decision, IncomingQuery, Mode};

use crate::http_relay::{plain, start};
use crate::support;

/// A connection on which requests follow one another.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    fn send(&mut self, request: &str) {
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    /// Reads until `text` is there; returns all up to its end.
    fn until(&mut self, text: &str) -> String {
        let mut piece = vec![0; 64 << 10];
        loop {
            if let Some(at) = self.buffer.windows(text.len()).position(|w| w == text.as_bytes()) {
                let rest = self.buffer.split_off(at + text.len());
                return String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)).into_owned();
            }
            let n = self.stream.read(&mut piece).unwrap();
            assert!(n > 0, "closed after {:?}, without {text:?}", String::from_utf8_lossy(&self.buffer));
            self.buffer.extend_from_slice(&piece[..n]);
        }
    }

    fn receive(&mut self) -> Answer {
        let head = self.until("\r\n\r\n");
        let header = |name: &str| head.lines().find_map(|l| l.strip_prefix(name)).map(str::to_owned);
        let body = match header("Content-Length: ") {
            Some(length) => {
                let length: usize = length.parse().unwrap();
                while self.buffer.len() < length {
                    let mut piece = vec![0; 64 << 10];
                    let n = self.stream.read(&mut piece).unwrap();
                    assert!(n > 0, "closed in a body");
                    self.buffer.extend_from_slice(&piece[..n]);
                }
                let rest = self.buffer.split_off(length);
                String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)).into_owned()
            }
            None if header("Transfer-Encoding: ").is_some() => {
                let mut body = String::new();
                loop {
                    let size = usize::from_str_radix(self.until("\r\n").trim_end(), 16).unwrap();
                    if size == 0 {
                        self.until("\r\n");
                        break body;
                    }
                    while self.buffer.len() < size + 2 {
                        let mut piece = vec![0; 64 << 10];
                        let n = self.stream.read(&mut piece).unwrap();
                        assert!(n > 0, "closed in a chunk");
                        self.buffer.extend_from_slice(&piece[..n]);
                    }
                    let rest = self.buffer.split_off(size + 2);
                    body += &String::from_utf8_lossy(&std::mem::replace(&mut self.buffer, rest)[..size]);
                }
            }
            None => String::new(),
        };
        Answer { status: head.split(' ').nth(1).unwrap().parse().unwrap(), head, body }
    }

    fn ask(&mut self, target: &str, headers: &str, body: &str) -> Answer {
        self.send(&format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        self.receive()
    }
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
    }

    fn decision(&self) -> Option<&str> {
        self.header("X-Tributary-Decision")
    }
}

fn running(marker: &str) -> String {
    support::sql(&format!(
        "SELECT count() FROM system.processes WHERE query LIKE '%{marker}%' AND query NOT LIKE '%system.processes%'"
    ))
}

/// Waits for a condition that is about to come true.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn many_requests_use_one_connection_also_when_sent_ahead() {
    let mut client = Client::new(plain());
    for i in 0..50 {
        let answer = client.ask("/", "", &format!("SELECT {i}"));
        assert_eq!((answer.status, answer.body), (200, format!("{i}\n")));
        client.send("GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(client.receive().body, "Ok.\n");
    }
    let ahead: String = (0..20).map(|i| format!("GET /?query=SELECT+{i} HTTP/1.1\r\nHost: x\r\n\r\n")).collect();
    client.send(&ahead);
    for i in 0..20 {
        assert_eq!(client.receive().body, format!("{i}\n"));
    }
}

#[test]
fn progress_headers_arrive_while_the_query_runs() {
    let mut client = Client::new(plain());
    let start = Instant::now();
    client.send(
        "GET /?query=SELECT+sum(sleepEachRow(0.1))+FROM+numbers(20)&max_block_size=1\
         &send_progress_in_http_headers=1&http_headers_progress_interval_ms=20 HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let first = client.until("X-ClickHouse-Progress");
    let first_after = start.elapsed();
    assert!(first.starts_with("HTTP/1.1 200 OK\r\nX-Tributary-Decision: raw"), "{first}");
    client.until("\r\n0\r\n\r\n");
    let whole_after = start.elapsed();
    assert!(whole_after > Duration::from_millis(1900), "{whole_after:?}");
    assert!(first_after < whole_after / 2, "first progress after {first_after:?} of {whole_after:?}");
}

#[test]
fn rows_and_insert_data_are_streamed_as_they_come() {
    let database = support::Database::new("http_live");
    database.sql("CREATE TABLE sink (x UInt32) ENGINE = MergeTree ORDER BY x");
    let mut client = Client::new(plain());
    client.send(
        "GET /?query=SELECT+number,sleepEachRow(0.1)+FROM+numbers(20)&max_block_size=1&http_response_buffer_size=1\
         &max_threads=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    let start = Instant::now();
    client.until("\r\n\r\n");
    client.until("1\t0\n");
    let first_after = start.elapsed();
    client.until("\r\n0\r\n\r\n");
    assert!(first_after < start.elapsed() / 2, "first rows after {first_after:?} of {:?}", start.elapsed());

    // The server works on the insert (it starts when it has 256 KiB) while the client has sent but its first chunk.
    let chunk = format!("{:x}\r\n{}\r\n", 400_000, "1\n".repeat(200_000));
    client.send(&format!(
        "POST /?database={}&query=INSERT+INTO+sink+FORMAT+CSV HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}",
        database.name
    ));
    let inserting = format!(
        "SELECT count() FROM system.processes WHERE query_kind = 'Insert' AND current_database = '{}'",
        database.name
    );
    eventually("the insert runs", || support::sql(&inserting) == "1\n");
    client.send("2\r\n2\n\r\n0\r\n\r\n");
    assert_eq!(client.receive().status, 200);
    assert_eq!(database.sql("SELECT sum(x) FROM sink"), "200002\n");
}

#[test]
fn long_bodies_arrive_byte_for_byte() {
    let database = support::Database::new("http_live");
    database.sql("CREATE TABLE sink (x UInt64) ENGINE = Memory");
    let rows: Vec<u8> = (0..4_000_000_u64).flat_map(|x| x.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    // Chunks of all sizes, a little more than a power of two each, in an order that mixes long and short.
    let mut chunks = Vec::new();
    let mut rest = rows.as_slice();
    for i in 0.. {
        let size = ((1 << (i * 7 % 23)) + 13).min(rest.len());
        let (chunk, next) = rest.split_at(size);
        chunks.extend_from_slice(format!("{size:x}\r\n").as_bytes());
        chunks.extend_from_slice(chunk);
        chunks.extend_from_slice(b"\r\n");
        rest = next;
        if size == 0 {
            break;
        }
    }
    let target = format!("/?database={}&query=INSERT+INTO+sink+FORMAT+RowBinary", database.name);
    let known = "SELECT count(), sum(x), groupBitXor(x * rowNumberInAllBlocks()) FROM sink SETTINGS max_threads = 1";
    let mut client = Client::new(plain());
    let mut seen = Vec::new();
    for (length, body) in
        [("Transfer-Encoding: chunked".to_owned(), &chunks), (format!("Content-Length: {}", rows.len()), &rows)]
    {
        client
            .send(&format!("POST {target}&max_threads=1&max_insert_threads=1 HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n"));
        client.stream.write_all(body).unwrap();
        assert_eq!(client.receive().status, 200, "{length}");
        seen.push(database.sql(known));
        database.sql("TRUNCATE TABLE sink");
    }
    assert!(seen[0].starts_with("4000000\t") && seen[0] == seen[1], "{seen:?}");

    let query = "SELECT+number*11400714819323198485+FROM+numbers(4000000)+FORMAT+RowBinary";
    for (version, block) in [("1.0", 1000), ("1.1", 100_000), ("1.1", 4_000_000)] {
        client = Client::new(plain());
        client.send(&format!(
            "GET /?query={query}&max_block_size={block} HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n"
        ));
        let head = client.until("\r\n\r\n");
        let mut wire = std::mem::take(&mut client.buffer);
        client.stream.read_to_end(&mut wire).unwrap();
        let got = if head.contains("chunked") { crate::http_relay::unchunk(&wire) } else { wire };
        assert!(got == rows, "HTTP/{version}, blocks of {block}: {} of {} bytes", got.len(), rows.len());
    }
}

#[test]
fn a_client_that_leaves_takes_its_query_with_it() {
    let mut client = Client::new(plain());
    client.send(
        "GET /?query=SELECT+count(sleepEachRow(0.05)+AS+leaving_client)+FROM+numbers(2000)&max_block_size=1\
         &cancel_http_readonly_queries_on_client_close=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    eventually("the query runs", || running("leaving_client") == "1\n");
    drop(client);
    eventually("the query ends", || running("leaving_client") == "0\n");

    // In the middle of an answer: the server notices when it writes.
    let mut client = Client::new(plain());
    client.send("GET /?query=SELECT+number+AS+leaving_reader+FROM+numbers(100000000000) HTTP/1.1\r\nHost: x\r\n\r\n");
    client.until("\r\n\r\n");
    eventually("the query runs", || running("leaving_reader") == "1\n");
    drop(client);
    eventually("the query ends", || running("leaving_reader") == "0\n");
}

#[test]
fn a_slow_reader_slows_the_server_down() {
    let mut client = Client::new(plain());
    client.send("GET /?query=SELECT+number+AS+slow_reader+FROM+numbers(30000000)+FORMAT+RowBinary HTTP/1.0\r\n\r\n");
    eventually("the query runs", || running("slow_reader") == "1\n");
    // 240 MB are neither in our memory nor on the way: the query still runs, because nobody took its rows.
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(running("slow_reader"), "1\n");
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 240_000_000);
}

#[test]
fn an_unreachable_server_is_told_with_its_address() {
    let closed = free_port();
    let mut client = Client::new(start(closed, Decider::PassThrough));
    let answer = client.ask("/", "", "SELECT 1");
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("X-ClickHouse-Exception-Code"), Some("210"));
    let expected =
        format!("Code: 210. DB::Exception: Tributary: cannot reach ClickHouse at http://127.0.0.1:{closed}/: ");
    assert!(answer.body.starts_with(&expected) && answer.body.contains("refused"), "{}", answer.body);
    // The connection is as good as before.
    assert_eq!(client.ask("/ping", "", "").status, 502);
}

#[test]
fn nonsense_on_one_connection_leaves_the_others_alone() {
    let mut good = Client::new(plain());
    for nonsense in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/1.1\r\n: x\r\n\r\n",
        "\u{7f}\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ] {
        let mut bad = Client::new(plain());
        bad.send(nonsense);
        assert_eq!(good.ask("/", "", "SELECT 1").body, "1\n");
    }
}

#[test]
fn a_restarted_server_costs_no_request() {
    // This server closes idle connections after a second, and is stopped while the proxy holds one open.
    let folder = support::folder("restarted");
    let options = Options {
        server_config: Some("<clickhouse><keep_alive_timeout>1</keep_alive_timeout></clickhouse>".into()),
        memory_bytes_max: Some(1 << 30),
        ..Options::new(folder)
    };
    let server = Server::start(&options).unwrap();
    let port = server.http_port();
    let mut client = Client::new(start(port, Decider::PassThrough));
    for pause_ms in [0, 300, 490, 510, 800, 990, 1000, 1010, 1200] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        assert_eq!(client.ask("/", "", "SELECT 1").body, "1\n", "after {pause_ms} ms");
    }
    server.stop();
    assert_eq!(client.ask("/", "", "SELECT 1").status, 502);
    let options = Options { http_port: Some(port), ..options };
    let _server = Server::start(&options).unwrap();
    assert_eq!(client.ask("/", "", "SELECT 1").body, "1\n");
}

/// Rewrites `SELECT .. raw ..` into something else, by a word in the query.
fn rule(query: &IncomingQuery) -> Decision {
    let to = |sql: &str| Decision::View { views: vec!["v".into()], mode: Mode::Full, sql: sql.into() };
    match query.sql.as_str() {
        sql if sql.contains("settings?") => {
            Decision::Raw { reason: format!("{:?} {:?}", query.settings, query.database) }
        }
        sql if sql.contains("broken") => to("SELECT no_such_column"),
        sql if sql.contains("cancelled") => {
            to("SELECT throwIf(1, 'x', 394::Int16) SETTINGS allow_custom_error_code_in_throwif = 1")
        }
        sql if sql.contains("late") => to(
            "SELECT throwIf(number = 5), sleepEachRow(0.05) FROM numbers(9) SETTINGS max_block_size = 1, max_threads = 1, http_response_buffer_size = 1",
        ),
        sql if sql.contains("raw") => to("SELECT 'from the view', {p:String}"),
        _ => Decision::Raw { reason: "no match".into() },
    }
}

#[test]
fn a_rewritten_query_takes_the_form_of_the_original() {
    let mut client = Client::new(start(support::server().http_port(), Decider::Rule(rule)));
    let expected = (200, "from the view\tx\n".to_owned(), Some("view=v; mode=full".to_owned()));
    let seen = |answer: Answer| (answer.status, answer.body.clone(), answer.decision().map(str::to_owned));
    assert_eq!(seen(client.ask("/?param_p=x", "", "SELECT 'raw', {p:String}")), expected, "in the body");
    assert_eq!(seen(client.ask("/?query=SELECT+'raw',+{p:String}&param_p=x", "", "")), expected, "in the URL");
    assert_eq!(seen(client.ask("/?query=SELECT+'raw'&param_p=x", "", ", {p:String}")), expected, "in both");
    assert_eq!(
        seen(client.ask("/?param_p=x&tributary=require", "X-Tributary: off\r\n", "SELECT 'raw'")),
        expected,
        "the URL's wish counts"
    );
    client.send("GET /?query=SELECT+'raw'&param_p=x HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(seen(client.receive()), expected, "by GET");
    client.send("POST /?param_p=x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nSELECT\r\n6\r\n 'raw'\r\n0\r\n\r\n");
    assert_eq!(seen(client.receive()), expected, "in chunks");
    client.send("POST /?param_p=x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n");
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("SELECT 'raw'");
    assert_eq!(seen(client.receive()), expected, "after 100 Continue");
    // A GET stays read-only, and the settings stay.
    let answer =
        client.ask("/?max_block_size=7&database=system&session_id=s&param_p=x&query_id=q", "", "SELECT 'settings?'");
    assert_eq!(answer.decision(), Some(r#"raw; reason=[("max_block_size", "7")] Some("system")"#));
    // Statements that are no queries carry no decision.
    assert_eq!(client.ask("/", "", "SHOW TABLES FROM system LIKE 'raw'").decision(), None);
}

#[test]
fn a_rewritten_query_that_fails_is_replaced_by_the_original() {
    let mut client = Client::new(start(support::server().http_port(), Decider::Rule(rule)));
    for target in [
        "/",
        "/?query_id=the-same-id",
        "/?session_id=the-same-session",
        "/?wait_end_of_query=1",
        "/?compress=0&send_progress_in_http_headers=1",
    ] {
        let answer = client.ask(target, "", "SELECT 'broken'");
        assert_eq!((answer.status, answer.body.as_str()), (200, "broken\n"), "{target}");
        assert_eq!(answer.decision(), Some("raw; reason=rewritten query failed: code 47"), "{target}");
    }
    client.send("GET /?query=SELECT+'broken' HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.receive().body, "broken\n");
    // A query that someone cancelled stays cancelled.
    let answer = client.ask("/", "", "SELECT 'cancelled'");
    assert_eq!(answer.header("X-ClickHouse-Exception-Code"), Some("394"), "{}", answer.body);
    // What fails after its first byte cannot be replaced; it must not look complete.
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\nSELECT 'late'");
    let mut answer = Vec::new();
    let _ = client.stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nX-Tributary-Decision: view=v"), "{answer}");
    assert!(answer.contains("__exception__") && !answer.ends_with("0\r\n\r\n"), "{answer}");
}

#[test]
fn a_required_view_is_an_error_where_there_is_none() {
    let mut client = Client::new(start(support::server().http_port(), Decider::Rule(rule)));
    for (target, headers) in
        [("/?tributary=require", ""), ("/", "X-Tributary: require\r\n"), ("/", "tributary: require\r\n")]
    {
        let answer = client.ask(target, headers, "SELECT 1");
        assert_eq!(answer.status, 409, "{}", answer.body);
        let expected = "Code: 392. DB::Exception: Tributary: tributary=require, but this query would read the raw tables: no match. (QUERY_IS_PROHIBITED)\n";
        assert_eq!(answer.body, expected);
        assert_eq!(answer.decision(), Some("raw; reason=no match"));
        let answer = client.ask(target, headers, "SELECT 'broken'");
        assert_eq!(answer.status, 409);
        assert!(answer.body.contains("rewritten query failed: code 47"), "{}", answer.body);
        // What is no query passes, and ClickHouse never sees the wish.
        assert_eq!(client.ask(target, headers, "SHOW TABLES FROM system LIKE 'raw'").status, 200);
        assert_eq!(client.ask("/?tributary=off", "", "SELECT 1").body, "1\n");
        client.send("HEAD /?query=SELECT+1&tributary=off HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
}
