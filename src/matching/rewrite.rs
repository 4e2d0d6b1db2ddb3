//! Matches -> SQL on the view's table.

use std::fmt::Write;

use super::block::Block;
use super::matcher::Match;
use crate::sql::lexer::backquote;
use crate::sql::render::render;
use crate::sql::tree::Expr;

/// Alias of the view's table in a rewritten block: qualified columns cannot be taken for aliases of the query.
const VIEW_ALIAS: &str = "_tributary";

/// Where the rows of a view are, at the moment of one manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredView {
    pub database: String,
    pub table: String,
    /// Names of the stored columns, by position in the view.
    pub columns: Vec<String>,
    /// Live runs; a query must name them.
    pub runs: Vec<u64>,
}

/// The block rewritten to read the view; `names` are the names of its result columns.
pub fn rewrite(block: &Block, matched: &Match, stored: &StoredView, names: &[String]) -> String {
    let column = |position: usize, _: &str| format!("{VIEW_ALIAS}.{}", backquote(&stored.columns[position]));
    let text = |expr: &Expr| render(expr, &column, &|_| String::new());
    let list = |exprs: &[Expr]| exprs.iter().map(text).collect::<Vec<_>>().join(", ");
    let mut sql = String::from(if block.distinct { "SELECT DISTINCT " } else { "SELECT " });
    for (i, (output, name)) in matched.outputs.iter().zip(names).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let _ = write!(sql, "{comma}{} AS {}", text(output), backquote(name));
    }
    let _ = write!(sql, " FROM {}.{} AS {VIEW_ALIAS}", backquote(&stored.database), backquote(&stored.table));
    // Runs are numbered from 1: without a live run nothing is read.
    let runs = if stored.runs.is_empty() { "0".into() } else { join(&stored.runs) };
    let _ = write!(sql, " WHERE {VIEW_ALIAS}._run IN ({runs})");
    for filter in &matched.filters {
        let _ = write!(sql, " AND {}", text(filter));
    }
    if !matched.group_by.is_empty() {
        let _ = write!(sql, " GROUP BY {}", list(&matched.group_by));
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
