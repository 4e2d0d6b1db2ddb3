//! Places at which a test has the process killed. Nothing in release builds.
//!
//! `TRIBUTARY_FAILPOINT=commit.sent:3` kills, as `kill -9` does, the process that comes to `commit.sent` for the third time.

/// Between any two of these the world is in another state that a sudden end may leave.
pub const POINTS: [&str; 10] = [
    "run.begun",
    "run.sent",
    "run.written",
    "commit.begun",
    "commit.sent",
    "compaction.begun",
    "compaction.committed",
    "collection.begun",
    "collection.done",
    "orphans.abandoned",
];

#[cfg(debug_assertions)]
pub fn reach(point: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static TARGET: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static REACHED: AtomicU32 = AtomicU32::new(0);
    debug_assert!(POINTS.contains(&point), "{point} is missing in the list");
    let target = TARGET.get_or_init(|| {
        let text = std::env::var("TRIBUTARY_FAILPOINT").ok()?;
        let (name, times) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_string(), times.parse().unwrap_or(1)))
    });
    let Some((name, times)) = target else { return };
    if name == point && REACHED.fetch_add(1, Ordering::Relaxed) + 1 == *times {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(debug_assertions))]
pub fn reach(_: &str) {}
