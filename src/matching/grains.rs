//! How finely expressions of a time column tell moments apart: `toHour(t)` is a function of `toStartOfHour(t)`, and
//! `formatDateTime(t, '%Y-%m')` of `toStartOfMonth(t)`, however either is written.
//!
//! What is said here of functions was compared on 26.9 over all of 1970 to 2106, in zones with whole and with half hours.

use super::domain::bare_type;
use super::schema::{Schema, TableName};
use crate::sql::tree::{Call, Expr, Literal, Value};

/// The buckets on which an expression has one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grain {
    /// So many minutes, counted from 1970 or from midnight.
    Minutes(u32),
    Day,
    /// From Monday on.
    Week,
    Month,
    Quarter,
    Year,
}

/// What a bucket's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The bucket's first moment, in the column's own type.
    Moment,
    /// The bucket's first day, as a Date.
    Date,
    /// 1997
    YearNumber,
    /// 199712
    MonthNumber,
    /// 19971231
    DayNumber,
}

/// Zones of whole hours ever since 1970, all of whose days begin at midnight (compared with 26.9 for each half hour until
/// 2106).
const STEADY: [&str; 34] = [
    "UTC",
    "Etc/UTC",
    "GMT",
    "Africa/Johannesburg",
    "America/Chicago",
    "America/Denver",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/New_York",
    "America/Toronto",
    "Asia/Dubai",
    "Asia/Hong_Kong",
    "Asia/Jakarta",
    "Asia/Seoul",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Brisbane",
    "Australia/Melbourne",
    "Australia/Sydney",
    "Europe/Amsterdam",
    "Europe/Berlin",
    "Europe/Brussels",
    "Europe/Helsinki",
    "Europe/Istanbul",
    "Europe/London",
    "Europe/Madrid",
    "Europe/Paris",
    "Europe/Prague",
    "Europe/Stockholm",
    "Europe/Warsaw",
    "Europe/Zurich",
    "Pacific/Auckland",
    "US/Eastern",
    "US/Pacific",
];

pub fn is_steady(zone: &str) -> bool {
    STEADY.contains(&zone)
}

/// Whether local time is UTC.
pub fn is_utc(zone: &str) -> bool {
    ["UTC", "Etc/UTC", "GMT", "Etc/GMT"].contains(&zone)
}

impl Grain {
    /// Whether whatever has one value on these buckets is a function of the `finer` ones, in a zone.
    pub fn is_function_of(self, finer: Grain, zone: &str) -> bool {
        use Grain::{Day, Minutes, Month, Quarter, Week, Year};
        match (self, finer) {
            (Minutes(coarse), Minutes(fine)) => coarse % fine == 0 && (fine <= 15 || is_steady(zone)),
            (Minutes(_), _) => false,
            (_, Minutes(fine)) => fine <= 60 && 60 % fine == 0,
            (_, Day) => true,
            (Week, other) | (other, Week) => other == Week,
            (Day, _) => false,
            (Month, other) => other == Month,
            (Quarter, other) => matches!(other, Month | Quarter),
            (Year, _) => true,
        }
    }
}

/// A time column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeColumn<'a> {
    pub table: &'a TableName,
    pub name: &'a str,
    /// `None` for Date.
    pub zone: Option<&'a str>,
}

impl<'a> TimeColumn<'a> {
    /// A column of type Date or DateTime. (With Date32 and DateTime64 functions clamp at the limits of Date, so that a
    /// coarse bucket is no function of a finer one there.)
    pub fn of(expr: &'a Expr, tables: &'a [TableName], schema: &'a Schema) -> Option<Self> {
        let Expr::Column { table, name } = expr else { return None };
        let table = tables.get(*table)?;
        let zone = match bare_type(&schema.table(table)?.column(name)?.type_name) {
            "Date" => None,
            "DateTime" => Some(&*schema.time_zone),
            other => Some(other.strip_prefix("DateTime('")?.strip_suffix("')")?),
        };
        Some(TimeColumn { table, name, zone })
    }
}

