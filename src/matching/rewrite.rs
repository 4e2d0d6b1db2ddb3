//! Matches -> SQL on the view's table.
//!
//! Where the view's runs lack some rows of the fact table, these are computed from the raw tables in the form of rows of
//! the view, and the same text reads both:
//!
//! ```text
//! SELECT year AS year, sum(s) AS `sum(x)` FROM (SELECT year, s FROM <view> WHERE <runs> AND <filters>
//!     UNION ALL SELECT toYear(d) AS year, sum(x) AS s FROM t WHERE <query's filters> AND <rows that the runs lack>
//!     GROUP BY toYear(d)) GROUP BY year
//! ```

use std::fmt::Write;

use super::block::Block;
use super::matcher::Match;
use super::view::{View, of_fact, source_column};
use crate::sql::lexer::backquote;
use crate::sql::render::{render, string_literal};
use crate::sql::tree::Expr;

/// Alias of the view's table in a rewritten block: qualified columns cannot be taken for aliases of the query.
const VIEW_ALIAS: &str = "_tributary";

/// Where the rows of a view are, at the moment of one manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredView {
    pub database: String,
    pub table: String,
    /// The stored columns, by position in the view.
    pub columns: Vec<StoredColumn>,
    /// Live runs; a query must name them.
    pub runs: Vec<u64>,
    /// Rows of these runs that do not count, as (run, source partition).
    pub dead: Vec<(u64, String)>,
    /// What these runs lack.
    pub raw: Option<RawSide>,
}

/// Rows that are read from the fact table itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawSide {
    /// Partitions of the fact table whose rows in the runs do not count.
    pub without: Vec<String>,
    /// Selects the rows that the runs lack; `{fact}` stands for the fact table's qualifier.
    pub condition: String,
}

/// A column of a view's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredColumn {
    pub name: String,
    /// As ClickHouse spells it; empty where it is not known.
    pub type_name: String,
}

impl StoredColumn {
    /// The column as an expression of the type that its values have. `min`, `max`, `any` and `anyLast` give the type of
    /// their argument, and must not give `SimpleAggregateFunction(..)`.
    fn expression(&self) -> String {
        let column = format!("{VIEW_ALIAS}.{}", backquote(&self.name));
        let inner = ["min, ", "max, ", "any, ", "anyLast, "].iter().find_map(|function| {
            self.type_name.strip_prefix("SimpleAggregateFunction(")?.strip_prefix(function)?.strip_suffix(')')
        });
        match inner {
            Some(inner) => format!("CAST({column}, {})", string_literal(inner)),
            None => column,
        }
    }
}

/// The block rewritten to read the view; `names` are the names of its result columns, `original` is the text from which
/// sub-queries are taken over.
pub fn rewrite(
    block: &Block,
    view: &View,
    matched: &Match,
    stored: &StoredView,
    names: &[String],
    original: &str,
) -> String {
    let column = |position: usize, _: &str| stored.columns[position].expression();
    let text = |expr: &Expr| render(expr, &column, &|range| original[range].to_string());
    let list = |exprs: &[Expr]| exprs.iter().map(text).collect::<Vec<_>>().join(", ");
    let mut sql = String::from(if block.distinct { "SELECT DISTINCT " } else { "SELECT " });
    for (i, (output, name)) in matched.outputs.iter().zip(names).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(sql, "{comma}{} AS {}", text(output), backquote(name));
    }
    match &stored.raw {
        None => {
            let filters: Vec<String> = matched.filters.iter().map(text).collect();
            let _ = write!(sql, " FROM {}", stored.rows(&filters));
        }
        Some(raw) => {
            // A sub-query is run once, so that it cannot give one set for the view and another for the raw rows.
            let (late, early): (Vec<&Expr>, Vec<&Expr>) = matched.filters.iter().partition(|f| has_subquery(f));
            let positions = matched.columns_read(&late);
            let early: Vec<String> = early.into_iter().map(text).collect();
            let items: Vec<String> = positions
                .iter()
                .map(|position| backquote(&stored.columns[*position].name))
                .map(|name| format!("{VIEW_ALIAS}.{name} AS {name}"))
                .collect();
            let rows = stored.rows(&early);
            let raw = raw_rows(block, view, &positions, stored, &raw.condition, original);
            let _ = write!(sql, " FROM (SELECT {} FROM {rows} UNION ALL {raw}) AS {VIEW_ALIAS}", items.join(", "));
            for (i, filter) in late.into_iter().enumerate() {
                let _ = write!(sql, "{}{}", if i == 0 { " WHERE " } else { " AND " }, text(filter));
            }
        }
    }
    if !matched.group_by.is_empty() {
        let _ = write!(sql, " GROUP BY {}", list(&matched.group_by));
        if let Some(subtotals) = block.subtotals {
            let _ = write!(sql, " WITH {subtotals}");
        }
        if block.with_totals {
            sql.push_str(" WITH TOTALS");
        }
    }
    if let Some(having) = &matched.having {
        let _ = write!(sql, " HAVING {}", text(having));
    }
    for (i, (expr, direction)) in matched.order_by.iter().enumerate() {
        let word = if i == 0 { " ORDER BY" } else { "," };
        let space = if direction.is_empty() { "" } else { " " };
        let _ = write!(sql, "{word} {}{space}{direction}", text(expr));
    }
    if let Some((head, by)) = &matched.limit_by {
        let _ = write!(sql, " {head} BY {}", list(by));
    }
    if let Some(limit) = &block.limit {
        let _ = write!(sql, " {limit}");
    }
    sql
}

