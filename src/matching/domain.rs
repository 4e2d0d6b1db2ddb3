//! Sets of values that predicates allow: the range predicates of Goldstein and Larson, section 3.1.2, with IN sets.
//!
//! `year IN (1993, 1995)` allows two points of `toYear(d)`. A view filtered by a predicate can answer a query whose
//! allowed set lies inside the view's.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::normal::{Keyed, int_literal};
use super::schema::{Schema, TableName};
use crate::sql::expression::text_literal;
use crate::sql::tree::{Call, Expr, Literal, Value};

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
            kind_of_type(&column.type_name)
        }
        Expr::Call(call) => match &*call.function {
            "toYear" | "toQuarter" | "toMonth" | "toDayOfMonth" | "toDayOfWeek" | "toDayOfYear" | "toHour"
            | "toMinute" | "toSecond" | "toYYYYMM" | "toYYYYMMDD" | "toISOWeek" | "toISOYear" | "toWeek"
            | "toYearWeek" => Some(Kind::Int),
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

fn kind_of_type(type_name: &str) -> Option<Kind> {
    match bare_type(type_name) {
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
            _ => None,
        },
        (Expr::Call(call), Kind::Date) => day_of(call).map(Point::Number),
        _ => None,
    }
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

/// The day that a constant of type Date means, where it is computed from texts and numbers alone.
fn day_of(call: &Call) -> Option<i128> {
    let day = |expr: &Expr| match expr {
        Expr::Literal(Literal { value: Value::Text(text), .. }) if call.arguments.len() < 3 => days_from_text(text),
        Expr::Call(inner) => day_of(inner),
        _ => None,
    };
    // Texts become days by a cast only.
    let date = |expr: &Expr| matches!(expr, Expr::Call(_)).then(|| day(expr)).flatten();
    let int = |expr: &Expr| match expr {
        Expr::Literal(Literal { value: Value::Int(n), .. }) if n.abs() < 100_000 => Some(*n),
        _ => None,
    };
    let found = match (&*call.function, &*call.arguments) {
        ("toDate" | "DATE", [text]) => day(text)?,
        ("CAST", [text, Expr::Literal(Literal { value: Value::Text(to), .. })]) if to == b"Date" => day(text)?,
        ("makeDate", [year, month, day]) => {
            let (year, month, day) = (int(year)?, int(month)?, int(day)?);
            days_from_text(format!("{year:04}-{month:02}-{day:02}").as_bytes())?
        }
        ("toStartOfYear", [of]) => days(year_of(date(of)?), 1, 1),
        ("toStartOfMonth", [of]) => date(of).map(|day| days(year_of(day), month_of(day), 1))?,
        ("toLastDayOfMonth", [of]) => date(of).map(|day| first_of_next(year_of(day), month_of(day)) - 1)?,
        ("plus" | "minus", [of, step]) => {
            let sign = if call.function == "plus" { 1 } else { -1 };
            match step {
                Expr::Call(interval) => {
                    let [n] = &*interval.arguments else { return None };
                    shifted(date(of)?, interval.function.strip_prefix("toInterval")?, sign * int(n)?)?
                }
                n => date(of)? + sign * int(n)?,
            }
        }
        (function, [of, n]) => {
            let unit = function.strip_prefix("add").or(function.strip_prefix("subtract"))?.strip_suffix('s')?;
            let sign = if function.starts_with("add") { 1 } else { -1 };
            shifted(date(of)?, unit, sign * int(n)?)?
        }
        _ => return None,
    };
    (1970..=2148).contains(&year_of(found)).then_some(found)
}

/// A moment of UTC, as day and second of the day, moved by an interval.
pub fn moved((day, second): (i128, i128), interval: &Call, sign: i128) -> Option<(i128, i128)> {
    let [Expr::Literal(Literal { value: Value::Int(n), .. })] = &*interval.arguments else { return None };
    let (unit, n) = (interval.function.strip_prefix("toInterval")?, sign * n);
    let seconds = match unit {
        "Second" => 1,
        "Minute" => 60,
        "Hour" => 3600,
        _ if n.abs() < 100_000 => return Some((shifted(day, unit, n)?, second)),
        _ => return None,
    };
    let at = day * 86_400 + second + seconds * n;
    Some((at.div_euclid(86_400), at.rem_euclid(86_400)))
}

/// A day moved by so many days, weeks, months, quarters or years; the day of the month stays where the month has it.
fn shifted(from: i128, unit: &str, by: i128) -> Option<i128> {
    let months = match unit {
        "Day" => return Some(from + by),
        "Week" => return Some(from + 7 * by),
        "Month" => by,
        "Quarter" => 3 * by,
        "Year" => 12 * by,
        _ => return None,
    };
    let (year, month) = (year_of(from), month_of(from));
    let of_month = from - days(year, month, 1);
    let at = year * 12 + month - 1 + months;
    let (year, month) = (at.div_euclid(12), at.rem_euclid(12) + 1);
    Some((days(year, month, 1) + of_month).min(first_of_next(year, month) - 1))
}

/// `YYYY-MM-DD` inside the range of the Date type -> days since 1970-01-01.
fn days_from_text(text: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(text).ok()?;
    let shaped = text.len() == 10
        && text.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
    if !shaped {
        return None;
    }
    let (year, month, day): (i128, i128, i128) =
        (text[..4].parse().ok()?, text[5..7].parse().ok()?, text[8..].parse().ok()?);
    let valid = (1..=12).contains(&month) && day >= 1 && days(year, month, day) < first_of_next(year, month);
    (valid && (1970..=2148).contains(&year)).then(|| days(year, month, day))
}

fn first_of_next(year: i128, month: i128) -> i128 {
    if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: i128, month: i128, day: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// A constraint and what follows from it for other expressions: `toYear(d) = 1997` bounds `d`, a range of `d` bounds
/// `toYear(d)`. Only for Date, which has no time zone.
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
        "toYear" => Some((|y| Some(days(year(y)?, 1, 1)), |y| Some(days(year(y)? + 1, 1, 1) - 1))),
        "toYYYYMM" => Some((
            |n| (1..=12).contains(&(n % 100)).then(|| Some(days(year(n / 100)?, n % 100, 1)))?,
            |n| (1..=12).contains(&(n % 100)).then(|| Some(first_of_next(year(n / 100)?, n % 100) - 1))?,
        )),
        _ => None,
    }
}

