//! What must be known of a client before its query may be answered from a view, asked under its own credentials.

use std::time::{Duration, Instant};

use dashmap::DashMap;
use serde::Deserialize;

use super::client::{HttpUpstream, ProbeError};
use super::query::{Identity, IncomingQuery};
use crate::matching::schema::TableName;
use crate::sql::lexer::backquote;

/// For how long rights and profiles of a user are taken as known. A change of grants takes effect within this time.
const FACTS_AGE_MAX: Duration = Duration::from_secs(10);

/// Entries kept; beyond this the cache is emptied, so that changing credentials cannot fill the memory.
const ENTRIES_MAX: usize = 10_000;

/// A client's own view of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Facts {
    pub user: String,
    /// Where unqualified tables are looked up when the request names no database.
    pub database: String,
    pub roles: Vec<String>,
    /// Settings that profiles, or SET in a session, have changed.
    pub settings: Vec<String>,
    /// Names of temporary tables of the session, which hide others.
    pub temporary_tables: Vec<String>,
}

/// Why a client may not be answered from a view of a table; the query then goes to the table itself, which gives
/// ClickHouse's own answer or error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAccess {
    /// ClickHouse's own refusal, its first line.
    Refused(String),
    /// A row policy or another filter is put over the user's reads.
    Filtered,
    /// The plan of a plain read was not understood.
    Unclear,
}

/// Facts and rights, asked for once and kept for a short time.
pub struct Clients {
    upstream: HttpUpstream,
    facts: DashMap<Identity, (Instant, Facts)>,
    #[allow(clippy::type_complexity)]
    access: DashMap<(Identity, Vec<String>, TableName, Vec<String>), (Instant, Result<(), NoAccess>)>,
}

impl Clients {
    pub fn new(upstream: HttpUpstream) -> Self {
        Self { upstream, facts: DashMap::new(), access: DashMap::new() }
    }

    /// The facts about the sender of `query`. In a session they are asked for each time, since any statement may have
    /// changed them.
    pub async fn facts(&self, query: &IncomingQuery) -> Result<Facts, ProbeError> {
        let session = query.session_id.as_deref();
        if session.is_none()
            && let Some(known) = self.facts.get(&*query.identity)
            && known.0.elapsed() < FACTS_AGE_MAX
        {
            return Ok(known.1.clone());
        }
        let asked_at = Instant::now();
        let temporary = match session {
            Some(_) => "(SELECT groupArray(name) FROM system.tables WHERE is_temporary)",
            None => "CAST([], 'Array(String)')",
        };
        let sql = format!(
            "SELECT currentUser() AS user, currentDatabase() AS database, enabledRoles() AS roles, \
             groupArray(name) AS settings, {temporary} AS temporary_tables FROM system.settings WHERE changed \
             FORMAT JSONEachRow"
        );
        let answer = self.upstream.probe(&query.identity, session, &sql, &[]).await?;
        let facts: Facts = serde_json::from_slice(&answer).map_err(|e| ProbeError::Unreachable {
            address: self.upstream.address().into(),
            message: format!("an answer that is not understood: {e}"),
        })?;
        if session.is_none() {
            if self.facts.len() >= ENTRIES_MAX {
                self.facts.clear();
            }
            self.facts.insert((*query.identity).clone(), (asked_at, facts.clone()));
        }
        Ok(facts)
    }

    /// Whether the client may read these columns of a table, all rows of it. ClickHouse checks grants when it makes a
    /// plan, and the plan shows the filters of row policies.
    pub async fn access(
        &self,
        query: &IncomingQuery,
        roles: &[String],
        table: &TableName,
        columns: &[String],
    ) -> Result<(), NoAccess> {
        let key = ((*query.identity).clone(), roles.to_vec(), table.clone(), columns.to_vec());
        if let Some(known) = self.access.get(&key)
            && known.0.elapsed() < FACTS_AGE_MAX
        {
            return known.1.clone();
        }
        let asked_at = Instant::now();
        let list: Vec<String> = columns.iter().map(|c| backquote(c)).collect();
        let list = if list.is_empty() { "count()".into() } else { list.join(", ") };
        let sql = format!(
            "EXPLAIN actions = 1 SELECT {list} FROM {}.{} FORMAT TabSeparatedRaw",
            backquote(&table.database),
            backquote(&table.table)
        );
        let outcome = match self.upstream.probe(&query.identity, query.session_id.as_deref(), &sql, &[]).await {
            Ok(plan) => judge_plan(&String::from_utf8_lossy(&plan)),
            Err(ProbeError::Refused { message, .. }) => {
                Err(NoAccess::Refused(message.lines().next().unwrap_or_default().to_string()))
            }
            // Not an answer about rights: not kept.
            Err(ProbeError::Unreachable { .. }) => return Err(NoAccess::Unclear),
        };
        if self.access.len() >= ENTRIES_MAX {
            self.access.clear();
        }
        self.access.insert(key, (asked_at, outcome.clone()));
        outcome
    }
}

/// Reads the plan of a plain SELECT: it must read the table's parts (or take the number of rows from them, which
/// ClickHouse does only without a row policy), and filter nothing.
fn judge_plan(plan: &str) -> Result<(), NoAccess> {
    if plan.to_ascii_lowercase().contains("filter") {
        return Err(NoAccess::Filtered);
    }
    let plain = plan.contains("ReadFromMergeTree") || plan.contains("Optimized trivial count");
    if plain { Ok(()) } else { Err(NoAccess::Unclear) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_tell_filters() {
        let plain = "Output: a\n\nReadFromMergeTree (d.t)\n   Read type: Default\n   Output: a\n";
        assert_eq!(judge_plan(plain), Ok(()));
        let policy = format!("{plain}   Row level filter\n   Row level filter column:  a = 1\n");
        assert_eq!(judge_plan(&policy), Err(NoAccess::Filtered));
        assert_eq!(judge_plan("ReadNothing"), Err(NoAccess::Unclear));
    }
}
