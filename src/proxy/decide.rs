//! The decision over a plan, pure: which view answers which block, as far as coverage, rights and names allow it. The
//! proxy and `explain --schema` walk over a plan with it.

use super::query::{Decision, Mode};
use crate::matching::matcher::Match;
use crate::matching::plan::{Plan, PlannedBlock, is_inside_any, splice};
use crate::matching::rewrite::{StoredView, rewrite};
use crate::matching::view::View;
use crate::sql::tree::{Select, Source, Statement};

/// What a matching view has to offer at the moment.
#[derive(Debug, Clone)]
pub struct Offer {
    pub stored: StoredView,
    /// Rows that an answer reads at most.
    pub rows: u64,
    /// Rows of the fact table that it would read otherwise.
    pub source_rows: u64,
}

/// The view that answers one block.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    pub view: &'a View,
    pub offer: Offer,
    block: &'a PlannedBlock,
    matched: &'a Match,
}

impl Choice<'_> {
    pub fn mode(&self) -> Mode {
        if self.offer.stored.raw.is_some() { Mode::Hybrid } else { Mode::Full }
    }

    /// The block rewritten; `names` are those of its result columns, `sql` is the whole query.
    pub fn text(&self, names: &[String], sql: &str) -> String {
        rewrite(&self.block.block, self.view, self.matched, &self.offer.stored, names, sql)
    }
}

/// The matching view with the fewest rows to read; `offer` tells what each of them has to offer, or why nothing. Of two
/// definitions of one view, of which the newer comes first, the first one that has something to offer counts.
pub fn choose<'a>(
    block: &'a PlannedBlock,
    offer: &dyn Fn(&View) -> Result<Offer, String>,
) -> Result<Choice<'a>, String> {
    let mut reason = None;
    let mut best: Option<Choice<'a>> = None;
    let mut offered: Vec<&str> = Vec::new();
    for candidate in &block.candidates {
        let Ok(matched) = &candidate.outcome else { continue };
        if offered.contains(&candidate.view.name.as_str()) {
            continue;
        }
        match offer(&candidate.view) {
            Ok(offer) => {
                offered.push(&candidate.view.name);
                if best.as_ref().is_none_or(|best| offer.rows < best.offer.rows) {
                    best = Some(Choice { view: &candidate.view, offer, block, matched });
                }
            }
            Err(why) => _ = reason.get_or_insert(why),
        }
    }
    let best = best.ok_or_else(|| reason.unwrap_or_else(|| "no view matches".into()))?;
    if best.offer.rows > best.offer.source_rows {
        return Err(format!("view {} is not smaller than its source", best.view.name));
    }
    if best.offer.stored.raw.is_some() && best.matched.columns_read(&[]).is_empty() {
        return Err("nothing of the view is read".into());
    }
    Ok(best)
}

/// A walk over the blocks that views may answer, outer ones first.
#[derive(Debug)]
pub struct Walk<'a> {
    plan: &'a Plan,
    left: std::vec::IntoIter<&'a PlannedBlock>,
    replacements: Vec<(std::ops::Range<usize>, String)>,
    views: Vec<String>,
    storages: Vec<String>,
    mode: Mode,
    refused: Option<String>,
}

impl<'a> Walk<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        let left: Vec<&PlannedBlock> = plan.replaceable().collect();
        let left = left.into_iter();
        let (replacements, views, storages) = (Vec::new(), Vec::new(), Vec::new());
        Self { plan, left, replacements, views, storages, mode: Mode::Full, refused: None }
    }

    /// The next block; those that are gone together with an answered one around them are left out.
    pub fn next_block(&mut self) -> Option<&'a PlannedBlock> {
        let replacements = &self.replacements;
        self.left.find(|block| !is_inside_any(&block.span, replacements))
    }

    pub fn answered(&mut self, choice: &Choice<'_>, text: String) {
        self.replacements.push((choice.block.span.clone(), text));
        self.views.push(choice.view.name.clone());
        self.views.dedup();
        self.storages.push(choice.view.storage.clone());
        self.storages.dedup();
        if choice.mode() == Mode::Hybrid {
            self.mode = Mode::Hybrid;
        }
    }

    pub fn refused(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    /// Whether the answer will read tables also where no view stands in for them, at a moment of their own.
    pub fn reads_tables_beside(&self, statement: &Statement) -> bool {
        let is_gone = |block: &Select| is_inside_any(&block.span, &self.replacements);
        let names_table = |block: &Select| block.from.iter().any(|entry| matches!(entry.source, Source::Table { .. }));
        let inside =
            self.plan.blocks.iter().filter(|block| self.replacements.iter().any(|(span, _)| *span == block.span));
        statement.blocks.iter().any(|block| !is_gone(block) && names_table(block))
            || inside.into_iter().any(|block| !block.block.subqueries.is_empty())
    }

    /// The storage tables of the views that answer so far.
    pub fn storages(&self) -> &[String] {
        &self.storages
    }

    /// What to send in place of `sql`.
    pub fn decision(self, sql: &str) -> Decision {
        if self.replacements.is_empty() {
            return Decision::Raw { reason: self.refused.unwrap_or_else(|| self.plan.reason()) };
        }
        Decision::View { views: self.views, mode: self.mode, sql: splice(sql, self.replacements) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::matching::plan::plan;
    use crate::matching::schema::{Column, Schema, Table, TableName};
    use crate::sql::parse;

    fn schema() -> Schema {
        let column = |name: &str| Column {
            name: name.into(),
            type_name: "UInt32".into(),
            default_kind: String::new(),
            default_expression: String::new(),
        };
        let columns = ["a", "b", "v"].map(column).to_vec();
        let (name, engine) = (TableName::new("db", "t"), "MergeTree".to_string());
        let mut schema = Schema::default();
        schema.insert(Table { name, uuid: String::new(), engine, columns });
        schema
    }

    fn offer(rows: u64) -> Offer {
        let stored = StoredView {
            database: "tributary".into(),
            table: "s".into(),
            columns: Vec::new(),
            runs: vec![1],
            dead: Vec::new(),
            raw: None,
        };
        Offer { stored, rows, source_rows: 1000 }
    }

    #[test]
    fn the_newer_definition_answers_as_soon_as_it_may_however_many_rows_it_has() {
        let schema = schema();
        let view = |name: &str, storage: &str, query: &str| {
            let mut view = View::new(name, query, "db", &schema).unwrap();
            view.storage = storage.into();
            Arc::new(view)
        };
        let views = [
            view("v", "new", "SELECT a, b, sum(v) FROM t GROUP BY a, b"),
            view("w", "other", "SELECT a, b, sum(v), count() FROM t GROUP BY a, b"),
            view("v", "old", "SELECT a, sum(v) FROM t GROUP BY a"),
        ];
        let statement = parse("SELECT a, sum(v) FROM t GROUP BY a").unwrap();
        let plan = plan(&statement, "db", &schema, &views);
        let block = plan.replaceable().next().unwrap();
        let chosen = |new: Option<u64>, other: u64| {
            let offer = |view: &View| match view.storage.as_str() {
                "new" => new.map(offer).ok_or_else(|| "never built".to_string()),
                "other" => Ok(offer(other)),
                _ => Ok(offer(10)),
            };
            choose(block, &offer).unwrap().view.storage.clone()
        };
        assert_eq!(chosen(Some(500), 900), "new", "the previous definition has gone");
        assert_eq!(chosen(Some(500), 100), "other", "another view is smaller");
        assert_eq!(chosen(None, 100), "old", "until the new one is built, the previous one is there");
    }
}
