//! Matches -> SQL on the view's table.

use std::fmt::Write;

use super::block::Block;
use super::matcher::Match;
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
pub fn rewrite(block: &Block, matched: &Match, stored: &StoredView, names: &[String], original: &str) -> String {
    let column = |position: usize, _: &str| stored.columns[position].expression();
    let text = |expr: &Expr| render(expr, &column, &|range| original[range].to_string());
    let list = |exprs: &[Expr]| exprs.iter().map(text).collect::<Vec<_>>().join(", ");
    let mut sql = String::from(if block.distinct { "SELECT DISTINCT " } else { "SELECT " });
    for (i, (output, name)) in matched.outputs.iter().zip(names).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(sql, "{comma}{} AS {}", text(output), backquote(name));
    }
    let _ = write!(sql, " FROM {}.{} AS {VIEW_ALIAS}", backquote(&stored.database), backquote(&stored.table));
    // Runs are numbered from 1: without a live run nothing is read. A plain comparison is planned faster than a set.
    let runs = match &*stored.runs {
        [] => "= 0".to_string(),
        [run] => format!("= {run}"),
        runs => format!("IN ({})", join(runs)),
    };
    let _ = write!(sql, " WHERE {VIEW_ALIAS}._run {runs}");
    if !stored.dead.is_empty() {
        let dead: Vec<String> =
            stored.dead.iter().map(|(run, partition)| format!("({run}, {})", string_literal(partition))).collect();
        let _ = write!(sql, " AND ({VIEW_ALIAS}._run, {VIEW_ALIAS}._sp) NOT IN ({})", dead.join(", "));
    }
    for filter in &matched.filters {
        let _ = write!(sql, " AND {}", text(filter));
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

fn join(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}
