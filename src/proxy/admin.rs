//! The admin listener: what the process knows of itself, for operators and their tools.
//!
//! `GET /status` gives one JSON object, `GET /healthz` 200 while ClickHouse answers maintenance and 503 otherwise.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::http::Proxy;
use super::shadow::Quarantined;
use crate::maintain::board::Board;

/// All that is shown.
pub struct Admin {
    pub proxy: Arc<Proxy>,
    pub board: Arc<Board>,
}

impl Admin {
    /// Answers for ever.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let admin = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let admin = admin.clone();
                    async move { Ok::<_, Infallible>(admin.answer(&request)) }
                });
                if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
                    tracing::debug!(%error, "admin connection");
                }
            });
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, body) = match (request.method(), request.uri().path()) {
            (&Method::GET, "/status") => (200, format!("{:#}\n", self.status())),
            (&Method::GET, "/healthz") => match self.board.upstream_error() {
                None => (200, "ok\n".to_string()),
                Some(error) => (503, format!("{error}\n")),
            },
            _ => (404, "there are /status and /healthz\n".to_string()),
        };
        let kind = if body.starts_with('{') { "application/json" } else { "text/plain; charset=utf-8" };
        let response = Response::builder().status(status).header("content-type", kind).body(Full::from(body));
        response.unwrap_or_default()
    }

    fn status(&self) -> Value {
        let counters = &self.proxy.counters;
        let hits = self.proxy.tally.hits();
        let wrong = |found: Quarantined| json!({ "query": found.query, "sent": found.rewritten, "difference": found.difference });
        let quarantined = self.proxy.decider.quarantined().into_iter().map(|found| (found.view.clone(), wrong(found)));
        let views = self.board.entries().into_iter().map(|(view, entry)| {
            let mut value = json!(entry);
            value["hits"] = json!(hits.get(&view).copied().unwrap_or_default());
            (view, value)
        });
        json!({
            "upstream": self.proxy.upstream.address(),
            "upstream_error": self.board.upstream_error(),
            "views": views.collect::<serde_json::Map<_, _>>(),
            "quarantined": quarantined.collect::<serde_json::Map<_, _>>(),
            "requests": counters.requests.load(Relaxed),
            "accelerated": counters.accelerated.load(Relaxed),
            "raw": counters.raw.load(Relaxed),
            "fallbacks": counters.fallbacks.load(Relaxed),
            "reasons": self.proxy.tally.reasons(),
        })
    }
}
