//! What `demo` and `bench` stand on: a ClickHouse with the benchmark's data, its views, and the proxy before it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use url::Url;

use super::CliError;
use super::format::OutputFormat;
use super::rebuild::Bar;
use super::serve::maintenance;
use crate::config::{MaintenanceKeys, UpstreamConfig};
use crate::embedded::{Options, Server};
use crate::maintain::finer;
use crate::maintain::rebuild::{self, rebuild};
use crate::maintain::upkeep::Upkeep;
use crate::proxy::client::HttpUpstream;
use crate::proxy::decider::Decider;
use crate::proxy::http::Proxy;
use crate::proxy::keeper::Keeper;
use crate::ssb::{self, Plan, QUERIES, Report, Scale};
use crate::upstream::Upstream;
use crate::views::{catalog, declaration};

/// Where the benchmark's tables are, unless the address names another database.
const DATABASE: &str = "ssb";

/// Merges count as done when none runs in this many looks one after the other: a next one may begin after a pause.
const SETTLE_LOOKS: u32 = 5;
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
/// On a server with other users, merges never end.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The views that come with the program, as files that a user may look at and change.
const VIEWS: [(&str, &str); 2] = [
    ("ssb_flat.yaml", include_str!("../../views/ssb_flat.yaml")),
    ("ssb_star.yaml", include_str!("../../views/ssb_star.yaml")),
];

pub struct Stand {
    upstream: Upstream,
    views: PathBuf,
    server: Option<Server>,
    /// After the server: fields are dropped in order, and a folder goes when its server is gone.
    _folder: Folder,
}

impl Stand {
    /// Brings up a ClickHouse of our own, in `data`, or in a temporary folder that goes with it.
    pub fn embedded(data: Option<PathBuf>, views: Option<PathBuf>) -> Result<Self, CliError> {
        let (folder, server) = server_alone(data, None)?;
        let address = format!("{}?database={DATABASE}", server.http_url());
        let config = UpstreamConfig::parse(&address).map_err(CliError::failed)?;
        let views = folder.views(views)?;
        Ok(Self { upstream: Upstream::new(config), views, server: Some(server), _folder: folder })
    }

    /// Uses a ClickHouse that runs already. The database `default` stands for none named.
    pub fn on(mut config: UpstreamConfig, views: Option<PathBuf>) -> Result<Self, CliError> {
        if config.database == "default" {
            config.database = DATABASE.into();
        }
        let folder = Folder::new(None)?;
        let views = folder.views(views)?;
        Ok(Self { upstream: Upstream::new(config), views, server: None, _folder: folder })
    }

