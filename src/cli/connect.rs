//! The options with which every command finds ClickHouse and the view declarations.

use std::path::PathBuf;

use clap::Args;

use super::CliError;
use crate::config::UpstreamConfig;

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

impl ConnectArgs {
    /// The upstream's address and user, with the single options put over the URL's parts.
    pub fn upstream(&self) -> Result<UpstreamConfig, CliError> {
        let address = self.upstream.as_deref().unwrap_or("http://127.0.0.1:8123/");
        let mut config = UpstreamConfig::parse(address).map_err(|e| CliError::Usage(format!("--upstream: {e}")))?;
        if let Some(user) = &self.user {
            config.user.clone_from(user);
        }
        if let Some(password) = &self.password {
            config.password.clone_from(password);
        }
        if let Some(database) = &self.database {
            config.database.clone_from(database);
        }
        Ok(config)
    }
}
