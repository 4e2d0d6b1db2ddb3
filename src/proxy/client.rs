//! The way to ClickHouse for queries of clients: connections to relay over, kept for reuse, and probes that run under
//! a client's own credentials.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpStream;
use url::Url;

use super::http::exchange::Peer;
use super::query::Identity;

/// A host that does not answer at all must not hold a client for the minutes that the kernel would wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections kept for reuse. More may be open; these wait for their next request.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// A probe asks for a few rows.
const PROBE_BYTES_MAX: usize = 16 << 20;

/// Idle time after which a probe's connection is not used again; the oldest servers close after 3 s.
const PROBE_IDLE: Duration = Duration::from_secs(1);

/// ClickHouse's HTTP interface, as clients reach it through the proxy. Cheap to clone.
#[derive(Clone)]
pub struct HttpUpstream {
    inner: Arc<Inner>,
}

struct Inner {
    url: Url,
    /// `host:port`, as it goes into the system's resolver.
    address: String,
    /// The one that was used last stands last.
    idle: Mutex<VecDeque<Idle>>,
    probes: Client<HttpConnector, Full<Bytes>>,
}

struct Idle {
    peer: Peer,
    /// The server may close at any moment from here on.
    until: Instant,
}

/// No connection to ClickHouse.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach ClickHouse at {address}: {reason}")]
pub struct ConnectError {
    pub address: String,
    pub reason: String,
}

/// Why a probe brought no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// ClickHouse answered with an exception; `code` is its number.
    #[error("ClickHouse refused: {message}")]
    Refused { status: u16, code: Option<i32>, message: String },
    #[error("cannot ask ClickHouse at {address}: {message}")]
    Unreachable { address: String, message: String },
}

impl HttpUpstream {
    /// `url` is `http://host:port/`, as in `config::UpstreamConfig`.
    pub fn new(url: Url) -> Self {
        let address = format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(8123));
        let probes = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(PROBE_IDLE)
            .build(HttpConnector::new());
        Self { inner: Arc::new(Inner { url, address, idle: Mutex::new(VecDeque::new()), probes }) }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// A connection that was used before and is still open, the latest first.
    pub fn reuse(&self) -> Option<Peer> {
        let mut idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Idle { peer, until }) = idle.pop_back() {
            if Instant::now() < until && is_quiet(&peer.stream) {
                return Some(peer);
            }
        }
        None
    }

    pub async fn connect(&self) -> Result<Peer, ConnectError> {
        let failed = |reason: String| ConnectError { address: self.inner.url.to_string(), reason };
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&self.inner.address)).await {
            Ok(Ok(stream)) => Ok(Peer::new(stream)),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
        }
    }

    /// Takes a connection back after a complete answer. `keep_alive` is the idle time that the server announced: half of
    /// it is used, so that a request is never written into a connection that the server is just closing.
    pub fn give_back(&self, mut peer: Peer, keep_alive: Duration) {
        peer.buffer.shrink();
        let until = Instant::now() + keep_alive / 2;
        let mut idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while idle.len() == IDLE_CONNECTIONS_MAX || idle.front().is_some_and(|oldest| oldest.until < Instant::now()) {
            idle.pop_front();
        }
        idle.push_back(Idle { peer, until });
    }

    /// Runs a small query under a client's credentials and in its session, with `settings` as URL parameters
    /// (`database` and `default_format` may be among them), and returns the whole answer.
    pub async fn probe(
        &self,
        identity: &Identity,
        session_id: Option<&str>,
        sql: &str,
        settings: &[(&str, &str)],
    ) -> Result<Bytes, ProbeError> {
        let mut url = self.inner.url.clone();
        url.query_pairs_mut()
            .extend_pairs(&identity.url_parameters)
            .extend_pairs(session_id.map(|id| ("session_id", id)))
            .extend_pairs(settings);
        let mut request =
            Request::post(url.as_str()).header(header::USER_AGENT, concat!("tributary/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &identity.headers {
            request = request.header(name, value.as_slice());
        }
        let unreachable = |error: &dyn fmt::Display| ProbeError::Unreachable {
            address: self.inner.url.to_string(),
            message: error.to_string(),
        };
        let request = request.body(Full::new(Bytes::copy_from_slice(sql.as_bytes()))).map_err(|e| unreachable(&e))?;
        let response = self.inner.probes.request(request).await.map_err(|e| unreachable(&chain(&e)))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, PROBE_BYTES_MAX).collect().await.map_err(|e| unreachable(&e))?.to_bytes();
        if head.status == hyper::StatusCode::OK {
            return Ok(body);
        }
        let code = head.headers.get("x-clickhouse-exception-code").and_then(|v| v.to_str().ok()?.parse().ok());
        let message = String::from_utf8_lossy(&body).trim().to_owned();
        Err(ProbeError::Refused { status: head.status.as_u16(), code, message })
    }
}

/// An error with its causes: hyper's own text names only the outermost.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Nothing has come over an idle connection, not even its end.
fn is_quiet(stream: &TcpStream) -> bool {
    let peeked = socket2::SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
    peeked.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
}
