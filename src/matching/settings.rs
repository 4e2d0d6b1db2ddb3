//! Which settings leave the meaning of a query alone.
//!
//! A list of what is allowed, since ClickHouse has more than a thousand settings, and any of them may change an answer
//! (`final`, `join_use_nulls`, `additional_table_filters`, ..). A query with any other setting goes to the raw tables.

use crate::sql::tree::{Expr, JoinKind, Select, Statement};

/// Settings that change how a query runs, is limited in time, logged or formatted, but not what it answers.
const NEUTRAL: [&str; 83] = [
    "add_http_cors_header",
    "allow_ddl",
    "allow_experimental_projection_optimization",
    "allow_introspection_functions",
    "async_socket_for_remote",
    "buffer_size",
    "cancel_http_readonly_queries_on_client_close",
    // clickhouse-connect sends it with every query. Decides about CAST(.. AS Dynamic) only; such queries go raw.
    "cast_string_to_dynamic_use_inference",
    "compile_aggregate_expressions",
    "compile_expressions",
    "compile_sort_description",
    "database",
    // clickhouse-connect sends it too. How inserted data is read: no literal, cast or comparison of 26.9 follows it.
    "date_time_input_format",
    "date_time_output_format",
    "decompress",
    "default_format",
    "enable_http_compression",
    "enable_optimize_predicate_expression",
    // Of rows, and of groups, that are the same in both texts; so are totals.
    "extremes",
    "framing_output_format",
    "group_by_two_level_threshold",
    "group_by_two_level_threshold_bytes",
    "idle_connection_timeout",
    "implicit_select",
    "interactive_delay",
    "join_algorithm",
    "load_balancing",
    "local_filesystem_read_method",
    "max_ast_depth",
    "max_ast_elements",
    "max_block_size",
    "max_bytes_before_external_group_by",
    "max_bytes_before_external_sort",
    "max_bytes_ratio_before_external_group_by",
    "max_bytes_ratio_before_external_sort",
    "max_concurrent_queries_for_all_users",
    "max_concurrent_queries_for_user",
    "max_execution_time",
    "max_expanded_ast_elements",
    "max_final_threads",
    "max_http_get_redirects",
    "max_insert_threads",
    "max_memory_usage",
    "max_memory_usage_for_user",
    "max_network_bandwidth",
    "max_parser_backtracks",
    "max_parser_depth",
    "max_query_size",
    "max_read_buffer_size",
    "max_streams_to_max_threads_ratio",
    "max_threads",
    "max_threads_for_indexes",
    "memory_overcommit_ratio_denominator",
    "memory_profiler_step",
    "min_bytes_to_use_direct_io",
    "min_compress_block_size",
    "network_compression_method",
    "network_zstd_compression_level",
    "optimize_aggregation_in_order",
    "optimize_move_to_prewhere",
    "optimize_read_in_order",
    "optimize_skip_unused_shards",
    "optimize_trivial_count_query",
    "optimize_use_projections",
    "output_format",
    "poll_interval",
    "prefer_localhost_replica",
    "preferred_block_size_bytes",
    "priority",
    "queue_max_wait_ms",
    "readonly",
    "storage_file_read_method",
    "stream_like_engine_allow_direct_select",
    "timeout_before_checking_execution_speed",
    "totals_auto_threshold",
    "totals_mode",
    "use_concurrency_control",
    "use_hedged_requests",
    "use_query_condition_cache",
    "use_skip_indexes",
    "use_uncompressed_cache",
    "wait_end_of_query",
    "workload",
];

/// Settings that do nothing with these values, which clients send all the same. (What a profile changed is told without
/// a value.)
const DEFAULTS: [(&str, &str); 14] = [
    ("aggregate_functions_null_for_empty", "0"),
    ("allow_experimental_analyzer", "1"),
    ("cast_keep_nullable", "0"),
    ("count_distinct_implementation", "uniqExact"),
    ("data_type_default_nullable", "0"),
    ("empty_result_for_aggregation_by_empty_set", "0"),
    ("enable_analyzer", "1"),
    ("enable_positional_arguments", "1"),
    ("final", "0"),
    ("join_use_nulls", "0"),
    ("prefer_column_name_to_alias", "0"),
    ("result_overflow_mode", "throw"),
    ("transform_null_in", "0"),
    ("use_query_cache", "0"),
];

/// Settings that change types in a way that a view's columns follow like a table's: result types are compared under them.
const CARRIED: [&str; 1] = ["group_by_use_nulls"];

/// Families of settings of which none changes an answer (formats change its bytes the same way for both texts).
const NEUTRAL_PREFIXES: [&str; 19] = [
    "async_insert",
    "background_",
    "connect_timeout",
    "distributed_ddl_",
    "format_",
    "http_",
    "input_format_",
    "insert_",
    "keeper_",
    "log_",
    "max_insert_",
    "min_insert_",
    "opentelemetry_",
    "output_format_",
    "query_profiler_",
    "receive_timeout",
    "send_",
    "tcp_keep_alive_",
    "trace_profile_",
];

/// Those of the families that do change an answer.
const NOT_NEUTRAL: [&str; 2] = ["insert_select_", "format_schema"];

/// Functions that write or read values as formats do, so that settings of formats reach into them.
const TEXT_FUNCTIONS: [&str; 8] =
    ["toString", "toJSONString", "CAST", "concat", "format", "arrayStringConcat", "accurateCast", "toFixedString"];
const TEXT_FUNCTION_PREFIXES: [&str; 4] = ["JSON", "simpleJSON", "visitParam", "parse"];

