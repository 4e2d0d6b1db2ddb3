//! Sets of values that predicates allow: the range predicates of Goldstein and Larson, section 3.1.2, with IN sets.
//!
//! `year IN (1993, 1995)` allows two points of `toYear(d)`. A view filtered by a predicate can answer a query whose
//! allowed set lies inside the view's.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::calendar::{Edge, day_of, days, days_from_text, first_of_next, local_time, local_time_of, year_of};
use super::grains::{TimeColumn, is_utc, text_of};
use super::normal::{Keyed, int_literal};
use super::schema::{Schema, TableName};
use crate::sql::expression::text_literal;
use crate::sql::tree::{Expr, Value};

/// What the values of an expression are, as far as constants can be compared with them here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Int,
    /// String, by bytes, as ClickHouse compares.
    Text,
    /// FixedString: by bytes, zeros at the end do not count.
    Padded,
    /// Date: days since 1970-01-01.
    Date,
    /// DateTime in UTC: seconds since 1970. Whether the server's zone is UTC as well, in which times without a zone are read.
    Moment {
        of_server: bool,
    },
}

/// A value of one kind; the order is ClickHouse's within the kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    Number(i128),
    Text(Vec<u8>),
}

/// One end of an interval: a point and whether the interval holds it. `None`: no end.
type End = Option<(Point, bool)>;

/// A set of values as disjoint intervals in ascending order. NULL is in none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain(Vec<(End, End)>);

impl Domain {
    fn interval(low: End, high: End) -> Self {
        Domain(vec![close(low, high)])
    }

    fn point(point: Point) -> Self {
        Self::interval(Some((point.clone(), true)), Some((point, true)))
    }

    /// Values in both.
    fn intersect(&self, other: &Self) -> Self {
        let mut out = Vec::new();
        for (low_a, high_a) in &self.0 {
            for (low_b, high_b) in &other.0 {
                let low = if compare_low(low_a, low_b) == Ordering::Less { low_b } else { low_a };
                let high = if compare_high(high_a, high_b) == Ordering::Less { high_a } else { high_b };
                if !is_empty(low, high) {
                    out.push((low.clone(), high.clone()));
                }
            }
        }
        Domain(out)
    }

    /// Values in either.
    fn unite(&self, other: &Self) -> Self {
        let mut all: Vec<_> = self.0.iter().chain(&other.0).cloned().collect();
        all.sort_by(|a, b| compare_low(&a.0, &b.0));
        let mut out: Vec<(End, End)> = Vec::new();
        for (low, high) in all {
            match out.last_mut() {
                Some((_, last)) if touches(last, &low) => {
                    if compare_high(last, &high) == Ordering::Less {
                        *last = high;
                    }
                }
                _ => out.push((low, high)),
            }
        }
        Domain(out)
    }

    fn complement(&self) -> Self {
        let mut out = Vec::new();
        let mut low: End = None;
        let mut open = true;
        for (from, to) in &self.0 {
            if let Some((point, held)) = from {
                let (l, h) = close(low.clone(), Some((point.clone(), !held)));
                if !is_empty(&l, &h) {
                    out.push((l, h));
                }
            }
            match to {
                Some((point, held)) => low = Some((point.clone(), !held)),
                None => open = false,
            }
        }
        if open {
            out.push(close(low, None));
        }
        Domain(out)
    }

    /// Whether every value of this set is in `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.iter().all(|(low, high)| {
            other
                .0
                .iter()
                .any(|(l, h)| compare_low(l, low) != Ordering::Greater && compare_high(high, h) != Ordering::Greater)
        })
    }
}

/// Whole numbers have neighbours, so open ends become closed ones: `> 5` is `>= 6`.
fn close(low: End, high: End) -> (End, End) {
    let low = match low {
        Some((Point::Number(n), false)) => Some((Point::Number(n.saturating_add(1)), true)),
        other => other,
    };
    let high = match high {
        Some((Point::Number(n), false)) => Some((Point::Number(n.saturating_sub(1)), true)),
        other => other,
    };
    (low, high)
}

fn is_empty(low: &End, high: &End) -> bool {
    match (low, high) {
        (Some((l, l_held)), Some((h, h_held))) => l > h || (l == h && !(*l_held && *h_held)),
        _ => false,
    }
}

fn compare_low(a: &End, b: &End) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, _) => Ordering::Less,
        (_, None) => Ordering::Greater,
        (Some((p, held_p)), Some((q, held_q))) => p.cmp(q).then(held_q.cmp(held_p)),
    }
}

fn compare_high(a: &End, b: &End) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, _) => Ordering::Greater,
        (_, None) => Ordering::Less,
        (Some((p, held_p)), Some((q, held_q))) => p.cmp(q).then(held_p.cmp(held_q)),
    }
}

