//! How far maintenance is with each view, for `tributary status` and for whoever asks the running process.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::lock;
use super::plan::{Plan, Step};
use super::sight::Sight;
use crate::views::catalog::CatalogView;

/// What holds for a view at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The runs hold what the sources hold.
    Current,
    /// Runs and sources differ; what is missing will be read next.
    Behind,
    /// A whole view or partition is being built.
    Building,
    /// Nothing can be built for now, such as during an ALTER.
    Blocked,
    /// The last attempt failed.
    Failing,
}

/// One view's entry.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    pub state: State,
    /// The storage table, with its database.
    pub storage: String,
    /// Live runs, and the rows in them.
    pub runs: usize,
    pub rows: u64,
    /// Rows of the fact table that no run holds.
    pub rows_behind: u64,
    /// How long some rows have been missing.
    pub seconds_behind: f64,
    /// Partitions of which runs hold other rows than the fact table.
    pub dirty: Vec<String>,
    /// What is to be done, at most [`STEPS_MAX`] lines.
    pub steps: Vec<String>,
    pub error: Option<String>,
    /// Version of the latest manifest.
    pub version: u64,
    /// The previous definition of the view, which answers until the new one is built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Box<Entry>>,
    #[serde(skip)]
    view: String,
    #[serde(skip)]
    is_previous: bool,
    #[serde(skip)]
    behind_since: Option<Instant>,
}

const STEPS_MAX: usize = 20;

impl Entry {
    /// Of a view of which nothing is known but why.
    fn failing(view: &CatalogView, error: Option<String>) -> Self {
        Self {
            state: State::Failing,
            storage: view.storage.name.to_string(),
            runs: 0,
            rows: 0,
            rows_behind: 0,
            seconds_behind: 0.0,
            dirty: Vec::new(),
            steps: Vec::new(),
            error,
            version: 0,
            previous: None,
            view: view.name().to_string(),
            is_previous: view.is_previous,
            behind_since: None,
        }
    }
}

/// All views' entries.
#[derive(Debug, Default)]
pub struct Board {
    /// By storage table.
    entries: Mutex<BTreeMap<String, Entry>>,
    upstream_error: Mutex<Option<String>>,
}

impl Board {
    /// Notes what a look showed of a view, and what is to be done about it.
    pub fn note(&self, view: &CatalogView, sight: &Sight, plan: &Plan) {
        let mut entries = lock(&self.entries);
        let before = entries.remove(view.storage_name());
        let rows_behind = plan.rows_behind();
        let error = before.as_ref().and_then(|before| before.error.clone());
        let state = match plan.steps.first() {
            None => State::Current,
            Some(_) if error.is_some() => State::Failing,
            Some(Step::Blocked { .. }) => State::Blocked,
            Some(_) if plan.builds() => State::Building,
            Some(_) => State::Behind,
        };
        let is_behind = !matches!(state, State::Current);
        let behind_since =
            is_behind.then(|| before.and_then(|before| before.behind_since).unwrap_or_else(Instant::now));
        let body = sight.manifest.as_ref().map(|manifest| &manifest.body);
        let dirty = |step: &Step| match step {
            Step::Build { partition, .. } | Step::Wait { partition, .. } => Some(partition.clone()),
            _ => None,
        };
        let entry = Entry {
            state,
            runs: body.map_or(0, |body| body.runs.len()),
            rows: body.map_or(0, |body| body.rows()),
            rows_behind,
            seconds_behind: plan.unread_since().map_or(0.0, seconds_since),
            dirty: plan.steps.iter().filter_map(dirty).collect(),
            steps: plan.steps.iter().take(STEPS_MAX).map(ToString::to_string).collect(),
            error: error.filter(|_| is_behind),
            version: sight.manifest.as_ref().map_or(0, |manifest| manifest.version),
            behind_since,
            ..Entry::failing(view, None)
        };
        entries.insert(view.storage_name().to_string(), entry);
    }

    /// Notes that a view cannot be maintained at all.
    pub fn excluded(&self, view: &CatalogView, error: String) {
        lock(&self.entries).insert(view.storage_name().to_string(), Entry::failing(view, Some(error)));
    }

    /// Notes how the last attempt at the view with this storage table ended.
    pub fn ended(&self, storage: &str, error: Option<String>) {
        if let Some(entry) = lock(&self.entries).get_mut(storage) {
            entry.state = if error.is_some() { State::Failing } else { entry.state };
            entry.error = error;
        }
    }

    /// Whether ClickHouse answered the last look.
    pub fn upstream(&self, error: Option<String>) {
        *lock(&self.upstream_error) = error;
    }

    /// Views that are no longer declared have no entry.
    pub fn retain(&self, views: &[CatalogView]) {
        lock(&self.entries).retain(|storage, entry| {
            let view = views.iter().find(|view| view.storage_name() == storage);
            entry.is_previous = view.is_some_and(|view| view.is_previous);
            view.is_some()
        });
    }

    /// By view.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        let mut by_view: BTreeMap<String, Entry> = BTreeMap::new();
        let mut entries: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        entries.sort_by_key(|entry| entry.is_previous);
        for mut entry in entries {
            let noted = entry.behind_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            entry.seconds_behind = entry.seconds_behind.max(noted);
            match by_view.get_mut(&entry.view) {
                Some(newer) => newer.previous = Some(Box::new(entry)),
                None => _ = by_view.insert(entry.view.clone(), entry),
            }
        }
        by_view
    }

    pub fn upstream_error(&self) -> Option<String> {
        lock(&self.upstream_error).clone()
    }
}

/// From a second since 1970 until now.
fn seconds_since(second: u64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(second)).as_secs_f64()
}
