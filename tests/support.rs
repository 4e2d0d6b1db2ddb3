//! What the integration tests share: one ClickHouse for all of them, one database for each.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tributary::config::UpstreamConfig;
use tributary::embedded::{Options, Server};
use tributary::upstream::Upstream;

/// Beside the default user, whose password is empty and who may do everything.
const USERS: &str = "<clickhouse>
    <profiles>
        <readonly><readonly>1</readonly></readonly>
        <nulls><transform_null_in>1</transform_null_in></nulls>
        <odd>
            <final>1</final>
            <join_use_nulls>1</join_use_nulls>
            <session_timezone>Asia/Tokyo</session_timezone>
            <aggregate_functions_null_for_empty>1</aggregate_functions_null_for_empty>
            <insert_deduplicate>0</insert_deduplicate>
            <deduplicate_insert>disable</deduplicate_insert>
        </odd>
        <cut><limit>2</limit></cut>
        <fixed>
            <max_block_size>50000</max_block_size>
            <constraints><max_block_size><const/></max_block_size></constraints>
        </fixed>
    </profiles>
    <users>
        <limited>
            <password>p</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
            <grants>
                <query>GRANT SELECT(day, region) ON rights.sales</query>
                <query>GRANT SELECT ON tributary.*</query>
            </grants>
        </limited>
        <outsider>
            <password>p</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
            <grants><query>GRANT SELECT ON rights.sales</query></grants>
        </outsider>
        <filtered>
            <password>p</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
            <databases><rights><sales><filter>region = 'north'</filter></sales></rights></databases>
        </filtered>
        <strange>
            <password>p</password><networks><ip>127.0.0.1</ip></networks><profile>nulls</profile><quota>default</quota>
        </strange>
        <reader>
            <password>reader</password>
            <networks><ip>127.0.0.1</ip></networks>
            <profile>readonly</profile>
            <quota>default</quota>
        </reader>
        <odd>
            <password></password><networks><ip>127.0.0.1</ip></networks><profile>odd</profile><quota>default</quota>
        </odd>
        <cut>
            <password></password><networks><ip>127.0.0.1</ip></networks><profile>cut</profile><quota>default</quota>
        </cut>
        <fixed>
            <password></password><networks><ip>127.0.0.1</ip></networks><profile>fixed</profile><quota>default</quota>
        </fixed>
        <pruned>
            <password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
            <databases><with_policies><t><filter>k = '1'</filter></t></with_policies></databases>
        </pruned>
    </users>
</clickhouse>";

/// The one server of this test binary, started on first use. It ends with the process (see `embedded`).
pub fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = Options {
            memory_bytes_max: Some(4 << 30),
            users_config: Some(USERS.into()),
            notice: |text| eprintln!("{text}"),
            ..Options::new(folder("server"))
        };
        Server::start(&options).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// How often something is done: more often than `usual` where the environment asks for a long run.
pub fn times(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A folder of this process's own under the build folder; those of test processes that are gone are removed.
pub fn folder(name: &str) -> PathBuf {
    static OWN: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (own, _lock) = OWN.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for entry in std::fs::read_dir(parent).unwrap().flatten() {
            let abandoned = File::open(entry.path().join("lock")).is_ok_and(|lock| lock.try_lock().is_ok());
            if abandoned {
                // A server of that process may still be writing its last files; the next run removes them then.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let own = parent.join(format!("tests-{}", std::process::id()));
        std::fs::create_dir_all(&own).unwrap();
        let lock = File::create(own.join("lock")).unwrap();
        lock.lock().unwrap();
        (own, lock)
    });
    own.join(name)
}

/// A database of the shared server for one test; dropped with it.
pub struct Database {
    pub name: String,
}

impl Database {
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{name}_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        sql(&format!("CREATE DATABASE {name}"));
        Self { name }
    }

    /// Runs a statement with this database as the current one; the answer as TabSeparated text.
    pub fn sql(&self, text: &str) -> String {
        ask(&format!("{}?database={}", server().http_url(), self.name), text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The error text of a statement that must fail.
    pub fn error(&self, text: &str) -> String {
        ask(&format!("{}?database={}", server().http_url(), self.name), text).unwrap_err()
    }

    /// Tributary's own connection, with this database as its default.
    pub fn upstream(&self) -> Upstream {
        Upstream::new(self.config())
    }

    pub fn config(&self) -> UpstreamConfig {
        UpstreamConfig::parse(&format!("{}?database={}", server().http_url(), self.name)).unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = ask(&server().http_url(), &format!("DROP DATABASE IF EXISTS {}", self.name));
    }
}

/// Runs a statement on the shared server; the answer as TabSeparated text.
pub fn sql(text: &str) -> String {
    ask(&server().http_url(), text).unwrap_or_else(|error| panic!("{error}"))
}

/// Sends a statement to any ClickHouse HTTP interface; the error is the server's own text.
pub fn ask(url: &str, text: &str) -> Result<String, String> {
    let url = url::Url::parse(url).unwrap();
    let request = format!(
        "POST {}{} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{text}",
        url.path(),
        url.query().map(|query| format!("?{query}")).unwrap_or_default(),
        url.authority(),
        text.len(),
    );
    let answer = exchange(url.port().unwrap(), request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1) == Some("200") { Ok(body.to_string()) } else { Err(body.to_string()) }
}

/// Sends raw bytes to a port on loopback and reads until the other side closes.
pub fn exchange(port: u16, request: &[u8]) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Whether a process exists (a zombie does not count).
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X']))
}

/// Sends a signal by name to one process.
pub fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}
