//! Tells when a file, or any file of a folder, was changed.

use std::path::Path;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// Editors write a file in several steps; it is read when it has been left alone for this long.
const SETTLED: Duration = Duration::from_millis(200);

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

    /// Returns when nothing has changed for a while.
    pub async fn settle(&mut self) {
        while tokio::time::timeout(SETTLED, self.next()).await.is_ok() {}
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
