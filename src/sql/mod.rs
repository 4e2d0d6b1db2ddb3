//! SQL text <-> query tree; the only user of sqlparser.
//!
//! ClickHouse's SQL is cut into clauses by our own lexer ([`lexer`], [`parse`]); sqlparser builds the trees of single
//! expressions from prepared tokens ([`expression`]); trees are written back by [`render`], never by sqlparser, whose
//! printed SQL is not valid ClickHouse.

pub mod ddl;
pub mod expression;
mod from;
pub mod functions;
pub mod lexer;
mod order;
pub mod parse;
mod prepare;
pub mod render;
pub mod tree;

pub use parse::{ParseError, Unsupported, parse};
