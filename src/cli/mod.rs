//! The command line: one file per command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod bench;
pub mod bench_merge;
pub mod bench_torture;
pub mod check;
pub mod connect;
pub mod demo;
pub mod explain;
mod explain_offline;
pub mod format;
pub mod rebuild;
mod reload;
pub mod serve;
mod stand;
pub mod status;

/// Materialized-view accelerator for ClickHouse: answers queries from precomputed aggregate views, exactly.
#[derive(Debug, Parser)]
#[command(name = "tributary", version, about, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Check(check::Args),
    Demo(demo::Args),
    Explain(explain::Args),
    Rebuild(rebuild::Args),
    Serve(serve::Args),
    Status(status::Args),
}

/// What ended a command before its task was done. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line or a file given on it is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The task failed: exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// A failure of the task, from any error that explains itself.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Runs the program; the exit code is 0 on success, 1 on a failure of the task, 2 on wrong usage.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome: Result<ExitCode, CliError> = match cli.command {
        Command::Bench(args) => bench::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Rebuild(args) => rebuild::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => status::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        match error {
            CliError::Usage(_) => ExitCode::from(2),
            CliError::Failed(_) => ExitCode::FAILURE,
        }
    })
}
