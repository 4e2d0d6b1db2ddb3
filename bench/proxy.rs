//! What the proxy costs: `cargo bench --bench proxy [-- --rounds N] [--json FILE]`.
//!
//! Starts ClickHouse and `tributary serve` on loopback and sends the same requests to both, in turns: an INSERT of
//! 1 GiB into a MergeTree table and into a Null table (which reads as fast as anything can), a result of 1 GiB, and
//! `SELECT 1` over one kept connection. Every answer is checked before it counts. Prints medians, and the greatest
//! resident memory of the proxy during all of it.
//!
//! What an earlier round left behind must not be charged to a later one: part merges are stopped, the rows of a round are
//! dropped and the disk has caught up before the next begins, and each round starts with the other way.

// A benchmark fails as a test does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tributary::embedded::{Options, Server};

const GIB: u64 = 1 << 30;
/// A body goes out in pieces of the size that clients use.
const PIECE_BYTES: usize = 1 << 20;
/// Rows of the inserted data: eight bytes each (RowBinary of one UInt64).
const ROWS: u64 = GIB / 8;

fn main() {
    let options = CommandLine::read();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&Options::new(folder.path().join("clickhouse"))).unwrap_or_else(|e| panic!("{e}"));
    let proxy = Proxy::start(&server.http_url());
    let direct = Route { name: "direct", port: server.http_port() };
    let through = Route { name: "proxy", port: proxy.port };
    direct.ask("CREATE TABLE kept (x UInt64) ENGINE = MergeTree ORDER BY tuple()");
    direct.ask("SYSTEM STOP MERGES kept");
    direct.ask("CREATE TABLE dropped (x UInt64) ENGINE = Null");
    let piece: Vec<u8> =
        (0..PIECE_BYTES as u64 / 8).flat_map(|x| x.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();

    let mut figures = Vec::new();
    for (what, table) in [("INSERT of 1 GiB, MergeTree", "kept"), ("INSERT of 1 GiB, Null", "dropped")] {
        figures.push(Figure::of(what, options.rounds, &proxy, [&direct, &through], |route| {
            let took = route.insert(table, &piece);
            if table == "kept" {
                assert_eq!(route.ask("SELECT count() FROM kept"), format!("{ROWS}\n"));
                route.ask("TRUNCATE TABLE kept SYNC");
                assert!(Command::new("sync").status().unwrap().success());
            }
            took
        }));
    }
    figures
        .push(Figure::of("result of 1 GiB", options.rounds, &proxy, [&direct, &through], |route| route.select_gib()));
    let latency = latency([&direct, &through]);
    let memory = proxy.peak_memory();

    let [direct, proxy] = &latency;
    println!(
        "SELECT 1, kept connection    direct {:7.0} us      proxy {:7.0} us      +{:.0} us (median)",
        direct.median,
        proxy.median,
        proxy.median - direct.median
    );
    println!("                        p99  direct {:7.0} us      proxy {:7.0} us", direct.p99, proxy.p99);
    println!("greatest resident memory of the proxy: {:.1} MiB", memory as f64 / (1 << 20) as f64);
    if let Some(path) = options.json {
        let transfers: Vec<_> = figures
            .iter()
            .map(|f| serde_json::json!({"what": f.what, "direct_mib_per_s": f.direct.round(), "proxy_mib_per_s": f.proxy.round(), "ratio": round(f.proxy / f.direct), "direct_s": f.seconds[0], "proxy_s": f.seconds[1], "proxy_cpu_s": f.proxy_cpu_s}))
            .collect();
        let report = serde_json::json!({
            "command": "cargo bench --bench proxy",
            "clickhouse": through.ask("SELECT version()").trim(),
            "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
            "rounds": options.rounds,
            "transfers": transfers,
            "select_1_us": {"direct_median": round(direct.median), "proxy_median": round(proxy.median), "added_median": round(proxy.median - direct.median), "direct_p99": round(direct.p99), "proxy_p99": round(proxy.p99)},
            "proxy_peak_rss_bytes": memory,
        });
        std::fs::write(&path, serde_json::to_string_pretty(&report).unwrap() + "\n").unwrap();
        println!("written to {path}");
    }
}

struct CommandLine {
    rounds: usize,
    json: Option<String>,
}

impl CommandLine {
    fn read() -> Self {
        let mut options = Self { rounds: 5, json: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rounds" => options.rounds = words.next().and_then(|n| n.parse().ok()).expect("--rounds N"),
                "--json" => options.json = Some(words.next().expect("--json FILE")),
                // cargo bench adds this.
                "--bench" => {}
                other => panic!("unknown option {other}; --rounds N and --json FILE are known"),
            }
        }
        options
    }
}