/// Whether an interval that ends at `high` meets, or has as its neighbour, one that starts at `low`.
fn touches(high: &End, low: &End) -> bool {
    match (high, low) {
        (None, _) | (_, None) => true,
        (Some((Point::Number(h), _)), Some((Point::Number(l), _))) => *l <= h.saturating_add(1),
        (Some((h, h_held)), Some((l, l_held))) => l < h || (l == h && (*h_held || *l_held)),
    }
}

/// The allowed values of single expressions under all conjuncts of a block together.
#[derive(Debug, Default)]
pub struct Domains(HashMap<Arc<str>, Domain>);

impl Domains {
    pub fn of(block: &Block, schema: &Schema) -> Self {
        let mut out = Domains::default();
        for conjunct in &block.conjuncts {
            let Some((subject, domain)) = of_predicate(&conjunct.normal, &block.tables, schema) else { continue };
            for (expr, domain) in with_consequences(subject, domain, &block.tables, schema) {
                let key = Keyed::new(&expr, &block.tables).key;
                match out.0.get_mut(&key) {
                    Some(known) => *known = known.intersect(&domain),
                    None => _ = out.0.insert(key, domain),
                }
            }
        }
        out
    }

    /// Whether these domains allow only rows on which `predicate` (a conjunct of a view) is true.
    pub fn imply(&self, predicate: &Keyed, tables: &[TableName], schema: &Schema) -> bool {
        let Some((subject, allowed)) = of_predicate(&predicate.normal, tables, schema) else { return false };
        let key = Keyed::new(&subject, tables).key;
        self.0.get(&key).is_some_and(|known| known.is_within(&allowed))
    }
}

/// A predicate (in normal form) on one expression, as the set of its allowed values.
fn of_predicate(predicate: &Expr, tables: &[TableName], schema: &Schema) -> Option<(Expr, Domain)> {
    let Expr::Call(call) = predicate else { return None };
    match (&*call.function, &*call.arguments) {
        ("or" | "and", [first, rest @ ..]) => {
            let (subject, mut domain) = of_predicate(first, tables, schema)?;
            for other in rest {
                let (same, more) = of_predicate(other, tables, schema)?;
                if same != subject {
                    return None;
                }
                domain = if call.function == "or" { domain.unite(&more) } else { domain.intersect(&more) };
            }
            Some((subject, domain))
        }
        ("in" | "notIn", [subject, Expr::Call(set)]) if set.function == "tuple" => {
            let kind = kind_of(subject, tables, schema)?;
            let points =
                set.arguments.iter().map(|e| Some(Domain::point(point(e, kind)?))).collect::<Option<Vec<_>>>()?;
            let inside = points.into_iter().reduce(|a, b| a.unite(&b))?;
            Some((subject.clone(), if call.function == "in" { inside } else { inside.complement() }))
        }
        ("like" | "startsWith", [subject, Expr::Literal(literal)]) => {
            let Value::Text(pattern) = &literal.value else { return None };
            let prefix = match &*call.function {
                "startsWith" => &**pattern,
                _ => pattern.strip_suffix(b"%").filter(|p| !p.iter().any(|b| b"%_\\".contains(b)))?,
            };
            let is_text = kind_of(subject, tables, schema)? == Kind::Text;
            is_text.then(|| (subject.clone(), with_prefix(prefix)))
        }
        (function, [subject, constant]) => {
            let point = point(constant, kind_of(subject, tables, schema)?)?;
            let domain = match function {
                "equals" => Domain::point(point),
                "notEquals" => Domain::point(point).complement(),
                "less" => Domain::interval(None, Some((point, false))),
                "lessOrEquals" => Domain::interval(None, Some((point, true))),
                "greater" => Domain::interval(Some((point, false)), None),
                "greaterOrEquals" => Domain::interval(Some((point, true)), None),
                _ => return None,
            };
            Some((subject.clone(), domain))
        }
        _ => None,
    }
}

/// The strings that start with `prefix`.
fn with_prefix(prefix: &[u8]) -> Domain {
    let mut after = prefix.to_vec();
    while after.last() == Some(&0xff) {
        after.pop();
    }
    let high = after.last_mut().map(|last| *last += 1).map(|()| (Point::Text(after.clone()), false));
    Domain::interval(Some((Point::Text(prefix.to_vec()), true)), high)
}

