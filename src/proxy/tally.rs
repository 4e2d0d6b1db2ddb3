//! Counts decisions: which views answered, and why other queries went to the raw tables.

use std::collections::BTreeMap;

use dashmap::DashMap;
use serde::Serialize;

use super::query::{Decision, Mode};

/// Reasons name tables, settings and columns, so that there may be any number; those after so many count as one.
const REASONS_MAX: usize = 200;

/// Answers from one view.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Hits {
    /// From the view alone.
    pub full: u64,
    /// From the view and the raw rows that it lacked.
    pub hybrid: u64,
}

/// What was decided since the start.
#[derive(Debug, Default)]
pub struct Tally {
    views: DashMap<String, Hits>,
    reasons: DashMap<String, u64>,
}

impl Tally {
    pub fn count(&self, decision: &Decision) {
        match decision {
            Decision::View { views, mode, .. } => {
                for view in views {
                    let mut hits = self.views.entry(view.clone()).or_default();
                    match mode {
                        Mode::Full => hits.full += 1,
                        Mode::Hybrid => hits.hybrid += 1,
                    }
                }
            }
            Decision::Raw { reason } => self.fallback(reason),
            Decision::NotAQuery => {}
        }
    }

    /// A query went to the raw tables.
    pub fn fallback(&self, reason: &str) {
        // What follows a colon is particular to the moment: "stale: view v: partition ..".
        let kind = match reason.strip_prefix("stale: ") {
            Some(rest) => format!("stale: {}", rest.split(": ").next().unwrap_or_default()),
            None => reason.split(": ").next().unwrap_or_default().to_string(),
        };
        let is_one_more = self.reasons.len() >= REASONS_MAX && !self.reasons.contains_key(&kind);
        *self.reasons.entry(if is_one_more { "others".into() } else { kind }).or_default() += 1;
    }

    pub fn hits(&self) -> BTreeMap<String, Hits> {
        self.views.iter().map(|entry| (entry.key().clone(), *entry.value())).collect()
    }

    /// Queries that went to the raw tables, by reason.
    pub fn reasons(&self) -> BTreeMap<String, u64> {
        self.reasons.iter().map(|entry| (entry.key().clone(), *entry.value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_by_kind() {
        let tally = Tally::default();
        for reason in ["stale: view v: partition 1 of t: 5 rows were added", "stale: view v: never built", "opted out"]
        {
            tally.count(&Decision::Raw { reason: reason.into() });
        }
        let expected = BTreeMap::from([("stale: view v".to_string(), 2), ("opted out".to_string(), 1)]);
        assert_eq!(tally.reasons(), expected);
        (0..1000).for_each(|at| tally.fallback(&format!("the setting s{at} may change the answer")));
        assert_eq!(tally.reasons().len(), REASONS_MAX + 1);
        assert_eq!(tally.reasons().values().sum::<u64>(), 1003);
    }
}
