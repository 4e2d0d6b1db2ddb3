//! Who decides about a query.

use std::sync::Arc;

use super::keeper::Keeper;
use super::query::{Decided, Decision, IncomingQuery};
use super::shadow::Quarantined;

/// Asked once for every query that can be read.
#[derive(Clone)]
pub enum Decider {
    /// No views: a plain proxy.
    PassThrough,
    Views(Arc<Keeper>),
    /// A fixed rule, for tests of the relay itself.
    Rule(fn(&IncomingQuery) -> Decision),
}

impl Decider {
    pub async fn decide(&self, query: IncomingQuery) -> Decided {
        match self {
            Decider::PassThrough => Decision::Raw { reason: "no views".into() }.into(),
            Decider::Views(keeper) => keeper.decide(query).await,
            Decider::Rule(rule) => rule(&query).into(),
        }
    }

    /// Views that gave a wrong answer and are not used.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        match self {
            Decider::Views(keeper) => keeper.quarantined(),
            Decider::PassThrough | Decider::Rule(_) => Vec::new(),
        }
    }
}
