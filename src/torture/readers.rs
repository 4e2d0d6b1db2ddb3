//! Those who ask, and check every answer.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use url::Url;

use super::changes::Stop;
use super::cube::PRODUCTS;
use super::oracle::{self, Verdict, Witnesses};
use super::random::Random;
use super::report::{Fault, Seen};
use super::shape::{SHAPES, Shape};
use super::sidecars::{Address, Sidecars};
use super::stage::{DATABASE, Stage};

const DECISION_HEADER: &str = "x-tributary-decision";
const QUERY_ID_HEADER: &str = "x-clickhouse-query-id";
const FORMAT: &str = "TabSeparatedWithNamesAndTypes";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sidecars that are killed under one query, one after the other, before that is strange.
const ATTEMPTS_MAX: usize = 20;

/// How a query was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Raw,
    View,
    Hybrid,
}

struct Answer {
    text: String,
    decision: String,
    way: Way,
    /// Under which ClickHouse logs what it was sent.
    query_id: String,
}

#[derive(Deserialize)]
struct LogLine {
    line: String,
}

pub struct Reader<'a> {
    stage: &'a Stage,
    sidecars: &'a Sidecars,
    seen: &'a Seen,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl<'a> Reader<'a> {
    pub fn new(stage: &'a Stage, sidecars: &'a Sidecars, seen: &'a Seen) -> Self {
        Self { stage, sidecars, seen, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Asks queries by chance until told to stop.
    pub async fn read(&self, mut random: Random, stop: Stop) {
        while !*stop.borrow() {
            let shape = Shape::by_chance(random.below(SHAPES), &mut random);
            self.ask_any(&shape, &mut random).await;
            tokio::time::sleep(Duration::from_millis(random.between(0, 30) as u64)).await;
        }
    }

    /// Asks one of the sidecars, and another when the first was killed meanwhile.
    async fn ask_any(&self, shape: &Shape, random: &mut Random) {
        for _ in 0..ATTEMPTS_MAX {
            let addresses = self.sidecars.addresses();
            if addresses.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let address = &addresses[random.below(addresses.len())];
            if self.ask(shape, address).await.is_some() {
                return;
            }
            self.seen.retried();
        }
        self.seen.fault(Fault::failed(shape, "no sidecar", "no sidecar lived long enough to answer".into()));
    }

    /// Asks one sidecar, judges its answer, and tells its decision; `None` when it was killed meanwhile.
    pub async fn ask(&self, shape: &Shape, address: &Address) -> Option<String> {
        let (query, arrival) = {
            let mut history = self.stage.history();
            let now = self.stage.now();
            (history.ask(now), now)
        };
        let answer = self.send(&shape.sql(), &address.url).await;
        let outcome = match answer {
            Ok(answer) => {
                self.judge(shape, address, arrival, &answer).await;
                Some(answer.decision)
            }
            Err(_) if !self.sidecars.is_alive(address) => None,
            Err(message) => {
                self.seen.fault(Fault::failed(shape, &format!("sidecar {}", address.sidecar), message));
                Some("none, as it failed".into())
            }
        };
        self.stage.history().answered(query);
        outcome
    }

    async fn judge(&self, shape: &Shape, address: &Address, arrival: u64, answer: &Answer) {
        let (witnesses, window) = {
            let history = self.stage.history();
            let window = (arrival, self.stage.now());
            (Witnesses::of(&history, shape, window), window)
        };
        let verdict = witnesses.judge(shape, &answer.text);
        if verdict == Verdict::Wrong {
            let evidence = oracle::evidence(&self.stage.history(), shape, &answer.text, window, &witnesses);
            let mut fault = Fault::wrong(shape, address.sidecar, &answer.decision, &answer.text, window, evidence);
            fault.sent = self.sent(&answer.query_id).await;
            self.seen.fault(fault);
        }
        self.seen.answer(shape, answer.way, &answer.decision, verdict, window);
    }

    async fn send(&self, sql: &str, url: &str) -> Result<Answer, String> {
        let mut url = Url::parse(url).map_err(|e| e.to_string())?;
        url.query_pairs_mut().append_pair("database", DATABASE).append_pair("default_format", FORMAT);
        let body = Full::new(Bytes::copy_from_slice(sql.as_bytes()));
        let request = Request::post(url.as_str()).body(body).map_err(|e| e.to_string())?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|e| format!("{e:?}"))?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|e| format!("{e:?}"))?.to_bytes();
            let text = String::from_utf8_lossy(&body).into_owned();
            if !head.status.is_success() || text.contains("DB::Exception") {
                return Err(format!("{}: {text}", head.status));
            }
            let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let decision = header(DECISION_HEADER);
            let (decision, query_id) = (decision.to_string(), header(QUERY_ID_HEADER).to_string());
            Ok(Answer { text, way: way(&decision), decision, query_id })
        };
        let timeout = |_| format!("no answer within {} s", TIMEOUT.as_secs());
        tokio::time::timeout(TIMEOUT, exchange).await.map_err(timeout)?
    }

    /// What ClickHouse was sent in place of a query, and when; best effort.
    async fn sent(&self, query_id: &str) -> Vec<String> {
        let _ = self.stage.upstream.execute("SYSTEM FLUSH LOGS").await;
        let sql = format!(
            "SELECT toString(query_start_time_microseconds) || ' ' || toString(query_duration_ms) || ' ms: ' || query \
             AS line FROM system.query_log WHERE type = 'QueryFinish' AND query_id = '{query_id}' ORDER BY line"
        );
        let lines = self.stage.upstream.rows::<LogLine>(&sql).await.unwrap_or_default();
        lines.into_iter().map(|line| line.line).collect()
    }

    /// When nothing changes any more: whether the history knows what the tables hold. If it did not, its verdicts would
    /// mean nothing.
    pub async fn check_history(&self, random: &mut Random) -> Result<(), String> {
        let direct = self.stage.upstream.config().url.to_string();
        for number in 0..SHAPES {
            let shape = Shape::by_chance(number, random);
            let answer = self.send(&shape.sql(), &direct).await?;
            let history = self.stage.history();
            let assortment = history.stocked.back().map_or([None; PRODUCTS], |stocked| stocked.assortment);
            let mut groups = shape.project(&history.settled, &assortment);
            history.changes.iter().for_each(|change| groups.add(&shape.project(&change.delta, &assortment), 1));
            let expected = shape.answer(&groups);
            if expected != answer.text {
                return Err(format!(
                    "the tables do not hold what was written to them: {}\n{}\nexpected\n{expected}",
                    shape.sql(),
                    answer.text
                ));
            }
        }
        Ok(())
    }
}

/// `view=daily; mode=hybrid`, or `raw; reason=..`
fn way(decision: &str) -> Way {
    match decision.strip_prefix("view=") {
        Some(rest) if rest.ends_with("mode=hybrid") => Way::Hybrid,
        Some(_) => Way::View,
        None => Way::Raw,
    }
}
