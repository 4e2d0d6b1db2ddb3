//! One binary for all integration tests; every one that needs a server uses the same embedded ClickHouse.

mod support;

mod embedded;
