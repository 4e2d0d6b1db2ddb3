//! Runs the 26 queries straight against ClickHouse and through Tributary, compares the answers, and takes medians.
//!
//! Both ways send the very same request over a kept-alive connection, one after the other, alternating, after one
//! unmeasured run each. A time spans from sending the request to the last byte of the answer. `wait_end_of_query=1`
//! makes ClickHouse's summary of rows read complete.

use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, header::HeaderValue};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use url::Url;

use super::report::{Measured, Report};
use super::{Form, PROJECTED_TABLE, QUERIES, Query, Scale};
use crate::config::UpstreamConfig;

const FORMAT: &str = "TabSeparatedWithNamesAndTypes";
/// Lines before the rows: names and types.
const HEADER_LINES: usize = 2;
const SUMMARY_HEADER: &str = "x-clickhouse-summary";
const DECISION_HEADER: &str = "x-tributary-decision";

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    pub scale: Scale,
    /// ClickHouse itself; its database is the one with the benchmark's tables.
    pub raw: UpstreamConfig,
    /// Tributary's HTTP listener.
    pub tributary: Url,
    /// Measured runs of each query each way; the median counts.
    pub runs: usize,
    /// What `SELECT version()` says there.
    pub clickhouse: String,
    /// Also run the flat queries on the table with projections.
    pub projections: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("{form} {query} at {url}: {message}", form = query.form.name(), query = query.name)]
    Query { query: Query, url: Url, message: String },
    #[error("'{0}' cannot be put into an HTTP request")]
    Request(Url),
}

/// One answered query.
struct Answer {
    body: Bytes,
    ms: f64,
    rows_read: u64,
    /// Name of the view in Tributary's decision header.
    view: Option<String>,
}

#[derive(Deserialize)]
struct Summary {
    read_rows: String,
}

/// Measures all queries; `progress` is told each query before it runs.
pub async fn measure(plan: &Plan, mut progress: impl FnMut(&Query)) -> Result<Report, MeasureError> {
    let raw = Endpoint::new(&plan.raw.url, &plan.raw);
    let tributary = Endpoint::new(&plan.tributary, &plan.raw);
    let mut measured = Vec::with_capacity(QUERIES.len());
    for query in QUERIES {
        progress(query);
        measured.push(measure_query(plan, query, &raw, &tributary).await?);
    }
    Ok(Report::new(plan, measured))
}

async fn measure_query(
    plan: &Plan,
    query: &Query,
    raw: &Endpoint,
    tributary: &Endpoint,
) -> Result<Measured, MeasureError> {
    let projected =
        (plan.projections && query.form == Form::Flat).then(|| query.sql.replace("lineorder_flat", PROJECTED_TABLE));
    let (expected, first) = (raw.ask(query, query.sql).await?, tributary.ask(query, query.sql).await?);
    if let Some(sql) = &projected {
        raw.ask(query, sql).await?;
    }
    let mut identical = same_answer(query, &expected.body, &first.body);
    let mut accelerated = first.view.is_some();
    let (mut raw_ms, mut tributary_ms, mut projection_ms) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        raw_ms.push(raw.ask(query, query.sql).await?.ms);
        let answer = tributary.ask(query, query.sql).await?;
        tributary_ms.push(answer.ms);
        identical &= same_answer(query, &expected.body, &answer.body);
        accelerated &= answer.view.is_some();
        if let Some(sql) = &projected {
            projection_ms.push(raw.ask(query, sql).await?.ms);
        }
    }
    let (raw_ms, tributary_ms) = (median(raw_ms), median(tributary_ms));
    Ok(Measured {
        form: query.form,
        name: query.name,
        raw_ms,
        tributary_ms,
        projection_ms: projected.map(|_| median(projection_ms)),
        speedup: raw_ms / tributary_ms,
        identical,
        accelerated,
        view: first.view,
        rows_read_raw: expected.rows_read,
        rows_read: first.rows_read,
    })
}

/// An HTTP interface with the parameters of every request to it.
struct Endpoint {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Url,
    user: String,
    password: String,
}

