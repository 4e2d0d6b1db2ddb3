//! `tributary rebuild`: builds views from their sources.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::CliError;
use super::check::{problem_json, thousands};
use super::connect::ConfiguredArgs;
use super::format::OutputFormat;
use crate::config::Size;
use crate::maintain::finer;
use crate::maintain::observe::Observer;
use crate::maintain::rebuild::{Options, Preview, Progress, Report, preview, rebuild};
use crate::maintain::verify::{Verdict, verify};
use crate::upstream::Upstream;
use crate::views::catalog::{self, Catalog, CatalogView};
use crate::views::declaration;

/// Build views from their sources, or bring them up to date
///
/// Reads partial aggregation states partition by partition, merges them here, and writes them beside the rows that
/// queries read now; one commit then switches over. Partitions that are covered already are left alone. Views whose rows
/// follow from those of a finer view of the same source are built from these. May be interrupted at any time, and run
/// beside a serving Tributary.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Views to build [default: all]
    #[arg(value_name = "VIEW")]
    views_named: Vec<String>,
    #[command(flatten)]
    from: ConfiguredArgs,
    /// Only this partition of the source, by the partition id that system.parts shows; may be repeated
    #[arg(long, value_name = "ID")]
    partition: Vec<String>,
    /// Partial states held at once, such as 512MiB or 4GiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory: Size,
    /// Queries that read the source at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Build also what is covered already
    #[arg(long)]
    full: bool,
    /// Only print what would be read, and which views would be built out of the rows of finer ones
    #[arg(long, conflicts_with = "verify")]
    dry_run: bool,
    /// Afterwards compare the view with the answer of its query on the source (floats: to nine digits)
    #[arg(long)]
    verify: bool,
    /// How to print the outcome
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: OutputFormat,
}

