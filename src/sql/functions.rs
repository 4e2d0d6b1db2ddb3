//! Which functions exist, what they are called, and which of them only depend on their arguments.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Scalar functions whose result depends on nothing but the arguments of the same row, as ClickHouse 26.9 tells in
/// `system.functions` (`deterministic`, by category; functions with effects left out). Columns: name (lower case if it
/// may be written in any case), canonical name, whether any case is allowed.
static PURE_TSV: &str = include_str!("functions.tsv");

struct Names {
    exact: HashMap<&'static str, &'static str>,
    any_case: HashMap<&'static str, &'static str>,
}

static PURE: LazyLock<Names> = LazyLock::new(|| {
    let mut names = Names { exact: HashMap::new(), any_case: HashMap::new() };
    for line in PURE_TSV.lines() {
        let mut fields = line.split('\t');
        if let (Some(name), Some(canonical), Some(any_case)) = (fields.next(), fields.next(), fields.next()) {
            if any_case == "1" {
                names.any_case.insert(name, canonical);
            } else {
                names.exact.insert(name, canonical);
            }
        }
    }
    names
});

/// Aggregate functions that may be written in any case, or under another name (ClickHouse 26.9).
const AGGREGATE_ALIASES: [(&str, &str); 20] = [
    ("count", "count"),
    ("sum", "sum"),
    ("min", "min"),
    ("max", "max"),
    ("avg", "avg"),
    ("any_value", "any"),
    ("first_value", "any"),
    ("last_value", "anyLast"),
    ("max_by", "argMax"),
    ("min_by", "argMin"),
    ("array_agg", "groupArray"),
    ("bit_and", "groupBitAnd"),
    ("bit_or", "groupBitOr"),
    ("bit_xor", "groupBitXor"),
    ("var_pop", "varPop"),
    ("var_samp", "varSamp"),
    ("stddev_pop", "stddevPop"),
    ("stddev_samp", "stddevSamp"),
    ("covar_pop", "covarPop"),
    ("corr", "corr"),
];

/// Aggregate functions (ClickHouse 26.9) that views may hold, without combinators.
const AGGREGATES: [&str; 77] = [
    "count",
    "sum",
    "sumWithOverflow",
    "sumKahan",
    "min",
    "max",
    "avg",
    "avgWeighted",
    "any",
    "anyLast",
    "anyHeavy",
    "argMin",
    "argMax",
    "groupBitAnd",
    "groupBitOr",
    "groupBitXor",
    "groupBitmap",
    "groupBitmapAnd",
    "groupBitmapOr",
    "groupBitmapXor",
    "groupArray",
    "groupUniqArray",
    "groupArraySorted",
    "groupArraySample",
    "groupConcat",
    "uniq",
    "uniqExact",
    "uniqCombined",
    "uniqCombined64",
    "uniqHLL12",
    "uniqTheta",
    "varPop",
    "varSamp",
    "stddevPop",
    "stddevSamp",
    "varPopStable",
    "varSampStable",
    "stddevPopStable",
    "stddevSampStable",
    "covarPop",
    "covarSamp",
    "covarPopStable",
    "covarSampStable",
    "corr",
    "corrStable",
    "skewPop",
    "skewSamp",
    "kurtPop",
    "kurtSamp",
    "quantile",
    "quantiles",
    "quantileExact",
    "quantilesExact",
    "quantileExactLow",
    "quantileExactHigh",
    "quantileExactWeighted",
    "quantileTDigest",
    "quantilesTDigest",
    "quantileTDigestWeighted",
    "quantileTiming",
    "quantilesTiming",
    "quantileBFloat16",
    "quantileDD",
    "quantileGK",
    "quantileDeterministic",
    "median",
    "medianExact",
    "medianTDigest",
    "medianTiming",
    "sumMap",
    "minMap",
    "maxMap",
    "topK",
    "topKWeighted",
    "entropy",
    "simpleLinearRegression",
    "sumCount",
];

/// Combinators that change which rows count or how values are combined, not that a state can be merged.
const COMBINATORS: [&str; 3] = ["If", "OrNull", "OrDefault"];

