//! The names and types of a block's result, compared with those of its rewrite once for every shape of query.
//!
//! The names that ClickHouse gives to unnamed columns (`sum(x * 2)` is `sum(multiply(x, 2))`) are taken from the server,
//! never guessed; a rewrite whose types differ is never used.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use serde::Deserialize;

use super::client::{HttpUpstream, ProbeError};
use super::decide::Choice;
use super::query::{Identity, IncomingQuery, Mode};
use crate::matching::plan::PlannedBlock;
use crate::sql::lexer::{TokenKind, lex};

/// A shape is compared again after this time, since tables may get columns that change what a name means.
const SHAPE_AGE_MAX: Duration = Duration::from_secs(60);

/// Shapes kept; beyond this the cache is emptied.
const SHAPES_MAX: usize = 10_000;

/// A result column as DESCRIBE shows it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResultColumn {
    pub name: String,
    #[serde(rename = "type")]
    pub type_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Shape {
    identity: Identity,
    database: String,
    /// Name of the view's storage table.
    storage: String,
    mode: Mode,
    text: String,
    /// Under which the types are compared.
    settings: Vec<(String, String)>,
}

/// Names of the result columns, or why the rewrite is not used.
type Verdict = Result<Vec<String>, String>;

pub struct Shapes {
    upstream: HttpUpstream,
    known: DashMap<Shape, (Instant, Verdict)>,
}

impl Shapes {
    pub fn new(upstream: HttpUpstream) -> Self {
        Self { upstream, known: DashMap::new() }
    }

    /// The names of the block's result columns, if the text that `rewrite` makes of them has the same names and types
    /// under some settings.
    pub async fn names(
        &self,
        query: &IncomingQuery,
        database: &str,
        block: &PlannedBlock,
        choice: &Choice<'_>,
        settings: &[(String, String)],
        rewrite: impl Fn(&[String]) -> String,
    ) -> Verdict {
        let shape = Shape {
            identity: (*query.identity).clone(),
            database: database.into(),
            storage: choice.view.storage.clone(),
            mode: choice.mode(),
            text: shape_text(query, block),
            settings: settings.to_vec(),
        };
        if let Some(known) = self.known.get(&shape)
            && known.0.elapsed() < SHAPE_AGE_MAX
        {
            return known.1.clone();
        }
        let asked_at = Instant::now();
        let verdict = match self.compare(query, database, block, settings, rewrite).await {
            Ok(verdict) => verdict,
            Err(ProbeError::Refused { message, .. }) => Err(first_line(&message)),
            Err(error @ ProbeError::Unreachable { .. }) => return Err(error.to_string()),
        };
        if self.known.len() >= SHAPES_MAX {
            self.known.clear();
        }
        self.known.insert(shape, (asked_at, verdict.clone()));
        verdict
    }

    async fn compare(
        &self,
        query: &IncomingQuery,
        database: &str,
        block: &PlannedBlock,
        settings: &[(String, String)],
        rewrite: impl Fn(&[String]) -> String,
    ) -> Result<Verdict, ProbeError> {
        let describe = |sql: String| async move { self.describe(query, database, settings, &sql).await };
        let wanted = describe(query.sql[block.span.clone()].to_string()).await?;
        // A sub-query that names something of the block around it cannot be described alone.
        for range in &block.block.subqueries {
            let inner = &query.sql[range.start + 1..range.end - 1];
            describe(inner.to_string()).await?;
        }
        let names: Vec<String> = wanted.iter().map(|column| column.name.clone()).collect();
        let got = describe(rewrite(&names)).await?;
        let different = wanted.iter().zip(&got).find(|(a, b)| a != b);
        Ok(match different {
            _ if wanted.len() != got.len() => Err("the rewrite has another number of columns".into()),
            Some((a, b)) => Err(format!("{} is {} in the query and {} in the view", a.name, a.type_name, b.type_name)),
            None => Ok(names),
        })
    }

    async fn describe(
        &self,
        query: &IncomingQuery,
        database: &str,
        under: &[(String, String)],
        sql: &str,
    ) -> Result<Vec<ResultColumn>, ProbeError> {
        let text = format!("DESCRIBE TABLE ({sql}) FORMAT JSONEachRow");
        let parameters: Vec<(String, &str)> =
            query.parameters.iter().map(|(name, value)| (format!("param_{name}"), value.as_str())).collect();
        let mut settings = vec![("database", database)];
        settings.extend(under.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        settings.extend(parameters.iter().map(|(name, value)| (name.as_str(), *value)));
        let answer = self.upstream.probe(&query.identity, query.session_id.as_deref(), &text, &settings).await?;
        answer
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                serde_json::from_slice(line).map_err(|e| ProbeError::Unreachable {
                    address: self.upstream.address().into(),
                    message: format!("an answer that is not understood: {e}"),
                })
            })
            .collect()
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_string()
}

/// A block's text without the literals of its filters, which change neither names nor types. The SELECT list is kept as
/// it is, and so are the values of parameters, which show in names, and sub-queries that are part of the block.
fn shape_text(query: &IncomingQuery, block: &PlannedBlock) -> String {
    let text = &query.sql[block.span.clone()];
    if block.block.is_merged {
        return format!("{text} {:?}", query.parameters);
    }
    let list_end = block.block.outputs.iter().map(|o| o.span.end).max().unwrap_or(block.span.end) - block.span.start;
    let mut out = String::with_capacity(text.len());
    for token in lex(text).map(|lexed| lexed.tokens).unwrap_or_default() {
        let is_literal = matches!(token.kind, TokenKind::Number | TokenKind::Text);
        match token.kind {
            TokenKind::Number if is_literal && token.start >= list_end => out.push('0'),
            TokenKind::Text if is_literal && token.start >= list_end => out.push_str("''"),
            _ => out.push_str(token.text(text)),
        }
        out.push(' ');
    }
    for (name, value) in &query.parameters {
        out.push_str(&format!("{name}={value}\n"));
    }
    out
}
