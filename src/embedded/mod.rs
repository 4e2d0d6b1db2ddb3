//! A real ClickHouse that Tributary brings up by itself, on loopback, in a data folder it is given: for `demo`, `bench`
//! and the tests.
//!
//! Invariants:
//! - One server per data folder. The server's log file is locked, and the lock belongs to the open file, which the
//!   server process inherits: it lasts as long as the server runs, also when the process that started it is gone.
//! - No orphan. The server runs under a small shell guard whose standard input is a pipe that this process holds open.
//!   The kernel closes the pipe when this process ends, whatever ended it (SIGKILL too), and the guard then stops the
//!   server. Stopping on purpose is the same act: close the pipe, wait. (PR_SET_PDEATHSIG would be bound to the thread
//!   that spawned the child, and is cleared on exec of a binary with file capabilities, as packaged ClickHouse is.)

mod engine;
mod files;
mod ports;
mod wheel;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use engine::Engine;
pub use ports::free as free_port;

/// Holds the server; see the module's second invariant. TERM first, KILL after 20 s.
const GUARD: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
echo "$server" >server.pid
(
    read -r _ <&3
    kill -TERM "$server"
    tries=0
    while [ "$tries" -lt 200 ] && kill -0 "$server" 2>/dev/null; do sleep 0.1; tries=$((tries + 1)); done
    kill -KILL "$server" 2>/dev/null
) &
guard=$!
exec 3<&-
wait "$server"
status=$?
kill "$guard" 2>/dev/null
exit "$status"
"#;

/// Longest wait for the guard to end after the pipe was closed: its own 20 s and a margin.
const STOP_TIMEOUT: Duration = Duration::from_secs(25);
/// A server that is just being stopped may hold its folder for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A port that was free may be taken by another process before the server listens on it.
const PORT_ATTEMPTS: usize = 3;
const LOG_TAIL_BYTES: u64 = 3000;
const LOG_FILE: &str = "server.log";

/// How to start a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Holds the data, the configuration files and `server.log`; made when missing, kept afterwards.
    pub data_dir: PathBuf,
    /// `None`: a free port.
    pub http_port: Option<u16>,
    /// Of the native protocol; `None`: a free port.
    pub tcp_port: Option<u16>,
    /// A whole `<clickhouse>` document, merged over our `users.xml` as ClickHouse merges `users.d`: users, grants,
    /// profiles, row policies (CREATE USER does not work in the wheel).
    pub users_config: Option<String>,
    /// A whole `<clickhouse>` document, merged over our `config.xml`: clusters, `query_log`, macros.
    pub server_config: Option<String>,
    /// Limit on the memory of the whole server; `None`: ClickHouse's own (a share of the machine's).
    pub memory_bytes_max: Option<u64>,
    /// `max_threads` of the default profile; `None`: one per core.
    pub threads_max: Option<usize>,
    /// From start to the first answered `/ping`.
    pub ready_timeout: Duration,
    /// Told, in one sentence, of steps that take long, such as the one download of the engine.
    pub notice: fn(&str),
}

impl Options {
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            http_port: None,
            tcp_port: None,
            users_config: None,
            server_config: None,
            memory_bytes_max: None,
            threads_max: None,
            ready_timeout: Duration::from_secs(60),
            notice: |_| {},
        }
    }
}

/// Why there is no server. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "no ClickHouse to start. Tried a `clickhouse` program: {binary}. Tried Python's chdb-core: {wheel}. \
         Install one of them: ClickHouse {} or newer on PATH, or Python 3.9 or newer with its venv module \
         (Debian: apt-get install python3-venv) and access to a Python package index",
        engine::VERSION_MIN_TEXT
    )]
    NoEngine { binary: String, wheel: String },
    #[error("data folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(
        "data folder {} is in use by another server (process {pid}); stop that one or give another folder",
        path.display()
    )]
    Locked { path: PathBuf, pid: String },
    #[error("cannot run {program}: {source}")]
    Spawn { program: String, source: std::io::Error },
    #[error("ClickHouse ended while starting ({status}); the end of {}:\n{tail}", log.display())]
    Exited { status: String, log: PathBuf, tail: String },
    #[error(
        "ClickHouse did not answer http://127.0.0.1:{port}/ping within {seconds} s; the end of {}:\n{tail}",
        log.display()
    )]
    NotReady { port: u16, seconds: u64, log: PathBuf, tail: String },
}

/// A running ClickHouse. Dropping it stops the server.
#[derive(Debug)]
pub struct Server {
    guard: Child,
    /// The pipe whose end tells the guard to stop the server.
    lifeline: Option<ChildStdin>,
    data_dir: PathBuf,
    http_port: u16,
    tcp_port: u16,
}