/// What kind of values an expression has; `None` when constants cannot be compared with it here.
pub fn kind_of(expr: &Expr, tables: &[TableName], schema: &Schema) -> Option<Kind> {
    match expr {
        Expr::Column { table, name } => {
            let column = schema.table(tables.get(*table)?)?.column(name)?;
            kind_of_type(&column.type_name, &schema.time_zone)
        }
        Expr::Call(call) => match &*call.function {
            "toYear" | "toQuarter" | "toMonth" | "toDayOfMonth" | "toDayOfWeek" | "toDayOfYear" | "toHour"
            | "toMinute" | "toSecond" | "toYYYYMM" | "toYYYYMMDD" | "toISOWeek" | "toISOYear" | "toWeek"
            | "toYearWeek" => Some(Kind::Int),
            "toDate" | "toMonday" | "toStartOfMonth" | "toStartOfQuarter" | "toStartOfYear" => {
                // Of other types these may be another type, or end at other limits.
                let [of] = &*call.arguments else { return None };
                TimeColumn::of(of, tables, schema).map(|_| Kind::Date)
            }
            _ => None,
        },
        _ => None,
    }
}

/// A type without `LowCardinality` and `Nullable` around it.
pub fn bare_type(type_name: &str) -> &str {
    for wrapper in ["LowCardinality(", "Nullable("] {
        if let Some(inner) = type_name.strip_prefix(wrapper).and_then(|t| t.strip_suffix(')')) {
            return bare_type(inner);
        }
    }
    type_name
}

fn kind_of_type(type_name: &str, server_zone: &str) -> Option<Kind> {
    let moment = |zone: &str| is_utc(zone).then_some(Kind::Moment { of_server: is_utc(server_zone) });
    match bare_type(type_name) {
        "DateTime" => moment(server_zone),
        zoned if zoned.starts_with("DateTime('") => moment(zoned.strip_prefix("DateTime('")?.strip_suffix("')")?),
        "String" => Some(Kind::Text),
        fixed if fixed.starts_with("FixedString(") => Some(Kind::Padded),
        "Date" => Some(Kind::Date),
        "UInt8" | "UInt16" | "UInt32" | "UInt64" | "Int8" | "Int16" | "Int32" | "Int64" => Some(Kind::Int),
        _ => None,
    }
}

/// A constant as a value of `kind`, where ClickHouse would compare it as such.
fn point(constant: &Expr, kind: Kind) -> Option<Point> {
    match (&fold(constant), kind) {
        (Expr::Literal(literal), _) => match (&literal.value, kind) {
            (Value::Int(n), Kind::Int) => Some(Point::Number(*n)),
            (Value::Text(text), Kind::Text) => Some(Point::Text(text.clone())),
            (Value::Text(text), Kind::Padded) => {
                let length = text.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
                Some(Point::Text(text[..length].to_vec()))
            }
            (Value::Text(text), Kind::Date) => days_from_text(text).map(Point::Number),
            (Value::Int(n), Kind::Moment { .. }) => Some(Point::Number(*n)),
            (Value::Text(_), Kind::Moment { .. }) => moment(local_time(text_of(constant)?)?),
            _ => None,
        },
        (Expr::Call(call), Kind::Date) => day_of(call).map(Point::Number),
        (Expr::Call(call), Kind::Moment { of_server }) => match (&*call.function, &*call.arguments) {
            ("toDateTime", [text]) if of_server => moment(local_time_of(text)?),
            ("toDateTime", [text, zone]) if text_of(zone).is_some_and(is_utc) => moment(local_time_of(text)?),
            _ => moment(Edge { day: day_of(call)?, second: 0 }),
        },
        _ => None,
    }
}

/// A moment inside the range of the DateTime type.
fn moment(edge: Edge) -> Option<Point> {
    (1970..=2105).contains(&year_of(edge.day)).then(|| Point::Number(edge.seconds()))
}

