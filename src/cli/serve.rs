//! `tributary serve`: the proxy.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args as ClapArgs;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use super::CliError;
use super::connect::ConfiguredArgs;
use super::reload::Running;
use crate::config::{Config, DEFAULT_LISTEN_HTTP, MaintenanceKeys};
use crate::maintain::board::Board;
use crate::maintain::pass::Limits;
use crate::maintain::upkeep::Settings;
use crate::proxy::admin::Admin;
use crate::proxy::client::HttpUpstream;
use crate::proxy::decider::Decider;
use crate::proxy::http::Proxy;
use crate::proxy::keeper::{Keeper, Options};
use crate::upstream::Upstream;

/// Serve clients as a proxy in front of ClickHouse
///
/// Clients connect to Tributary as they would to ClickHouse. Queries that a view answers are sent on rewritten; all
/// else passes unchanged. Options override the config file. SIGTERM and SIGINT stop accepting and let running requests
/// end; a second signal ends at once.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    from: ConfiguredArgs,
    /// Where HTTP clients connect [default: 127.0.0.1:8124]
    #[arg(long, value_name = "ADDR")]
    listen_http: Option<String>,
    /// Where operators see the status, in plain HTTP without a login [default: nowhere]
    #[arg(long, value_name = "ADDR")]
    listen_admin: Option<String>,
    /// Leave the views as `tributary rebuild` built them
    #[arg(long)]
    no_maintenance: bool,
    /// What to log: error, warn, info, debug, or a filter such as tributary::proxy=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "RUST_LOG")]
    log: Option<String>,
}

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let (config, upstream, _) = args.from.read()?;
    let logging = start_logging(filter(args.log.as_deref(), &config)?);
    let listen = args.listen_http.or(config.listen.http.clone()).unwrap_or_else(|| DEFAULT_LISTEN_HTTP.into());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::failed)?;
    let options = Options { consistency: config.consistency, verify: config.verify };
    let config_path = args.from.config_path().map(Path::to_path_buf);
    let views = args.from.connect.views.or(config.views.clone());
    runtime.block_on(async {
        let client = HttpUpstream::new(upstream.url.clone());
        let Some(path) = views else {
            return serve(Arc::new(Proxy::new(client, Decider::PassThrough)), &listen).await;
        };
        let upstream = Upstream::new(upstream);
        let keeper = Arc::new(Keeper::new(upstream.clone(), client.clone(), path).with(options));
        keeper.clone().start().await;
        let proxy = Arc::new(Proxy::new(client, Decider::Views(keeper.clone())));
        let board = Arc::<Board>::default();
        if let Some(address) = args.listen_admin.or(config.listen.admin.clone()) {
            let failed = |error| CliError::Failed(format!("cannot listen on {address}: {error}"));
            let listener = TcpListener::bind(&address).await.map_err(failed)?;
            tracing::info!("admin listener on http://{}/status", listener.local_addr().map_err(CliError::failed)?);
            tokio::spawn(Arc::new(Admin { proxy: proxy.clone(), board: board.clone() }).serve(listener));
        }
        let (no_maintenance, log) = (args.no_maintenance, args.log);
        let mut running =
            Running { upstream, keeper, proxy: proxy.clone(), board, no_maintenance, log, logging, upkeep: None };
        running.maintain(&config)?;
        if let Some(path) = config_path {
            tokio::spawn(running.follow(path, config));
        }
        serve(proxy, &listen).await
    })
}

/// What the configuration says about maintenance.
pub(super) fn maintenance(keys: &MaintenanceKeys) -> Result<Settings, CliError> {
    if !(0.01..=1.0).contains(&keys.share) {
        return Err(CliError::Usage(format!("maintenance.share is {}; write a number from 0.01 to 1", keys.share)));
    }
    let limits = Limits { threads: keys.threads.max(1).into(), memory_bytes: keys.memory.0 };
    Ok(Settings { interval: keys.interval.0, share: keys.share, limits })
}

async fn serve(proxy: Arc<Proxy>, listen: &str) -> Result<ExitCode, CliError> {
    let listener =
        TcpListener::bind(listen).await.map_err(|e| CliError::Failed(format!("cannot listen on {listen}: {e}")))?;
    let address = listener.local_addr().map_err(CliError::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::failed)?;
    // For scripts: the address is known only now when the port was 0.
    println!("listening on http://{address}/ for ClickHouse at {}", proxy.upstream.address());
    let (stop, stopping) = watch::channel(false);
    let mut serving = tokio::spawn(proxy.serve(listener, stopping));
    tokio::select! {
        ended = &mut serving => return ended.map(|()| ExitCode::SUCCESS).map_err(CliError::failed),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping: running requests may end, a second signal ends them");
    let _ = stop.send(true);
    tokio::select! {
        _ = &mut serving => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// What to log: the option goes before the configuration.
pub(super) fn filter(option: Option<&str>, config: &Config) -> Result<EnvFilter, CliError> {
    let text = option.or(config.log.as_deref()).unwrap_or("info");
    EnvFilter::try_new(text).map_err(|e| CliError::Usage(format!("--log '{text}': {e}")))
}

/// Logs go to standard error, so that standard output stays for what scripts read.
fn start_logging(filter: EnvFilter) -> reload::Handle<EnvFilter, Registry> {
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry().with(filter).with(fmt::layer().with_writer(std::io::stderr)).init();
    handle
}
