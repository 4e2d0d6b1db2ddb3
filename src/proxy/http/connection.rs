//! One client's connection: requests one after the other, each decided on and relayed.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::Proxy;
use super::answer::OwnError;
use super::body::Body;
use super::exchange::{Ended, Marking, Outgoing, Peer, close_gently, exchange, tunnel};
use super::head::{Edit, HEAD_BYTES_MAX, Reading, RequestHead, Scan};
use super::incoming::{self, Opening, QueryParameter, UrlQuery, WISH_HEADERS};
use crate::proxy::query::{Decided, Decision, Wish};

/// Longer query texts pass unread. ClickHouse's own limit (`max_query_size`) is 256 KiB.
const QUERY_BYTES_MAX: usize = 256 << 10;

/// A client that has asked for nothing for so long is gone (ClickHouse waits 30 s, `keep_alive_timeout`).
const IDLE_CLIENT: Duration = Duration::from_secs(600);

pub(super) struct Connection {
    client: Peer,
    proxy: Arc<Proxy>,
    /// Turns true when the process is to end.
    stop: watch::Receiver<bool>,
}

/// A request of which the head, and perhaps some of the body, was read.
struct Request {
    head: RequestHead,
    url: Option<UrlQuery>,
    /// The body so far, byte for byte.
    body: Vec<u8>,
    rest: Body,
    /// We have told the client to go on (`Expect: 100-continue`), so ClickHouse must not.
    is_continued: bool,
}

/// Where the query text stood, and so where a rewritten one goes.
#[derive(Debug, Clone, Copy)]
enum Place {
    Url,
    Body,
}

/// What was found out about a request before it is sent on.
enum Finding {
    /// Not a query, or nothing to do with queries.
    Pass,
    /// A query, or what may be one, that cannot be read.
    Unreadable(&'static str),
    Decided(Decided, Place),
}

/// After a request, the connection either waits for the next one or ends.
enum Next {
    Request,
    Close,
    Abort,
}

impl Connection {
    pub fn new(stream: TcpStream, proxy: Arc<Proxy>, stop: watch::Receiver<bool>) -> Self {
        Self { client: Peer::new(stream), proxy, stop }
    }

    pub async fn run(mut self) {
        loop {
            let next = match self.read_head().await {
                Some(Reading::Head(head)) if !head.leaves_http() => {
                    self.client.buffer.consume(head.len());
                    self.answer(head).await
                }
                Some(_) => return self.tunnel().await,
                None => return,
            };
            match next {
                Next::Request => self.client.buffer.shrink(),
                Next::Close => return close_gently(&mut self.client).await,
                Next::Abort => {
                    // A reset, so that a body that ends with its connection does not look complete.
                    let _ = socket2::SockRef::from(&self.client.stream).set_linger(Some(Duration::ZERO));
                    return;
                }
            }
        }
    }

