//! Known coarsenings of time: a year from a month, a month from a day, and ranges of days as ranges of buckets.
//!
//! Only for columns of type Date and DateTime: with Date32 and DateTime64 the functions clamp at the limits of Date, so
//! that a coarse bucket is no function of a finer one there.

use super::domain::{self, Kind, bare_type};
use super::normal::{Keyed, int_literal};
use super::schema::{Schema, TableName};
use crate::sql::expression::text_literal;
use crate::sql::tree::Expr;

/// Functions of a day, which may be computed from the day, or from the bucket's first day where the bucket is fine
/// enough. Rank: what the function can tell apart (1 day, 2 month, 3 quarter, 4 year).
const OF_DAY: [(&str, u8); 15] = [
    ("toYear", 4),
    ("toStartOfYear", 4),
    ("toQuarter", 3),
    ("toStartOfQuarter", 3),
    ("toMonth", 2),
    ("toYYYYMM", 2),
    ("toStartOfMonth", 2),
    ("toDayOfMonth", 1),
    ("toDayOfWeek", 1),
    ("toDayOfYear", 1),
    ("toYYYYMMDD", 1),
    ("toISOWeek", 1),
    ("toISOYear", 1),
    ("toMonday", 1),
    ("toDate", 1),
];

/// Buckets within a day, in minutes. Each is a function of every one that divides it; days are functions of all.
const WITHIN_DAY: [(&str, u32); 5] = [
    ("toStartOfMinute", 1),
    ("toStartOfFiveMinutes", 5),
    ("toStartOfTenMinutes", 10),
    ("toStartOfFifteenMinutes", 15),
    ("toStartOfHour", 60),
];

/// Buckets whose value is their own first day, with the same rank.
const FIRST_DAYS: [(&str, u8); 4] =
    [("toDate", 1), ("toStartOfMonth", 2), ("toStartOfQuarter", 3), ("toStartOfYear", 4)];

/// A way to compute a function of a column from another function of the same column.
pub struct Coarsening {
    /// The function whose value is needed.
    pub finer: Expr,
    compute: Compute,
}

enum Compute {
    /// `function(value)`: the value is a moment inside the coarser bucket.
    Apply(String),
    /// `cast(intDiv(value, divisor))`, for numbers like YYYYMM.
    Quotient(&'static str, i128),
    /// `cast(value % divisor)`.
    Remainder(&'static str, i128),
}

impl Coarsening {
    /// The expression over the finer function's value.
    pub fn over(&self, value: Expr) -> Expr {
        let call = |function: &str, arguments| Expr::call(function, arguments);
        match &self.compute {
            Compute::Apply(function) => call(function, vec![value]),
            Compute::Quotient(cast, divisor) => call(cast, vec![call("intDiv", vec![value, int_literal(*divisor)])]),
            Compute::Remainder(cast, divisor) => call(cast, vec![call("modulo", vec![value, int_literal(*divisor)])]),
        }
    }
}

/// Ways to compute `function(column)` from another function of the same column.
pub fn coarsenings(function: &str, column: &Expr, tables: &[TableName], schema: &Schema) -> Vec<Coarsening> {
    let Expr::Column { table, name } = column else { return Vec::new() };
    let type_name =
        tables.get(*table).and_then(|t| schema.table(t)).and_then(|t| t.column(name)).map(|c| &*c.type_name);
    let bare = type_name.map(bare_type).unwrap_or_default();
    if bare != "Date" && bare != "DateTime" && !bare.starts_with("DateTime(") {
        return Vec::new();
    }
    let way = |finer: &str, compute| Coarsening { finer: Expr::call(finer, vec![column.clone()]), compute };
    let apply = |finer: &str| way(finer, Compute::Apply(function.to_string()));
    let mut ways = match function {
        "toYear" => vec![
            way("toYYYYMM", Compute::Quotient("toUInt16", 100)),
            way("toYYYYMMDD", Compute::Quotient("toUInt16", 10_000)),
        ],
        "toMonth" => vec![way("toYYYYMM", Compute::Remainder("toUInt8", 100))],
        "toYYYYMM" => vec![way("toYYYYMMDD", Compute::Quotient("toUInt32", 100))],
        _ => Vec::new(),
    };
    let rank = OF_DAY.iter().find(|(f, _)| *f == function).map(|(_, rank)| *rank);
    if bare != "Date" {
        let minutes = WITHIN_DAY.iter().find(|(f, _)| *f == function).map(|(_, minutes)| *minutes);
        let is_of_day = function == "toStartOfDay" || rank.is_some();
        let fits = |fine: u32| is_of_day || minutes.is_some_and(|coarse| coarse != fine && coarse % fine == 0);
        ways.extend(WITHIN_DAY.iter().filter(|(_, fine)| fits(*fine)).map(|(bucket, _)| apply(bucket)));
        if rank.is_some() {
            ways.push(apply("toStartOfDay"));
        }
    }
    // A moment of 1969 in zones west of Greenwich is in 1969 for most functions, and on 1970-01-01 for these.
    if bare != "Date" && !starts_at_or_after_utc(bare, schema) {
        return ways;
    }
    let fits = |bucket: &str, fine: u8| bucket != function && rank.is_some_and(|rank| fine <= rank);
    ways.extend(FIRST_DAYS.iter().filter(|(bucket, fine)| fits(bucket, *fine)).map(|(bucket, _)| apply(bucket)));
    ways
}

/// Whether the zone of a DateTime type has never been behind UTC since 1970: there no moment lies before 1970-01-01.
fn starts_at_or_after_utc(date_time: &str, schema: &Schema) -> bool {
    let named = date_time.strip_prefix("DateTime('").and_then(|rest| rest.strip_suffix("')"));
    let zone = named.unwrap_or(&schema.time_zone);
    let eastern = ["Asia/", "Europe/", "Australia/", "Indian/"];
    ["UTC", "Etc/UTC", "GMT", "Etc/GMT"].contains(&zone) || eastern.iter().any(|area| zone.starts_with(area))
}

/// `d >= '1997-01-01'` as `toYear(d) >= 1997`: comparisons of a Date column with the edge of a bucket, as comparisons of
/// the bucket. Each is equivalent to `predicate`, which is in normal form.
pub fn aligned(predicate: &Keyed, tables: &[TableName], schema: &Schema) -> Vec<Expr> {
    let Expr::Call(call) = &predicate.normal else { return Vec::new() };
    let [column @ Expr::Column { .. }, constant] = &*call.arguments else { return Vec::new() };
    if domain::kind_of(column, tables, schema) != Some(Kind::Date) {
        return Vec::new();
    }
    let Some(day) = domain::date(constant) else { return Vec::new() };
    let mut out = Vec::new();
    for (function, edges) in [("toYear", domain::year_edges(day)), ("toYYYYMM", domain::month_edges(day))] {
        let (first, last, number) = edges;
        let fits = match &*call.function {
            "greaterOrEquals" | "less" => day == first,
            "greater" | "lessOrEquals" => day == last,
            _ => false,
        };
        if fits {
            let compare = |bucket: &str, value: Expr| {
                Expr::call(&call.function, vec![Expr::call(bucket, vec![column.clone()]), value])
            };
            out.push(compare(function, int_literal(number)));
            let bucket = if function == "toYear" { "toStartOfYear" } else { "toStartOfMonth" };
            out.push(compare(bucket, text_literal(&domain::date_text(first))));
        }
    }
    out
}