impl Endpoint {
    fn new(url: &Url, config: &UpstreamConfig) -> Self {
        let mut url = url.clone();
        url.query_pairs_mut()
            .append_pair("database", &config.database)
            .append_pair("default_format", FORMAT)
            .append_pair("wait_end_of_query", "1");
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, url, user: config.user.clone(), password: config.password.clone() }
    }

    async fn ask(&self, query: &Query, sql: &str) -> Result<Answer, MeasureError> {
        let failed = |message: String| MeasureError::Query {
            query: *query,
            url: self.url.clone(),
            message: message.trim().into(),
        };
        let request = Request::post(self.url.as_str())
            .header("X-ClickHouse-User", &self.user)
            .header("X-ClickHouse-Key", &self.password)
            .body(Full::new(Bytes::copy_from_slice(sql.as_bytes())))
            .map_err(|_| MeasureError::Request(self.url.clone()))?;
        let start = Instant::now();
        let response = self.client.request(request).await.map_err(|e| failed(e.to_string()))?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| failed(e.to_string()))?.to_bytes();
        let ms = start.elapsed().as_secs_f64() * 1000.0;
        if !head.status.is_success() {
            return Err(failed(String::from_utf8_lossy(&body).into_owned()));
        }
        Ok(Answer { body, ms, rows_read: rows_read(&head.headers), view: view(&head.headers) })
    }
}

/// Rows that ClickHouse says it read; 0 when it does not say.
fn rows_read(headers: &HeaderMap<HeaderValue>) -> u64 {
    let summary =
        headers.get(SUMMARY_HEADER).and_then(|value| serde_json::from_slice::<Summary>(value.as_bytes()).ok());
    summary.and_then(|summary| summary.read_rows.parse().ok()).unwrap_or_default()
}

/// `flat_brands` out of `view=flat_brands; mode=full`.
fn view(headers: &HeaderMap<HeaderValue>) -> Option<String> {
    let decision = headers.get(DECISION_HEADER)?.to_str().ok()?;
    Some(decision.split(';').next()?.trim().strip_prefix("view=")?.to_string())
}

/// Whether two answers are the same: names, types, rows, and the order of the rows as far as the query fixes it. Where it
/// leaves ties open, the ordering columns (the last two) must come in the same order, and the rows be the same set.
fn same_answer(query: &Query, one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    if !query.has_ties() {
        return false;
    }
    let parts = |body: &[u8]| {
        let text = String::from_utf8_lossy(body).into_owned();
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        let rows = lines[HEADER_LINES.min(lines.len())..].to_vec();
        let order: Vec<String> =
            rows.iter().map(|row| row.rsplit('\t').take(2).collect::<Vec<_>>().join("\t")).collect();
        let mut sorted = rows;
        sorted.sort_unstable();
        (lines.into_iter().take(HEADER_LINES).collect::<Vec<_>>(), order, sorted)
    };
    parts(one) == parts(other)
}

/// The middle value, or the mean of the two middle ones.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str) -> &'static Query {
        QUERIES.iter().find(|query| query.name == name).unwrap()
    }

    #[test]
    fn ties_may_come_in_any_order_but_nothing_else_may_differ() {
        let head = "C\tS\tyear\trevenue\nString\tString\tUInt16\tUInt64\n";
        let body = |rows: &str| format!("{head}{rows}").into_bytes();
        let same = |a: &str, b: &str| same_answer(query("q3.1"), &body(a), &body(b));
        assert!(same("a\tx\t1992\t9\nb\ty\t1992\t9\n", "b\ty\t1992\t9\na\tx\t1992\t9\n"));
        assert!(!same("a\tx\t1992\t9\nb\ty\t1992\t8\n", "b\ty\t1992\t8\na\tx\t1992\t9\n"), "not in order");
        assert!(!same("a\tx\t1992\t9\n", "a\tx\t1992\t9\na\tx\t1992\t9\n"), "a row twice");
        assert!(!same("a\tx\t1992\t9\n", "a\tx\t1992\t7\n"), "another value");
        assert!(!same_answer(query("q3.1"), &body(""), b"C\tS\tyear\trevenue\nString\tString\tUInt16\tInt64\n"));
        assert!(!same_answer(query("q2.1"), b"n\nt\n1\n2\n", b"n\nt\n2\n1\n"), "q2 fixes the order");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }
}
