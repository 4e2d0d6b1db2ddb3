//! The sidecars: real `tributary serve` processes, killed with SIGKILL and started again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TortureError;
use super::changes::{Outcome, Stop};
use super::random::Random;
use super::stage::{DATABASE, Stage, lock};
use crate::config::UpstreamConfig;

const SIDECARS: usize = 2;

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
    logs: PathBuf,
    slots: Vec<Mutex<Slot>>,
}

impl Sidecars {
    pub fn new(program: &Path, upstream: &UpstreamConfig, views: &Path, logs: &Path) -> Self {
        Self {
            program: program.into(),
            upstream: format!("{}?database={DATABASE}", upstream.url),
            views: views.into(),
            logs: logs.into(),
            slots: (0..SIDECARS).map(|_| Mutex::default()).collect(),
        }
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

    fn command(&self, command: &str, log: &str) -> Result<Command, TortureError> {
        let path = self.logs.join(log);
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.map_err(|e| TortureError::folder(&path, e))?;
        let mut process = Command::new(&self.program);
        process
            .arg(command)
            .args(["--upstream", &self.upstream, "--views"])
            .arg(&self.views)
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        Ok(process)
    }

    async fn start(&self, sidecar: usize) -> Result<Child, TortureError> {
        let mut command = self.command("serve", &format!("sidecar-{sidecar}.log"))?;
        command.args(["--listen-http", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| TortureError::program(&self.program, e.to_string()))?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let _ = tokio::time::timeout(START_TIMEOUT, output.read_line(&mut line)).await;
        }
        let url = line.strip_prefix("listening on ").and_then(|rest| rest.split(' ').next());
        let Some(url) = url else {
            let why = format!("serve did not tell its address but {line:?}; see {}", self.logs.display());
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
            tokio::time::sleep(Duration::from_millis(random.between(1000, 6000) as u64)).await;
            for (sidecar, child) in children.iter_mut().enumerate() {
                if let Ok(Some(status)) = child.try_wait() {
                    let why = format!("sidecar {sidecar} ended by itself: {status}; see {}", self.logs.display());
                    return Err(TortureError::program(&self.program, why));
                }
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

    /// Keeps the views up to date, by a rebuild that is now and then killed.
    pub async fn rebuild(&self, stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
        while !*stop.borrow() {
            let mut child = self
                .command("rebuild", "rebuild.log")?
                .stdout(Stdio::null())
                .spawn()
                .map_err(|e| TortureError::program(&self.program, e.to_string()))?;
            let patience = match random.percent(15) {
                true => Duration::from_millis(random.between(20, 1000) as u64),
                false => Duration::from_secs(600),
            };
            match tokio::time::timeout(patience, child.wait()).await {
                Ok(Ok(status)) if status.success() => stage.count("rebuilds"),
                Ok(_) => stage.count("failed rebuilds"),
                Err(_) => {
                    let _ = child.kill().await;
                    stage.count("killed rebuilds");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