/// What became of one view.
struct Outcome {
    view: String,
    storage: String,
    result: Result<(Report, Option<Verdict>), String>,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let (_, upstream, views) = args.from.read()?;
    let upstream = Upstream::new(upstream);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::failed)?;
    let (previews, catalog, outcomes) = runtime.block_on(async {
        Observer::connect(upstream.clone()).await.map_err(CliError::failed)?;
        let catalog = catalog::resolve(&upstream, declaration::load(&views)).await.map_err(CliError::failed)?;
        let chosen = finer::order(choose(&catalog, &args.views_named)?);
        if args.dry_run {
            return Ok((preview_all(&upstream, &catalog, &chosen, &args).await?, catalog, Vec::new()));
        }
        let mut outcomes = Vec::new();
        for (at, view) in chosen.iter().enumerate() {
            let outcome = build(&upstream, view, &options(&args, &catalog, &chosen[..at]), &args).await;
            if args.format == OutputFormat::Text {
                print_outcome(&outcome);
            }
            outcomes.push(outcome);
        }
        Ok::<_, CliError>((Vec::new(), catalog, outcomes))
    })?;
    let ok = catalog.problems.is_empty() && outcomes.iter().all(Outcome::is_ok);
    match args.format {
        OutputFormat::Text => catalog.problems.iter().for_each(|problem| eprintln!("error: {problem}\n")),
        OutputFormat::Json => {
            let views: Vec<Value> = previews.into_iter().chain(outcomes.iter().map(Outcome::json)).collect();
            let problems: Vec<Value> = catalog.problems.iter().map(problem_json).collect();
            println!("{:#}", json!({ "ok": ok, "views": views, "problems": problems }));
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn choose(catalog: &Catalog, named: &[String]) -> Result<Vec<CatalogView>, CliError> {
    if named.is_empty() {
        return Ok(catalog.views.clone());
    }
    let find = |name: &String| {
        catalog.views.iter().find(|view| view.name() == name).cloned().ok_or_else(|| {
            let faulty = catalog.problems.iter().find(|problem| problem.message.contains(&format!("view {name}:")));
            match faulty {
                Some(problem) => CliError::Failed(problem.to_string()),
                None => {
                    let names: Vec<&str> = catalog.views.iter().map(CatalogView::name).collect();
                    CliError::Usage(format!("there is no view {name}; declared are {}", names.join(", ")))
                }
            }
        })
    };
    named.iter().map(find).collect()
}

/// `before`: views that this command has built already. What `--full` distrusts is no source for another view.
fn options(args: &Args, catalog: &Catalog, before: &[CatalogView]) -> Options {
    Options {
        memory_bytes: args.memory.0,
        jobs: usize::from(args.jobs),
        partitions: args.partition.clone(),
        full: args.full,
        finer: if args.full { before.to_vec() } else { catalog.views.clone() },
        ..Options::default()
    }
}

/// Prints what would be done, or returns it for the one JSON object.
async fn preview_all(
    upstream: &Upstream,
    catalog: &Catalog,
    views: &[CatalogView],
    args: &Args,
) -> Result<Vec<Value>, CliError> {
    let mut values = Vec::new();
    for (at, view) in views.iter().enumerate() {
        let before = &views[..at];
        let preview =
            preview(upstream, view, &options(args, catalog, before), before).await.map_err(CliError::failed)?;
        match args.format {
            OutputFormat::Text => println!("{}: {}", view.name(), preview_text(view, &preview)),
            OutputFormat::Json => values.push(json!({
                "view": view.name(),
                "storage": view.storage.name.to_string(),
                "scan": {
                    "partitions": preview.scan, "source_rows": preview.source_rows, "queries": preview.queries,
                },
                "derive": preview.derive.map(|(from, partitions)| json!({ "from": from, "partitions": partitions })),
                "keep": preview.keep,
            })),
        }
    }
    Ok(values)
}

fn preview_text(view: &CatalogView, preview: &Preview) -> String {
    let partitions = |n: usize| format!("{n} partition{}", if n == 1 { "" } else { "s" });
    let mut steps = Vec::new();
    if !preview.scan.is_empty() {
        let queries = if preview.queries == 1 { "query" } else { "queries" };
        steps.push(format!(
            "read {} rows of {} of {} in {} {queries}",
            thousands(preview.source_rows),
            partitions(preview.scan.len()),
            view.view.tables[0],
            preview.queries
        ));
    }
    if let Some((from, derived)) = &preview.derive {
        steps.push(format!("build {} from the rows of view {from}", partitions(derived.len())));
    }
    if preview.keep > 0 {
        steps.push(format!("keep {}", partitions(preview.keep)));
    }
    if steps.is_empty() { "nothing to read".into() } else { steps.join(", ") }
}

async fn build(upstream: &Upstream, view: &CatalogView, options: &Options, args: &Args) -> Outcome {
    let progress: Arc<dyn Progress> = Arc::new(Bar::new());
    let result = async {
        let report = rebuild(upstream, view, options, progress).await.map_err(|e| e.to_string())?;
        let verdict = match args.verify {
            true => Some(verify(upstream, view).await.map_err(|e| format!("comparing with the source: {e}"))?),
            false => None,
        };
        Ok((report, verdict))
    };
    Outcome { view: view.name().into(), storage: view.storage.name.to_string(), result: result.await }
}

impl Outcome {
    fn is_ok(&self) -> bool {
        self.result.as_ref().is_ok_and(|(report, verdict)| {
            report.incomplete.is_empty() && !matches!(verdict, Some(Verdict::Differs { .. }))
        })
    }

    fn json(&self) -> Value {
        let mut value = json!({ "view": self.view, "storage": self.storage, "ok": self.is_ok() });
        match &self.result {
            Ok((report, verdict)) => {
                value["state"] = json!(if report.partitions_built > 0 { "built" } else { "current" });
                value["partitions_built"] = json!(report.partitions_built);
                value["derived"] =
                    json!(report.derived.as_ref().map(|(from, n)| json!({ "from": from, "partitions": n })));
                value["source_rows_read"] = json!(report.source_rows_read);
                value["rows"] = json!(report.rows);
                value["runs"] = json!(report.runs);
                value["incomplete"] = json!(report.incomplete);
                value["seconds"] = json!(report.seconds);
                value["verified"] = match verdict {
                    None | Some(Verdict::SourceChanged) => Value::Null,
                    Some(Verdict::Equal { .. }) => json!(true),
                    Some(Verdict::Differs { .. }) => json!(false),
                };
            }
            Err(error) => {
                value["state"] = json!("failed");
                value["error"] = json!(error);
            }
        }
        value
    }
}

fn print_outcome(outcome: &Outcome) {
    let (report, verdict) = match &outcome.result {
        Ok(result) => result,
        Err(error) => return eprintln!("error: view {}: {error}", outcome.view),
    };
    let mut line = match report.partitions_built {
        0 => format!("{}: up to date, {} rows", outcome.view, thousands(report.rows)),
        partitions => format!(
            "{}: {} rows from {} of {partitions} partition{} in {:.1} s",
            outcome.view,
            thousands(report.rows),
            match &report.derived {
                Some((from, _)) if report.source_rows_read == 0 => format!("view {from}, those"),
                Some((from, _)) => format!("{} rows and view {from},", thousands(report.source_rows_read)),
                None => format!("{} rows", thousands(report.source_rows_read)),
            },
            if partitions == 1 { "" } else { "s" },
            report.seconds
        ),
    };
    match verdict {
        None => {}
        Some(Verdict::Equal { groups, skipped }) => {
            line += &format!("; equal to the source in all {} groups", thousands(*groups));
            if !skipped.is_empty() {
                line += &format!(" (not compared, as no two runs of ClickHouse need agree: {})", skipped.join(", "));
            }
        }
        Some(Verdict::Differs { groups, example }) => {
            line += &format!("; DIFFERS FROM THE SOURCE in {} groups, such as {example}", thousands(*groups));
        }
        Some(Verdict::SourceChanged) => line += "; not compared: the source changed meanwhile",
    }
    println!("{line}");
    if !report.incomplete.is_empty() {
        eprintln!(
            "warning: view {}: parts of {} never stood still, so that some of their rows are not covered; run it again \
             when mutations and lightweight updates are through",
            outcome.view,
            report.incomplete.join(", ")
        );
    }
}

/// A bar on a terminal, a line every few seconds elsewhere; on standard error.
pub(super) struct Bar {
    bar: ProgressBar,
    lines: Option<std::sync::Mutex<Instant>>,
}

/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

impl Bar {
    pub(super) fn new() -> Self {
        if std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()), lines: None };
        }
        let lines = Some(std::sync::Mutex::new(Instant::now()));
        Self { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), lines }
    }
}

impl Progress for Bar {
    fn begin(&self, view: &str, _partitions: usize, source_rows: u64) {
        let template = "{msg} {wide_bar} {human_pos} of {human_len} rows, {per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        self.bar.set_message(view.to_string());
        self.bar.set_position(0);
        self.bar.set_length(source_rows);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn advance(&self, source_rows: u64) {
        self.bar.inc(source_rows);
        let Some(last) = &self.lines else { return };
        let mut last = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.elapsed() >= LINE_INTERVAL {
            *last = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            let (rate, left) = (self.bar.per_sec(), self.bar.eta().as_secs());
            let (done, all, rate) = (thousands(done), thousands(all), thousands(rate as u64));
            eprintln!("{}: {done} of {all} rows, {rate} rows/s, {left} s left", self.bar.message());
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