    /// The benchmark's tables; those of an earlier run at the same scale are kept.
    pub async fn generate(&self, scale: Scale) -> Result<(), CliError> {
        let bar = bar("{prefix} [{bar:40}] {human_pos} of {human_len} rows, {eta} left");
        let mut progress = |table: &str, done: u64, total: u64| {
            bar.set_length(total);
            bar.set_prefix(format!("generating {table}"));
            bar.set_position(done);
        };
        ssb::ensure(&self.upstream, scale, &mut progress).await.map_err(CliError::failed)?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Waits until ClickHouse has done the part merges that it began, which would slow down whatever is measured beside
    /// them.
    pub async fn settle(&self) -> Result<(), CliError> {
        let spinner = spinner("waiting for ClickHouse to finish merging parts");
        let running = "SELECT count() AS merges FROM system.merges";
        let mut quiet = 0;
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while quiet < SETTLE_LOOKS && Instant::now() < deadline {
            let rows: Vec<Merges> = self.upstream.rows(running).await.map_err(CliError::failed)?;
            quiet = if rows.iter().all(|row| row.merges == 0) { quiet + 1 } else { 0 };
            tokio::time::sleep(SETTLE_INTERVAL).await;
        }
        spinner.finish_and_clear();
        Ok(())
    }

    pub async fn build_projections(&self) -> Result<(), CliError> {
        let spinner = spinner("building projections");
        let progress = |name: &str| spinner.set_message(format!("building projection {name}"));
        ssb::build_projections(&self.upstream, progress).await.map_err(CliError::failed)?;
        spinner.finish_and_clear();
        Ok(())
    }

    /// Builds the views; partitions that are built already are left alone.
    pub async fn rebuild(&self) -> Result<(), CliError> {
        let loaded = declaration::load(&self.views);
        let catalog = catalog::resolve(&self.upstream, loaded).await.map_err(CliError::failed)?;
        if let Some(problem) = catalog.problems.first() {
            return Err(CliError::failed(problem));
        }
        let views = finer::order(catalog.views);
        let options = rebuild::Options { finer: views.clone(), ..rebuild::Options::default() };
        for view in &views {
            let built = rebuild(&self.upstream, view, &options, Arc::new(Bar::new())).await;
            built.map_err(|error| CliError::Failed(format!("view {}: {error}", view.name())))?;
        }
        Ok(())
    }

    /// Starts the proxy, on a free port of loopback unless an address is given.
    pub async fn serve(&self, listen: Option<&str>) -> Result<Serving, CliError> {
        let listen = listen.unwrap_or("127.0.0.1:0");
        let listener =
            TcpListener::bind(listen).await.map_err(|e| CliError::Failed(format!("cannot listen on {listen}: {e}")))?;
        let address = listener.local_addr().map_err(CliError::failed)?;
        let url = Url::parse(&format!("http://{address}/")).map_err(CliError::failed)?;
        let client = HttpUpstream::new(self.upstream.config().url.clone());
        let keeper = Arc::new(Keeper::new(self.upstream.clone(), client.clone(), self.views.clone()));
        keeper.clone().start().await;
        let (views, outdated) = (keeper.views(), keeper.outdated.clone());
        let proxy = Arc::new(Proxy::new(client, Decider::Views(keeper)));
        let upkeep = Upkeep {
            upstream: self.upstream.clone(),
            settings: maintenance(&MaintenanceKeys::default())?,
            views,
            written: proxy.written.clone(),
            outdated,
            board: Arc::default(),
        };
        let (stop, stopping) = watch::channel(false);
        tokio::spawn(proxy.serve(listener, stopping));
        Ok(Serving { url, upkeep, stop })
    }

    /// Where everything is, for a person who wants to try it.
    pub fn how_to_connect(&self, proxy: &Serving) -> String {
        let config = self.upstream.config();
        let native = self.server.as_ref().map(|server| format!(", native 127.0.0.1:{}", server.tcp_port()));
        format!(
            "Running until Ctrl-C:
    ClickHouse         {raw}{native}
    through Tributary  {proxy}
    database           {database}, user {user}{password}
    views              {views}

Try a query of your own, and see in the answer's head what happened to it:
    curl -i '{proxy}?database={database}' --data-binary \
        \"SELECT toYear(LO_ORDERDATE) AS year, sum(LO_REVENUE) FROM lineorder_flat GROUP BY year ORDER BY year\"
",
            raw = config.url,
            native = native.unwrap_or_default(),
            proxy = proxy.url,
            database = config.database,
            user = config.user,
            password = if config.password.is_empty() { ", no password" } else { "" },
            views = self.views.display(),
        )
    }

    /// The 26 queries, both ways.
    pub async fn measure(
        &self,
        proxy: &Serving,
        scale: Scale,
        runs: usize,
        projections: bool,
    ) -> Result<Report, CliError> {
        let version = self.upstream.bytes("SELECT version()", "TSVRaw").await.map_err(CliError::failed)?;
        let clickhouse = String::from_utf8_lossy(&version).trim().to_string();
        let plan = Plan {
            scale,
            clickhouse,
            raw: self.upstream.config().clone(),
            tributary: proxy.url.clone(),
            runs,
            projections,
        };
        let bar = bar("measuring {prefix} [{bar:40}] {pos} of {len}");
        bar.set_length(QUERIES.len() as u64);
        let report = ssb::measure(&plan, |query| {
            bar.set_prefix(format!("{} {}", query.form.name(), query.name));
            bar.inc(1);
        });
        let report = report.await.map_err(CliError::failed)?;
        bar.finish_and_clear();
        Ok(report)
    }
}

/// The proxy of a stand; it ends with this.
pub struct Serving {
    pub url: Url,
    upkeep: Upkeep,
    stop: watch::Sender<bool>,
}

#[derive(Deserialize)]
struct Merges {
    merges: u64,
}

impl Serving {
    /// From now on the views follow their tables, as they do under `serve`.
    pub fn maintain(self) -> watch::Sender<bool> {
        tokio::spawn(self.upkeep.run());
        self.stop
    }
}

/// A ClickHouse of our own without any tables. It must be dropped before its folder, as the second of two variables is.
pub fn server_alone(data: Option<PathBuf>, server_config: Option<&str>) -> Result<(Folder, Server), CliError> {
    let folder = Folder::new(data)?;
    let options = Options {
        server_config: server_config.map(str::to_string),
        notice: |text| eprintln!("{text}"),
        ..Options::new(folder.path.join("clickhouse"))
    };
    let server = spinning("starting ClickHouse", || Server::start(&options)).map_err(CliError::failed)?;
    Ok((folder, server))
}

/// A folder for the data and the view files.
pub struct Folder {
    pub path: PathBuf,
    temporary: bool,
}

impl Folder {
    fn new(given: Option<PathBuf>) -> Result<Self, CliError> {
        let temporary = given.is_none();
        let path = given.unwrap_or_else(|| std::env::temp_dir().join(format!("tributary-{}", std::process::id())));
        std::fs::create_dir_all(&path).map_err(|e| CliError::Failed(format!("folder {}: {e}", path.display())))?;
        Ok(Self { path, temporary })
    }

    /// The given views, or those that come with the program, written out.
    fn views(&self, given: Option<PathBuf>) -> Result<PathBuf, CliError> {
        if let Some(path) = given {
            return Ok(path);
        }
        let folder = self.path.join("views");
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            VIEWS.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))
        };
        write().map_err(|e| CliError::Failed(format!("folder {}: {e}", folder.display())))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Prints the report; the exit code tells whether all went well.
pub fn print(report: &Report, format: OutputFormat) -> Result<ExitCode, CliError> {
    match format {
        OutputFormat::Text => {
            print!("{}", report.table(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()))
        }
        OutputFormat::Json => println!("{}", serde_json::to_string_pretty(report).map_err(CliError::failed)?),
    }
    match report.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(CliError::Failed(failure)),
    }
}

pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Runtime::new().map_err(CliError::failed)
}

/// Ends a task early on Ctrl-C or SIGTERM, in order: what it holds is dropped, servers and temporary folders go.
pub async fn unless_interrupted<T>(task: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::select! {
        biased;
        interrupted = interrupted() => interrupted.and(Err(CliError::Failed("interrupted".into()))),
        outcome = task => outcome,
    }
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() -> Result<(), CliError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

pub fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style.progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn spinner(message: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message.to_string());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

fn spinning<T>(message: &str, task: impl FnOnce() -> T) -> T {
    let spinner = spinner(message);
    let outcome = task();
    spinner.finish_and_clear();
    outcome
}