    /// Waits for the next request; `None`: there will be none.
    async fn read_head(&mut self) -> Option<Reading> {
        let mut scan = Scan::default();
        loop {
            // Some old clients end a body with a line end that does not count.
            while self.client.buffer.bytes().starts_with(b"\r\n") {
                self.client.buffer.consume(2);
            }
            if !self.client.buffer.is_empty() {
                match RequestHead::read(self.client.buffer.bytes(), &mut scan) {
                    Reading::Incomplete => {}
                    reading => return Some(reading),
                }
            }
            let may_stop = self.client.buffer.is_empty();
            let filled = tokio::select! {
                filled = self.client.buffer.fill(&mut self.client.stream, HEAD_BYTES_MAX) => filled,
                _ = self.stop.wait_for(|stop| *stop), if may_stop => return None,
                () = tokio::time::sleep(IDLE_CLIENT) => return None,
            };
            match filled {
                Ok(0) if self.client.buffer.is_empty() => return None,
                // Half a head and no more: ClickHouse shall say what it thinks of that.
                Ok(0) => return Some(Reading::NotUnderstood),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    async fn tunnel(mut self) {
        self.proxy.counters.tunnels.fetch_add(1, Relaxed);
        match self.proxy.upstream.connect().await {
            Ok(mut upstream) => {
                if let Err(error) = tunnel(&mut self.client, &mut upstream.stream).await {
                    tracing::debug!(%error, "tunnel broke off");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "request not understood, and nobody to hand it to");
                let own = OwnError { status: "400 Bad Request", ..OwnError::upstream(error.to_string()) };
                let _ = self.client.stream.write_all(&own.render(None, false)).await;
                close_gently(&mut self.client).await;
            }
        }
    }

    async fn answer(&mut self, head: RequestHead) -> Next {
        self.proxy.counters.requests.fetch_add(1, Relaxed);
        let rest = head.body();
        let mut request = Request { head, url: None, body: Vec::new(), rest, is_continued: false };
        let Some(finding) = self.examine(&mut request).await else { return Next::Abort };
        let decision = match &finding {
            Finding::Pass => Decision::NotAQuery,
            Finding::Unreadable(reason) => Decision::Raw { reason: (*reason).into() },
            Finding::Decided(decided, _) => decided.decision.clone(),
        };
        tracing::debug!(decision = decision.header(), "query");
        self.proxy.tally.count(&decision);
        if let Decision::Raw { reason } = &decision {
            self.proxy.counters.raw.fetch_add(1, Relaxed);
            if incoming::wish(&request.head, request.url.as_ref()) == Wish::Require {
                return self.refuse(&request, OwnError::required(reason), decision.header()).await;
            }
        }
        let mut marking = Marking { decision: decision.header(), is_refusable: false, confirmation: None };
        if let (Decision::View { sql, .. }, Finding::Decided(decided, place)) = (&decision, &finding) {
            self.proxy.counters.accelerated.fetch_add(1, Relaxed);
            marking.is_refusable = true;
            marking.confirmation.clone_from(&decided.confirmation);
            let reason = match self.relay(&request, request.rewritten(sql, *place), &marking).await {
                Relayed::Next(next) => return next,
                Relayed::Refused { status, code } => {
                    let code = code.map_or(format!("HTTP status {status}"), |c| format!("code {c}"));
                    tracing::warn!(%code, decision = marking.decision, sql, "the rewritten query failed, the original is sent");
                    format!("rewritten query failed: {code}")
                }
                Relayed::Unconfirmed(reason) => reason,
            };
            self.proxy.counters.fallbacks.fetch_add(1, Relaxed);
            self.proxy.tally.fallback(&reason);
            let raw = Decision::Raw { reason: reason.clone() }.header();
            if incoming::wish(&request.head, request.url.as_ref()) == Wish::Require {
                return self.refuse(&request, OwnError::required(&reason), raw).await;
            }
            marking = Marking { decision: raw, is_refusable: false, confirmation: None };
        }
        let may_write = matches!(finding, Finding::Pass) && request.head.method() == b"POST";
        match self.relay(&request, request.original(), &marking).await {
            Relayed::Next(next) => {
                if may_write {
                    self.proxy.written.notify_one();
                }
                next
            }
            Relayed::Refused { .. } | Relayed::Unconfirmed(_) => Next::Abort,
        }
    }

    /// Looks for a query, reading as little of the body as that takes. `None`: the client is gone.
    async fn examine(&mut self, request: &mut Request) -> Option<Finding> {
        let head = &request.head;
        if !(head.target() == b"/" || head.target().starts_with(b"/?")) {
            return Some(Finding::Pass);
        }
        let takes_queries = matches!(head.method(), b"GET" | b"POST");
        let url = match UrlQuery::read(head.target()) {
            Ok(url) if takes_queries => url,
            Err(reason) if takes_queries => return Some(Finding::Unreadable(reason)),
            other => {
                request.url = other.ok();
                return Some(Finding::Pass);
            }
        };
        let in_url = url.value("query").unwrap_or_default().to_owned();
        let unjudged = incoming::is_beyond_judging(head, &url);
        let unreadable = if request.rest.is_done() { None } else { incoming::body_is_unreadable(head, &url) };
        request.url = Some(url);
        let in_url_opens = match request.rest.is_done() {
            true => incoming::opening_of_whole(&in_url),
            false => incoming::opening(format!("{in_url}\n").as_bytes()),
        };
        if in_url_opens == Opening::Other {
            return Some(Finding::Pass);
        }
        if let Some(reason) = unjudged.or(unreadable) {
            return Some(Finding::Unreadable(reason));
        }
        let (in_body, place) = match self.read_text(request, in_url_opens == Opening::Query).await? {
            Text::Whole(text) if text.is_empty() => (text, Place::Url),
            Text::Whole(text) => (text, Place::Body),
            Text::NoQuery => return Some(Finding::Pass),
            Text::TooLong => return Some(Finding::Unreadable("query text longer than 256 KiB")),
        };
        let Ok(in_body) = String::from_utf8(in_body) else {
            return Some(Finding::Unreadable("the query text is not UTF-8"));
        };
        let sql = incoming::join(&in_url, &in_body);
        if incoming::opening_of_whole(&sql) == Opening::Other {
            return Some(Finding::Pass);
        }
        let url = request.url.as_ref()?;
        let query = incoming::incoming_query(&request.head, url, sql);
        Some(Finding::Decided(self.proxy.decider.decide(query).await, place))
    }

    /// Reads the body as far as needed to see that it is no query, or else whole. `None`: the client is gone.
    async fn read_text(&mut self, request: &mut Request, is_query: bool) -> Option<Text> {
        let mut text = Vec::new();
        loop {
            let n = request.rest.follow_payload(self.client.buffer.bytes(), |p| text.extend_from_slice(p));
            request.body.extend_from_slice(&self.client.buffer.bytes()[..n]);
            self.client.buffer.consume(n);
            if !is_query && incoming::opening(&text) == Opening::Other {
                return Some(Text::NoQuery);
            }
            if text.len() > QUERY_BYTES_MAX || request.body.len() > 2 * QUERY_BYTES_MAX {
                return Some(Text::TooLong);
            }
            match request.rest {
                Body::Done => return Some(Text::Whole(text)),
                // Not chunked as it says: ClickHouse shall tell the client.
                Body::UntilClose => return Some(Text::NoQuery),
                Body::Length(_) | Body::Chunked(_) => {}
            }
            if !request.is_continued && request.expects_continue() {
                request.is_continued = true;
                self.client.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.ok()?;
            }
            match self.client.buffer.fill(&mut self.client.stream, QUERY_BYTES_MAX).await {
                // The client broke off: ClickHouse shall see that as it would without us.
                Ok(0) => return Some(Text::NoQuery),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    async fn refuse(&mut self, request: &Request, error: OwnError, decision: Option<String>) -> Next {
        let keeps_alive = request.rest.is_done() && request.head.keeps_alive();
        let answer = error.render(decision.as_deref(), keeps_alive);
        match self.client.stream.write_all(&answer).await {
            Ok(()) if keeps_alive => Next::Request,
            Ok(()) => Next::Close,
            Err(_) => Next::Abort,
        }
    }

    /// Sends a request over a connection that is open already, or over a new one. A request is sent a second time only
    /// when nothing of it was sent before, or when it has no body and only reads: a kept connection may have been
    /// closed by the server just now.
    async fn relay(&mut self, request: &Request, mut outgoing: Outgoing, marking: &Marking) -> Relayed {
        let is_repeatable =
            matches!(request.head.method(), b"GET" | b"HEAD") && request.body.is_empty() && request.rest.is_done();
        let mut reused = self.proxy.upstream.reuse();
        loop {
            let is_reused = reused.is_some();
            let mut upstream = match reused.take() {
                Some(peer) => peer,
                None => match self.proxy.upstream.connect().await {
                    Ok(peer) => peer,
                    Err(error) => {
                        self.proxy.counters.unreachable.fetch_add(1, Relaxed);
                        tracing::warn!(%error);
                        let error = OwnError::upstream(error.to_string());
                        return Relayed::Next(self.refuse(request, error, marking.decision.clone()).await);
                    }
                },
            };
            return match exchange(&mut self.client, &mut upstream, &mut outgoing, marking).await {
                Ended::Complete { client_stays, upstream_stays } => {
                    if let Some(keep_alive) = upstream_stays {
                        self.proxy.upstream.give_back(upstream, keep_alive);
                    }
                    Relayed::Next(if client_stays { Next::Request } else { Next::Close })
                }
                Ended::Refused { status, code } => Relayed::Refused { status, code },
                Ended::Unconfirmed(reason) => Relayed::Unconfirmed(reason),
                Ended::Unanswered { nothing_was_sent } if is_reused && (nothing_was_sent || is_repeatable) => continue,
                // Without the proxy, the client would see just that.
                Ended::Unanswered { .. } => Relayed::Next(Next::Close),
                Ended::BrokenOff { reset: true } => Relayed::Next(Next::Abort),
                Ended::BrokenOff { reset: false } => Relayed::Next(Next::Close),
            };
        }
    }
}

enum Relayed {
    Next(Next),
    Refused { status: u16, code: Option<i32> },
    Unconfirmed(String),
}

/// A body, read as query text.
enum Text {
    Whole(Vec<u8>),
    NoQuery,
    TooLong,
}

impl Request {
    fn expects_continue(&self) -> bool {
        self.head.value("expect").is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"))
    }

    /// The request as it came, without what was meant for Tributary.
    fn original(&self) -> Outgoing {
        let mut edit = Edit::default();
        if let Some(url) = &self.url {
            edit.without.extend(WISH_HEADERS);
            edit.target = url.has_wish().then(|| url.target(QueryParameter::Keep));
        }
        if self.is_continued {
            edit.without.push("expect");
        }
        self.outgoing([self.head.render(&edit), self.body.clone()].concat(), self.rest)
    }

    /// The request with another query text in the place of the first. A text in the body replaces the whole body, and
    /// what stood in the URL goes.
    fn rewritten(&self, sql: &str, place: Place) -> Outgoing {
        let mut edit = Edit { without: WISH_HEADERS.to_vec(), ..Edit::default() };
        edit.without.push("expect");
        let parameter = match place {
            Place::Url => QueryParameter::Set(sql),
            Place::Body => {
                edit.without.extend(["content-length", "transfer-encoding", "trailer"]);
                edit.content_length = Some(sql.len());
                QueryParameter::Omit
            }
        };
        edit.target = self.url.as_ref().map(|url| url.target(parameter));
        let body = match place {
            Place::Url => self.body.as_slice(),
            Place::Body => sql.as_bytes(),
        };
        self.outgoing([self.head.render(&edit).as_slice(), body].concat(), Body::Done)
    }

    fn outgoing(&self, bytes: Vec<u8>, rest: Body) -> Outgoing {
        Outgoing { bytes, rest, is_head: self.head.method() == b"HEAD" }
    }
}
