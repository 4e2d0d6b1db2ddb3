//! Known coarsenings of time: a year from a month, a month from a day, and ranges of days as ranges of buckets.
//!
//! An expression that has one value for each bucket (`formatDateTime(t, '%Y-%m')`) is computed from any moment of the
//! bucket, and so from the first one, which a view keeps (`toStartOfMonth(t)`). A comparison of the column with the edge
//! of a bucket is a comparison of buckets.

use super::calendar::{self, Edge, local_time, local_time_of};
use super::derive::Classes;
use super::grains::{Form, Grain, TimeColumn, Timed, edge_of, is_steady, is_utc, text_of, timed};
use super::normal::{Keyed, int_literal};
use super::schema::{Schema, TableName};
use super::view::View;
use crate::sql::expression::text_literal;
use crate::sql::tree::{Expr, Literal, Value};

/// What the search for buckets in a view needs to know.
pub struct Buckets<'a> {
    pub view: &'a View,
    /// The query's tables.
    pub tables: &'a [TableName],
    pub schema: &'a Schema,
    pub classes: &'a Classes,
}

/// A dimension of a view that is a bucket of a time column.
struct Bucket {
    value: Expr,
    grain: Grain,
    form: Form,
}

impl Bucket {
    /// A moment or a day inside the bucket.
    fn inside(&self) -> Expr {
        let value = self.value.clone();
        let call = |function: &str, arguments| Expr::call(function, arguments);
        match self.form {
            Form::Moment | Form::Date => value,
            Form::DayNumber => call("YYYYMMDDToDate", vec![value]),
            Form::MonthNumber => {
                let hundreds = call("multiply", vec![value, int_literal(100)]);
                call("YYYYMMDDToDate", vec![call("plus", vec![hundreds, int_literal(1)])])
            }
            Form::YearNumber => call("makeDate", vec![value, int_literal(1), int_literal(1)]),
        }
    }

    /// The value of the bucket that begins at an edge, as a constant; `None` where no bucket begins there.
    fn at(&self, edge: &Edge) -> Option<Expr> {
        let day = edge.day;
        let (year, month, date) = (calendar::year_of(day), calendar::month_of(day), calendar::date_text(day));
        let begins = match self.grain {
            Grain::Minutes(minutes) => 60 % minutes == 0 && edge.second % (i128::from(minutes) * 60) == 0,
            _ if edge.second != 0 => false,
            Grain::Day => true,
            // 1970-01-01 was a Thursday.
            Grain::Week => (day + 3) % 7 == 0,
            Grain::Month => date.ends_with("-01"),
            Grain::Quarter => date.ends_with("-01") && month % 3 == 1,
            Grain::Year => date.ends_with("-01-01"),
        };
        let number = match self.form {
            Form::YearNumber => year,
            Form::MonthNumber => year * 100 + month,
            Form::DayNumber => date.replace('-', "").parse().ok()?,
            Form::Date => return begins.then(|| text_literal(&date)),
            Form::Moment => {
                let (hour, minute) = (edge.second / 3600, edge.second / 60 % 60);
                return begins.then(|| text_literal(&format!("{date} {hour:02}:{minute:02}:00")));
            }
        };
        begins.then(|| int_literal(number))
    }
}

