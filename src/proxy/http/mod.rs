//! The transparent HTTP proxy: every request reaches ClickHouse, and every answer the client, byte for byte.
//!
//! A request is read only as far as its decision needs, then copied: its head keeps names, order, case and blanks, a
//! chunked body keeps its chunks, an answer that breaks off breaks off for the client too. Only queries to `/` are
//! looked at, and only four things are ever changed: the text of a query that a view answers, Tributary's own
//! parameter and headers (taken out), the header `X-Tributary-Decision` in answers to queries (put behind the status
//! line), and `Expect: 100-continue` where we had to read the body first.
//!
//! - [`head`] and [`body`] follow the messages and never re-print them.
//! - [`incoming`] finds the query as ClickHouse would.
//! - [`connection`] decides and sends; [`exchange`] runs both ways at once; [`stream`] moves long bodies.
//!
//! The relay stands on sockets, not on an HTTP library. Header lines of an answer go out as they come, so
//! `send_progress_in_http_headers` keeps long queries alive through load balancers and client timeouts as it does
//! without a proxy; a library hands an answer over when its head is complete, which is when such a query has ended,
//! and limits their number. The same holds for the order of repeated headers, half-closed connections and the chunks
//! themselves. What is no HTTP/1 that can be read in just one way is not refused here but tunnelled to ClickHouse
//! (`tunnel` in [`exchange`]): it answers malformed requests as it always did, and no two readers can disagree about
//! where a request ends, because the tunnel never carries another one.
//!
//! Timeouts: none for queries, however long they are silent; 10 s to connect to ClickHouse; 10 min between a client's
//! requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};

use super::client::HttpUpstream;
use super::decider::Decider;
use super::tally::Tally;

mod answer;
mod body;
mod buffer;
mod connection;
pub(super) mod exchange;
mod head;
mod incoming;
mod stream;

/// Everything that the connections of one listener share.
pub struct Proxy {
    pub upstream: HttpUpstream,
    pub decider: Decider,
    pub counters: Counters,
    pub tally: Tally,
    /// Told after every request that may have written something.
    pub written: Arc<Notify>,
}

/// What happened since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub requests: AtomicU64,
    /// Queries that went to ClickHouse as they were, by decision.
    pub raw: AtomicU64,
    /// Queries that were sent rewritten.
    pub accelerated: AtomicU64,
    /// Rewritten queries that failed, and were sent again as they were.
    pub fallbacks: AtomicU64,
    /// Requests that found no ClickHouse.
    pub unreachable: AtomicU64,
    /// Connections that carried something other than plain HTTP/1 requests.
    pub tunnels: AtomicU64,
}

impl Proxy {
    pub fn new(upstream: HttpUpstream, decider: Decider) -> Self {
        Self { upstream, decider, counters: Counters::default(), tally: Tally::default(), written: Arc::default() }
    }

    /// Serves connections until `stop` turns true, then lets the requests that are under way end.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
        // Every connection holds a sender; the receiver sees the end when the last one is gone.
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    // A client whose machine vanished must not hold a connection for ever.
                    let _ = socket2::SockRef::from(&stream).set_keepalive(true);
                    let connection = connection::Connection::new(stream, Arc::clone(&self), stop.clone());
                    let alive = alive.clone();
                    tokio::spawn(async move {
                        connection.run().await;
                        drop(alive);
                    });
                }
                Err(error) => self.cannot_accept(&error).await,
            }
        }
        drop(listener);
        drop(alive);
        let _ = all_gone.recv().await;
    }

    /// Out of file descriptors, or a client that left before it was accepted: connections that are open go on.
    async fn cannot_accept(&self, error: &io::Error) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
