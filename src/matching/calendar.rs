//! Days and moments of the Gregorian calendar, as far as they are written down as constants.

use super::grains::text_of;
use crate::sql::tree::{Call, Expr, Literal, Value};

/// A moment of local time: days since 1970-01-01 and seconds since midnight.
pub struct Edge {
    pub day: i128,
    pub second: i128,
}

impl Edge {
    pub fn of_seconds(seconds: i128) -> Self {
        Edge { day: seconds.div_euclid(86_400), second: seconds.rem_euclid(86_400) }
    }

    pub fn seconds(&self) -> i128 {
        self.day * 86_400 + self.second
    }
}

/// A constant that ClickHouse reads as a Date, in days since 1970-01-01.
pub fn date(constant: &Expr) -> Option<i128> {
    match constant {
        Expr::Call(call) => day_of(call),
        text => days_from_text(text_of(text)?.as_bytes()),
    }
}

/// The day that a constant of type Date means, where it is computed from texts and numbers alone.
pub fn day_of(call: &Call) -> Option<i128> {
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

/// A moment of UTC, moved by an interval.
pub fn moved(from: &Edge, interval: &Call, sign: i128) -> Option<Edge> {
    let [Expr::Literal(Literal { value: Value::Int(n), .. })] = &*interval.arguments else { return None };
    let (unit, n) = (interval.function.strip_prefix("toInterval")?, sign * n);
    let seconds = match unit {
        "Second" => 1,
        "Minute" => 60,
        "Hour" => 3600,
        _ if n.abs() < 100_000 => return Some(Edge { day: shifted(from.day, unit, n)?, second: from.second }),
        _ => return None,
    };
    Some(Edge::of_seconds(from.seconds() + seconds * n))
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
pub fn days_from_text(text: &[u8]) -> Option<i128> {
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

pub fn first_of_next(year: i128, month: i128) -> i128 {
    if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar (Hinnant, "chrono-compatible low-level date algorithms").
pub fn days(year: i128, month: i128, day: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
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

/// The local time of a text, or midnight of a day.
pub fn local_time_of(constant: &Expr) -> Option<Edge> {
    match text_of(constant) {
        Some(text) => local_time(text),
        None => date(constant).map(|day| Edge { day, second: 0 }),
    }
}

/// `YYYY-MM-DD` or `YYYY-MM-DD hh:mm:ss`.
pub fn local_time(text: &str) -> Option<Edge> {
    let (date, time) = text.split_at_checked(10)?;
    let day = days_from_text(date.as_bytes())?;
    if time.is_empty() {
        return Some(Edge { day, second: 0 });
    }
    let bytes = time.as_bytes();
    let shaped = bytes.len() == 9
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            0 => *byte == b' ',
            3 | 6 => *byte == b':',
            _ => byte.is_ascii_digit(),
        });
    if !shaped {
        return None;
    }
    let (hour, minute, second): (i128, i128, i128) =
        (time[1..3].parse().ok()?, time[4..6].parse().ok()?, time[7..].parse().ok()?);
    (hour < 24 && minute < 60 && second < 60).then(|| Edge { day, second: hour * 3600 + minute * 60 + second })
}

#[cfg(test)]
mod tests {
    use super::*;

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