/// An expression of one time column.
pub struct Timed<'a> {
    pub column: TimeColumn<'a>,
    /// `None`: the column itself.
    pub grain: Option<Grain>,
    /// How the value stands for its bucket, if it does.
    pub form: Option<Form>,
    /// Whether the value is a DateTime.
    pub is_moment: bool,
    /// The zone that the expression names, where it is not the column's.
    pub other_zone: Option<&'a str>,
}

/// What an expression (resolved, or in normal form) is of a time column; `None` where that is not known.
pub fn timed<'a>(expr: &'a Expr, tables: &'a [TableName], schema: &'a Schema) -> Option<Timed<'a>> {
    if let Some(column) = TimeColumn::of(expr, tables, schema) {
        let form = if column.zone.is_some() { Form::Moment } else { Form::Date };
        return Some(Timed {
            column,
            grain: None,
            form: Some(form),
            is_moment: column.zone.is_some(),
            other_zone: None,
        });
    }
    let Expr::Call(call) = expr else { return None };
    if call.parameters.is_some() {
        return None;
    }
    // The column stands first, but for the unit of dateTrunc and dateName.
    let (subject, rest) = match (&*call.function, &*call.arguments) {
        ("dateTrunc" | "dateName", [unit, subject, rest @ ..]) => {
            (subject, [std::slice::from_ref(unit), rest].concat())
        }
        (_, [subject, rest @ ..]) => (subject, rest.to_vec()),
        _ => return None,
    };
    if rest.iter().any(|e| !e.is_constant()) {
        return None;
    }
    let inner = timed_argument(call, subject, tables, schema)?;
    let (known, zone) = grain_of(call, &rest)?;
    let zone_at = call.arguments.len() - 1;
    let zone = zone.then(|| text_of(&call.arguments[zone_at])).flatten();
    let other_zone = match zone {
        Some(zone) if inner.column.zone != Some(zone) => {
            // Only of the column itself, at whole hours of both zones.
            if inner.grain.is_some() || inner.other_zone.is_some() || inner.column.zone.is_none() {
                return None;
            }
            Some(zone)
        }
        _ => inner.other_zone,
    };
    let (mut grain, form, mut is_moment) = known;
    // Counted from 1970, these do not begin with the hours and days of every zone.
    let is_local = matches!(&*call.function, "toStartOfHour" | "toHour" | "dateTrunc" | "formatDateTime" | "dateName");
    let zone = inner.column.zone.unwrap_or("UTC");
    if !is_local && matches!(grain, Some(Grain::Minutes(16..))) && !is_steady(zone) {
        return None;
    }
    if let Some(finer) = inner.grain {
        let fits = grain.is_none_or(|grain| grain.is_function_of(finer, zone));
        if !fits {
            return None;
        }
        grain = grain.or(Some(finer));
    }
    // dateTrunc('day', date) is midnight in the server's zone.
    if is_moment && !inner.is_moment {
        is_moment = inner.column.zone.is_none();
        return Some(Timed { column: inner.column, grain, form: None, is_moment, other_zone }).filter(|t| t.is_moment);
    }
    let form = if other_zone.is_some() { None } else { form };
    Some(Timed { column: inner.column, grain, form, is_moment, other_zone })
}

/// The grain and form of a constant that begins a day, a month, a quarter, a year, or an hour.
pub fn edge_of(call: &Call) -> Option<(Grain, Form)> {
    match (&*call.function, &*call.arguments) {
        ("toStartOfYear" | "toStartOfQuarter" | "toStartOfMonth" | "toMonday" | "toDate", [_])
        | ("toStartOfDay" | "toStartOfHour", [_]) => {
            let ((grain, form, _), _) = grain_of(call, &[])?;
            Some((grain?, form?))
        }
        ("today" | "yesterday", []) => Some((Grain::Day, Form::Date)),
        _ => None,
    }
}

