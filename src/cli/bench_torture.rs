//! `tributary bench torture`: whether answers stay right while everything changes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::CliError;
use super::format::OutputFormat;
use super::stand;
use crate::torture::{Plan, SERVER_CONFIG, run as torture};

/// Check every answer while the tables change, views are redefined and sidecars are killed
///
/// Brings up a ClickHouse and two sidecars (`tributary serve`). Writers insert, mutate, merge, drop, replace and attach;
/// view files are rewritten; sidecars are killed with SIGKILL and started again. Readers send queries of ten shapes, and
/// each answer must be that of a state of the raw tables between the query's arrival and its end. Exit code 1 when one was
/// wrong, or a query failed on a sidecar that was not killed.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How long, such as 60 or 0.5
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,
    /// What is done and asked, but not how it interleaves; odd numbers use a table that keeps block numbers
    /// [default: by chance]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// What is printed on standard output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Folder for data, view files and the sidecars' logs, kept afterwards; without it a temporary one is used
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    if !(args.minutes > 0.0 && args.minutes < 1e6) {
        return Err(CliError::Usage(format!("--minutes {}: give a number above 0", args.minutes)));
    }
    let (folder, server) = stand::server_alone(args.data, Some(SERVER_CONFIG))?;
    let bar = stand::bar("{elapsed_precise} [{bar:40}] {msg}");
    let duration = Duration::from_secs_f64(args.minutes * 60.0);
    bar.set_length(duration.as_secs());
    let plan = Plan {
        program: std::env::current_exe().map_err(CliError::failed)?,
        upstream: crate::config::UpstreamConfig::parse(&server.http_url()).map_err(CliError::failed)?,
        folder: folder.path.clone(),
        duration,
        seed: args.seed.unwrap_or_else(|| std::process::id().into()),
        consistency: "exact",
    };
    let outcome = stand::runtime()?.block_on(stand::unless_interrupted(async {
        let progress = |elapsed: Duration, (answers, accelerated, faults)| {
            bar.set_position(elapsed.as_secs());
            bar.set_message(format!("{answers} answers, {accelerated} accelerated, {faults} wrong or failed"));
        };
        torture(&plan, progress).await.map_err(CliError::failed)
    }));
    bar.finish_and_clear();
    let report = outcome?;
    match args.format {
        OutputFormat::Text => print!("{report}"),
        OutputFormat::Json => println!("{}", serde_json::to_string_pretty(&report).map_err(CliError::failed)?),
    }
    match report.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(CliError::Failed(failure)),
    }
}
