//! `tributary explain`: what would be done with a query, and why.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::CliError;
use super::connect::ConfiguredArgs;
use super::explain_offline as offline;
use super::format::OutputFormat;
use crate::config::UpstreamConfig;
use crate::maintain::look::Coverage;
use crate::matching::plan::Plan;
use crate::matching::view::View;
use crate::proxy::accelerator::{Accelerator, Explanation};
use crate::proxy::client::HttpUpstream;
use crate::proxy::query::{Decision, Identity, IncomingQuery, Mode};
use crate::upstream::Upstream;
use crate::views::catalog;
use crate::views::declaration;

/// Show how a query would be answered: from which view, by which text, and why not from the others
///
/// The query runs nowhere. Names, types, rights and coverage are checked as for a client that logs in with the user and
/// password given here.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The query; '-' reads it from standard input
    #[arg(value_name = "QUERY")]
    query: String,
    #[command(flatten)]
    from: ConfiguredArgs,
    /// Value of a {name:Type} parameter of the query; may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = pair)]
    parameters: Vec<(String, String)>,
    /// Plan without a server, by the CREATE TABLE statements of this file
    ///
    /// Every view counts as up to date. Storage tables and runs in the printed text are placeholders, and names of
    /// unnamed columns are derived from the text.
    #[arg(long, value_name = "FILE", conflicts_with = "upstream")]
    schema: Option<PathBuf>,
    /// A setting that comes with the query; may be given several times
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    /// How to print the outcome
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: OutputFormat,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let (config, upstream, views) = args.from.read()?;
    let mut sql = args.query;
    if sql == "-" {
        sql.clear();
        std::io::stdin().read_to_string(&mut sql).map_err(|e| CliError::Usage(format!("standard input: {e}")))?;
    }
    if let Some(schema) = &args.schema {
        let explanation = offline::explain(&sql, schema, &views, &upstream.database, &args.settings)?;
        return print(&explanation, &sql, args.format);
    }
    let query = IncomingQuery {
        sql,
        database: Some(upstream.database.clone()),
        settings: args.settings,
        parameters: args.parameters,
        identity: Arc::new(identity(&upstream)),
        ..IncomingQuery::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let explanation = runtime.block_on(async {
        let loaded = declaration::load(&views).with_default(config.consistency);
        let client = HttpUpstream::new(upstream.url.clone());
        let upstream = Upstream::new(upstream);
        let catalog = catalog::resolve(&upstream, loaded).await.map_err(CliError::failed)?;
        for problem in &catalog.problems {
            eprintln!("error: {problem}\n");
        }
        let accelerator = Accelerator::connect(upstream, client, catalog).await.map_err(CliError::failed)?;
        Ok::<_, CliError>(accelerator.explain(&query).await)
    })?;
    print(&explanation, &query.sql, args.format)
}

fn print(explanation: &Explanation, sql: &str, format: OutputFormat) -> Result<ExitCode, CliError> {
    match format {
        OutputFormat::Text => print_text(explanation, sql),
        OutputFormat::Json => println!("{:#}", as_json(explanation, sql)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The user of the command line as a client of the proxy.
fn identity(upstream: &UpstreamConfig) -> Identity {
    let header = |name: &str, value: &str| (name.to_string(), value.as_bytes().to_vec());
    let headers = vec![header("x-clickhouse-user", &upstream.user), header("x-clickhouse-key", &upstream.password)];
    Identity { headers, url_parameters: Vec::new() }
}

/// One candidate of any block: view, why it does not answer, and the rows that it would read.
struct Line<'a> {
    view: &'a str,
    refusal: Option<String>,
    rows: Option<u64>,
}

fn lines<'a>(plan: &'a Plan, explanation: &Explanation) -> Vec<Line<'a>> {
    let coverage = |view: &View| explanation.coverages.iter().find(|(of, _)| *of == view.storage).map(|(_, c)| c);
    let candidates = plan.blocks.iter().flat_map(|block| &block.candidates);
    candidates
        .map(|candidate| {
            let (stale, rows) = match coverage(&candidate.view) {
                Some(Coverage::Covered(covered)) => (None, Some(covered.rows)),
                Some(Coverage::Partial(covered, cut)) => (None, Some(covered.rows + cut.rows)),
                Some(Coverage::Stale(why)) => (Some(format!("stale: {why}")), None),
                None => (None, None),
            };
            let view = candidate.view.name.as_str();
            Line { view, refusal: candidate.outcome.as_ref().err().map(ToString::to_string).or(stale), rows }
        })
        .collect()
}

fn as_json(explanation: &Explanation, original: &str) -> Value {
    let (decision, views, sql, reason) = match &explanation.decision {
        Decision::View { views, mode, sql } => {
            (if *mode == Mode::Full { "view" } else { "hybrid" }, views.clone(), sql.as_str(), String::new())
        }
        Decision::Raw { reason } => ("raw", Vec::new(), original, reason.clone()),
        Decision::NotAQuery => ("raw", Vec::new(), original, "not a SELECT".into()),
    };
    let lines = explanation.plan.as_ref().map(|plan| lines(plan, explanation)).unwrap_or_default();
    let candidates: Vec<Value> =
        lines.iter().map(|line| json!({ "view": line.view, "refusal": line.refusal, "rows": line.rows })).collect();
    json!({ "decision": decision, "views": views, "sql": sql, "reason": reason, "candidates": candidates })
}

fn print_text(explanation: &Explanation, original: &str) {
    let sql = match &explanation.decision {
        Decision::View { views, mode, sql } => {
            let mode = if *mode == Mode::Full { "" } else { ", and from the table where the view is behind" };
            println!("answered from view {}{mode}", views.join(", "));
            sql
        }
        Decision::Raw { reason } => {
            println!("raw: {reason}");
            original
        }
        Decision::NotAQuery => {
            println!("raw: not a SELECT");
            original
        }
    };
    println!("\n{}\n", sql.trim());
    let Some(plan) = &explanation.plan else { return };
    let lines = lines(plan, explanation);
    let width = lines.iter().map(|line| line.view.len()).max().unwrap_or(0);
    for line in &lines {
        match (&line.refusal, line.rows) {
            (Some(refusal), _) => println!("{:width$}  no: {refusal}", line.view),
            (None, Some(rows)) => println!("{:width$}  matches, {rows} rows", line.view),
            (None, None) => println!("{:width$}  matches", line.view),
        }
    }
    for (_, refusal) in &plan.refusals {
        println!("a block is left alone: {refusal}");
    }
}
