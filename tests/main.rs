//! One binary for all integration tests; every one that needs a server uses the same embedded ClickHouse.

// The helpers of tests fail as the tests themselves do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod allocations;
mod demo;
mod embedded;
mod http_clients;
mod http_live;
mod http_relay;
mod http_serve;
mod hybrid;
mod maintain;
mod maintain_finer;
mod maintain_kill;
mod maintain_live;
mod maintain_loop;
mod maintain_plan;
mod maintain_rebuild;
mod maintain_traps;
mod matching;
mod neutral;
mod redefine;
mod reload;
mod rights;
mod shadow;
mod sql;
mod ssb;
mod state;
mod tidy;
mod torture;
mod views;
mod wire;

/// Counts what decoders allocate.
#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;
