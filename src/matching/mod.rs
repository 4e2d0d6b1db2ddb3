//! Answers one question: can this query be computed from that view, and how?

pub mod schema;
