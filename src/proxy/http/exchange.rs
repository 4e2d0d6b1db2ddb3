//! One request and its answer, both ways at once, between a client and ClickHouse.
//!
//! Neither direction waits for the other: an INSERT may be refused while its body still comes, and an answer may start
//! before the request has ended. Each direction holds one buffer and reads on only when that is written out, so a slow
//! reader slows its writer down, and memory stays bounded whatever passes.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::answer::decision_line;
use super::body::Body;
use super::buffer::{BULK_BYTES, Buffer};
use super::head::{HEAD_BYTES_MAX, ResponseHead};
use super::stream::{StreamError, stream};
use crate::proxy::query::Confirmation;

/// What a client may send ahead of its answer (pipelined requests) before we stop reading.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// An answer's first bytes up to this size go out in one write with its head.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// The head of a rewritten query's answer is held back until it is complete, since it may turn out to be an error. With
/// progress headers that can take long: after this time the query has run well enough, and they go out.
const HELD: Duration = Duration::from_secs(5);

/// ClickHouse's code for a query that was cancelled: not a failure of the rewritten text.
const QUERY_WAS_CANCELLED: i32 = 394;

/// A connection of either side, and the bytes that were read from it and not yet used.
#[derive(Debug)]
pub struct Peer {
    pub stream: TcpStream,
    pub buffer: Buffer,
}

impl Peer {
    pub fn new(stream: TcpStream) -> Self {
        // Both sides write whole messages; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: Buffer::new() }
    }
}

/// A request on its way: what is in memory of it, and what the client has still to send.
#[derive(Debug)]
pub struct Outgoing {
    pub bytes: Vec<u8>,
    pub rest: Body,
    /// HEAD: the answer has no body.
    pub is_head: bool,
}

/// What is done to the answer.
#[derive(Debug, Default)]
pub struct Marking {
    /// Value of the header that tells the decision.
    pub decision: Option<String>,
    /// An error in place of an answer is not passed on but reported as [`Ended::Refused`]: the query was rewritten.
    pub is_refusable: bool,
    /// No byte of the answer goes to the client before this says that the decision holds.
    pub confirmation: Option<Confirmation>,
}

impl Marking {
    async fn confirm(&self) -> Result<(), String> {
        match &self.confirmation {
            Some(confirmation) => confirmation.confirm().await,
            None => Ok(()),
        }
    }
}

/// How an exchange ended.
#[derive(Debug)]
pub enum Ended {
    /// The answer went out whole.
    Complete { client_stays: bool, upstream_stays: Option<Duration> },
    /// ClickHouse refused the (rewritten) query; the client has seen nothing of it.
    Refused { status: u16, code: Option<i32> },
    /// The decision does not hold; the client has seen nothing of the answer.
    Unconfirmed(String),
    /// ClickHouse closed the connection before the first byte of an answer.
    Unanswered { nothing_was_sent: bool },
    /// One side broke off in the middle; `reset`: not by an orderly close.
    BrokenOff { reset: bool },
}

/// Runs one exchange. On return the client's buffer holds what it sent ahead.
pub async fn exchange(client: &mut Peer, upstream: &mut Peer, outgoing: &mut Outgoing, marking: &Marking) -> Ended {
    let progress = Progress::default();
    let head = match both_ways(client, upstream, outgoing, marking, &progress).await {
        Ok(head) => head,
        Err(ended) => return ended,
    };
    let stays = head.keeps_alive() && progress.is_clean();
    let upstream_stays = (stays && upstream.buffer.is_empty()).then(|| head.keep_alive.unwrap_or_default());
    Ended::Complete { client_stays: stays, upstream_stays }
}

async fn both_ways(
    client: &mut Peer,
    upstream: &mut Peer,
    outgoing: &mut Outgoing,
    marking: &Marking,
    progress: &Progress,
) -> Result<ResponseHead, Ended> {
    let (mut client_read, mut client_write) = client.stream.split();
    let (mut upstream_read, mut upstream_write) = upstream.stream.split();
    let is_head = outgoing.is_head;
    let mut send = pin!(send(&mut client_read, &mut client.buffer, &mut upstream_write, outgoing, progress));
    let mut receive = pin!(receive(&mut upstream_read, &mut upstream.buffer, &mut client_write, is_head, marking));
    let received = tokio::select! {
        biased;
        received = &mut receive => received,
        () = &mut send => Err(Broken::Client),
    };
    let head = match received {
        Ok(Received::Whole(head)) => head,
        Ok(Received::Refusal(head)) => {
            return Err(Ended::Refused { status: head.status, code: head.exception_code });
        }
        Ok(Received::Unconfirmed(reason)) => return Err(Ended::Unconfirmed(reason)),
        Err(Broken::Client) => return Err(Ended::BrokenOff { reset: true }),
        Err(Broken::UpstreamBeforeAnswer) => {
            return Err(Ended::Unanswered { nothing_was_sent: !progress.started.load(Relaxed) });
        }
        Err(Broken::Upstream { reset }) => return Err(Ended::BrokenOff { reset }),
    };
    if head.keeps_alive() && !progress.sent.load(Relaxed) {
        // Answered before the request had ended, yet the server reads on: so must we.
        tokio::select! {
            () = &mut send => return Err(Ended::BrokenOff { reset: true }),
            () = progress.settled.notified() => {}
        }
    }
    Ok(head)
}

