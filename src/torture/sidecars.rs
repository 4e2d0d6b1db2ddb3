//! The sidecars: real `tributary serve` processes, killed with SIGKILL and started again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TortureError;
use super::changes::Stop;
use super::random::Random;
use super::stage::{DATABASE, Stage};
use crate::config::UpstreamConfig;
use crate::maintain::lock;

const SIDECARS: usize = 2;

/// Small views are kept up to date as fast as that goes, so that few answers are raw.
const CONFIG: &str = "maintenance:\n  interval: 300ms\n  share: 0.9\n";
const CONFIG_FILE: &str = "tributary.yaml";

/// Between two kills. A sidecar that is not killed takes over the views of one that was within 13 s.
const KILL_AFTER_MS: (i64, i64) = (2_000, 14_000);

/// From start to the line that tells the address.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Whom a client may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub sidecar: usize,
    /// Counts the processes that were this sidecar.
    pub life: u64,
    pub url: String,
}

#[derive(Debug, Default)]
struct Slot {
    life: u64,
    url: Option<String>,
}

pub struct Sidecars {
    program: PathBuf,
    upstream: String,
    views: PathBuf,
    /// For the configuration and the logs.
    folder: PathBuf,
    slots: Vec<Mutex<Slot>>,
}

impl Sidecars {
    pub fn new(program: &Path, upstream: &UpstreamConfig, views: &Path, folder: &Path) -> Result<Self, TortureError> {
        let config = folder.join(CONFIG_FILE);
        std::fs::write(&config, CONFIG).map_err(|e| TortureError::folder(&config, e))?;
        Ok(Self {
            program: program.into(),
            upstream: format!("{}?database={DATABASE}", upstream.url),
            views: views.into(),
            folder: folder.into(),
            slots: (0..SIDECARS).map(|_| Mutex::default()).collect(),
        })
    }

    /// Those that are up.
    pub fn addresses(&self) -> Vec<Address> {
        let address = |(sidecar, slot): (usize, &Mutex<Slot>)| {
            let slot = lock(slot);
            slot.url.clone().map(|url| Address { sidecar, life: slot.life, url })
        };
        self.slots.iter().enumerate().filter_map(address).collect()
    }

    /// Whether the process behind an address has not been killed since.
    pub fn is_alive(&self, address: &Address) -> bool {
        lock(&self.slots[address.sidecar]).life == address.life
    }

    async fn start(&self, sidecar: usize) -> Result<Child, TortureError> {
        let path = self.folder.join(format!("sidecar-{sidecar}.log"));
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.map_err(|e| TortureError::folder(&path, e))?;
        let mut child = Command::new(&self.program)
            .args(["serve", "--listen-http", "127.0.0.1:0", "--upstream", &self.upstream, "--views"])
            .arg(&self.views)
            .arg("--config")
            .arg(self.folder.join(CONFIG_FILE))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| TortureError::program(&self.program, e.to_string()))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let _ = tokio::time::timeout(START_TIMEOUT, output.read_line(&mut line)).await;
        }
        let url = line.strip_prefix("listening on ").and_then(|rest| rest.split(' ').next());
        let Some(url) = url else {
            let why = format!("serve did not tell its address but {line:?}; see {}", self.folder.display());
            return Err(TortureError::program(&self.program, why));
        };
        lock(&self.slots[sidecar]).url = Some(url.to_string());
        Ok(child)
    }

    /// Starts all.
    pub async fn start_all(&self) -> Result<Vec<Child>, TortureError> {
        let mut children = Vec::new();
        for sidecar in 0..SIDECARS {
            children.push(self.start(sidecar).await?);
        }
        Ok(children)
    }

    /// Kills one or the other every few seconds, never both at once; returns those that run at the end.
    pub async fn kill(
        &self,
        mut children: Vec<Child>,
        stage: &Stage,
        mut random: Random,
        stop: Stop,
    ) -> Result<Vec<Child>, TortureError> {
        while !*stop.borrow() {
            tokio::time::sleep(Duration::from_millis(random.between(KILL_AFTER_MS.0, KILL_AFTER_MS.1) as u64)).await;
            for (sidecar, child) in children.iter_mut().enumerate() {
                if let Ok(Some(status)) = child.try_wait() {
                    let why = format!("sidecar {sidecar} ended by itself: {status}; see {}", self.folder.display());
                    return Err(TortureError::program(&self.program, why));
                }
            }
            if *stop.borrow() {
                break;
            }
            let sidecar = random.below(SIDECARS);
            {
                let mut slot = lock(&self.slots[sidecar]);
                slot.life += 1;
                slot.url = None;
            }
            // Clients that fail from here on may say why.
            let killed = children[sidecar].kill().await;
            killed.map_err(|e| TortureError::program(&self.program, format!("cannot be killed: {e}")))?;
            stage.count("kills");
            tokio::time::sleep(Duration::from_millis(random.between(0, 1000) as u64)).await;
            children[sidecar] = self.start(sidecar).await?;
        }
        Ok(children)
    }
}
