//! `tributary status`: how far every view is.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Deserialize;
use serde_json::{Value, json};

use super::CliError;
use super::check::thousands;
use super::connect::ConfiguredArgs;
use super::format::OutputFormat;
use crate::maintain::board::{Board, Entry};
use crate::maintain::look::Looker;
use crate::maintain::upkeep::plan_of;
use crate::upstream::Upstream;
use crate::views::catalog::{self, CatalogView};
use crate::views::declaration;
use crate::views::storage::DATABASE;

/// A process that does not answer for so long is not asked.
const PATIENCE: Duration = Duration::from_secs(3);

/// Show how far every view is: runs, rows, what is missing
///
/// Looks at ClickHouse itself, so that no Tributary need be running. With --admin, or listen.admin in the configuration,
/// what a running one has counted is shown as well: answers from each view, and why queries went to the raw tables.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    from: ConfiguredArgs,
    /// The admin listener of a running Tributary
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// How to print the outcome
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: OutputFormat,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let (config, upstream, views) = args.from.read()?;
    let upstream = Upstream::new(upstream);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let (views, problems) = runtime.block_on(async {
        let catalog = catalog::resolve(&upstream, declaration::load(&views)).await.map_err(CliError::failed)?;
        Ok::<_, CliError>((seen(&upstream, &catalog.views).await?, catalog.problems.len()))
    })?;
    let running = match args.admin.or(config.listen.admin) {
        Some(address) => Some(ask(&address)?),
        None => None,
    };
    match args.format {
        OutputFormat::Text => print_text(&views, running.as_ref()),
        OutputFormat::Json => {
            let views: serde_json::Map<String, Value> = views.iter().map(|v| (v.name.clone(), v.json())).collect();
            println!("{:#}", json!({ "views": views, "running": running }));
        }
    }
    if problems > 0 {
        eprintln!("{problems} declarations have faults: see tributary check");
    }
    Ok(ExitCode::SUCCESS)
}

/// One view as it is in ClickHouse.
struct Seen {
    name: String,
    bytes: u64,
    entry: Entry,
}

impl Seen {
    fn json(&self) -> Value {
        let mut value = json!(self.entry);
        value["bytes"] = json!(self.bytes);
        value
    }
}

async fn seen(upstream: &Upstream, views: &[CatalogView]) -> Result<Vec<Seen>, CliError> {
    if views.is_empty() {
        return Ok(Vec::new());
    }
    let targets = views.iter().map(CatalogView::target).collect();
    let looker = Looker::connect(upstream.clone(), targets).await.map_err(CliError::failed)?;
    let look = looker.survey(false).await.map_err(CliError::failed)?;
    let board = Board::default();
    for view in views {
        if let Some(sight) = look.sight(view.storage_name()) {
            board.note(view, sight, &plan_of(view, sight));
        }
    }
    let bytes = bytes(upstream).await?;
    let mut entries = board.entries();
    let seen = |view: &CatalogView| {
        Some(Seen {
            name: view.name().into(),
            bytes: bytes.get(view.storage_name()).copied().unwrap_or(0),
            entry: entries.remove(view.name())?,
        })
    };
    Ok(views.iter().filter_map(seen).collect())
}

/// Bytes on disk by storage table, retired runs included.
async fn bytes(upstream: &Upstream) -> Result<BTreeMap<String, u64>, CliError> {
    #[derive(Deserialize)]
    struct Row {
        table: String,
        bytes: u64,
    }
    let sql = format!(
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts WHERE active AND database = '{DATABASE}' GROUP BY table"
    );
    let rows = upstream.rows::<Row>(&sql).await.map_err(CliError::failed)?;
    Ok(rows.into_iter().map(|row| (row.table, row.bytes)).collect())
}

/// What a running process says of itself.
fn ask(address: &str) -> Result<Value, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("the admin listener {address}: {error}"));
    let mut resolved = address.to_socket_addrs().map_err(|e| failed(&e))?;
    let resolved = resolved.next().ok_or_else(|| failed(&"no such address"))?;
    let mut stream = TcpStream::connect_timeout(&resolved, PATIENCE).map_err(|e| failed(&e))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|e| failed(&e))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|e| failed(&e))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| failed(&e))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(|e| failed(&e))
}

fn print_text(views: &[Seen], running: Option<&Value>) {
    let width = views.iter().map(|view| view.name.len()).max().unwrap_or(0).max(4);
    println!(
        "{:width$}  {:11} {:>5} {:>14} {:>10} {:>14} {:>9}",
        "view", "state", "runs", "rows", "MiB", "rows behind", "seconds"
    );
    for view in views {
        let Entry { state, runs, rows, rows_behind, seconds_behind, .. } = &view.entry;
        let quarantined = running.map(|running| &running["quarantined"][&view.name]).filter(|wrong| !wrong.is_null());
        let state = match quarantined {
            Some(_) => "quarantined".to_string(),
            None => json!(state).as_str().unwrap_or_default().to_string(),
        };
        println!(
            "{:width$}  {state:11} {runs:>5} {:>14} {:>10.1} {:>14} {seconds_behind:>9.1}",
            view.name,
            thousands(*rows),
            view.bytes as f64 / f64::from(1 << 20),
            thousands(*rows_behind)
        );
        for step in &view.entry.steps {
            println!("{:width$}  {step}", "");
        }
        let previous =
            running.map(|running| &running["views"][&view.name]["previous"]).filter(|entry| !entry.is_null());
        if let Some(previous) = previous {
            let (state, behind) = (previous["state"].as_str().unwrap_or_default(), &previous["rows_behind"]);
            println!("{:width$}  the previous definition answers meanwhile: {state}, {behind} rows behind", "");
        }
        let error = running.and_then(|running| running["views"][&view.name]["error"].as_str());
        error.iter().for_each(|error| println!("{:width$}  last error: {error}", ""));
        if let Some(wrong) = quarantined {
            let text = |key: &str| wrong[key].as_str().unwrap_or_default();
            println!("{:width$}  wrong answer to: {}", "", text("query"));
            println!("{:width$}  sent: {}", "", text("sent"));
            println!("{:width$}  raw tables and view: {}", "", text("difference"));
        }
    }
    let Some(running) = running else { return };
    let text = |key: &str| thousands(running[key].as_u64().unwrap_or(0));
    println!("\n{} requests, {} answered from views, {} raw:", text("requests"), text("accelerated"), text("raw"));
    for (view, value) in running["views"].as_object().into_iter().flatten() {
        println!("{:>12}  view {view}, {} more with raw rows", value["hits"]["full"], value["hits"]["hybrid"]);
    }
    for (reason, count) in running["reasons"].as_object().into_iter().flatten() {
        println!("{count:>12}  raw: {reason}");
    }
}
