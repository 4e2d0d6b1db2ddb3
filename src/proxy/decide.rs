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

/// The matching view with the fewest rows to read; `offer` tells what each of them has to offer, or why nothing.
pub fn choose<'a>(
    block: &'a PlannedBlock,
    offer: &dyn Fn(&View) -> Result<Offer, String>,
) -> Result<Choice<'a>, String> {
    let mut reason = None;
    let mut best: Option<Choice<'a>> = None;
    for candidate in &block.candidates {
        let Ok(matched) = &candidate.outcome else { continue };
        match offer(&candidate.view) {
            Ok(offer) if best.as_ref().is_none_or(|best| offer.rows < best.offer.rows) => {
                best = Some(Choice { view: &candidate.view, offer, block, matched });
            }
            Ok(_) => {}
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
    mode: Mode,
    refused: Option<String>,
}

impl<'a> Walk<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        let left: Vec<&PlannedBlock> = plan.replaceable().collect();
        let left = left.into_iter();
        Self { plan, left, replacements: Vec::new(), views: Vec::new(), mode: Mode::Full, refused: None }
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

    /// What to send in place of `sql`.
    pub fn decision(self, sql: &str) -> Decision {
        if self.replacements.is_empty() {
            return Decision::Raw { reason: self.refused.unwrap_or_else(|| self.plan.reason()) };
        }
        Decision::View { views: self.views, mode: self.mode, sql: splice(sql, self.replacements) }
    }
}
