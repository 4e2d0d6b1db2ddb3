//! Tells when a file, or any file of a folder, was changed.

use std::path::Path;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors write a file in several steps; it is read when it has been left alone for this long.
const SETTLED: Duration = Duration::from_millis(200);

/// Unless something beside it, such as a log, is written all the time: then after so long.
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// The changes of one file or folder. Where it cannot be watched there are none, and whoever waits has to look now and then.
pub struct Changes {
    receiver: mpsc::Receiver<()>,
    watcher: notify::Result<RecommendedWatcher>,
}

impl Changes {
    pub fn of(path: &Path) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        let watcher = watch(path, sender);
        if let Err(error) = &watcher {
            tracing::warn!("{} is not watched: {error}", path.display());
        }
        Self { receiver, watcher }
    }

    /// Returns at the next change; may be dropped and called again without missing one.
    pub async fn next(&mut self) {
        if self.watcher.is_err() || self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when nothing has changed for a while, or after [`SETTLING_MAX`].
    pub async fn settle(&mut self) {
        let settled = async { while tokio::time::timeout(SETTLED, self.next()).await.is_ok() {} };
        let _ = tokio::time::timeout(SETTLING_MAX, settled).await;
    }
}

/// Its parent is watched, since editors and config maps replace files by renaming.
fn watch(path: &Path, changes: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let is_read = event.is_ok_and(|event| event.kind.is_access());
        if !is_read {
            // A full channel already says that there is something to read.
            let _ = changes.try_send(());
        }
    })?;
    if path.is_dir() {
        watcher.watch(path, RecursiveMode::NonRecursive)?;
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(parent, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_beside_the_file_does_not_keep_changes_from_settling() {
        let folder = tempfile::tempdir().unwrap();
        let mut changes = Changes::of(&folder.path().join("tributary.yaml"));
        let log = folder.path().join("log");
        let writer = tokio::spawn(async move {
            for line in 0_u64.. {
                std::fs::write(&log, line.to_string()).unwrap();
                tokio::time::sleep(SETTLED / 10).await;
            }
        });
        changes.next().await;
        changes.settle().await;
        assert!(!writer.is_finished(), "the log is still being written");
        writer.abort();
    }
}
