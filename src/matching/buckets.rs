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

/// Buckets whose value is their own first day, with the same rank.
const FIRST_DAYS: [(&str, u8); 4] =
    [("toDate", 1), ("toStartOfMonth", 2), ("toStartOfQuarter", 3), ("toStartOfYear", 4)];

/// Ways to compute `function(column)` from another function of the same column: the function whose value is needed, and
/// the expression over that value.
pub fn coarsenings(
    function: &str,
    column: &Expr,
    tables: &[TableName],
    schema: &Schema,
) -> Vec<(Expr, fn(Expr) -> Expr)> {
    let Expr::Column { table, name } = column else { return Vec::new() };
    let type_name =
        tables.get(*table).and_then(|t| schema.table(t)).and_then(|t| t.column(name)).map(|c| &*c.type_name);
    let bare = type_name.map(bare_type).unwrap_or_default();
    if bare != "Date" && bare != "DateTime" && !bare.starts_with("DateTime(") {
        return Vec::new();
    }
    let mut ways: Vec<(Expr, fn(Expr) -> Expr)> = Vec::new();
    let of = |function: &str| Expr::call(function, vec![column.clone()]);
    let parts: &[(&str, fn(Expr) -> Expr)] = match function {
        "toYear" => &[("toYYYYMM", |v| year_part(v, 100)), ("toYYYYMMDD", |v| year_part(v, 10_000))],
        "toMonth" => &[("toYYYYMM", |v| cast("toUInt8", Expr::call("modulo", vec![v, int_literal(100)])))],
        "toYYYYMM" => &[("toYYYYMMDD", |v| cast("toUInt32", Expr::call("intDiv", vec![v, int_literal(100)])))],
        _ => &[],
    };
    ways.extend(parts.iter().map(|(finer, compute)| (of(finer), *compute)));
    if let Some((_, rank)) = OF_DAY.iter().find(|(f, _)| *f == function) {
        for (bucket, fine) in FIRST_DAYS {
            if bucket != function && fine <= *rank {
                ways.push((of(bucket), apply(function)));
            }
        }
    }
    ways
}

fn cast(function: &str, expr: Expr) -> Expr {
    Expr::call(function, vec![expr])
}

fn year_part(value: Expr, divisor: i128) -> Expr {
    cast("toUInt16", Expr::call("intDiv", vec![value, int_literal(divisor)]))
}

/// The function of the first day, as a plain function pointer for each name.
fn apply(function: &str) -> fn(Expr) -> Expr {
    macro_rules! table {
        ($($name:literal),+) => {
            match function {
                $($name => |day| cast($name, day),)+
                _ => |day| day,
            }
        };
    }
    table!(
        "toYear",
        "toStartOfYear",
        "toQuarter",
        "toStartOfQuarter",
        "toMonth",
        "toYYYYMM",
        "toStartOfMonth",
        "toDayOfMonth",
        "toDayOfWeek",
        "toDayOfYear",
        "toYYYYMMDD",
        "toISOWeek",
        "toISOYear",
        "toMonday",
        "toDate"
    )
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
