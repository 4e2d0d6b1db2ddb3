//! Which settings leave the meaning of a query alone.
//!
//! A list of what is allowed, since ClickHouse has more than a thousand settings, and any of them may change an answer
//! (`final`, `join_use_nulls`, `additional_table_filters`, ..). A query with any other setting goes to the raw tables.

use crate::sql::tree::{Expr, Select, Statement};

/// Settings that change how a query runs, is limited in time, logged or formatted, but not what it answers.
const NEUTRAL: [&str; 62] = [
    "add_http_cors_header",
    "allow_ddl",
    "allow_introspection_functions",
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
    "memory_overcommit_ratio_denominator",
    "memory_profiler_step",
    "min_bytes_to_use_direct_io",
    "min_compress_block_size",
    "network_compression_method",
    "network_zstd_compression_level",
    "optimize_move_to_prewhere",
    "output_format",
    "poll_interval",
    "preferred_block_size_bytes",
    "priority",
    "queue_max_wait_ms",
    "readonly",
    "storage_file_read_method",
    "stream_like_engine_allow_direct_select",
    "timeout_before_checking_execution_speed",
    "wait_end_of_query",
];

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
    let names = settings.into_iter().map(|(name, _)| name.as_str());
    names.into_iter().find(|name| !is_neutral(name) || (writes_text && of_formats(name)))
}

fn is_neutral(name: &str) -> bool {
    NEUTRAL.contains(&name)
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
            "group_by_use_nulls",
            "aggregate_functions_null_for_empty",
            "transform_null_in",
            "prefer_column_name_to_alias",
            "extremes",
            "max_rows_to_read",
            "max_rows_to_group_by",
            "limit",
            "offset",
            "session_timezone",
            "totals_mode",
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
