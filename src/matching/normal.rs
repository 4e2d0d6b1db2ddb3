//! Expressions in normal form, so that equal ones have equal keys.
//!
//! The key of `LO_REVENUE > 5 AND 3 = x` is the same text as that of `x = 3 AND 5 < LO_REVENUE`. Keys are only
//! compared; what is sent to ClickHouse is always the expression as the client meant it.

use std::sync::Arc;

use super::schema::TableName;
use crate::sql::expression::text_literal;
use crate::sql::render::render;
use crate::sql::tree::{Call, Expr, Literal, Value};

/// A resolved expression with the key of its normal form, and so for every expression below it.
#[derive(Debug, Clone)]
pub struct Keyed {
    pub expr: Expr,
    pub key: Arc<str>,
    /// The normal form itself.
    pub normal: Expr,
    /// In the order of [`Expr::children`].
    pub children: Vec<Keyed>,
}

impl Keyed {
    pub fn new(expr: &Expr, tables: &[TableName]) -> Self {
        let children: Vec<Keyed> = expr.children().map(|child| Keyed::new(child, tables)).collect();
        let mut at = 0;
        let replaced = expr.map_children(&mut |_| {
            at += 1;
            Ok::<_, std::convert::Infallible>(children[at - 1].normal.clone())
        });
        let normal = match replaced {
            Ok(expr) => normalise(expr, tables),
            Err(never) => match never {},
        };
        Keyed { key: key(&normal, tables).into(), expr: expr.clone(), normal, children }
    }

    /// The arguments of a call, without its parameters.
    pub fn arguments(&self) -> &[Keyed] {
        match &self.expr {
            Expr::Call(call) => &self.children[call.parameters.as_ref().map_or(0, Vec::len)..],
            _ => &[],
        }
    }
}

/// The text by which normal forms are compared.
fn key(expr: &Expr, tables: &[TableName]) -> String {
    let column = |table: usize, name: &str| match tables.get(table) {
        Some(table) => format!("{table}.{name}"),
        None => format!("{table}.{name}"),
    };
    render(expr, &column, &|range| format!("<sub-query at {}>", range.start))
}

/// Puts one node, whose children are in normal form, into normal form.
fn normalise(expr: Expr, tables: &[TableName]) -> Expr {
    let Expr::Call(mut call) = expr else { return literal(expr) };
    call.name.clone_from(&call.function);
    match (&*call.function, &*call.arguments) {
        ("count", [Expr::Star]) if !call.distinct => call.arguments.clear(),
        ("count", [Expr::Literal(literal)]) if !call.distinct && literal.value != Value::Null => call.arguments.clear(),
        // `count_distinct_implementation` is not on the list of allowed settings, so it is uniqExact.
        ("count", [_, ..]) if call.distinct => {
            call.distinct = false;
            call = Call { name: "uniqExact".into(), function: "uniqExact".into(), ..call };
        }
        ("plus" | "multiply" | "equals" | "notEquals", [_, _]) => order(&mut call, tables),
        ("and" | "or", _) => {
            flatten(&mut call);
            order(&mut call, tables);
            call.arguments.dedup();
        }
        ("less" | "lessOrEquals" | "greater" | "greaterOrEquals", [left, right]) => {
            let flips = match (left.is_constant(), right.is_constant()) {
                (true, false) => true,
                (false, false) => call.function.starts_with("greater"),
                _ => false,
            };
            if flips {
                call.arguments.reverse();
                rename(&mut call, flipped);
            }
        }
        ("not", [Expr::Call(inner)]) => {
            if let Some(opposite) = opposite(&inner.function) {
                return normalise(Expr::call(opposite, inner.arguments.clone()), tables);
            }
        }
        // CASE with one condition.
        ("multiIf", [_, _, _]) => rename(&mut call, |_| "if"),
        // `x IN (1)`: the same as a list of one.
        ("in" | "notIn", [_, Expr::Literal(element)]) if matches!(element.value, Value::Int(_) | Value::Text(_)) => {
            let set = Expr::call("tuple", vec![call.arguments[1].clone()]);
            call.arguments[1] = set;
        }
        _ => {}
    }
    Expr::Call(call)
}

/// The comparison that holds when the sides are swapped.
fn flipped(function: &str) -> &'static str {
    match function {
        "less" => "greater",
        "lessOrEquals" => "greaterOrEquals",
        "greater" => "less",
        _ => "lessOrEquals",
    }
}

/// The function that is the exact negation, for NULL and NaN as well: `NOT x < 5` is not `x >= 5` when x is NaN.
fn opposite(function: &str) -> Option<&'static str> {
    Some(match function {
        "equals" => "notEquals",
        "notEquals" => "equals",
        "in" => "notIn",
        "notIn" => "in",
        "like" => "notLike",
        "notLike" => "like",
        "isNull" => "isNotNull",
        "isNotNull" => "isNull",
        _ => return None,
    })
}

fn rename(call: &mut Call, by: impl Fn(&str) -> &'static str) {
    call.function = by(&call.function).into();
    call.name.clone_from(&call.function);
}

fn flatten(call: &mut Call) {
    let function = call.function.clone();
    call.arguments = std::mem::take(&mut call.arguments)
        .into_iter()
        .flat_map(|argument| match argument {
            Expr::Call(inner) if inner.function == function => inner.arguments,
            other => vec![other],
        })
        .collect();
}

/// Orders commutative operands: constants last, else by key.
fn order(call: &mut Call, tables: &[TableName]) {
    call.arguments.sort_by_cached_key(|argument| (argument.is_constant(), key(argument, tables)));
}

/// Numbers without separators, so that `1_000` and `1000` are one literal.
fn literal(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(Literal { value: Value::Int(number), .. }) => int_literal(number),
        Expr::Literal(Literal { value: Value::Text(bytes), text }) => match std::str::from_utf8(&bytes) {
            Ok(text) => text_literal(text),
            Err(_) => Expr::Literal(Literal { value: Value::Text(bytes), text }),
        },
        other => other,
    }
}

pub fn int_literal(number: i128) -> Expr {
    Expr::Literal(Literal { text: number.to_string(), value: Value::Int(number) })
}