/// The value of arithmetic on small integers, or of `concat` of strings. Only where the value is compared: the type of
/// `1 + 2` is not that of `3`.
fn fold(constant: &Expr) -> Expr {
    let Expr::Call(call) = constant else { return constant.clone() };
    let folded: Vec<Expr> = call.arguments.iter().map(fold).collect();
    let values: Option<Vec<&Value>> = folded
        .iter()
        .map(|argument| match argument {
            Expr::Literal(literal) => Some(&literal.value),
            _ => None,
        })
        .collect();
    // Small enough that no intermediate type of ClickHouse overflows.
    let small = |n: &i128| n.abs() < 1 << 31;
    let value = match (&*call.function, values.as_deref()) {
        ("plus", Some([Value::Int(a), Value::Int(b)])) if small(a) && small(b) => Some(int_literal(a + b)),
        ("minus", Some([Value::Int(a), Value::Int(b)])) if small(a) && small(b) => Some(int_literal(a - b)),
        ("concat", Some(values)) => values
            .iter()
            .map(|v| match v {
                Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
            .map(|parts| text_literal(&parts.concat())),
        _ => None,
    };
    value.unwrap_or_else(|| constant.clone())
}

/// A constraint and what follows from it for other expressions: `toYear(d) = 1997` bounds `d`, a range of `d` bounds
/// `toYear(d)`. Only for Date, which has no time zone, and in UTC.
fn with_consequences(subject: Expr, domain: Domain, tables: &[TableName], schema: &Schema) -> Vec<(Expr, Domain)> {
    let mut out = Vec::new();
    if let Expr::Call(call) = &subject
        && let [date @ Expr::Column { .. }] = &*call.arguments
        && kind_of(date, tables, schema) == Some(Kind::Date)
        && let Some((from, to)) = inverse(&call.function)
    {
        let map = |end: &End, f: fn(i128) -> Option<i128>| match end {
            Some((Point::Number(n), _)) => f(*n).map(|n| (Point::Number(n), true)),
            _ => None,
        };
        out.push((date.clone(), Domain(domain.0.iter().map(|(l, h)| (map(l, from), map(h, to))).collect())));
    }
    // Days, months and years bound the moments in them.
    if let Expr::Call(call) = &subject
        && let [time @ Expr::Column { .. }] = &*call.arguments
        && matches!(kind_of(time, tables, schema), Some(Kind::Moment { .. }))
        && let Some((from, to)) = inverse(&call.function)
    {
        let first = |end: &End| match end {
            Some((Point::Number(n), _)) => moment(Edge { day: from(*n)?, second: 0 }).map(|point| (point, true)),
            _ => None,
        };
        let last = |end: &End| match end {
            Some((Point::Number(n), _)) => moment(Edge { day: to(*n)?, second: 86_399 }).map(|point| (point, true)),
            _ => None,
        };
        out.push((time.clone(), Domain(domain.0.iter().map(|(l, h)| (first(l), last(h))).collect())));
    }
    if matches!(subject, Expr::Column { .. }) && kind_of(&subject, tables, schema) == Some(Kind::Date) {
        let map = |end: &End| match end {
            Some((Point::Number(n), _)) => Some((Point::Number(year_of(*n)), true)),
            _ => None,
        };
        let years = domain.0.iter().map(|(l, h)| Domain(vec![(map(l), map(h))]));
        if let Some(years) = years.reduce(|a, b| a.unite(&b)) {
            out.push((Expr::call("toYear", vec![subject.clone()]), years));
        }
    }
    out.push((subject, domain));
    out
}

type DayOf = fn(i128) -> Option<i128>;

/// For a date function: the first and the last day on which it has a value.
fn inverse(function: &str) -> Option<(DayOf, DayOf)> {
    fn year(n: i128) -> Option<i128> {
        (1970..=2148).contains(&n).then_some(n)
    }
    match function {
        "toDate" => Some((Some, Some)),
        "toYear" => Some((|y| Some(days(year(y)?, 1, 1)), |y| Some(days(year(y)? + 1, 1, 1) - 1))),
        "toYYYYMM" => Some((
            |n| (1..=12).contains(&(n % 100)).then(|| Some(days(year(n / 100)?, n % 100, 1)))?,
            |n| (1..=12).contains(&(n % 100)).then(|| Some(first_of_next(year(n / 100)?, n % 100) - 1))?,
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(low: Option<i128>, high: Option<i128>) -> Domain {
        Domain::interval(low.map(|n| (Point::Number(n), true)), high.map(|n| (Point::Number(n), true)))
    }

    #[test]
    fn intervals_of_whole_numbers_close() {
        let more_than_five = Domain::interval(Some((Point::Number(5), false)), None);
        assert_eq!(more_than_five, ints(Some(6), None));
        assert_eq!(ints(Some(1), Some(3)).unite(&ints(Some(4), Some(6))), ints(Some(1), Some(6)));
        assert_eq!(ints(Some(2), Some(4)).complement().complement(), ints(Some(2), Some(4)));
        assert!(ints(Some(2), Some(4)).is_within(&ints(None, Some(4))));
        assert!(!ints(Some(2), Some(5)).is_within(&ints(None, Some(4))));
        assert!(ints(Some(2), Some(4)).intersect(&ints(Some(5), None)).0.is_empty());
    }

    #[test]
    fn prefixes_are_ranges() {
        let points = with_prefix(b"UNITED KI");
        assert!(Domain::point(Point::Text(b"UNITED KI5".to_vec())).is_within(&points));
        assert!(!Domain::point(Point::Text(b"UNITED KJ".to_vec())).is_within(&points));
    }
}
