//! The sources of one view, seen with all that building from them takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::coverage::{self, Parts, SourceSeen};
use super::observe::{Observer, RowPolicy};
use super::rebuild::RebuildError;
use crate::config::Consistency;
use crate::matching::schema::TableName;
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;

/// An ALTER under way is waited for this long, and so is a server that has just been started: see
/// [`TableRow::server_started_at`](super::observe::TableRow::server_started_at).
const ALTER_WAIT: Duration = Duration::from_secs(60);
const ALTER_POLL: Duration = Duration::from_millis(500);

/// The sources as they are now, contents' hashes included. Waits for ALTERs to end, and for a young server.
pub async fn look(
    upstream: &Upstream,
    observer: &Observer,
    view: &CatalogView,
) -> Result<Vec<SourceSeen>, RebuildError> {
    let tables = &view.view.tables;
    let until = Instant::now() + ALTER_WAIT;
    let rows = loop {
        let rows = observer.tables(tables, observer.clock().await?).await?;
        let young = rows.values().any(|row| row.server_started_at().is_none());
        let pending = rows.values().find(|row| row.alter_pending);
        let Some(pending) = pending else {
            if !young || Instant::now() > until {
                break rows;
            }
            tokio::time::sleep(ALTER_POLL).await;
            continue;
        };
        if Instant::now() > until {
            let reason = "an ALTER has not reached all its parts".to_string();
            return Err(RebuildError::Source { table: pending.name().to_string(), reason });
        }
        tokio::time::sleep(ALTER_POLL).await;
    };
    let definitions = observer.definitions(tables).await?;
    refuse_policies(upstream, observer, &observer.policies().await?, tables).await?;
    let mut parts = observer.parts(tables, true).await?;
    let manual = view.declaration.consistency() == Consistency::Manual;
    let mut seen = Vec::new();
    for source in view.target().sources {
        let refuse = |reason: &str| {
            let table = source.table.to_string();
            Err(RebuildError::Source { table, reason: reason.into() })
        };
        let (Some(row), Some(definition)) = (rows.get(&source.table), definitions.get(&source.table)) else {
            return refuse("it does not exist");
        };
        if !manual && !row.keeps_parts() {
            return refuse(&format!("engine {} keeps no parts", row.engine));
        }
        if !manual && !row.has_uuid() {
            return refuse("its database gives tables no UUIDs (engine Ordinary); use an Atomic database");
        }
        seen.push(SourceSeen {
            identity: definition.identity(row, &source.columns),
            server_started_at: row.server_started_at(),
            alter_pending: false,
            parts: parts.remove(&source.table).unwrap_or_default().parts,
        });
    }
    Ok(seen)
}

/// A policy that hides rows from our own user would make wrong views.
pub async fn refuse_policies(
    upstream: &Upstream,
    observer: &Observer,
    policies: &[RowPolicy],
    tables: &[TableName],
) -> Result<(), RebuildError> {
    let concerning = policies.iter().filter(|policy| tables.iter().any(|table| policy.concerns(table)));
    let concerning: Vec<&RowPolicy> = concerning.collect();
    if concerning.is_empty() {
        return Ok(());
    }
    let names = observer.own_names().await?;
    let hit = concerning.into_iter().filter(|policy| policy.applies_to(&names)).find_map(|policy| {
        let table = tables.iter().find(|table| policy.concerns(table))?;
        Some((table.to_string(), policy.name.clone()))
    });
    match hit {
        Some((table, policy)) => Err(RebuildError::RowPolicy { table, policy, user: upstream.config().user.clone() }),
        None => Ok(()),
    }
}

/// The active parts of the fact table, once it is sure that nothing else has changed since the sources were `seen`:
/// neither the definition of a source, nor the rows of a joined table.
pub async fn standing_parts(
    observer: &Observer,
    view: &CatalogView,
    seen: &[SourceSeen],
) -> Result<Arc<Parts>, RebuildError> {
    let tables = &view.view.tables;
    // In this order: an ALTER that the second question does not show was not there at the first one either.
    let rows = observer.tables(tables, observer.clock().await?).await?;
    let mut parts = observer.parts(tables, false).await?;
    for (table, was) in tables.iter().zip(seen) {
        let moved = || RebuildError::SourceMoved { table: table.to_string() };
        let row = rows.get(table).ok_or_else(moved)?;
        let same = row.uuid == was.identity.uuid && row.altered_at == was.identity.altered_at;
        if !same || row.alter_pending {
            return Err(moved());
        }
    }
    let mut now = |table: &TableName| parts.remove(table).unwrap_or_default().parts;
    let fact = now(&tables[0]);
    for (table, was) in tables.iter().zip(seen).skip(1) {
        let is = SourceSeen { parts: now(table), ..was.clone() };
        if coverage::source_change(&was.record(table.clone()), &is).is_some() {
            return Err(RebuildError::SourceMoved { table: table.to_string() });
        }
    }
    Ok(fact)
}