/// The argument that is a time: `toUInt32(t)` only below intDiv.
fn timed_argument<'a>(
    call: &Call,
    subject: &'a Expr,
    tables: &'a [TableName],
    schema: &'a Schema,
) -> Option<Timed<'a>> {
    if call.function != "intDiv" {
        return timed(subject, tables, schema);
    }
    let Expr::Call(seconds) = subject else { return None };
    let ("toUInt32" | "toUInt64" | "toInt64" | "toUnixTimestamp", [column]) = (&*seconds.function, &*seconds.arguments)
    else {
        return None;
    };
    let inner = timed(column, tables, schema)?;
    (inner.grain.is_none() && inner.column.zone.is_some_and(is_steady)).then_some(inner)
}

type Known = (Option<Grain>, Option<Form>, bool);

/// Grain, form and whether the value is a DateTime; and whether the last argument is a zone.
fn grain_of(call: &Call, rest: &[Expr]) -> Option<(Known, bool)> {
    use Grain::{Day, Minutes, Month, Quarter, Week, Year};
    let date = |grain| (Some(grain), Some(Form::Date), false);
    let moment = |grain| (Some(grain), Some(Form::Moment), true);
    let other = |grain| (Some(grain), None, false);
    let zone_last = |at: usize| match rest.get(at) {
        None => Some(false),
        Some(zone) if rest.len() == at + 1 && text_of(zone).is_some() => Some(true),
        Some(_) => None,
    };
    let plain = match &*call.function {
        "toYear" => Some((Some(Year), Some(Form::YearNumber), false)),
        "toStartOfYear" => Some(date(Year)),
        "toRelativeYearNum" => Some(other(Year)),
        "toQuarter" | "toRelativeQuarterNum" => Some(other(Quarter)),
        "toStartOfQuarter" => Some(date(Quarter)),
        "toYYYYMM" => Some((Some(Month), Some(Form::MonthNumber), false)),
        "toStartOfMonth" => Some(date(Month)),
        "toMonth" | "toLastDayOfMonth" | "monthName" | "toRelativeMonthNum" => Some(other(Month)),
        "toMonday" => Some(date(Week)),
        "toISOWeek" | "toISOYear" | "toStartOfISOYear" => Some(other(Week)),
        "toDate" | "DATE" => Some(date(Day)),
        "toYYYYMMDD" => Some((Some(Day), Some(Form::DayNumber), false)),
        "toDayOfMonth" | "toDayOfYear" | "toRelativeDayNum" => Some(other(Day)),
        "toStartOfDay" => Some(moment(Day)),
        "toStartOfHour" => Some(moment(Minutes(60))),
        "toHour" | "toRelativeHourNum" => Some(other(Minutes(60))),
        "timeSlot" => Some(moment(Minutes(30))),
        "toStartOfFifteenMinutes" => Some(moment(Minutes(15))),
        "toStartOfTenMinutes" => Some(moment(Minutes(10))),
        "toStartOfFiveMinutes" => Some(moment(Minutes(5))),
        "toStartOfMinute" => Some(moment(Minutes(1))),
        "toMinute" => Some(other(Minutes(1))),
        _ => None,
    };
    if let Some(known) = plain {
        return Some((known, zone_last(0)?));
    }
    match (&*call.function, rest) {
        ("toDateTime", []) => Some(((None, Some(Form::Moment), true), false)),
        ("toTimezone" | "toTimeZone", [_]) => Some(((None, Some(Form::Moment), true), zone_last(0)?)),
        ("toDayOfWeek" | "toWeek" | "toYearWeek" | "toLastDayOfWeek" | "toStartOfWeek", []) => {
            Some((other(Day), false))
        }
        ("toStartOfWeek", [Expr::Literal(Literal { value: Value::Int(1), .. }), ..]) => {
            Some((date(Week), zone_last(1)?))
        }
        (
            "toDayOfWeek" | "toWeek" | "toYearWeek" | "toLastDayOfWeek" | "toStartOfWeek",
            [Expr::Literal(Literal { value: Value::Int(_), .. }), ..],
        ) => Some((other(Day), zone_last(1)?)),
        ("CAST", [to]) if text_of(to) == Some("Date") => Some((date(Day), false)),
        ("intDiv", [Expr::Literal(Literal { value: Value::Int(n), .. })]) => {
            let minutes = u32::try_from(*n).ok().filter(|n| *n > 0 && n % 60 == 0)? / 60;
            Some((other(Minutes(minutes)), false))
        }
        ("dateTrunc", [unit, ..]) => Some((
            match &*text_of(unit)?.to_ascii_lowercase() {
                "year" => date(Year),
                "quarter" => date(Quarter),
                "month" => date(Month),
                "week" => date(Week),
                "day" => moment(Day),
                "hour" => moment(Minutes(60)),
                "minute" => moment(Minutes(1)),
                _ => return None,
            },
            zone_last(1)?,
        )),
        ("dateName", [unit, ..]) => Some((
            other(match &*text_of(unit)?.to_ascii_lowercase() {
                "year" => Year,
                "quarter" => Quarter,
                "month" => Month,
                "day" | "weekday" | "dayofyear" => Day,
                "hour" => Minutes(60),
                "minute" => Minutes(1),
                _ => return None,
            }),
            zone_last(1)?,
        )),
        ("formatDateTime", [format, ..]) => Some((other(of_format(text_of(format)?)?), zone_last(1)?)),
        ("toStartOfInterval", [interval, ..]) => Some((of_interval(interval)?, zone_last(1)?)),
        _ => None,
    }
}

