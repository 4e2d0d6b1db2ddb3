//! The keys of the configuration file that a running `serve` follows: `consistency`, `verify`, `maintenance` and `log`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::CliError;
use super::serve::{filter, maintenance};
use crate::config::Config;
use crate::maintain::board::Board;
use crate::maintain::upkeep::Upkeep;
use crate::proxy::changes::Changes;
use crate::proxy::http::Proxy;
use crate::proxy::keeper::{Keeper, Options};
use crate::upstream::Upstream;

/// A file that cannot be watched is read this often.
const REFRESH: Duration = Duration::from_secs(30);

/// What runs by the configuration.
pub struct Running {
    pub upstream: Upstream,
    pub keeper: Arc<Keeper>,
    pub proxy: Arc<Proxy>,
    pub board: Arc<Board>,
    /// Options of the command line that go before the file.
    pub no_maintenance: bool,
    pub log: Option<String>,
    pub logging: reload::Handle<EnvFilter, Registry>,
    pub upkeep: Option<JoinHandle<()>>,
}

impl Running {
    /// Begins maintenance, unless it is turned off.
    pub fn maintain(&mut self, config: &Config) -> Result<(), CliError> {
        let settings = maintenance(&config.maintenance)?;
        if config.maintenance.enabled && !self.no_maintenance {
            let upkeep = Upkeep {
                upstream: self.upstream.clone(),
                settings,
                views: self.keeper.views(),
                written: self.proxy.written.clone(),
                outdated: self.keeper.outdated.clone(),
                board: self.board.clone(),
            };
            self.upkeep = Some(tokio::spawn(upkeep.run()));
        }
        Ok(())
    }

    /// Follows the file for ever. While it is broken the last good configuration stays in force.
    pub async fn follow(mut self, path: PathBuf, mut in_force: Config) {
        let mut changes = Changes::of(&path);
        let mut complaint = String::new();
        loop {
            let _ = tokio::time::timeout(REFRESH, changes.next()).await;
            changes.settle().await;
            let attempt = match Config::read(&path) {
                Ok(config) if config == in_force => Ok(config),
                Ok(config) => self.put_in_force(&config, &in_force).await.map(|()| config),
                Err(error) => Err(CliError::Usage(error.to_string())),
            };
            match attempt {
                Ok(config) => {
                    in_force = config;
                    complaint.clear();
                }
                Err(error) if error.to_string() != complaint => {
                    complaint = error.to_string();
                    tracing::error!("{complaint}; the configuration stays as it was");
                }
                Err(_) => {}
            }
        }
    }

    async fn put_in_force(&mut self, config: &Config, before: &Config) -> Result<(), CliError> {
        maintenance(&config.maintenance)?;
        let filter = filter(self.log.as_deref(), config)?;
        self.logging.reload(filter).map_err(CliError::failed)?;
        self.keeper.reconfigure(Options { consistency: config.consistency, verify: config.verify });
        if config.maintenance != before.maintenance {
            if let Some(upkeep) = self.upkeep.take() {
                upkeep.abort();
                // It is over when it was dropped, with all that it began.
                let _ = upkeep.await;
                self.board.retain(&[]);
            }
            self.maintain(config)?;
        }
        tracing::info!("the configuration has changed");
        let at_start = |config: &Config| (config.upstream.clone(), config.listen.clone(), config.views.clone());
        if at_start(config) != at_start(before) {
            tracing::warn!("upstream, listen and views of the configuration take effect at the next start");
        }
        Ok(())
    }
}