/// A constant that ClickHouse reads as a Date, in days since 1970-01-01.
pub fn date(constant: &Expr) -> Option<i128> {
    match point(constant, Kind::Date)? {
        Point::Number(day) => Some(day),
        Point::Text(_) => None,
    }
}

/// The month of the year of a day.
pub fn month_of(day: i128) -> i128 {
    let year = year_of(day);
    (1..=12).rev().find(|month| days(year, *month, 1) <= day).unwrap_or(1)
}

/// `YYYY-MM-DD`.
pub fn date_text(day: i128) -> String {
    let (year, month) = (year_of(day), month_of(day));
    format!("{year:04}-{month:02}-{:02}", day - days(year, month, 1) + 1)
}

pub fn year_of(day: i128) -> i128 {
    let mut year = 1970 + day.div_euclid(366);
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    year
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

    #[test]
    fn days_match_the_calendar() {
        for (text, wanted) in [("1970-01-01", 0), ("2000-02-29", 11016), ("1997-12-31", 10226), ("2148-12-31", 65378)] {
            assert_eq!(days_from_text(text.as_bytes()), Some(wanted), "{text}");
            assert_eq!(year_of(wanted), text[..4].parse::<i128>().unwrap());
        }
        let day = |sql: &str| {
            let statement = crate::sql::parse(&format!("SELECT {sql} AS d FROM t")).unwrap();
            date(&statement.blocks[0].items[0].expr).map(date_text)
        };
        for (sql, wanted) in [
            ("toDate('1996-01-31') + INTERVAL 1 MONTH", "1996-02-29"),
            ("addYears(toDate('1996-02-29'), -1)", "1995-02-28"),
            ("toStartOfMonth(makeDate(1997, 12, 31)) - INTERVAL 1 QUARTER", "1997-09-01"),
            ("toLastDayOfMonth('1997-02-03'::Date) + 1", "1997-03-01"),
        ] {
            assert_eq!(day(sql).as_deref(), Some(wanted), "{sql}");
        }
        assert_eq!(day("toDate('1970-01-01') - 1"), None);
        assert_eq!(day("'1997-01-01' + INTERVAL 1 DAY"), None);
        for text in ["1997-02-29", "1997-13-01", "1997-1-1", "2149-06-07", "1969-12-31", "1997-00-10"] {
            assert_eq!(days_from_text(text.as_bytes()), None, "{text}");
        }
    }
}
