//! Answers one question: can this query be computed from that view, and how?
//!
//! A block of a query is resolved ([`block`]) and compared with a view ([`view`]) as in Goldstein and Larson,
//! "Optimizing queries using materialized views" (SIGMOD 2001): same tables, view predicate implied ([`domain`]), and
//! every output, filter and group key computable from what the view keeps ([`derive`]). Expressions are compared in
//! normal form ([`normal`]). A view that does not match gives a [`refusal`], never just nothing.

pub mod aggregates;
pub mod block;
pub mod buckets;
pub mod calendar;
pub mod derive;
pub mod domain;
pub mod grains;
pub mod matcher;
pub mod names;
pub mod normal;
pub mod plan;
pub mod refusal;
pub mod resolve;
pub mod rewrite;
pub mod schema;
pub mod settings;
pub mod view;
