//! A whole query against all views: which of its blocks which views could answer.
//!
//! A plan depends on text, database, schema and views only, so it may be cached; which of its candidates is used
//! depends on the moment (coverage, rights) and is decided elsewhere.

use std::ops::Range;
use std::sync::Arc;

use super::block::Block;
use super::matcher::{Match, Subject, match_view};
use super::refusal::{BlockRefusal, Refusal};
use super::resolve::Scope;
use super::schema::Schema;
use super::view::View;
use crate::sql::tree::{Source, Statement};

/// One block of a query that reads tables with views.
#[derive(Debug, Clone)]
pub struct PlannedBlock {
    /// Byte range in the text that a rewrite replaces.
    pub span: Range<usize>,
    pub block: Block,
    /// Every view over the same tables, whether it matches or not.
    pub candidates: Vec<Candidate>,
}

#[derive(Debug, Clone)]
pub struct Candidate {
    pub view: Arc<View>,
    pub outcome: Result<Match, Refusal>,
}

#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub blocks: Vec<PlannedBlock>,
    /// Why the other blocks are left alone, with their ranges.
    pub refusals: Vec<(Range<usize>, BlockRefusal)>,
}

/// Tests every block of a statement against every view. Unqualified tables are looked up in `database`.
pub fn plan(statement: &Statement, database: &str, schema: &Schema, views: &[Arc<View>]) -> Plan {
    let mut plan = Plan::default();
    for select in &statement.blocks {
        let scope = Scope::of(select, &statement.blocks);
        match Block::new(select, &scope, database, schema) {
            Ok(block) => {
                let subject = Subject::new(&block, schema);
                let candidates: Vec<Candidate> = views
                    .iter()
                    .filter(|view| view.tables.iter().any(|t| block.tables.contains(t)))
                    .map(|view| Candidate { view: view.clone(), outcome: match_view(&subject, view) })
                    .collect();
                plan.blocks.push(PlannedBlock { span: select.span.clone(), block, candidates });
            }
            Err(refusal) => plan.refusals.push((select.span.clone(), refusal)),
        }
    }
    plan
}

impl Plan {
    /// Whether any view answers any block.
    pub fn matches(&self) -> bool {
        self.blocks.iter().any(|b| b.candidates.iter().any(|c| c.outcome.is_ok()))
    }

    /// The blocks to replace, outer ones before the ones inside them: a replaced block takes its inner blocks along.
    pub fn replaceable(&self) -> impl Iterator<Item = &PlannedBlock> {
        self.blocks.iter().filter(|b| b.candidates.iter().any(|c| c.outcome.is_ok()))
    }

    /// The one reason that tells most about why nothing matched.
    pub fn reason(&self) -> String {
        let nearest = self
            .blocks
            .iter()
            .flat_map(|b| &b.candidates)
            .filter_map(|c| c.outcome.as_ref().err().map(|refusal| (refusal, &c.view.name)))
            .max_by_key(|(refusal, _)| (*refusal).clone());
        if let Some((refusal, view)) = nearest
            && *refusal != Refusal::Tables
        {
            return format!("view {view}: {refusal}");
        }
        // A construct that is not handled says more than a block that reads no table with views.
        let rank = |refusal: &BlockRefusal| match refusal {
            BlockRefusal::NotAggregated => 0,
            BlockRefusal::NotATable(_) => 1,
            BlockRefusal::UnknownTable(_) => 2,
            _ => 3,
        };
        match self.refusals.iter().map(|(_, r)| r).max_by_key(|r| rank(r)) {
            Some(refusal) => refusal.to_string(),
            None => "no view reads these tables together".into(),
        }
    }
}

/// Whether a statement names any table (whatever its database) that a view reads: a quick test before the plan.
pub fn may_concern(statement: &Statement, views: &[Arc<View>]) -> bool {
    statement.blocks.iter().flat_map(|b| &b.from).any(|entry| match &entry.source {
        Source::Table { table, .. } => views.iter().any(|v| v.tables.iter().any(|t| t.table == *table)),
        _ => false,
    })
}

/// Whether a range lies inside one that is replaced as a whole.
pub fn is_inside_any(range: &Range<usize>, replacements: &[(Range<usize>, String)]) -> bool {
    replacements.iter().any(|(outer, _)| outer.start <= range.start && range.end <= outer.end)
}

/// A text with some ranges replaced; ranges that lie inside an earlier one are skipped.
pub fn splice(sql: &str, mut replacements: Vec<(Range<usize>, String)>) -> String {
    replacements.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    let mut out = String::with_capacity(sql.len() + 256);
    let mut at = 0;
    for (range, text) in replacements {
        if range.start >= at {
            out.push_str(&sql[at..range.start]);
            out.push_str(&text);
            at = range.end;
        }
    }
    out.push_str(&sql[at..]);
    out
}