/// The finest thing that a format shows.
fn of_format(format: &str) -> Option<Grain> {
    let mut grain = Grain::Year;
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            continue;
        }
        let shown = match letters.next()? {
            'Y' | 'y' | '%' => Grain::Year,
            'Q' => Grain::Quarter,
            'm' | 'b' => Grain::Month,
            'd' | 'e' | 'j' | 'F' | 'D' | 'a' | 'u' | 'w' => Grain::Day,
            'H' => Grain::Minutes(60),
            'i' | 'R' => Grain::Minutes(1),
            _ => return None,
        };
        if !shown.is_function_of(grain, "UTC") {
            grain = shown;
        }
    }
    Some(grain)
}

fn of_interval(interval: &Expr) -> Option<Known> {
    use Grain::{Day, Minutes, Month, Quarter, Week, Year};
    let Expr::Call(call) = interval else { return None };
    let [Expr::Literal(Literal { value: Value::Int(n), .. })] = &*call.arguments else { return None };
    let n = u32::try_from(*n).ok().filter(|n| (1..=100_000).contains(n))?;
    let months = |n: u32| {
        let grain = match n {
            n if n % 12 == 0 => Year,
            n if n % 3 == 0 => Quarter,
            _ => Month,
        };
        (Some(grain), Some(Form::Date).filter(|_| matches!(n, 1 | 3 | 12)), false)
    };
    let minutes = |n: u32| (Some(Minutes(n)), Some(Form::Moment), true);
    Some(match &*call.function {
        "toIntervalSecond" if n % 60 == 0 => minutes(n / 60),
        "toIntervalMinute" => minutes(n),
        "toIntervalHour" => minutes(n * 60),
        "toIntervalDay" => (Some(Day), Some(Form::Moment).filter(|_| n == 1), true),
        "toIntervalWeek" if n == 1 => (Some(Week), Some(Form::Date), false),
        "toIntervalMonth" => months(n),
        "toIntervalQuarter" => months(n * 3),
        "toIntervalYear" => months(n * 12),
        _ => return None,
    })
}

pub fn text_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(Literal { value: Value::Text(bytes), .. }) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}
