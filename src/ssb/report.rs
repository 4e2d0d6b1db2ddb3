//! The outcome of a benchmark run: one object for machines, one table for people.

use std::fmt::{self, Write};

use serde::Serialize;

use super::{Form, Plan};

/// One query in one form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    pub form: Form,
    pub name: &'static str,
    /// Medians, in milliseconds.
    pub raw_ms: f64,
    pub tributary_ms: f64,
    /// On ClickHouse's own projections; `None` when they were not measured, and for the star form, which they do not know.
    pub projection_ms: Option<f64>,
    /// `raw_ms / tributary_ms`
    pub speedup: f64,
    /// Whether both ways gave the same answer.
    pub identical: bool,
    /// Whether a view answered.
    pub accelerated: bool,
    pub view: Option<String>,
    pub rows_read_raw: u64,
    pub rows_read: u64,
}

/// A form's 13 queries together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Total {
    pub queries: usize,
    pub identical: usize,
    pub accelerated: usize,
    pub raw_ms: f64,
    pub tributary_ms: f64,
    pub projection_ms: Option<f64>,
    pub speedup: f64,
    pub rows_read_raw: u64,
    pub rows_read: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Totals {
    pub flat: Total,
    pub star: Total,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub scale: f64,
    /// Measured runs per query and way.
    pub runs: usize,
    pub clickhouse: String,
    pub tributary: &'static str,
    /// Of the machine that measured.
    pub cores: usize,
    pub queries: Vec<Measured>,
    pub total: Totals,
}

impl Report {
    pub fn new(plan: &Plan, queries: Vec<Measured>) -> Self {
        let total = Totals { flat: Total::of(Form::Flat, &queries), star: Total::of(Form::Star, &queries) };
        Self {
            scale: plan.scale.factor(),
            runs: plan.runs,
            clickhouse: plan.clickhouse.clone(),
            tributary: env!("CARGO_PKG_VERSION"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            queries,
            total,
        }
    }

    /// What went wrong, in a sentence; `None` when every answer is identical and came from a view.
    pub fn failure(&self) -> Option<String> {
        let names = |wrong: fn(&Measured) -> bool| {
            let wrong = self.queries.iter().filter(|query| wrong(query));
            wrong.map(|query| format!("{} {}", query.form.name(), query.name)).collect::<Vec<_>>().join(", ")
        };
        let (different, raw) = (names(|query| !query.identical), names(|query| !query.accelerated));
        match (different.is_empty(), raw.is_empty()) {
            (true, true) => None,
            (false, _) => Some(format!("answers differ: {different}")),
            (true, false) => Some(format!("not answered from a view: {raw}")),
        }
    }

    /// The table, with colour when `colour` is set.
    pub fn table(&self, colour: bool) -> String {
        Table { report: self, colour }.to_string()
    }
}

impl Total {
    fn of(form: Form, queries: &[Measured]) -> Self {
        let own: Vec<&Measured> = queries.iter().filter(|query| query.form == form).collect();
        let sum = |value: fn(&Measured) -> f64| own.iter().map(|query| value(query)).sum::<f64>();
        let (raw_ms, tributary_ms) = (sum(|query| query.raw_ms), sum(|query| query.tributary_ms));
        Self {
            queries: own.len(),
            identical: own.iter().filter(|query| query.identical).count(),
            accelerated: own.iter().filter(|query| query.accelerated).count(),
            raw_ms,
            tributary_ms,
            projection_ms: own.iter().map(|query| query.projection_ms).sum::<Option<f64>>().filter(|_| !own.is_empty()),
            speedup: raw_ms / tributary_ms,
            rows_read_raw: own.iter().map(|query| query.rows_read_raw).sum(),
            rows_read: own.iter().map(|query| query.rows_read).sum(),
        }
    }
}

struct Table<'a> {
    report: &'a Report,
    colour: bool,
}

const GREEN: &str = "32";
const RED: &str = "31";
const BOLD: &str = "1";
const DIM: &str = "2";

