//! Tributary: a materialized-view accelerator for ClickHouse.
//!
//! The modules stand in dependency order; a module uses only those above it. Everything up to `matching` is
//! pure: no I/O, no clock, no async, no logging (`tests/tidy.rs` holds both rules).

pub mod matching;
pub mod merge;
pub mod sql;
pub mod state;
pub mod wire;
// -- shell --
pub mod cli;
pub mod config;
pub mod embedded;
pub mod maintain;
pub mod proxy;
pub mod ssb;
pub mod upstream;
pub mod views;
