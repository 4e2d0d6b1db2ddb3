//! `tributary check`: are the view declarations in order, and do the views hold what their sources hold?

use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::CliError;
use super::connect::ConfiguredArgs;
use super::format::OutputFormat;
use crate::maintain::coverage::Staleness;
use crate::maintain::look::{Coverage, Looker};
use crate::maintain::observe::Observer;
use crate::upstream::Upstream;
use crate::views::catalog::{self, Catalog, CatalogView};
use crate::views::declaration;
use crate::views::problem::Problem;

/// Check view declarations against ClickHouse, and show the state of every view
///
/// Every fault is shown with file, line and a hint; then the exit code is 1. Nothing is written.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    from: ConfiguredArgs,
    /// How to print the outcome
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: OutputFormat,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let (_, upstream, views) = args.from.read()?;
    let upstream = Upstream::new(upstream);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let (catalog, states) = runtime.block_on(async {
        Observer::connect(upstream.clone()).await.map_err(CliError::failed)?;
        let catalog = catalog::resolve(&upstream, declaration::load(&views)).await.map_err(CliError::failed)?;
        let states = states(&upstream, &catalog.views).await?;
        Ok::<_, CliError>((catalog, states))
    })?;
    match args.format {
        OutputFormat::Text => print_text(&catalog, &states),
        OutputFormat::Json => println!("{:#}", as_json(&catalog, &states)),
    }
    Ok(if catalog.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn states(upstream: &Upstream, views: &[CatalogView]) -> Result<Vec<Coverage>, CliError> {
    if views.is_empty() {
        return Ok(Vec::new());
    }
    let looker = Looker::connect(upstream.clone(), views.iter().map(CatalogView::target).collect());
    let storages: Vec<&str> = views.iter().map(CatalogView::storage_name).collect();
    let look = looker.await.map_err(CliError::failed)?.look(&storages).await.map_err(CliError::failed)?;
    Ok(storages.into_iter().map(|storage| look.coverage(storage)).collect())
}

fn print_text(catalog: &Catalog, states: &[Coverage]) {
    for problem in &catalog.problems {
        eprintln!("error: {problem}\n");
    }
    let width = |text: fn(&CatalogView) -> &str| catalog.views.iter().map(|view| text(view).len()).max().unwrap_or(0);
    let (names, tables) = (width(CatalogView::name), width(|view| &view.storage.name.table));
    for (view, state) in catalog.views.iter().zip(states) {
        let (rows, state) = match state {
            Coverage::Covered(covered) if covered.manual => (thousands(covered.rows), "as of its last rebuild".into()),
            Coverage::Covered(covered) => {
                let source_rows = thousands(covered.source_rows);
                (thousands(covered.rows), format!("covers all {source_rows} rows of {}", view.view.tables[0]))
            }
            Coverage::Partial(covered, cut) => (thousands(covered.rows), format!("partly stale: {}", cut.because)),
            Coverage::Stale(Staleness::NeverBuilt) => ("-".into(), "never built: run tributary rebuild".into()),
            Coverage::Stale(reason) => ("-".into(), format!("stale: {reason}")),
        };
        println!("{:names$}  {:tables$}  {rows:>13} rows  {state}", view.name(), view.storage.name.table);
    }
    let (views, problems) = (catalog.views.len(), catalog.problems.len());
    println!("{views} view{} in order, {problems} problem{}", plural(views), plural(problems));
}

fn as_json(catalog: &Catalog, states: &[Coverage]) -> Value {
    let views: Vec<Value> = catalog.views.iter().zip(states).map(|(view, state)| view_json(view, state)).collect();
    let problems: Vec<Value> = catalog.problems.iter().map(problem_json).collect();
    json!({ "ok": catalog.problems.is_empty(), "views": views, "problems": problems })
}

fn view_json(view: &CatalogView, state: &Coverage) -> Value {
    let (name, reason, rows, source_rows, runs) = match state {
        Coverage::Covered(covered) => {
            let name = if covered.manual { "manual" } else { "covered" };
            (name, None, Some(covered.rows), Some(covered.source_rows), covered.runs.len())
        }
        Coverage::Partial(covered, cut) => {
            let reason = Some(cut.because.to_string());
            ("partial", reason, Some(covered.rows), Some(covered.source_rows), covered.runs.len())
        }
        Coverage::Stale(Staleness::NeverBuilt) => ("never_built", None, None, None, 0),
        Coverage::Stale(reason) => ("stale", Some(reason.to_string()), None, None, 0),
    };
    json!({
        "view": view.name(),
        "storage": view.storage.name.to_string(),
        "sources": view.view.tables.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "state": name,
        "reason": reason,
        "rows": rows,
        "source_rows": source_rows,
        "runs": runs,
    })
}

/// A problem as JSON, for `rebuild` as well.
pub fn problem_json(problem: &Problem) -> Value {
    json!({
        "file": problem.file.path.display().to_string(),
        "line": problem.place.line,
        "column": problem.place.column,
        "message": problem.message,
        "hint": problem.hint,
    })
}

/// `1,234,567`
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