impl Buckets<'_> {
    /// `expr`, a function of one time column, over a bucket of that column.
    pub fn coarsening(&self, expr: &Expr) -> Option<Expr> {
        let wanted = timed(expr, self.tables, self.schema)?;
        let grain = wanted.grain?;
        let zone = wanted.column.zone.unwrap_or("UTC");
        let fits = |bucket: &Bucket| {
            grain.is_function_of(bucket.grain, zone)
                && (bucket.form == Form::Moment || !wanted.is_moment || wanted.column.zone.is_none())
                && wanted.other_zone.is_none_or(|other| {
                    bucket.form == Form::Moment
                        && matches!(bucket.grain, Grain::Minutes(..=60))
                        && is_steady(zone)
                        && is_steady(other)
                })
        };
        let bucket = self.of(&wanted.column).into_iter().find(fits)?;
        Some(match (expr, bucket.form) {
            // Plain arithmetic, where that does.
            (Expr::Call(call), Form::MonthNumber | Form::DayNumber) if call.arguments.len() == 1 => {
                number_of(&call.function, &bucket).unwrap_or_else(|| with_column(expr, &bucket.inside()))
            }
            _ => with_column(expr, &bucket.inside()),
        })
    }

    /// `t >= '1997-01-01 00:00:00'` as a comparison of a bucket of `t`.
    pub fn aligned(&self, predicate: &Keyed) -> Option<Expr> {
        let Expr::Call(call) = &predicate.normal else { return None };
        let [subject, constant] = &*call.arguments else { return None };
        let subject = timed(subject, self.tables, self.schema)?;
        let is_day = subject.grain == Some(Grain::Day) && subject.form == Some(Form::Date);
        if subject.other_zone.is_some() || !(is_day || subject.grain.is_none()) {
            return None;
        }
        let Some(edge) = self.edge(&subject, constant) else {
            return self.aligned_with(&call.function, &subject, constant);
        };
        // `> last` is `>= first of the next`.
        let is_from = matches!(&*call.function, "greaterOrEquals" | "greater");
        let edge = match &*call.function {
            "greaterOrEquals" | "less" => edge,
            "greater" | "lessOrEquals" if is_day || subject.column.zone.is_none() => Edge { day: edge.day + 1, ..edge },
            // Where hours come twice, the next second may be in the past.
            "greater" | "lessOrEquals" if subject.column.zone.is_some_and(is_utc) => {
                Edge::of_seconds(edge.seconds() + 1)
            }
            _ => return None,
        };
        // Moments of 1969 west of Greenwich count as 1970-01-01 in some functions; DateTime ends in 2106.
        if subject.column.zone.is_some() && !(1971..=2105).contains(&calendar::year_of(edge.day)) {
            return None;
        }
        self.of(&subject.column).into_iter().find_map(|bucket| {
            let edge = bucket.at(&edge)?;
            Some(Expr::call(if is_from { "greaterOrEquals" } else { "less" }, vec![bucket.value, edge]))
        })
    }

    /// `d >= toStartOfMonth(today())`: an edge whose value is known only later, but not that it is an edge.
    fn aligned_with(&self, function: &str, subject: &Timed<'_>, constant: &Expr) -> Option<Expr> {
        let Expr::Call(call) = constant else { return None };
        if !matches!(function, "greaterOrEquals" | "less") || !constant.is_constant() {
            return None;
        }
        let (grain, form) = edge_of(call)?;
        if subject.grain.is_some() && form == Form::Moment {
            return None;
        }
        let zones = [subject.column.zone.unwrap_or("UTC"), &self.schema.time_zone];
        let fits = |bucket: &Bucket| match form {
            Form::Moment => {
                bucket.form == Form::Moment
                    && matches!(bucket.grain, Grain::Minutes(..=60))
                    && zones.into_iter().all(is_steady)
                    && Grain::Minutes(60).is_function_of(bucket.grain, "UTC")
            }
            form => bucket.form == form && grain.is_function_of(bucket.grain, "UTC"),
        };
        let bucket = self.of(&subject.column).into_iter().find(fits)?;
        Some(Expr::call(function, vec![bucket.value, constant.clone()]))
    }

    /// The local time that a constant means beside a time column.
    fn edge(&self, subject: &Timed<'_>, constant: &Expr) -> Option<Edge> {
        let (Some(zone), Form::Moment) = (subject.column.zone, subject.form?) else {
            return calendar::date(constant).map(|day| Edge { day, second: 0 });
        };
        if !is_steady(zone) {
            return None;
        }
        let server = &*self.schema.time_zone;
        let is_server_zone = zone == server || (is_utc(zone) && is_utc(server));
        match constant {
            Expr::Literal(Literal { value: Value::Int(seconds), .. }) if is_utc(zone) => {
                Some(Edge::of_seconds(*seconds))
            }
            Expr::Literal(_) => local_time(text_of(constant)?),
            Expr::Call(call) => match (&*call.function, &*call.arguments) {
                (
                    "toDateTime" | "fromUnixTimestamp",
                    [Expr::Literal(Literal { value: Value::Int(seconds), .. }), ..],
                ) if is_utc(zone) => Some(Edge::of_seconds(*seconds)),
                ("toDateTime", [text]) if is_server_zone => local_time_of(text),
                ("toDateTime", [text, in_zone]) if text_of(in_zone) == Some(zone) => local_time_of(text),
                // Where days have 24 hours, intervals are so many seconds.
                ("plus" | "minus", [from, Expr::Call(interval)]) if is_utc(zone) && matches!(from, Expr::Call(_)) => {
                    let from = self.edge(subject, from)?;
                    let sign = if call.function == "plus" { 1 } else { -1 };
                    calendar::moved(&from, interval, sign)
                }
                // A day beside a moment is its midnight in the zone of the moment.
                _ => calendar::date(constant).map(|day| Edge { day, second: 0 }),
            },
            _ => None,
        }
    }

    /// The view's buckets of a column.
    fn of(&self, column: &TimeColumn<'_>) -> Vec<Bucket> {
        let mut found = Vec::new();
        for (position, dimension) in self.view.columns.iter().enumerate() {
            if !self.view.is_dimension(position) {
                continue;
            }
            let Some(timed) = timed(&dimension.expr.normal, &self.view.tables, self.schema) else { continue };
            let (Some(grain), Some(form)) = (timed.grain, timed.form) else { continue };
            let is_same = timed.column == *column
                || (timed.column.zone == column.zone && self.classes.are_equal(&key(&timed.column), &key(column)));
            // A moment of 1969 in zones west of Greenwich is in 1969 for most functions, and on 1970-01-01 for dates.
            let is_safe = form == Form::Moment || column.zone.is_none_or(starts_at_or_after_utc);
            if is_same && is_safe && timed.other_zone.is_none() {
                found.push(Bucket { value: Expr::Column { table: position, name: String::new() }, grain, form });
            }
        }
        found
    }
}

