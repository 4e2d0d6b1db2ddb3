//! The proxy: one pure decision for all protocols, and the relays that act on it.

pub mod accelerator;
pub mod admin;
pub mod changes;
pub mod client;
pub mod decide;
pub mod decider;
pub mod differences;
pub mod facts;
pub mod http;
pub mod keeper;
pub mod query;
pub mod shadow;
pub mod shapes;
pub mod tally;
