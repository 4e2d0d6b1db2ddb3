//! The options with which every command finds ClickHouse and the view declarations.

use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
use crate::config::{Config, UpstreamConfig, UpstreamKeys};

/// Where ClickHouse and the view declarations are.
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    /// ClickHouse's HTTP interface, such as http://user:password@127.0.0.1:8123/?database=ssb
    #[arg(long, value_name = "URL", env = "TRIBUTARY_UPSTREAM")]
    pub upstream: Option<String>,
    /// User name, in place of the one in the URL
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Password, in place of the one in the URL
    #[arg(long, value_name = "TEXT", env = "TRIBUTARY_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    /// Database for unqualified table names, in place of the one in the URL
    #[arg(long, value_name = "NAME")]
    pub database: Option<String>,
    /// A YAML file with view declarations, or a folder of such files
    #[arg(long, value_name = "FILE_OR_FOLDER")]
    pub views: Option<PathBuf>,
}

/// The same, for commands that take a configuration file as well.
#[derive(Debug, Clone, Args)]
pub struct ConfiguredArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Configuration, such as config/tributary.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfiguredArgs {
    /// Where the configuration file is, if there is one.
    pub fn config_path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// What the file says, and with the options put over it: the upstream, and where the view declarations are.
    pub fn read(&self) -> Result<(Config, UpstreamConfig, PathBuf), CliError> {
        let config = self.config.as_deref().map_or(Ok(Config::default()), Config::read);
        let config = config.map_err(|e| CliError::Usage(e.to_string()))?;
        let upstream = self.connect.upstream_over(&config)?;
        let views = self.connect.views_over(&config);
        Ok((config, upstream, views))
    }
}

impl ConnectArgs {
    /// The upstream's address and user, with the single options put over the URL's parts.
    pub fn upstream(&self) -> Result<UpstreamConfig, CliError> {
        self.upstream_over(&Config::default())
    }

    /// As [`ConnectArgs::upstream`], with what a configuration file says where no option does.
    fn upstream_over(&self, file: &Config) -> Result<UpstreamConfig, CliError> {
        let (address, source) = match (&self.upstream, &file.upstream.url) {
            (Some(address), _) => (address.as_str(), "--upstream"),
            (None, Some(address)) => (address.as_str(), "upstream.url"),
            (None, None) => ("http://127.0.0.1:8123/", "--upstream"),
        };
        let mut config = UpstreamConfig::parse(address).map_err(|e| CliError::Usage(format!("{source}: {e}")))?;
        // An address on the command line stands for itself: the file's user belongs to the file's address.
        let keys = if self.upstream.is_some() { UpstreamKeys::default() } else { file.upstream.clone() };
        if let Some(user) = self.user.clone().or(keys.user) {
            config.user = user;
        }
        if let Some(password) = self.password.clone().or(keys.password) {
            config.password = password;
        }
        if let Some(database) = self.database.clone().or(keys.database) {
            config.database = database;
        }
        Ok(config)
    }

    /// Where the view declarations are: the option, the configuration file's key, or the folder `views`.
    fn views_over(&self, file: &Config) -> PathBuf {
        self.views.clone().or_else(|| file.views.clone()).unwrap_or_else(|| "views".into())
    }
}