fn key(column: &TimeColumn<'_>) -> String {
    let tables = [column.table.clone()];
    Keyed::new(&Expr::Column { table: 0, name: column.name.into() }, &tables).key.to_string()
}

/// The time column of an expression that never falls while the time rises.
pub fn in_order<'a>(expr: &'a Expr, tables: &[TableName], schema: &Schema) -> Option<&'a Expr> {
    let timed = timed(expr, tables, schema)?;
    timed.form.filter(|_| timed.grain.is_some() && timed.other_zone.is_none())?;
    let mut at = expr;
    while !matches!(at, Expr::Column { .. }) {
        at = at.children().find(|child| !child.is_constant())?;
    }
    Some(at)
}

/// The expression with its only column replaced.
pub fn with_column(expr: &Expr, value: &Expr) -> Expr {
    match expr {
        Expr::Column { .. } => value.clone(),
        other => match other.map_children(&mut |child| Ok::<_, std::convert::Infallible>(with_column(child, value))) {
            Ok(expr) => expr,
            Err(never) => match never {},
        },
    }
}

/// Year and month from numbers like 199712 and 19971231.
fn number_of(function: &str, bucket: &Bucket) -> Option<Expr> {
    let (cast, operator, by) = match (function, bucket.form) {
        ("toYear", Form::MonthNumber) => ("toUInt16", "intDiv", 100),
        ("toMonth", Form::MonthNumber) => ("toUInt8", "modulo", 100),
        ("toYear", Form::DayNumber) => ("toUInt16", "intDiv", 10_000),
        ("toYYYYMM", Form::DayNumber) => ("toUInt32", "intDiv", 100),
        _ => return None,
    };
    Some(Expr::call(cast, vec![Expr::call(operator, vec![bucket.value.clone(), int_literal(by)])]))
}

/// Whether a zone has never been behind UTC since 1970: there no moment lies before 1970-01-01.
fn starts_at_or_after_utc(zone: &str) -> bool {
    let eastern = ["Asia/", "Europe/", "Australia/", "Indian/"];
    is_utc(zone) || eastern.iter().any(|area| zone.starts_with(area))
}
