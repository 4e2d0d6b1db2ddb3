//! Query tree -> ClickHouse SQL.
//!
//! Calls are written as calls (`plus(a, b)`), which is what ClickHouse's own parser makes of operators, so nothing
//! depends on precedence.

use std::fmt::Write;

use super::lexer::backquote;
use super::tree::{Call, Expr, Window};

/// Renders an expression; `column` writes a column, `subquery` the text of a sub-query's byte range.
pub fn render(
    expr: &Expr,
    column: &dyn Fn(usize, &str) -> String,
    subquery: &dyn Fn(std::ops::Range<usize>) -> String,
) -> String {
    let mut out = String::with_capacity(64);
    write_expr(&mut out, expr, column, subquery);
    out
}

fn write_expr(
    out: &mut String,
    expr: &Expr,
    column: &dyn Fn(usize, &str) -> String,
    subquery: &dyn Fn(std::ops::Range<usize>) -> String,
) {
    match expr {
        Expr::Literal(literal) => out.push_str(&literal.text),
        Expr::Name(parts) => {
            let quoted: Vec<String> = parts.iter().map(|p| identifier(p)).collect();
            out.push_str(&quoted.join("."));
        }
        Expr::Column { table, name } => out.push_str(&column(*table, name)),
        Expr::Parameter(text) => out.push_str(text),
        Expr::Subquery(range) => out.push_str(&subquery(range.clone())),
        Expr::Star => out.push('*'),
        Expr::Lambda { parameters, body } => {
            let names: Vec<String> = parameters.iter().map(|p| identifier(p)).collect();
            let _ = write!(out, "({}) -> ", names.join(", "));
            write_expr(out, body, column, subquery);
        }
        Expr::Call(call) => write_call(out, call, column, subquery),
        Expr::Window(window) => write_window(out, window, column, subquery),
    }
}

fn write_window(
    out: &mut String,
    window: &Window,
    column: &dyn Fn(usize, &str) -> String,
    subquery: &dyn Fn(std::ops::Range<usize>) -> String,
) {
    write_call(out, &window.call, column, subquery);
    out.push_str(" OVER (");
    for (at, expr) in window.partition_by.iter().enumerate() {
        out.push_str(if at == 0 { "PARTITION BY " } else { ", " });
        write_expr(out, expr, column, subquery);
    }
    for (at, item) in window.order_by.iter().enumerate() {
        out.push_str(if at == 0 { " ORDER BY " } else { ", " });
        write_expr(out, &item.expr, column, subquery);
        let _ = write!(out, " {}", item.direction);
    }
    let _ = write!(out, " {})", window.frame);
}

fn write_call(
    out: &mut String,
    call: &Call,
    column: &dyn Fn(usize, &str) -> String,
    subquery: &dyn Fn(std::ops::Range<usize>) -> String,
) {
    let list = |out: &mut String, items: &[Expr]| {
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            write_expr(out, item, column, subquery);
        }
    };
    // A tuple or an array of literals stays a literal, which ClickHouse needs on the right of IN.
    let brackets = match (&*call.name, call.arguments.len()) {
        ("array", _) => Some(("[", "]")),
        ("tuple", 2..) => Some(("(", ")")),
        _ => None,
    };
    if let Some((open, close)) = brackets {
        out.push_str(open);
        list(out, &call.arguments);
        out.push_str(close);
        return;
    }
    // A word before a bracket is a function, also where it is a keyword elsewhere: `and(..)`, `left(..)`.
    if is_word(&call.name) {
        out.push_str(&call.name);
    } else {
        out.push_str(&backquote(&call.name));
    }
    if let Some(parameters) = &call.parameters {
        out.push('(');
        list(out, parameters);
        out.push(')');
    }
    out.push('(');
    if call.distinct {
        out.push_str("DISTINCT ");
    }
    list(out, &call.arguments);
    out.push(')');
}

/// An identifier, in backquotes unless it is plainly a name.
pub fn identifier(name: &str) -> String {
    let plain = is_word(name) && !KEYWORDS.iter().any(|k| k.eq_ignore_ascii_case(name));
    if plain { name.into() } else { backquote(name) }
}

fn is_word(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Words that ClickHouse would not read as a bare identifier everywhere.
const KEYWORDS: [&str; 48] = [
    "ALL", "AND", "ANTI", "ANY", "ARRAY", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "CROSS", "DATE", "DESC",
    "DISTINCT", "DIV", "ELSE", "END", "EXCEPT", "EXISTS", "FINAL", "FORMAT", "FROM", "FULL", "GLOBAL", "GROUP",
    "HAVING", "ILIKE", "IN", "INNER", "INTERVAL", "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "NOT", "NULL",
    "OFFSET", "ON", "OR", "ORDER", "SELECT", "THEN", "UNION", "WHERE", "WITH",
];

/// A string literal that ClickHouse reads as exactly these bytes.
pub fn string_literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\n' => out.push_str("\\n"),
            '\0' => out.push_str("\\0"),
            _ => out.push(c),
        }
    }
    out.push('\'');
    out
}
