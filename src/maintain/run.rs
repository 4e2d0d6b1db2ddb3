//! Ids of runs, and the sign of life of whoever is writing one.
//!
//! ```text
//! 63 ................ 20 19 ... 10 9 .... 0
//! milliseconds since 1970  writer   counter      a run's id
//! ```
//! A run that no manifest names is either being written or left over from a process that died. A process that writes runs
//! has a row in `tributary.writers` that it renews, under the writer's bits of its ids, and that says which process it is:
//! one of this machine is known to be dead at once, another one when its row is old. Even one that was wrongly taken for
//! dead (stopped for minutes, say) does no harm: before its run is dropped a manifest is committed that calls the run
//! abandoned, so that the late writer's own commit loses against it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;
use serde::Deserialize;
use tokio::task::JoinHandle;

use super::lock;
use crate::sql::render::string_literal;
use crate::upstream::{Upstream, UpstreamError};

const TABLE: &str = "tributary.writers";

/// A writer renews its row this often.
const BEAT: Duration = Duration::from_secs(10);

/// A writer whose row is older is taken for dead; ClickHouse may be slow, and so may be the writer's machine.
const DEAD_AFTER: Duration = Duration::from_secs(60);

const COUNTER_BITS: u32 = 10;
const WRITER_BITS: u32 = 10;

/// Two processes that write the same view would have to meet in the same millisecond with one chance in a million.
pub fn new_id() -> u64 {
    const COUNTER_MASK: u64 = (1 << COUNTER_BITS) - 1;
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let counter = NEXT.get_or_init(|| AtomicU64::new(random())).fetch_add(1, Ordering::Relaxed) & COUNTER_MASK;
    ((now.as_millis() as u64) << (WRITER_BITS + COUNTER_BITS)) | (this_writer() << COUNTER_BITS) | counter
}

/// The bits of this process.
fn this_writer() -> u64 {
    static WRITER: OnceLock<u64> = OnceLock::new();
    *WRITER.get_or_init(|| random() & WRITER_MASK)
}

const WRITER_MASK: u64 = (1 << WRITER_BITS) - 1;

fn writer_of(run: u64) -> u64 {
    (run >> COUNTER_BITS) & WRITER_MASK
}

fn random() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    BuildHasher::hash_one(&RandomState::default(), (now.as_nanos(), std::process::id()))
}

/// Creates the table of signs of life.
pub async fn ensure(upstream: &Upstream) -> Result<(), UpstreamError> {
    let ddl = format!(
        "CREATE TABLE IF NOT EXISTS {TABLE} (writer UInt16, owner String, beat DateTime('UTC') DEFAULT now()) \
         ENGINE = ReplacingMergeTree(beat) ORDER BY (writer, owner) TTL beat + INTERVAL 1 DAY"
    );
    upstream.execute(&ddl).await
}

/// The last signs of life of processes that write runs.
pub(super) struct SignsOfLife(Vec<Sign>);

#[derive(Deserialize)]
struct Sign {
    writer: u64,
    owner: String,
    age_seconds: u64,
}

impl SignsOfLife {
    pub async fn read(upstream: &Upstream) -> Result<Self, UpstreamError> {
        let sql = format!(
            "SELECT writer, owner, toUInt64(greatest(0, now() - max(beat))) AS age_seconds FROM {TABLE} \
             WHERE beat > now() - 3600 GROUP BY writer, owner"
        );
        Ok(Self(upstream.rows(&sql).await?))
    }

    /// Whether a process gave a sign less than `silence_max` ago, and is not known to have ended.
    pub fn is_alive(&self, process: &str, silence_max: Duration) -> bool {
        let recent = |sign: &Sign| sign.owner == process && Duration::from_secs(sign.age_seconds) < silence_max;
        self.0.iter().any(recent) && !Owner::is_dead(process)
    }