impl Table<'_> {
    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_string() }
    }

    fn projections(&self) -> bool {
        self.report.queries.iter().any(|query| query.projection_ms.is_some())
    }

    fn head(&self) -> String {
        let projections = if self.projections() { format!("{:>13}", "projections") } else { String::new() };
        format!(
            "{:<11}{:>12}{:>12}{projections}{:>10}{:>15}{:>13}  {:<10} {}",
            "query", "raw", "tributary", "speed-up", "rows read raw", "rows read", "answer", "view"
        )
    }

    fn figures(&self, name: &str, raw: f64, own: f64, peer: Option<f64>, rows: (u64, u64)) -> String {
        let peer = match peer {
            _ if !self.projections() => String::new(),
            Some(ms) => format!("{:>13}", milliseconds(ms)),
            None => format!("{:>13}", "-"),
        };
        format!(
            "{name:<11}{:>12}{:>12}{peer}{:>10}{:>15}{:>13}",
            milliseconds(raw),
            milliseconds(own),
            format!("{:.1}x", raw / own),
            thousands(rows.0),
            thousands(rows.1),
        )
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scale, runs, clickhouse, cores, total: totals, .. } = self.report;
        writeln!(
            f,
            "Star Schema Benchmark at scale {scale} on ClickHouse {clickhouse}, {cores} cores, medians of {runs} runs\n"
        )?;
        for (form, total) in [(Form::Flat, &totals.flat), (Form::Star, &totals.star)] {
            let title = match form {
                Form::Flat => "flat form: one wide table",
                Form::Star => "star form: fact table joined with its dimensions",
            };
            writeln!(f, "{}", self.paint(BOLD, title))?;
            writeln!(f, "{}", self.paint(DIM, &self.head()))?;
            for query in self.report.queries.iter().filter(|query| query.form == form) {
                let rows = (query.rows_read_raw, query.rows_read);
                let figures = self.figures(query.name, query.raw_ms, query.tributary_ms, query.projection_ms, rows);
                let verdict = if query.identical { "identical" } else { "DIFFERENT" };
                let verdict = self.paint(if query.identical { GREEN } else { RED }, &format!("{verdict:<10}"));
                writeln!(f, "{figures}  {verdict} {}", query.view.as_deref().unwrap_or("(raw)"))?;
            }
            let rows = (total.rows_read_raw, total.rows_read);
            let figures = self.figures("total", total.raw_ms, total.tributary_ms, total.projection_ms, rows);
            let counts = format!(
                "{} of {} identical, {} of {} from views",
                total.identical, total.queries, total.accelerated, total.queries
            );
            writeln!(f, "{}  {counts}\n", self.paint(BOLD, &figures))?;
        }
        Ok(())
    }
}

/// Two significant digits after the point below 10 ms, one above.
fn milliseconds(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.1} ms") }
}

/// `12345678` as `12,345,678`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            let _ = text.write_char(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;
    use crate::config::UpstreamConfig;
    use crate::ssb::Scale;

    fn measured(form: Form, name: &'static str, projection_ms: Option<f64>) -> Measured {
        Measured {
            form,
            name,
            raw_ms: 120.0,
            tributary_ms: 3.0,
            projection_ms,
            speedup: 40.0,
            identical: true,
            accelerated: true,
            view: Some("some_view".into()),
            rows_read_raw: 6_000_000,
            rows_read: 8192,
        }
    }

    fn report() -> Report {
        let queries = vec![
            measured(Form::Flat, "q1.1", Some(60.0)),
            measured(Form::Flat, "q1.2", Some(30.0)),
            measured(Form::Star, "q1.1", None),
        ];
        let plan = Plan {
            scale: Scale::new(1.0).unwrap(),
            raw: UpstreamConfig::parse("http://localhost/").unwrap(),
            tributary: Url::parse("http://localhost/").unwrap(),
            runs: 5,
            clickhouse: "26.9".into(),
            projections: true,
        };
        Report::new(&plan, queries)
    }

    #[test]
    fn totals_add_up_each_form() {
        let total = report().total;
        assert_eq!((total.flat.raw_ms, total.flat.projection_ms, total.flat.speedup), (240.0, Some(90.0), 40.0));
        assert_eq!((total.star.queries, total.star.projection_ms), (1, None));
    }

    #[test]
    fn the_table_lines_up_and_has_no_colour_codes_unless_asked() {
        let text = report().table(false);
        assert!(!text.contains('\x1b') && report().table(true).contains('\x1b'));
        let column = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(column(lines[1], "tributary"), column(lines[2], "3.00 ms"), "{text}");
        assert_eq!(column(lines[1], "rows read raw"), column(lines[2], "6,000,000"), "{text}");
        assert_eq!(column(lines[1], "projections"), column(lines[2], "60.0 ms"), "{text}");
    }

    #[test]
    fn a_failure_names_the_queries() {
        let mut report = report();
        assert_eq!(report.failure(), None);
        report.queries[1].accelerated = false;
        assert_eq!(report.failure().unwrap(), "not answered from a view: flat q1.2");
        report.queries[2].identical = false;
        assert_eq!(report.failure().unwrap(), "answers differ: star q1.1");
    }
}