impl StoredView {
    /// The view's table and the conditions for those of its rows that count and pass the filters.
    fn rows(&self, filters: &[String]) -> String {
        let mut sql = format!("{}.{} AS {VIEW_ALIAS}", backquote(&self.database), backquote(&self.table));
        let _ = write!(sql, " WHERE {}", that_count(&format!("{VIEW_ALIAS}."), &self.runs, &self.dead));
        if let Some(RawSide { without, .. }) = &self.raw
            && !without.is_empty()
        {
            let list: Vec<String> = without.iter().map(|id| string_literal(id)).collect();
            let _ = write!(sql, " AND {VIEW_ALIAS}._sp NOT IN ({})", list.join(", "));
        }
        for filter in filters {
            let _ = write!(sql, " AND {filter}");
        }
        sql
    }
}

/// The condition on a view's table for the rows of some runs, without those that are `dead` (as run and source partition).
/// `qualifier` comes before the names of columns.
pub fn that_count(qualifier: &str, runs: &[u64], dead: &[(u64, String)]) -> String {
    // Runs are numbered from 1: without a live run nothing is read. A plain comparison is planned faster than a set.
    let runs = match runs {
        [] => "= 0".to_string(),
        [run] => format!("= {run}"),
        runs => format!("IN ({})", runs.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let mut condition = format!("{qualifier}_run {runs}");
    if !dead.is_empty() {
        let dead: Vec<String> =
            dead.iter().map(|(run, partition)| format!("({run}, {})", string_literal(partition))).collect();
        let _ = write!(condition, " AND ({qualifier}_run, {qualifier}_sp) NOT IN ({})", dead.join(", "));
    }
    condition
}

/// The rows that the runs lack, as rows of the view with its columns at `positions`.
fn raw_rows(
    block: &Block,
    view: &View,
    positions: &[usize],
    stored: &StoredView,
    condition: &str,
    original: &str,
) -> String {
    let items: Vec<String> = positions
        .iter()
        .map(|position| format!("{} AS {}", view.state(*position), backquote(&stored.columns[*position].name)))
        .collect();
    // Query and view may name the tables in another order.
    let in_view = |table: usize| view.tables.iter().position(|t| *t == block.tables[table]).unwrap_or(table);
    let column = |table: usize, name: &str| source_column(in_view(table), name);
    let mut conditions = view.conditions();
    for conjunct in block.conjuncts.iter().filter(|conjunct| !has_subquery(&conjunct.expr)) {
        let text = render(&conjunct.expr, &column, &|range| original[range].to_string());
        if !conditions.contains(&text) {
            conditions.push(text);
        }
    }
    conditions.push(of_fact(condition));
    let keys: Vec<String> =
        positions.iter().filter(|position| view.is_dimension(**position)).map(|p| view.state(*p)).collect();
    // Without keys ClickHouse gives one row also for no rows at all, whose zeros must not be merged.
    let end = match &*keys {
        [] => " HAVING count() > 0".to_string(),
        keys => format!(" GROUP BY {}", keys.join(", ")),
    };
    format!("SELECT {} FROM {} WHERE {}{end}", items.join(", "), view.from(), conditions.join(" AND "))
}

fn has_subquery(expr: &Expr) -> bool {
    expr.any(&mut |e| matches!(e, Expr::Subquery(_)))
}