/// The canonical name of a function: letter case and aliases resolved as ClickHouse resolves them.
pub fn canonical(name: &str) -> String {
    if let Some(canonical) = PURE.exact.get(name) {
        return (*canonical).into();
    }
    let lower = name.to_ascii_lowercase();
    if let Some(canonical) = PURE.any_case.get(&*lower) {
        return (*canonical).into();
    }
    if let Some((_, canonical)) = AGGREGATE_ALIASES.iter().chain(&CLOCK).find(|(alias, _)| *alias == lower) {
        return (*canonical).into();
    }
    // Combinators keep their own case: `SUMIf`, `countIf`, `COUNTIf` are all the same function.
    for combinator in COMBINATORS {
        if let Some(stem) = name.strip_suffix(combinator)
            && let Some((_, canonical)) =
                AGGREGATE_ALIASES.iter().find(|(alias, _)| *alias == stem.to_ascii_lowercase())
        {
            return format!("{canonical}{combinator}");
        }
    }
    name.into()
}

/// Functions of the query's moment that may be written in any case, or under another name (ClickHouse 26.9).
const CLOCK: [(&str, &str); 7] = [
    ("now", "now"),
    ("now64", "now64"),
    ("today", "today"),
    ("curdate", "today"),
    ("current_date", "today"),
    ("current_timestamp", "now"),
    ("localtimestamp", "now"),
];

/// Whether a canonical name is a scalar function of nothing but its arguments.
pub fn is_pure(function: &str) -> bool {
    PURE.exact.contains_key(function) || PURE.any_case.contains_key(&*function.to_ascii_lowercase())
}

/// Functions whose value is one constant for the whole query: the same in the query and in its rewrite.
pub fn is_constant_per_query(function: &str) -> bool {
    matches!(function, "now" | "today" | "yesterday" | "now64")
}

/// A canonical aggregate name split into the function and its combinators, the outermost last;
/// `None` for anything else, also for `-State`, `-Merge` and combinators that are not understood.
pub fn aggregate(function: &str) -> Option<(&'static str, Vec<&'static str>)> {
    if let Some(known) = AGGREGATES.iter().find(|a| **a == function) {
        return Some((known, Vec::new()));
    }
    for combinator in COMBINATORS {
        if let Some(stem) = function.strip_suffix(combinator)
            && let Some((known, mut combinators)) = aggregate(stem)
        {
            combinators.push(combinator);
            return Some((known, combinators));
        }
    }
    None
}

/// Whether a canonical name may stand before OVER.
pub fn is_window(function: &str) -> bool {
    const OF_WINDOWS: [&str; 12] = [
        "row_number",
        "rank",
        "dense_rank",
        "denseRank",
        "percent_rank",
        "percentRank",
        "cume_dist",
        "ntile",
        "lag",
        "lead",
        "lagInFrame",
        "leadInFrame",
    ];
    OF_WINDOWS.iter().any(|known| known.eq_ignore_ascii_case(function)) || aggregate(function).is_some()
}

/// Whether a name looks like an aggregate or window function that Tributary does not know, so that a block which
/// calls it must not be taken for one without aggregates.
pub fn is_known(function: &str) -> bool {
    is_pure(function) || is_constant_per_query(function) || aggregate(function).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_case_and_aliases_as_clickhouse_does() {
        for (written, canonical_name) in [
            ("SUM", "sum"),
            ("COUNTIf", "countIf"),
            ("YEAR", "toYear"),
            ("toyear", "toyear"),
            ("uniqExact", "uniqExact"),
            ("any_value", "any"),
            ("LOWER", "lower"),
            ("CURDATE", "today"),
        ] {
            assert_eq!(canonical(written), canonical_name);
        }
    }

    #[test]
    fn knows_what_depends_on_more_than_its_arguments() {
        assert!(is_pure("toYear") && is_pure("multiIf") && is_pure("in"));
        for function in ["rand", "rowNumberInBlock", "arrayJoin", "dictGet", "hostName", "now", "sleep", "throwIf"] {
            assert!(!is_pure(function), "{function}");
        }
    }

    #[test]
    fn splits_combinators() {
        assert_eq!(aggregate("sumIf"), Some(("sum", vec!["If"])));
        assert_eq!(aggregate("avgOrNullIf"), Some(("avg", vec!["OrNull", "If"])));
        assert_eq!(aggregate("sumState"), None);
        assert_eq!(aggregate("toYear"), None);
    }
}
