//! Fills the benchmark's tables by SQL inside ClickHouse: `steps` plans the statements, `ensure` applies them.
//!
//! Every value comes out of a hash of its row's key, so the same scale gives the same rows on every server, whatever the
//! number of threads. Memory is bounded at any scale: the fact table is written in pieces of one year and at most
//! `ROWS_MAX` rows, the flat table joined in pieces of days of the same size.

use serde::Deserialize;

use super::{PROJECTED_TABLE, Scale};
use crate::upstream::{Upstream, UpstreamError};

/// About how many rows one INSERT writes. Also the number of rows of the parts that it leaves.
const ROWS_MAX: u64 = 4_000_000;
/// The years, and on how many of their days orders were placed: until 2 August 1998.
const YEARS: [(u64, u64); 7] =
    [(1992, 366), (1993, 365), (1994, 365), (1995, 365), (1996, 366), (1997, 365), (1998, 214)];
const ORDER_DAYS: u64 = 2406;
const LINES_PER_ORDER: u64 = 4;

/// Chosen so that Q3.4, the most selective query, finds rows at scales 0.01 and 0.1 as well.
const SALT: u64 = 14;
/// See `fill/customer.sql`.
const CITY_STRIDE: u64 = 97;
const CITY_OFFSET: u64 = 138;

/// Tables with a row per line of an order, partitioned by year.
pub const FACT_TABLES: [&str; 2] = ["lineorder", "lineorder_flat"];
const DIMENSION_TABLES: [&str; 4] = ["customer", "supplier", "part", "dates"];

/// TPC-H's nations in its order, and the region of each.
const NATIONS: [(&str, &str); 25] = [
    ("ALGERIA", "AFRICA"),
    ("ARGENTINA", "AMERICA"),
    ("BRAZIL", "AMERICA"),
    ("CANADA", "AMERICA"),
    ("EGYPT", "MIDDLE EAST"),
    ("ETHIOPIA", "AFRICA"),
    ("FRANCE", "EUROPE"),
    ("GERMANY", "EUROPE"),
    ("INDIA", "ASIA"),
    ("INDONESIA", "ASIA"),
    ("IRAN", "MIDDLE EAST"),
    ("IRAQ", "MIDDLE EAST"),
    ("JAPAN", "ASIA"),
    ("JORDAN", "MIDDLE EAST"),
    ("KENYA", "AFRICA"),
    ("MOROCCO", "AFRICA"),
    ("MOZAMBIQUE", "AFRICA"),
    ("PERU", "AMERICA"),
    ("CHINA", "ASIA"),
    ("ROMANIA", "EUROPE"),
    ("SAUDI ARABIA", "MIDDLE EAST"),
    ("VIETNAM", "ASIA"),
    ("RUSSIA", "EUROPE"),
    ("UNITED KINGDOM", "EUROPE"),
    ("UNITED STATES", "AMERICA"),
];

#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("generating {table}: {source}")]
    Statement { table: &'static str, source: UpstreamError },
    #[error(
        "database {database} has tables of other origin ({tables}), which generating would replace; name another database, \
         or drop this one"
    )]
    Foreign { database: String, tables: String },
}

/// Says at which scale the tables of a database were generated, and that it was `generate` who made them.
const MARK_TABLE: &str = "ssb_generated";

/// One INSERT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub table: &'static str,
    pub sql: String,
    /// About how many rows it writes.
    pub rows: u64,
}

/// Told what is being filled and how much of the whole is done.
pub trait Progress {
    /// `table` is about to be filled; `rows_done` of about `rows_total` rows of all tables are there.
    fn at(&mut self, table: &str, rows_done: u64, rows_total: u64);
}

impl<F: FnMut(&str, u64, u64)> Progress for F {
    fn at(&mut self, table: &str, rows_done: u64, rows_total: u64) {
        self(table, rows_done, rows_total);
    }
}

/// The INSERTs that fill all tables, in order.
pub fn steps(scale: Scale) -> Vec<Step> {
    let mut steps: Vec<Step> = DIMENSION_TABLES.iter().map(|table| dimension(table, scale)).collect();
    steps.extend(lineorder(scale));
    steps.extend(lineorder_flat(scale));
    steps
}

/// Sees to it that the upstream's default database holds the benchmark's tables at this scale: makes the database when
/// it is missing, keeps tables that are there at this scale, and replaces those that an earlier call made at another.
/// Refuses a database with tables that it did not make.
pub async fn ensure(upstream: &Upstream, scale: Scale, progress: &mut impl Progress) -> Result<(), GenerateError> {
    let database = &upstream.config().database;
    let server = upstream.in_database("default");
    let failed = |table: &'static str| move |source| GenerateError::Statement { table, source };
    server
        .execute(&format!("CREATE DATABASE IF NOT EXISTS `{}`", database.replace('`', "\\`")))
        .await
        .map_err(failed("the database"))?;
    match generated_scale(upstream).await? {
        Some(made) if made == scale.factor() => return Ok(()),
        Some(_) => {}
        None => refuse_foreign(upstream).await?,
    }
    generate(upstream, scale, progress).await
}