/// How far the sending side came; shared with the receiving side of the same task.
#[derive(Default)]
struct Progress {
    /// Some byte was taken by the upstream's socket.
    started: AtomicBool,
    sent: AtomicBool,
    client_ended: AtomicBool,
    /// Nothing more will be sent: all of the request was, or it cannot be.
    settled: Notify,
}

impl Progress {
    /// May another request follow this one?
    fn is_clean(&self) -> bool {
        self.sent.load(Relaxed) && !self.client_ended.load(Relaxed)
    }
}

/// Sends the request, then watches the client. Returns when the client's connection breaks, and never otherwise.
async fn send(
    client: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    upstream: &mut WriteHalf<'_>,
    outgoing: &mut Outgoing,
    progress: &Progress,
) {
    match forward(client, buffer, upstream, outgoing, progress).await {
        Ok(()) => {
            progress.sent.store(true, Relaxed);
            progress.settled.notify_one();
        }
        Err(ForwardError::Client) => return,
        // The client ended in the middle of its request, and says no more. ClickHouse sees the same and may still answer.
        Err(ForwardError::ClientEnded) => return end_upstream(upstream, progress).await,
        Err(ForwardError::Upstream) => {
            // The server reads no more, but may have answered. A client that still writes must not get stuck.
            progress.settled.notify_one();
            if !progress.started.load(Relaxed) {
                return pending().await;
            }
            return drain(client, buffer).await;
        }
    }
    // Whatever comes now is sent ahead, or the end of the client.
    loop {
        if buffer.bytes().len() >= AHEAD_BYTES_MAX {
            return pending().await;
        }
        match buffer.fill(client, AHEAD_BYTES_MAX).await {
            Ok(0) => return end_upstream(upstream, progress).await,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Hands the client's end on, as half of the connection: a client that closed and one that only says no more look the
/// same from here, and ClickHouse gets to see just what it would see without us.
async fn end_upstream(upstream: &mut WriteHalf<'_>, progress: &Progress) {
    progress.client_ended.store(true, Relaxed);
    progress.settled.notify_one();
    let _ = upstream.shutdown().await;
    pending().await
}

async fn drain(client: &mut ReadHalf<'_>, buffer: &mut Buffer) {
    loop {
        buffer.consume(buffer.bytes().len());
        match buffer.fill(client, BULK_BYTES).await {
            Ok(0) => return pending().await,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

enum ForwardError {
    Client,
    ClientEnded,
    Upstream,
}

async fn forward(
    client: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    upstream: &mut WriteHalf<'_>,
    outgoing: &mut Outgoing,
    progress: &Progress,
) -> Result<(), ForwardError> {
    let first = upstream.write(&outgoing.bytes).await.map_err(|_| ForwardError::Upstream)?;
    progress.started.store(true, Relaxed);
    upstream.write_all(&outgoing.bytes[first..]).await.map_err(|_| ForwardError::Upstream)?;
    stream(client, buffer, upstream, &mut outgoing.rest).await.map_err(|broken| match broken {
        StreamError::Ended => ForwardError::ClientEnded,
        StreamError::Read => ForwardError::Client,
        StreamError::Write => ForwardError::Upstream,
    })
}

enum Received {
    Whole(ResponseHead),
    Refusal(ResponseHead),
    Unconfirmed(String),
}

enum Broken {
    Client,
    UpstreamBeforeAnswer,
    Upstream { reset: bool },
}

/// Passes the answer on. Header lines go out as they come, so that progress headers arrive while the query runs.
async fn receive(
    upstream: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    client: &mut WriteHalf<'_>,
    is_head: bool,
    marking: &Marking,
) -> Result<Received, Broken> {
    let mut out = Vec::new();
    let mut is_started = false;
    let mut holds_until = marking.is_refusable.then(|| Instant::now() + HELD);
    let head = loop {
        let mut lines = HeadLines { head: None, marking };
        let head = loop {
            if let Some(head) = lines.take(buffer, &mut out)? {
                break head;
            }
            if holds_until.is_none_or(|until| Instant::now() > until) && !out.is_empty() {
                holds_until = None;
                if let Err(reason) = marking.confirm().await {
                    return Ok(Received::Unconfirmed(reason));
                }
                client.write_all(&out).await.map_err(|_| Broken::Client)?;
                out.clear();
            }
            match buffer.fill(upstream, HEAD_BYTES_MAX).await {
                Ok(n) if n > 0 => is_started = true,
                _ if !is_started => return Err(Broken::UpstreamBeforeAnswer),
                broken => return Err(Broken::Upstream { reset: broken.is_err() }),
            }
        };
        if !head.is_interim() {
            break head;
        }
    };
    let is_error = head.status != 200 || head.exception_code.is_some();
    if holds_until.is_some() && is_error && head.exception_code != Some(QUERY_WAS_CANCELLED) {
        return Ok(Received::Refusal(head));
    }
    if let Err(reason) = marking.confirm().await {
        return Ok(Received::Unconfirmed(reason));
    }
    let mut body = head.body(is_head);
    let first = body.follow(&buffer.bytes()[..buffer.bytes().len().min(JOINED_BYTES_MAX)]);
    out.extend_from_slice(&buffer.bytes()[..first]);
    buffer.consume(first);
    client.write_all(&out).await.map_err(|_| Broken::Client)?;
    drop(out);
    match stream(upstream, buffer, client, &mut body).await {
        Ok(()) => Ok(Received::Whole(head)),
        Err(StreamError::Ended) if body == Body::UntilClose => Ok(Received::Whole(ResponseHead::closing(head.status))),
        Err(StreamError::Ended) => Err(Broken::Upstream { reset: false }),
        Err(StreamError::Read) => Err(Broken::Upstream { reset: true }),
        Err(StreamError::Write) => Err(Broken::Client),
    }
}

/// Reads a head line by line out of a buffer.
struct HeadLines<'a> {
    head: Option<ResponseHead>,
    marking: &'a Marking,
}

impl HeadLines<'_> {
    /// Moves all complete lines from `buffer` to `out`, the decision behind the first; the head at its blank line.
    fn take(&mut self, buffer: &mut Buffer, out: &mut Vec<u8>) -> Result<Option<ResponseHead>, Broken> {
        while let Some(end) = buffer.bytes().iter().position(|b| *b == b'\n') {
            let line = &buffer.bytes()[..=end];
            out.extend_from_slice(line);
            let text = line.trim_ascii_end();
            let is_blank = text.is_empty();
            match &mut self.head {
                None => {
                    // No HTTP answer: nothing that we could pass on in parts.
                    let head = ResponseHead::first_line(text).ok_or(Broken::Upstream { reset: true })?;
                    if let Some(decision) = self.marking.decision.as_deref().filter(|_| !head.is_interim()) {
                        out.extend_from_slice(decision_line(decision).as_bytes());
                    }
                    self.head = Some(head);
                }
                Some(_) if is_blank => {}
                Some(head) => head.header_line(text),
            }
            buffer.consume(end + 1);
            if is_blank {
                return Ok(self.head.take());
            }
        }
        Ok(None)
    }
}

/// Copies both ways until both sides have ended: for what is no HTTP/1 that we understand.
pub async fn tunnel(client: &mut Peer, upstream: &mut TcpStream) -> io::Result<()> {
    upstream.write_all(client.buffer.bytes()).await?;
    client.buffer.consume(client.buffer.bytes().len());
    tokio::io::copy_bidirectional(&mut client.stream, upstream).await.map(|_| ())
}

/// Ends a connection so that the last answer arrives: a close over unread bytes would reset it.
/// Reads on until the client ends too, is silent for a second, or has taken half a minute.
pub async fn close_gently(client: &mut Peer) {
    const SILENT: Duration = Duration::from_secs(1);
    const WHOLE: Duration = Duration::from_secs(30);
    if client.stream.shutdown().await.is_err() {
        return;
    }
    let mut scratch = vec![0; 16 << 10];
    let _ = tokio::time::timeout(WHOLE, async {
        while let Ok(Ok(n)) = tokio::time::timeout(SILENT, client.stream.read(&mut scratch)).await {
            if n == 0 {
                break;
            }
        }
    })
    .await;
}
