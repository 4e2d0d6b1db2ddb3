//! Ids of runs, and the sign of life of whoever is writing one.
//!
//! A run that no manifest names is either being written or left over from a rebuild that died. The first kind is told
//! by a row in `tributary.building` that its writer renews, and that says which process the writer is: one of this
//! machine is known to be dead at once, another one when its row is old. Even one that was wrongly taken for dead (its
//! process was stopped for minutes, say) does no harm: before its run is dropped a manifest is committed that calls the
//! run abandoned, so that the late writer's own commit loses against it.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::fast::RandomState;
use serde::Deserialize;
use tokio::task::JoinHandle;

use crate::sql::render::string_literal;
use crate::upstream::{Upstream, UpstreamError};

const TABLE: &str = "tributary.building";

/// A writer renews its row this often.
const BEAT: Duration = Duration::from_secs(10);

/// A writer whose row is older is taken for dead; ClickHouse may be slow, and so may be the writer's machine.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Milliseconds since 1970 in the high 44 bits, then 20 bits that differ between processes and calls. Two processes
/// that rebuild the same view would have to meet in the same millisecond with one chance in a million.
pub fn new_id() -> u64 {
    const LOW_BITS: u32 = 20;
    const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = || BuildHasher::hash_one(&RandomState::default(), (now.as_nanos(), std::process::id()));
    let low = NEXT.get_or_init(|| AtomicU64::new(random())).fetch_add(1, Ordering::Relaxed);
    ((now.as_millis() as u64) << LOW_BITS) | (low & LOW_MASK)
}

/// Creates the table of signs of life.
pub async fn ensure(upstream: &Upstream) -> Result<(), UpstreamError> {
    let ddl = format!(
        "CREATE TABLE IF NOT EXISTS {TABLE} (storage String, run UInt64, owner String, beat DateTime('UTC') DEFAULT now()) \
         ENGINE = ReplacingMergeTree(beat) ORDER BY (storage, run) TTL beat + INTERVAL 1 DAY"
    );
    upstream.execute(&ddl).await
}

/// Runs of a storage table that somebody is writing now.
pub async fn alive(upstream: &Upstream, storage: &str) -> Result<Vec<u64>, UpstreamError> {
    #[derive(Deserialize)]
    struct Row {
        run: u64,
        owner: String,
    }
    let sql = format!(
        "SELECT DISTINCT run, owner FROM {TABLE} WHERE storage = {} AND beat > now() - {}",
        string_literal(storage),
        DEAD_AFTER.as_secs()
    );
    let rows = upstream.rows::<Row>(&sql).await?.into_iter();
    Ok(rows.filter(|row| !Owner::is_dead(&row.owner)).map(|row| row.run).collect())
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

/// Keeps a run's row fresh until dropped.
pub struct Heartbeat {
    task: JoinHandle<()>,
}

impl Heartbeat {
    /// To be called before the first row of the run is written.
    pub async fn start(upstream: &Upstream, storage: &str, run: u64) -> Result<Self, UpstreamError> {
        let sql = format!(
            "INSERT INTO {TABLE} (storage, run, owner) SETTINGS async_insert = 0 VALUES ({}, {run}, {})",
            string_literal(storage),
            string_literal(&Owner::this().map(|owner| owner.to_string()).unwrap_or_default())
        );
        upstream.execute(&sql).await?;
        let upstream = upstream.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                if let Err(error) = upstream.execute(&sql).await {
                    tracing::warn!("sign of life of run {run}: {error}");
                }
            }
        });
        Ok(Self { task })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
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
    }
}