impl Server {
    /// Starts a server and waits until it answers. Blocks; the first start on a machine may download the engine.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        let engine = Engine::obtain(options.notice)?;
        Self::start_engine(&engine, options)
    }

    /// Starts a server of a known engine.
    pub fn start_engine(engine: &Engine, options: &Options) -> Result<Self, StartError> {
        let folder = |source| StartError::Folder { path: options.data_dir.clone(), source };
        std::fs::create_dir_all(&options.data_dir).map_err(folder)?;
        let data_dir = options.data_dir.canonicalize().map_err(folder)?;
        let log = lock(&data_dir)?;
        let mut attempt = 1;
        loop {
            log.set_len(0).map_err(folder)?;
            let http_port = options.http_port.unwrap_or_else(ports::free);
            let tcp_port = options.tcp_port.unwrap_or_else(ports::free);
            files::write(&data_dir, http_port, tcp_port, options).map_err(folder)?;
            let mut server = Self::spawn(engine, &data_dir, &log, http_port, tcp_port)?;
            match server.wait_until_ready(options.ready_timeout) {
                Ok(()) => return Ok(server),
                Err(StartError::Exited { tail, .. })
                    if attempt < PORT_ATTEMPTS
                        && options.http_port.is_none()
                        && options.tcp_port.is_none()
                        && tail.contains("Address already in use") =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn spawn(engine: &Engine, data_dir: &Path, log: &File, http_port: u16, tcp_port: u16) -> Result<Self, StartError> {
        let spawned = |source| StartError::Spawn { program: engine.to_string(), source };
        let command = engine.command(data_dir);
        let mut guard = Command::new("sh")
            .arg("-c")
            .arg(GUARD)
            .arg("tributary-guard")
            .arg(command.get_program())
            .args(command.get_args())
            // ClickHouse's own watchdog would put one more process between the guard and the server.
            .env("CLICKHOUSE_WATCHDOG_ENABLE", "0")
            .current_dir(data_dir)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(spawned)?)
            .stderr(log.try_clone().map_err(spawned)?)
            // Ctrl-C in a terminal reaches the whole foreground group; the server is stopped by us, in order.
            .process_group(0)
            .spawn()
            .map_err(spawned)?;
        let lifeline = guard.stdin.take();
        Ok(Self { guard, lifeline, data_dir: data_dir.to_path_buf(), http_port, tcp_port })
    }

    fn wait_until_ready(&mut self, timeout: Duration) -> Result<(), StartError> {
        let deadline = Instant::now() + timeout;
        loop {
            let answered = ping(self.http_port);
            // Looked at after the ping: a foreign server on our port does not count once ours has given up.
            if let Ok(Some(status)) = self.guard.try_wait() {
                return Err(StartError::Exited {
                    status: status.to_string(),
                    log: self.log_path(),
                    tail: self.log_tail(),
                });
            }
            if answered {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(StartError::NotReady {
                    port: self.http_port,
                    seconds: timeout.as_secs(),
                    log: self.log_path(),
                    tail: self.log_tail(),
                });
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// `http://127.0.0.1:port/`, for the user `default` without a password.
    pub fn http_url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.http_port)
    }

    pub fn http_port(&self) -> u16 {
        self.http_port
    }

    /// Port of the native protocol.
    pub fn tcp_port(&self) -> u16 {
        self.tcp_port
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What the server wrote to its standard output and error.
    pub fn log_path(&self) -> PathBuf {
        self.data_dir.join(LOG_FILE)
    }

    /// Process id of the server itself.
    pub fn pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.data_dir.join("server.pid")).ok()?.trim().parse().ok()
    }

    fn log_tail(&self) -> String {
        tail(&self.log_path()).unwrap_or_else(|e| format!("(unreadable: {e})"))
    }

    /// Stops the server and waits until it is gone; its data stays.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.lifeline.take();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while matches!(self.guard.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The locked log file of a data folder.
fn lock(data_dir: &Path) -> Result<File, StartError> {
    let folder = |source| StartError::Folder { path: data_dir.to_path_buf(), source };
    let path = data_dir.join(LOG_FILE);
    let log = OpenOptions::new().create(true).append(true).open(path).map_err(folder)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match log.try_lock() {
            Ok(()) => return Ok(log),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(POLL_INTERVAL),
            Err(TryLockError::WouldBlock) => {
                let pid = std::fs::read_to_string(data_dir.join("server.pid")).unwrap_or_default();
                return Err(StartError::Locked { path: data_dir.to_path_buf(), pid: pid.trim().to_string() });
            }
            Err(TryLockError::Error(source)) => return Err(folder(source)),
        }
    }
}

/// Whether something on this port answers `/ping` as ClickHouse does.
fn ping(port: u16) -> bool {
    let attempt = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET /ping HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(4096).read_to_end(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.") && answer.ends_with(b"Ok.\n"))
    };
    attempt().unwrap_or(false)
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_string())
}