/// The program itself, as a user runs it.
struct Proxy {
    process: Child,
    port: u16,
}

impl Proxy {
    fn start(upstream: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["serve", "--listen-http", "127.0.0.1:0", "--upstream", upstream])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('/').next()?.parse().ok());
        Self { process, port: port.unwrap_or_else(|| panic!("no port in {line:?}")) }
    }

    /// Processor time so far, in user and kernel mode (`/proc/PID/stat`, in hundredths of a second).
    fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }

    /// The kernel's own high-water mark (`VmHWM`).
    fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One of the two ways to ClickHouse.
struct Route {
    name: &'static str,
    port: u16,
}

impl Route {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn ask(&self, sql: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "POST / HTTP/1.0\r\nContent-Length: {}\r\n\r\n{sql}", sql.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200"), "{}: {sql}: {body}", self.name);
        body.to_string()
    }

    fn insert(&self, table: &str, piece: &[u8]) -> Duration {
        let mut stream = self.connect();
        let start = Instant::now();
        write!(stream, "POST /?query=INSERT+INTO+{table}+FORMAT+RowBinary HTTP/1.0\r\nContent-Length: {GIB}\r\n\r\n")
            .unwrap();
        for _ in 0..GIB / piece.len() as u64 {
            stream.write_all(piece).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{}: {answer}", self.name);
        start.elapsed()
    }

    fn select_gib(&self) -> Duration {
        let mut stream = self.connect();
        let start = Instant::now();
        write!(stream, "GET /?query=SELECT+number+FROM+numbers({ROWS})+FORMAT+RowBinary HTTP/1.0\r\n\r\n").unwrap();
        // The head, byte by byte up to its blank line; then as much as comes.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.0 200"), "{}", self.name);
        let mut buffer = vec![0; 256 << 10];
        let mut total = 0;
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                n => total += n as u64,
            }
        }
        assert_eq!(total, GIB, "{}", self.name);
        start.elapsed()
    }
}

/// Median throughput of one transfer over both routes, in MiB/s, and the seconds of every round.
struct Figure {
    what: &'static str,
    direct: f64,
    proxy: f64,
    seconds: [Vec<f64>; 2],
    /// Processor time that the proxy used for one transfer.
    proxy_cpu_s: f64,
}

impl Figure {
    fn of(
        what: &'static str,
        rounds: usize,
        proxy: &Proxy,
        routes: [&Route; 2],
        run: impl Fn(&Route) -> Duration,
    ) -> Self {
        let mut seconds = [Vec::new(), Vec::new()];
        for route in &routes {
            run(route);
        }
        let cpu_before = proxy.cpu_seconds();
        for round_no in 0..rounds {
            for at in [round_no % 2, 1 - round_no % 2] {
                seconds[at].push(round(run(routes[at]).as_secs_f64()));
            }
        }
        let proxy_cpu_s = round((proxy.cpu_seconds() - cpu_before) / rounds as f64);
        let speed = |seconds: &Vec<f64>| 1024.0 / quantile(seconds.clone(), 0.5);
        let (direct, proxy) = (speed(&seconds[0]), speed(&seconds[1]));
        println!(
            "{what:28} direct {direct:7.0} MiB/s   proxy {proxy:7.0} MiB/s   {:5.1} %   {proxy_cpu_s:.2} s of processor time",
            100.0 * proxy / direct
        );
        Self { what, direct, proxy, seconds, proxy_cpu_s }
    }
}

struct Latency {
    median: f64,
    p99: f64,
}

/// `SELECT 1` in turns over one kept connection each; microseconds.
fn latency(routes: [&Route; 2]) -> [Latency; 2] {
    const REQUESTS: usize = 3000;
    let mut connections = routes.map(|route| (route, route.connect(), Vec::new()));
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..REQUESTS {
        for (route, stream, micros) in &mut connections {
            let start = Instant::now();
            stream.write_all(b"GET /?query=SELECT+1 HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut end = 0;
            while !buffer[..end].ends_with(b"\r\n1\n\r\n0\r\n\r\n") {
                let n = stream.read(&mut buffer[end..]).unwrap();
                assert!(n > 0, "{}", route.name);
                end += n;
            }
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    connections.map(|(_, _, micros)| Latency { median: quantile(micros.clone(), 0.5), p99: quantile(micros, 0.99) })
}

fn quantile(mut values: Vec<f64>, q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