#[derive(Deserialize)]
struct Mark {
    scale: f64,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// The scale of the tables in the default database; 0 while they are being made; `None` when we made none.
async fn generated_scale(upstream: &Upstream) -> Result<Option<f64>, GenerateError> {
    let failed = |source| GenerateError::Statement { table: MARK_TABLE, source };
    let exists = format!("SELECT name FROM system.tables WHERE database = currentDatabase() AND name = '{MARK_TABLE}'");
    if upstream.rows::<Named>(&exists).await.map_err(failed)?.is_empty() {
        return Ok(None);
    }
    let marks: Vec<Mark> = upstream.rows(&format!("SELECT scale FROM {MARK_TABLE}")).await.map_err(failed)?;
    Ok(Some(marks.first().map_or(0.0, |mark| mark.scale)))
}

async fn refuse_foreign(upstream: &Upstream) -> Result<(), GenerateError> {
    let sql = "SELECT name FROM system.tables WHERE database = currentDatabase() ORDER BY name";
    let tables: Vec<Named> =
        upstream.rows(sql).await.map_err(|source| GenerateError::Statement { table: "the database", source })?;
    if tables.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = tables.into_iter().map(|table| table.name).collect();
    Err(GenerateError::Foreign { database: upstream.config().database.clone(), tables: names.join(", ") })
}

async fn generate(upstream: &Upstream, scale: Scale, progress: &mut impl Progress) -> Result<(), GenerateError> {
    let run = async |table: &'static str, sql: String| {
        upstream.execute(&sql).await.map_err(|source| GenerateError::Statement { table, source })
    };
    run(MARK_TABLE, format!("CREATE TABLE IF NOT EXISTS {MARK_TABLE} (scale Float64) ENGINE = MergeTree ORDER BY ()"))
        .await?;
    run(MARK_TABLE, format!("TRUNCATE TABLE {MARK_TABLE}")).await?;
    for table in DIMENSION_TABLES.into_iter().chain(FACT_TABLES).chain([PROJECTED_TABLE]) {
        run(table, format!("DROP TABLE IF EXISTS {table} SYNC")).await?;
    }
    for sql in include_str!("schema.sql").split(";\n") {
        run("the tables", sql.to_string()).await?;
    }
    let steps = steps(scale);
    let rows_total = steps.iter().map(|step| step.rows).sum();
    let mut rows_done = 0;
    for step in steps {
        progress.at(step.table, rows_done, rows_total);
        run(step.table, step.sql).await?;
        rows_done += step.rows;
    }
    run(MARK_TABLE, format!("INSERT INTO {MARK_TABLE} VALUES ({})", scale.factor())).await
}

fn dimension(table: &'static str, scale: Scale) -> Step {
    let (text, rows) = match table {
        "customer" => (include_str!("fill/customer.sql"), scale.customers()),
        "supplier" => (include_str!("fill/supplier.sql"), scale.suppliers()),
        "part" => (include_str!("fill/part.sql"), scale.parts()),
        _ => (include_str!("fill/dates.sql"), 2557),
    };
    Step { table, sql: filled(text, scale, &[]), rows }
}

/// Pieces of one year and a range of orders: the date is a hash, so the orders of a year are spread over all keys.
fn lineorder(scale: Scale) -> impl Iterator<Item = Step> {
    let pieces = (scale.lines() / YEARS.len() as u64).div_ceil(ROWS_MAX);
    let orders = scale.orders().div_ceil(pieces);
    YEARS.into_iter().flat_map(move |(year, days)| {
        (0..pieces).map(move |piece| {
            let first = piece * orders;
            let count = orders.min(scale.orders() - first);
            let values = [("year", year), ("first_order", first), ("orders", count)];
            Step {
                table: "lineorder",
                sql: filled(include_str!("fill/lineorder.sql"), scale, &values),
                rows: count * LINES_PER_ORDER * days / ORDER_DAYS,
            }
        })
    })
}

/// Pieces of consecutive days of one year, which is how `lineorder` is sorted.
fn lineorder_flat(scale: Scale) -> impl Iterator<Item = Step> {
    let rows_per_day = scale.lines().div_ceil(ORDER_DAYS);
    let days_max = (ROWS_MAX / rows_per_day).clamp(1, 366);
    YEARS.into_iter().flat_map(move |(year, days)| {
        (0..days.div_ceil(days_max)).map(move |piece| {
            let first = piece * days_max;
            let count = days_max.min(days - first);
            let values = [("year", year), ("first_day", first), ("days", count)];
            Step {
                table: "lineorder_flat",
                sql: filled(include_str!("fill/lineorder_flat.sql"), scale, &values),
                rows: rows_per_day * count,
            }
        })
    })
}

/// Puts the scale's and the piece's values into a statement's `{places}`, and the settings that bound its memory after it.
fn filled(text: &str, scale: Scale, piece: &[(&str, u64)]) -> String {
    let list = |words: Vec<&str>| format!("['{}']", words.join("', '"));
    let common = [
        ("nations", list(NATIONS.iter().map(|(nation, _)| *nation).collect())),
        ("regions", list(NATIONS.iter().map(|(_, region)| *region).collect())),
        ("stride", CITY_STRIDE.to_string()),
        ("offset", CITY_OFFSET.to_string()),
        ("salt", SALT.to_string()),
        ("customers", scale.customers().to_string()),
        ("suppliers", scale.suppliers().to_string()),
        ("parts", scale.parts().to_string()),
    ];
    let piece = piece.iter().map(|(name, value)| (*name, value.to_string()));
    let filled = common
        .into_iter()
        .chain(piece)
        .fold(text.to_string(), |sql, (name, value)| sql.replace(&format!("{{{name}}}"), &value));
    format!("{filled}\nSETTINGS min_insert_block_size_rows = {ROWS_MAX}, min_insert_block_size_bytes = '512Mi'")
}
