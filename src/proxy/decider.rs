//! Who decides about a query.

use super::query::{Decision, IncomingQuery};

/// Asked once for every query that can be read.
#[derive(Clone)]
pub enum Decider {
    /// No views: a plain proxy.
    PassThrough,
}

impl Decider {
    pub async fn decide(&self, _query: IncomingQuery) -> Decision {
        match self {
            Decider::PassThrough => Decision::Raw { reason: "no views".into() },
        }
    }
}
