//! The proxy: one pure decision for all protocols, and the relays that act on it.

pub mod client;
pub mod decider;
pub mod http;
pub mod query;
