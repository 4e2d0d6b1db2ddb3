//! What the proxy knows of a query that arrived, whatever protocol brought it, and what was decided about it.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// A query as the client sent it, before anything was decided.
#[derive(Debug, Clone, Default)]
pub struct IncomingQuery {
    /// The whole SQL text as ClickHouse would see it (over HTTP: URL parameter and body joined).
    pub sql: String,
    /// The database that the request names; `None`: the user's default.
    pub database: Option<String>,
    /// Settings that came beside the text (URL parameters that are no parameter of the interface itself, native settings).
    pub settings: Vec<(String, String)>,
    /// Values of `{name:Type}` parameters (`param_name=..`).
    pub parameters: Vec<(String, String)>,
    /// The output format that the request names beside the text.
    pub format: Option<String>,
    pub identity: Arc<Identity>,
    /// The client's session, in which `SET` and temporary tables may change what a query means.
    pub session_id: Option<String>,
    pub wish: Wish,
}

/// Who asks: the credentials exactly as they came, so that a probe can be sent under the same user.
/// Two requests with equal identities have equal rights.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Identity {
    /// HTTP headers that carry credentials (`authorization`, `x-clickhouse-user`, `x-clickhouse-key`, ..), lower-case names.
    pub headers: Vec<(String, Vec<u8>)>,
    /// URL parameters that carry credentials or rights: `user`, `password`, `role` (repeatable), `quota_key`.
    pub url_parameters: Vec<(String, String)>,
}

/// What the client asked of Tributary itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    #[default]
    Normal,
    /// `tributary=off`: never accelerate this query.
    Off,
    /// `tributary=require`: a fallback to the raw tables is an error.
    Require,
}

/// What is sent to ClickHouse in place of the query, and why. The proxy, `explain`, the status page and the tests
/// all show this same value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The query goes through untouched.
    Raw { reason: String },
    /// `sql` is sent instead; it gives the same answer.
    View { views: Vec<String>, mode: Mode, sql: String },
    /// Not a SELECT at all (INSERT, DDL, ..): goes through untouched, and no decision header is added.
    NotAQuery,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// All rows come from views.
    Full,
    /// Some partitions are read raw in the same query.
    Hybrid,
}

impl Decision {
    /// The text of the `X-Tributary-Decision` header.
    pub fn header(&self) -> Option<String> {
        match self {
            Decision::Raw { reason } => Some(format!("raw; reason={reason}")),
            Decision::View { views, mode, .. } => {
                let mode = match mode {
                    Mode::Full => "full",
                    Mode::Hybrid => "hybrid",
                };
                Some(format!("view={}; mode={mode}", views.join(",")))
            }
            Decision::NotAQuery => None,
        }
    }
}

/// The promise to tell whether a decision holds. The error is the reason why the query must go to the raw tables after all.
#[derive(Debug, Clone)]
pub struct Confirmation {
    verdict: watch::Receiver<Option<Result<(), String>>>,
    /// Told when the answer has begun.
    begun: Arc<Notify>,
}

/// Whoever keeps the promise of a [`Confirmation`].
#[derive(Debug)]
pub struct Confirming {
    verdict: watch::Sender<Option<Result<(), String>>>,
    begun: Arc<Notify>,
}

impl Confirmation {
    pub fn new() -> (Confirming, Self) {
        let (sender, verdict) = watch::channel(None);
        let begun = Arc::new(Notify::new());
        (Confirming { verdict: sender, begun: begun.clone() }, Self { verdict, begun })
    }

    /// Waits for the verdict. To be called when ClickHouse has begun to answer the rewritten query: then it has picked the
    /// parts that it reads.
    pub async fn confirm(&self) -> Result<(), String> {
        self.begun.notify_one();
        match self.verdict.clone().wait_for(Option::is_some).await {
            Ok(verdict) => verdict.clone().unwrap_or(Ok(())),
            Err(_) => Err("the look at the sources was abandoned".into()),
        }
    }
}

impl Confirming {
    /// Waits until ClickHouse has begun to answer; `false`: nobody waits for the verdict any more.
    pub async fn begun(&self) -> bool {
        tokio::select! {
            () = self.begun.notified() => true,
            () = self.verdict.closed() => false,
        }
    }

    pub fn tell(self, verdict: Result<(), String>) {
        self.verdict.send_replace(Some(verdict));
    }
}

/// A decision, which may have been made ahead of the look that proves it. No byte of an answer may reach the client
/// before the confirmation does.
#[derive(Debug, Clone)]
pub struct Decided {
    pub decision: Decision,
    pub confirmation: Option<Confirmation>,
}

impl From<Decision> for Decided {
    fn from(decision: Decision) -> Self {
        Self { decision, confirmation: None }
    }
}