    /// Gives one, unless that was done less than `age_max` ago.
    pub async fn give(upstream: &Upstream, age_max: Duration) -> Result<(), UpstreamError> {
        let server = upstream.config().url.to_string();
        if lock(&GIVEN_AT).get(&server).is_some_and(|at| at.elapsed() < age_max) {
            return Ok(());
        }
        let given_at = Instant::now();
        let sql = format!(
            "INSERT INTO {TABLE} (writer, owner) SETTINGS async_insert = 0 VALUES ({}, {})",
            this_writer(),
            string_literal(&this_process())
        );
        upstream.execute(&sql).await?;
        lock(&GIVEN_AT).insert(server, given_at);
        Ok(())
    }
}

/// Who may be writing runs now.
pub struct Writers {
    others: HashSet<u64>,
    own: HashSet<u64>,
}

impl Writers {
    pub async fn alive(upstream: &Upstream) -> Result<Self, UpstreamError> {
        let signs = SignsOfLife::read(upstream).await?;
        let this = this_process();
        let others = signs.0.iter().filter(|sign| sign.owner != this && signs.is_alive(&sign.owner, DEAD_AFTER));
        Ok(Self { others: others.map(|sign| sign.writer).collect(), own: lock(&OWN_RUNS).clone() })
    }

    /// Whether somebody may be writing this run.
    pub fn may_write(&self, run: u64) -> bool {
        self.own.contains(&run) || self.others.contains(&writer_of(run))
    }
}

/// This process, in a form by which others can tell whether it is gone; without /proc just a name of its own.
pub(super) fn this_process() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| Owner::this().map_or_else(|| format!("{:x}", random()), |owner| owner.to_string())).clone()
}

/// Which process writes a run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// The machine since it was started, and the space in which process ids count: `<boot id>/<namespace>`.
    place: String,
    pid: u32,
    /// Ticks after the machine's start at which the process began: process ids are given out again.
    began: u64,
}

impl Owner {
    /// This process; `None` where there is no /proc to tell.
    fn this() -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let pid = std::process::id();
        let place = format!("{}/{}", boot.trim(), namespace.display());
        Some(Self { place, pid, began: began(pid)? })
    }

    /// Whether the process is known to have ended. One of another machine never is.
    fn is_dead(text: &str) -> bool {
        let (Some(owner), Some(this)) = (Self::parse(text), Self::this()) else { return false };
        owner.place == this.place && began(owner.pid) != Some(owner.began)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplitn(3, ' ');
        let (began, pid, place) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { place: place.into(), pid: pid.parse().ok()?, began: began.parse().ok()? })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.place, self.pid, self.began)
    }
}

/// The start time of a process, field 22 of its stat file; `None` when it has ended.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18)?.parse().ok())?
}

/// Runs that this process is writing.
static OWN_RUNS: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(Mutex::default);

/// When this process last gave a sign of life, by server.
static GIVEN_AT: LazyLock<Mutex<HashMap<String, Instant>>> = LazyLock::new(Mutex::default);

/// Says that a run is being written, until dropped.
pub struct Heartbeat {
    run: u64,
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// To be called before the first row of the run is written.
    pub async fn start(upstream: &Upstream, run: u64) -> Result<Self, UpstreamError> {
        lock(&OWN_RUNS).insert(run);
        let again = upstream.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                if let Err(error) = SignsOfLife::give(&again, BEAT / 2).await {
                    tracing::warn!("sign of life: {error}");
                }
            }
        });
        let heartbeat = Self { run, task };
        SignsOfLife::give(upstream, BEAT / 2).await?;
        Ok(heartbeat)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
        lock(&OWN_RUNS).remove(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dead_when_its_id_is_free_or_was_given_out_again() {
        let this = Owner::this().unwrap();
        assert_eq!(Owner::parse(&this.to_string()), Some(this.clone()));
        assert!(!Owner::is_dead(&this.to_string()));
        assert!(Owner::is_dead(&Owner { began: this.began + 1, ..this.clone() }.to_string()));
        assert!(Owner::is_dead(&Owner { pid: u32::MAX, ..this.clone() }.to_string()));
        assert!(!Owner::is_dead(&Owner { place: "elsewhere".into(), pid: u32::MAX, ..this }.to_string()));
        assert!(!Owner::is_dead(""));
    }

    #[test]
    fn ids_differ() {
        let ids: std::collections::HashSet<u64> = (0..1000).map(|_| super::new_id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| writer_of(*id) == this_writer()));
    }
}
