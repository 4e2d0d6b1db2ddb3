//! Settings in the profile of Tributary's own user must not change what a view's query means.

use serde::Deserialize;

use crate::sql::render::string_literal;
use crate::upstream::{Upstream, UpstreamError};

const NEUTRAL: [(&str, &str); 22] = [
    ("additional_result_filter", ""),
    ("aggregate_functions_null_for_empty", "0"),
    ("apply_deleted_mask", "1"),
    ("apply_mutations_on_fly", "0"),
    ("apply_patch_parts", "1"),
    ("empty_result_for_aggregation_by_empty_set", "0"),
    ("extremes", "0"),
    ("final", "0"),
    ("group_by_use_nulls", "0"),
    ("join_use_nulls", "0"),
    ("limit", "0"),
    ("max_execution_time", "0"),
    ("max_result_bytes", "0"),
    ("max_result_rows", "0"),
    ("max_rows_to_group_by", "0"),
    ("max_rows_to_read", "0"),
    ("offset", "0"),
    // Projections have shown rows that a lightweight DELETE had hidden (ClickHouse issue 50613).
    ("optimize_use_projections", "0"),
    ("session_timezone", ""),
    ("transform_null_in", "0"),
    ("use_query_cache", "0"),
    ("output_format_native_encode_types_in_binary_format", "0"),
];

/// The same server, asked under settings by which a query means what its text says. Only those are sent that differ from
/// what the user has and that the server knows.
pub async fn neutral(upstream: &Upstream) -> Result<Upstream, UpstreamError> {
    under(upstream, &[(&NEUTRAL, "1")]).await
}

/// As [`neutral`], for queries that group many rows.
pub async fn grouping(upstream: &Upstream) -> Result<Upstream, UpstreamError> {
    under(upstream, &[(&NEUTRAL, "1"), (&BLOCKS, "NOT readonly AND toUInt64OrZero(value) > 32768")]).await
}

/// The same server, asked to let other queries go first where processor time is short. It does so where it may
/// (CAP_SYS_NICE, which its packages grant); inserts and the users' queries then keep their pace.
pub async fn in_background(upstream: &Upstream) -> Result<Upstream, UpstreamError> {
    // Not where the user is forbidden to change it: the queries would fail.
    under(upstream, &[(&NICE, "NOT readonly")]).await
}

/// ClickHouse lays the keys of each block one behind the other when it groups by several texts. With blocks of its own
/// size (65 409 rows) that memory is new for every block, and the time goes into page faults: grouping by five keys took
/// 2.7 times the processor time (bench/results/2026-12-01-2core/rebuild.md).
const BLOCKS: [(&str, &str); 1] = [("max_block_size", "32768")];

/// One setting under the names that it has had. At nice 10 inserts still lost a sixth of their speed on two busy cores, at
/// nice 19 no more than chance (bench/results/2026-11-30-2core/maintain.md).
const NICE: [(&str, &str); 2] = [("os_threads_nice_value_query", "19"), ("os_thread_priority", "19")];

/// Settings with their values, and the condition on their rows in `system.settings` under which they are sent.
type Conditional<'a> = (&'a [(&'static str, &'static str)], &'a str);

async fn under(upstream: &Upstream, groups: &[Conditional<'_>]) -> Result<Upstream, UpstreamError> {
    #[derive(Deserialize)]
    struct Setting {
        name: String,
        value: String,
    }
    let conditions: Vec<String> = groups
        .iter()
        .map(|(settings, condition)| {
            let names: Vec<String> = settings.iter().map(|(name, _)| string_literal(name)).collect();
            format!("name IN ({}) AND {condition}", names.join(", "))
        })
        .collect();
    let sql = format!("SELECT name, value FROM system.settings WHERE {}", conditions.join(" OR "));
    let present = upstream.rows::<Setting>(&sql).await?;
    let differs = |(name, value): &&(&str, &str)| present.iter().any(|s| s.name == *name && s.value != *value);
    Ok(upstream.with_settings(groups.iter().flat_map(|(settings, _)| *settings).filter(differs).copied()))
}
