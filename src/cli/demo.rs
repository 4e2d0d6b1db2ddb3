//! `tributary demo`: everything at once, on a ClickHouse of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::CliError;
use super::format::OutputFormat;
use super::stand::{self, Stand};
use crate::ssb::Scale;

/// Show Tributary at work: a ClickHouse, the Star Schema Benchmark, its views, the proxy, 26 queries
///
/// Brings up a real ClickHouse on loopback, generates the data, builds the views, starts the proxy, runs each query
/// straight and through the proxy, compares the answers, and prints times, rows read and speed-ups. Exit code 1 when an
/// answer differs or did not come from a view.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Scale factor, 0.01 to 100: 1 is 6 million rows
    #[arg(long, value_name = "N", default_value = "0.1")]
    scale: Scale,
    /// Leave it all running afterwards, tell how to connect, and wait for Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Measured runs of each query each way; medians are shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// What is printed on standard output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Where the proxy listens [default: a free port on 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    listen_http: Option<String>,
    /// Data folder, kept for the next run; without it a temporary one is used
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let stand = Stand::embedded(args.data, None)?;
    stand::runtime()?.block_on(async {
        let (proxy, outcome) = stand::unless_interrupted(async {
            stand.generate(args.scale).await?;
            stand.settle().await?;
            stand.rebuild().await?;
            stand.settle().await?;
            let proxy = stand.serve(args.listen_http.as_deref()).await?;
            let report = stand.measure(&proxy, args.scale, args.runs.into(), false).await?;
            Ok((proxy, stand::print(&report, args.format)))
        })
        .await?;
        if args.keep {
            eprint!("{}", stand.how_to_connect(&proxy));
            let _serving = proxy.maintain();
            stand::interrupted().await?;
        }
        outcome
    })
}
