//! Shadow verification: a share of the answers from views is compared, in the background, with the raw tables' answer of the
//! same moment. A view that differs is quarantined: from then on its queries go to the raw tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::Semaphore;

use super::client::{HttpUpstream, ProbeError};
use super::differences::{FORMAT, difference, unjudgeable, without_format};
use super::query::IncomingQuery;
use crate::maintain::look::{Coverage, Look, Looker};
use crate::matching::view::View;
use crate::sql::tree::Statement;

/// Comparisons at the same time. While one runs, other answers are not compared.
const COMPARISONS_MAX: usize = 1;

/// A view that gave a wrong answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    pub view: String,
    /// The runs of then: when none of them is live any more, the view is trusted again.
    pub runs: Vec<u64>,
    pub query: String,
    pub rewritten: String,
    /// The first differing rows, the raw tables' first.
    pub difference: String,
}

/// Which share of the answers is compared, and what was found.
#[derive(Debug)]
pub struct Shadow {
    /// The bits of a number from 0 to 1.
    share: AtomicU64,
    answers: AtomicU64,
    running: Semaphore,
    /// By storage table.
    quarantined: DashMap<String, Quarantined>,
}

/// An answer from views to be compared.
pub struct Subject {
    pub query: IncomingQuery,
    pub statement: Statement,
    pub database: String,
    pub rewritten: String,
    pub views: Vec<String>,
    /// Their storage tables.
    pub storages: Vec<String>,
    /// The look by which the answer was decided.
    pub look: Arc<Look>,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Same,
    Differs(String),
    /// Why nothing can be told.
    Unclear(String),
}

impl Shadow {
    /// `share`: 0 none, 1 all of the answers.
    pub fn new(share: f64) -> Self {
        let (answers, running) = (AtomicU64::new(0), Semaphore::new(COMPARISONS_MAX));
        Self { share: AtomicU64::new(share.to_bits()), answers, running, quarantined: DashMap::new() }
    }

    /// Compares another share of the answers from now on.
    pub fn take_share(&self, share: f64) {
        self.share.store(share.to_bits(), Ordering::Relaxed);
    }

    /// Whether this answer is to be compared: evenly spread, without dice.
    pub fn takes_next(&self) -> bool {
        let share = f64::from_bits(self.share.load(Ordering::Relaxed));
        let before = self.answers.fetch_add(1, Ordering::Relaxed) as f64;
        ((before + 1.0) * share).floor() > (before * share).floor()
    }

    /// Why a view whose live runs are these does not answer. Forgets what is over.
    pub fn refusal(&self, view: &View, runs: &[u64]) -> Option<String> {
        let is_over = |found: &Quarantined| !found.runs.iter().any(|run| runs.contains(run));
        self.quarantined.remove_if(&view.storage, |_, found| is_over(found));
        let is_quarantined = self.quarantined.contains_key(&view.storage);
        is_quarantined.then(|| format!("quarantined: view {} gave another answer than its sources", view.name))
    }

    /// The last wrong answer of every view that gave one and has one of these storage tables.
    pub fn quarantined(&self, storages: &[&str]) -> Vec<Quarantined> {
        storages.iter().filter_map(|storage| Some(self.quarantined.get(*storage)?.clone())).collect()
    }

    /// Compares one answer, unless another comparison is under way, and draws the consequences.
    pub async fn verify(&self, client: &HttpUpstream, looker: &Looker, subject: &Subject) {
        let Ok(_running) = self.running.try_acquire() else { return };
        match compare(client, looker, subject).await {
            Finding::Same => tracing::debug!("an answer from {} was compared: the same", subject.views.join(", ")),
            Finding::Unclear(why) => {
                tracing::debug!("an answer from {} was not compared: {why}", subject.views.join(", "))
            }
            Finding::Differs(difference) => {
                tracing::error!(
                    "wrong answer from {}, which will not be used until rebuilt in full\n  query: {}\n  sent: {}\n  raw \
                     tables and view: {difference}",
                    subject.views.join(", "),
                    subject.query.sql,
                    subject.rewritten,
                );
                for storage in &subject.storages {
                    let Some(sight) = subject.look.sight(storage) else { continue };
                    let runs = match &sight.coverage {
                        Coverage::Covered(covered) | Coverage::Partial(covered, _) => covered.runs.clone(),
                        Coverage::Stale(_) => continue,
                    };
                    let view = sight.view.clone();
                    let (query, rewritten) = (subject.query.sql.clone(), subject.rewritten.clone());
                    let found = Quarantined { view, runs, query, rewritten, difference: difference.clone() };
                    self.quarantined.insert(storage.clone(), found);
                }
            }
        }
    }
}

/// Runs a query and its rewrite between two looks that show the same. The query itself runs twice: if it gives two answers,
/// nothing follows from a third.
pub async fn compare(client: &HttpUpstream, looker: &Looker, subject: &Subject) -> Finding {
    if let Some(why) = unjudgeable(&subject.statement) {
        return Finding::Unclear(why);
    }
    if subject.query.session_id.is_some() {
        return Finding::Unclear("a session is for one query at a time".into());
    }
    match run(client, looker, subject).await {
        Ok([raw, again, rewritten]) => match (difference(&raw, &again), difference(&raw, &rewritten)) {
            (Ok(None), Ok(None)) => Finding::Same,
            (Ok(None), Ok(Some(difference))) => Finding::Differs(difference),
            (Ok(Some(_)), _) => Finding::Unclear("the query itself gives another answer each time".into()),
            (Err(error), _) | (_, Err(error)) => Finding::Unclear(error.to_string()),
        },
        Err(why) => Finding::Unclear(why),
    }
}

/// The raw answer, the raw answer again, and that of the rewrite.
async fn run(client: &HttpUpstream, looker: &Looker, subject: &Subject) -> Result<[Bytes; 3], String> {
    let storages: Vec<&str> = subject.storages.iter().map(String::as_str).collect();
    let look = async || looker.look_anew(&storages).await.map_err(|e| e.to_string());
    let ask = async |sql: &str| ask(client, subject, sql).await.map_err(|e| e.to_string());
    let before = look().await?;
    storages.iter().try_for_each(|storage| before.confirms(&subject.look, storage))?;
    let raw = ask(&subject.query.sql).await?;
    let rewritten = ask(&subject.rewritten).await?;
    let again = ask(&subject.query.sql).await?;
    let after = look().await?;
    match storages.iter().all(|storage| after.shows_same(&before, storage)) {
        true => Ok([raw, again, rewritten]),
        false => Err("the tables changed meanwhile".into()),
    }
}

/// Under the credentials of the client, as his query ran.
async fn ask(client: &HttpUpstream, subject: &Subject, sql: &str) -> Result<Bytes, ProbeError> {
    let query = &subject.query;
    let parameters: Vec<(String, &str)> =
        query.parameters.iter().map(|(name, value)| (format!("param_{name}"), value.as_str())).collect();
    let mut settings = vec![("database", subject.database.as_str()), ("default_format", FORMAT)];
    settings.extend(parameters.iter().map(|(name, value)| (name.as_str(), *value)));
    let sql = if subject.statement.format.is_some() { without_format(sql) } else { sql.to_string() };
    client.probe(&query.identity, None, &sql, &settings).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_answers_is_taken_evenly() {
        let taken = |share: f64| {
            let shadow = Shadow::new(share);
            (0..100).filter(|_| shadow.takes_next()).count()
        };
        assert_eq!([taken(0.0), taken(0.01), taken(0.3), taken(1.0)], [0, 1, 30, 100]);
    }
}
