//! `tributary bench`: measures the benchmark's queries with and without Tributary.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use super::CliError;
use super::connect::ConnectArgs;
use super::format::OutputFormat;
use super::stand::{self, Stand};
use crate::ssb::Scale;

/// Measure queries straight against ClickHouse and through Tributary.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// The 13 queries of the Star Schema Benchmark, on one flat table and on the star schema.
    ///
    /// Generates the data (once: a later run at the same scale finds it), builds the views, starts the proxy, and takes
    /// medians. Without --upstream it brings up its own ClickHouse. Exit code 1 when an answer differs or did not come
    /// from a view.
    Ssb(SsbArgs),
    Merge(super::bench_merge::Args),
    Torture(super::bench_torture::Args),
}

#[derive(Debug, ClapArgs)]
struct SsbArgs {
    /// Scale factor, 0.01 to 100: 1 is 6 million rows
    #[arg(long, value_name = "N", default_value = "1")]
    scale: Scale,
    /// Measured runs of each query each way; medians are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Also measure ClickHouse's own projections, made for the same queries on a copy of the flat table
    #[arg(long)]
    projections: bool,
    /// What is printed on standard output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Data folder of the embedded ClickHouse, kept for the next run; without it a temporary one is used
    #[arg(long, value_name = "FOLDER", conflicts_with = "upstream")]
    data: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let args = match args.suite {
        Suite::Ssb(args) => args,
        Suite::Merge(args) => return super::bench_merge::run(args),
        Suite::Torture(args) => return super::bench_torture::run(args),
    };
    let stand = match &args.connect.upstream {
        Some(_) => Stand::on(args.connect.upstream()?, args.connect.views)?,
        None => Stand::embedded(args.data, args.connect.views)?,
    };
    stand::runtime()?.block_on(stand::unless_interrupted(async {
        stand.generate(args.scale).await?;
        if args.projections {
            stand.build_projections().await?;
        }
        stand.settle().await?;
        stand.rebuild().await?;
        stand.settle().await?;
        let proxy = stand.serve(None).await?;
        let report = stand.measure(&proxy, args.scale, args.runs.into(), args.projections).await?;
        stand::print(&report, args.format)
    }))
}
