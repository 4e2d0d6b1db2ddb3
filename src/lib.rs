//! Tributary: a materialized-view accelerator for ClickHouse.
//!
//! In dependency order; a module uses only those before it, and those up to `matching` are pure: no I/O, no clock, no
//! async, no logging (`tests/tidy.rs` holds both rules):
//!
//! [`wire`], [`state`], [`merge`], [`sql`], [`matching`]; [`config`], [`upstream`], [`views`], [`maintain`], [`proxy`],
//! [`embedded`], [`ssb`], [`torture`], [`cli`].

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
pub mod torture;
pub mod upstream;
pub mod views;
