//! Who maintains a view: of several sidecars over the same ClickHouse one, the others only serve.
//!
//! A lease is a row of the manifest table that names the process which maintains a view. It is taken by a commit that
//! loses when another one came first, and holds as long as the process gives signs of life (`tributary.writers`), or until it
//! names nobody, since its holder does not know the view any more. Two that
//! maintain at once for a moment (one was stopped and does not know yet that it lost the lease) do no harm: commits of
//! manifests name their predecessor as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::lock;
use super::manifest::{ManifestError, Store, TABLE};
use super::run::{SignsOfLife, this_process};
use crate::sql::render::string_literal;
use crate::upstream::Upstream;

/// Leases have the keys of storage tables with this in front, which no name of a view begins with.
const PREFIX: &str = "lease:";

/// Signs of life are given, and those of other holders looked at, this often.
const RENEWAL: Duration = Duration::from_secs(2);

/// A holder without a sign of life for so long has lost its leases. Together with the renewal, and a second by which whole
/// seconds are wrong: taken over after 11 s at most.
const VALIDITY: Duration = Duration::from_secs(8);

/// Claims on the leases of some views, kept for as long as this lives.
pub struct Leases {
    upstream: Upstream,
    storages: Vec<String>,
    given_up: Vec<String>,
    held: Arc<Mutex<HashMap<String, Instant>>>,
    task: JoinHandle<()>,
}

impl Leases {
    /// Starts to claim the leases of these storage tables. The manifest table must exist.
    pub fn claim(upstream: Upstream, storages: Vec<String>) -> Self {
        Self::start(upstream, storages, Vec::new())
    }

    /// Claims these leases instead, and gives up the others for whoever wants them.
    pub fn change(&mut self, storages: Vec<String>) {
        let known = self.storages.iter().chain(&self.given_up).filter(|storage| !storages.contains(storage));
        let given_up = known.cloned().collect();
        *self = Self::start(self.upstream.clone(), storages, given_up);
    }

    fn start(upstream: Upstream, storages: Vec<String>, given_up: Vec<String>) -> Self {
        let held = Arc::<Mutex<HashMap<String, Instant>>>::default();
        let claim = Claim {
            upstream: upstream.clone(),
            store: Store::new(upstream.clone()),
            storages: storages.clone(),
            given_up: given_up.clone(),
            held: held.clone(),
        };
        Self { upstream, storages, given_up, held, task: tokio::spawn(claim.keep()) }
    }

    pub fn holds(&self, storage: &str) -> bool {
        lock(&self.held).get(storage).is_some_and(|renewed_at| renewed_at.elapsed() < VALIDITY)
    }

    pub fn holds_any(&self) -> bool {
        lock(&self.held).values().any(|renewed_at| renewed_at.elapsed() < VALIDITY)
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Serialize, Deserialize)]
struct Body {
    /// Empty: nobody.
    process: String,
}

/// The lease in force for one storage table.
#[derive(Deserialize)]
struct Row {
    storage: String,
    version: u64,
    body: String,
}

impl Row {
    fn holder(&self) -> String {
        serde_json::from_str(&self.body).map(|body: Body| body.process).unwrap_or_default()
    }
}

struct Claim {
    upstream: Upstream,
    store: Store,
    storages: Vec<String>,
    given_up: Vec<String>,
    held: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Claim {
    async fn keep(self) {
        loop {
            if let Err(error) = self.renew().await {
                tracing::warn!("leases on maintenance: {error}");
            }
            tokio::time::sleep(RENEWAL).await;
        }
    }

    /// Gives a sign of life, takes leases that are free, and returns those that were given up.
    async fn renew(&self) -> Result<(), ManifestError> {
        let began = Instant::now();
        SignsOfLife::give(&self.upstream, RENEWAL / 2).await?;
        let signs = SignsOfLife::read(&self.upstream).await?;
        let this = this_process();
        let leases = self.leases().await?;
        let mut any = false;
        for storage in &self.storages {
            let lease = leases.get(storage);
            let holder = lease.map(Row::holder);
            if holder.as_ref().is_some_and(|holder| *holder == this || signs.is_alive(holder, VALIDITY)) {
                continue;
            }
            self.put(storage, lease, &this).await?;
            any = true;
        }
        for storage in &self.given_up {
            if let Some(lease) = leases.get(storage).filter(|lease| lease.holder() == this) {
                self.put(storage, Some(lease), "").await?;
                tracing::info!("{storage} is no longer maintained here");
            }
        }
        let leases = if any { self.leases().await? } else { leases };
        let mut held = lock(&self.held);
        for storage in &self.storages {
            let is_ours = leases.get(storage).is_some_and(|lease| lease.holder() == this);
            match is_ours {
                true if held.insert(storage.clone(), began).is_none() => {
                    tracing::info!("maintaining {storage}");
                }
                false if held.remove(storage).is_some() => {
                    tracing::info!("another process maintains {storage} now");
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn put(&self, storage: &str, before: Option<&Row>, holder: &str) -> Result<(), ManifestError> {
        let version = before.map_or(0, |lease| lease.version) + 1;
        let body = serde_json::to_string(&Body { process: holder.into() }).unwrap_or_default();
        self.store.put(&format!("{PREFIX}{storage}"), PREFIX, version, body).await?;
        Ok(())
    }

    async fn leases(&self) -> Result<HashMap<String, Row>, ManifestError> {
        let storages = self.storages.iter().chain(&self.given_up);
        let keys: Vec<String> = storages.map(|storage| string_literal(&format!("{PREFIX}{storage}"))).collect();
        let sql = format!(
            "SELECT storage, version, body FROM {TABLE} WHERE storage IN ({}) ORDER BY version DESC LIMIT 1 BY storage",
            keys.join(", ")
        );
        let rows = self.upstream.rows::<Row>(&sql).await?.into_iter();
        Ok(rows.map(|row| (row.storage.trim_start_matches(PREFIX).to_string(), row)).collect())
    }
}