/// Why a query goes to the raw tables because of what settings may make of it: the first of `settings`, or of those in
/// its text, that may change its meaning.
pub fn refusal(sql: &str, settings: &[(String, String)], statement: &Statement) -> Option<String> {
    // `cast_string_to_dynamic_use_inference` is among the neutral ones.
    if sql.contains("Dynamic") {
        return Some("what a cast to Dynamic holds depends on settings".into());
    }
    let name = first_that_matters(settings.iter().chain(&statement.settings), statement)?;
    Some(format!("the setting {name} may change the answer"))
}

/// The first of these settings that may change the meaning of a query.
pub fn first_that_matters<'a>(
    settings: impl IntoIterator<Item = &'a (String, String)>,
    statement: &Statement,
) -> Option<&'a str> {
    let writes_text = statement.blocks.iter().flat_map(Select::expressions).any(|expr| {
        expr.any(&mut |e| match e {
            Expr::Call(call) => {
                TEXT_FUNCTIONS.contains(&&*call.function)
                    || TEXT_FUNCTION_PREFIXES.iter().any(|p| call.function.starts_with(p))
            }
            _ => false,
        })
    });
    let of_formats = |name: &str| {
        ["format_", "input_format_", "output_format_", "date_time_"].iter().any(|family| name.starts_with(family))
    };
    let mut joins = statement.blocks.iter().flat_map(|block| &block.from).map(|entry| entry.join);
    let has_outer_join = joins.any(|join| join != JoinKind::Inner);
    // Without an outer join it has nothing to do.
    let is_idle = |name: &str| name == "join_use_nulls" && !has_outer_join;
    let settings = settings.into_iter().filter(|(name, value)| !is_default(name, value) && !is_idle(name));
    let names = settings.map(|(name, _)| name.as_str());
    names.into_iter().find(|name: &&str| !is_neutral(name) || (writes_text && of_formats(name)))
}

/// Those of a query's settings under which result types are to be compared.
pub fn carried(settings: &[(String, String)], statement: &Statement) -> Vec<(String, String)> {
    let all = settings.iter().chain(&statement.settings);
    all.filter(|(name, _)| CARRIED.contains(&&**name)).cloned().collect()
}

fn is_default(name: &str, value: &str) -> bool {
    let value = match value {
        "false" => "0",
        "true" => "1",
        other => other,
    };
    DEFAULTS.contains(&(name, value))
}

fn is_neutral(name: &str) -> bool {
    NEUTRAL.contains(&name)
        || CARRIED.contains(&name)
        || (NEUTRAL_PREFIXES.iter().any(|p| name.starts_with(p)) && !NOT_NEUTRAL.iter().any(|p| name.starts_with(p)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_change_answers_matter() {
        for name in [
            "final",
            "additional_table_filters",
            "additional_result_filter",
            "join_use_nulls",
            "aggregate_functions_null_for_empty",
            "transform_null_in",
            "prefer_column_name_to_alias",
            "max_rows_to_read",
            "max_rows_to_group_by",
            "limit",
            "offset",
            "session_timezone",
            "count_distinct_implementation",
            "enable_positional_arguments",
            "empty_result_for_aggregation_by_empty_set",
            "join_default_strictness",
            "any_join_distinct_right_table_keys",
            "allow_experimental_analyzer",
            "unknown",
            "max_result_rows",
            "use_query_cache",
            "apply_mutations_on_fly",
            "apply_deleted_mask",
            "read_overflow_mode",
        ] {
            assert!(!is_neutral(name), "{name}");
        }
        for name in ["max_threads", "output_format_json_quote_64bit_integers", "log_comment", "wait_end_of_query"] {
            assert!(is_neutral(name), "{name}");
        }
    }

    #[test]
    fn settings_that_have_nothing_to_do_do_not_matter() {
        let of = |sql: &str| refusal(sql, &[], &crate::sql::parse(sql).unwrap());
        let refused = |name: &str| Some(format!("the setting {name} may change the answer"));
        let query =
            |from: &str, settings: &str| format!("SELECT k, count() FROM {from} GROUP BY k SETTINGS {settings}");
        assert_eq!(of(&query("t", "final = 0, use_query_cache = false, extremes = 1")), None);
        assert_eq!(of(&query("t", "final = 1")), refused("final"));
        assert_eq!(of(&query("t, u", "join_use_nulls = 1")), None);
        let outer = "t LEFT JOIN u ON t.k = u.k";
        assert_eq!(of(&query(outer, "join_use_nulls = 1")), refused("join_use_nulls"));
        assert_eq!(of(&query(outer, "join_use_nulls = 0")), None);
        let changed_by_profile = [("final".to_string(), String::new())];
        let statement = crate::sql::parse("SELECT count() FROM t").unwrap();
        assert_eq!(first_that_matters(&changed_by_profile, &statement), Some("final"));
    }

    #[test]
    fn settings_of_formats_matter_where_values_are_written_as_text() {
        let settings = [("output_format_json_quote_64bit_integers".to_string(), "1".to_string())];
        let of = |sql: &str| first_that_matters(&settings, &crate::sql::parse(sql).unwrap()).map(String::from);
        assert_eq!(of("SELECT toYear(d) AS y, sum(x) FROM t GROUP BY y"), None);
        assert_eq!(of("SELECT toJSONString(u) AS y, sum(x) FROM t GROUP BY y"), Some(settings[0].0.clone()));
        assert_eq!(of("SELECT sum(x) FROM t GROUP BY CAST(u AS String)"), Some(settings[0].0.clone()));
    }

    #[test]
    fn what_is_cast_to_dynamic_depends_on_settings() {
        let of = |sql: &str| refusal(sql, &[], &crate::sql::parse(sql).unwrap()).is_some();
        assert!(of("SELECT CAST(s AS Dynamic) AS y, sum(x) FROM t GROUP BY y"));
        assert!(!of("SELECT s AS y, sum(x) FROM t GROUP BY y"));
    }
}
