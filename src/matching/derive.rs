//! Expressions of a query -> expressions over the columns of a view: Goldstein and Larson, section 3.1.3 and 3.3.
//!
//! In a derived expression `Column { table: n }` is the view's column at position n. Row expressions (filters, group
//! keys) are built from dimensions; outputs from group keys and aggregates. Aggregates are always merged once more,
//! since a view holds several rows for one key (runs, source partitions, unmerged states).

use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::buckets;
use super::domain::bare_type;
use super::normal::Keyed;
use super::refusal::Refusal;
use super::schema::{Schema, TableName};
use super::view::{ColumnKind, Storage, View, is_small_int, may_be_null};
use crate::sql::functions;
use crate::sql::tree::{Call, Expr, Literal, Value};

/// Aggregate functions to which it is the same whether a value comes once or often.
const OF_SETS: [&str; 16] = [
    "min",
    "max",
    "any",
    "anyLast",
    "uniq",
    "uniqExact",
    "uniqCombined",
    "uniqCombined64",
    "uniqHLL12",
    "uniqTheta",
    "groupUniqArray",
    "groupBitAnd",
    "groupBitOr",
    "groupBitmap",
    "argMin",
    "argMax",
];

/// Columns that the query proves equal by inner joins: the equivalence classes of the paper.
#[derive(Debug, Default)]
pub struct Classes(HashMap<Arc<str>, usize>);

impl Classes {
    /// From conjuncts `a = b` over columns of one type, whose equal values are the same value.
    pub fn of(block: &Block, schema: &Schema) -> Self {
        let mut classes = Classes::default();
        for conjunct in &block.conjuncts {
            if let Some((left, right)) = equality(conjunct, &block.tables, schema) {
                let next = classes.0.len();
                let a = *classes.0.entry(left).or_insert(next);
                let b = *classes.0.entry(right).or_insert(a);
                classes.0.values_mut().filter(|class| **class == b).for_each(|class| *class = a);
            }
        }
        classes
    }

    pub fn are_equal(&self, left: &str, right: &str) -> bool {
        matches!((self.0.get(left), self.0.get(right)), (Some(a), Some(b)) if a == b)
    }

    fn equals_of<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Arc<str>> {
        let class = self.0.get(key).copied();
        self.0.iter().filter(move |(_, c)| Some(**c) == class).map(|(key, _)| key)
    }
}

/// The keys of both sides, if a conjunct is `column = column` with one exact type.
pub fn equality(conjunct: &Keyed, tables: &[TableName], schema: &Schema) -> Option<(Arc<str>, Arc<str>)> {
    let call = conjunct.expr.as_call("equals")?;
    let [left, right] = &*call.arguments else { return None };
    let (a, b) = (column_type(left, tables, schema)?, column_type(right, tables, schema)?);
    // Equal floats may differ in bits, and equal values of different types are different values.
    let exact = matches!(bare_type(a), "String" | "Date" | "UUID" | "IPv4" | "IPv6") || is_small_int(a);
    (a == b && exact).then(|| (Keyed::new(left, tables).key, Keyed::new(right, tables).key))
}

fn column_type<'a>(expr: &Expr, tables: &[TableName], schema: &'a Schema) -> Option<&'a str> {
    let Expr::Column { table, name } = expr else { return None };
    Some(&schema.table(tables.get(*table)?)?.column(name)?.type_name)
}

/// Derives the expressions of one block from one view.
pub struct Deriver<'a> {
    pub view: &'a View,
    pub block: &'a Block,
    pub schema: &'a Schema,
    pub classes: &'a Classes,
    /// Key of a group key of the query -> its derived expression.
    pub group_keys: HashMap<Arc<str>, Expr>,
}

fn view_column(position: usize) -> Expr {
    Expr::Column { table: position, name: String::new() }
}

impl Deriver<'_> {
    /// A row expression over the dimensions; the error names what the view does not keep.
    pub fn row(&self, expr: &Keyed) -> Result<Expr, String> {
        if let Some(dimension) = self.dimension(&expr.key) {
            return Ok(dimension);
        }
        let tables = &self.block.tables;
        match &expr.expr {
            Expr::Column { table, name } => self
                .classes
                .equals_of(&expr.key)
                .find_map(|equal| self.dimension(equal))
                .ok_or_else(|| format!("{}.{name}", tables[*table].table)),
            Expr::Literal(_) | Expr::Parameter(_) | Expr::Name(_) => Ok(expr.expr.clone()),
            Expr::Call(call)
                if functions::is_pure(&call.function) || functions::is_constant_per_query(&call.function) =>
            {
                let missing = match self.children(expr, &|child| self.row(child)) {
                    Ok(derived) => return Ok(derived),
                    Err(missing) => missing,
                };
                if let ([argument], None) = (&*call.arguments, &call.parameters) {
                    for way in buckets::coarsenings(&call.function, argument, tables, self.schema) {
                        if let Some(dimension) = self.dimension(&Keyed::new(&way.finer, tables).key) {
                            return Ok(way.over(dimension));
                        }
                    }
                }
                let mut same = buckets::aligned(expr, tables, self.schema).into_iter();
                same.find_map(|same| self.row(&Keyed::new(&same, tables)).ok()).ok_or(missing)
            }
            Expr::Lambda { .. } => self.children(expr, &|child| self.row(child)),
            Expr::Call(call) => Err(format!("{}(..)", call.name)),
            Expr::Subquery(_) => Ok(expr.expr.clone()),
            Expr::Star => Err("an expression that is not understood".into()),
        }
    }

    fn dimension(&self, key: &str) -> Option<Expr> {
        self.view.position(key).filter(|p| self.view.is_dimension(*p)).map(view_column)
    }

    fn children<E>(&self, expr: &Keyed, derive: &dyn Fn(&Keyed) -> Result<Expr, E>) -> Result<Expr, E> {
        let mut children = expr.children.iter();
        expr.expr.map_children(&mut |original| children.next().map_or_else(|| Ok(original.clone()), derive))
    }

    /// An expression of SELECT, HAVING, ORDER BY or LIMIT BY.
    pub fn output(&self, expr: &Keyed) -> Result<Expr, Refusal> {
        if self.block.is_distinct_rows() {
            return self.row(expr).map_err(Refusal::Output);
        }
        if let Some(key) = self.group_keys.get(&expr.key) {
            return Ok(key.clone());
        }
        match &expr.expr {
            Expr::Literal(_) | Expr::Parameter(_) | Expr::Name(_) | Expr::Subquery(_) => Ok(expr.expr.clone()),
            Expr::Call(call) if functions::aggregate(&call.function).is_some() => {
                self.aggregate(expr, call).ok_or_else(|| Refusal::Aggregate(self.shown(expr)))
            }
            Expr::Call(call)
                if functions::is_pure(&call.function) || functions::is_constant_per_query(&call.function) =>
            {
                self.children(expr, &|child| self.output(child))
            }
            Expr::Lambda { .. } => self.children(expr, &|child| self.output(child)),
            _ => Err(Refusal::Output(self.shown(expr))),
        }
    }

    /// An expression in the words of a refusal: without the names of tables.
    fn shown(&self, expr: &Keyed) -> String {
        let mut text = expr.key.to_string();
        for table in &self.block.tables {
            text = text.replace(&format!("{table}."), "");
        }
        text
    }

    /// An aggregate of the query from the aggregates and dimensions of the view.
    fn aggregate(&self, expr: &Keyed, call: &Call) -> Option<Expr> {
        if let Some(position) = self.stored(&expr.key) {
            return self.merge(position, call.parameters.clone(), None);
        }
        if call.distinct {
            // Over the set of the dimensions' values; the rows of a view hold each value at least once.
            return self.children(expr, &|child| self.row(child)).ok();
        }
        let Expr::Call(normal) = &expr.normal else { return None };
        let (function, combinators) = functions::aggregate(&normal.function)?;
        let arguments = expr.arguments();
        let (arguments, condition) = match (&*combinators, arguments) {
            ([], _) => (arguments, None),
            (["If"], [inner @ .., condition]) => (inner, Some(self.row(condition).ok()?)),
            _ => return None,
        };
        // The count of `count(*)` has no argument.
        let arguments = if function == "count" && normal.arguments.is_empty() { &[] } else { arguments };
        let condition = condition.as_ref();
        match (function, arguments) {
            ("count", []) => self.count(condition),
            ("count", [argument]) => self.count_of(argument, condition),
            ("sum", [argument]) => self.sum(argument, None, condition),
            ("avg", [argument]) => {
                if let Some(position) = self.stored(&format!("avg({})", argument.key)) {
                    return self.merge(position, None, condition);
                }
                let (sum, count) = (self.sum(argument, None, condition)?, self.count_of(argument, condition)?);
                Some(Expr::call("divide", vec![sum, count]))
            }
            _ => self.any_function(function, normal, arguments, condition),
        }
    }

    /// A function with no rule of its own: its stored state, or the function itself over dimensions.
    fn any_function(
        &self,
        function: &str,
        normal: &Call,
        arguments: &[Keyed],
        condition: Option<&Expr>,
    ) -> Option<Expr> {
        let parameters = normal.parameters.clone();
        let inner = Expr::Call(Call {
            name: function.into(),
            function: function.into(),
            parameters: parameters.clone(),
            arguments: arguments.iter().map(|a| a.normal.clone()).collect(),
            distinct: false,
        });
        if let Some(position) = self.stored(&Keyed::new(&inner, &self.block.tables).key) {
            return self.merge(position, parameters, condition);
        }
        if !OF_SETS.contains(&function) {
            return None;
        }
        let mut derived = arguments.iter().map(|a| self.row(a).ok()).collect::<Option<Vec<_>>>()?;
        let name = format!("{function}{}", if condition.is_some() { "If" } else { "" });
        derived.extend(condition.cloned());
        Some(Expr::Call(Call { name: name.clone(), function: name, parameters, arguments: derived, distinct: false }))
    }

    fn stored(&self, key: &str) -> Option<usize> {
        self.view.position(key).filter(|p| !self.view.is_dimension(*p))
    }

    /// The merge of a stored aggregate, over the rows for which `condition` holds.
    fn merge(&self, position: usize, parameters: Option<Vec<Expr>>, condition: Option<&Expr>) -> Option<Expr> {
        let ColumnKind::Aggregate { function, storage } = &self.view.columns[position].kind else { return None };
        let combinator = if condition.is_some() { "If" } else { "" };
        let (name, parameters) = match storage {
            Storage::Simple(merge) => (format!("{merge}{combinator}"), None),
            Storage::State => (format!("{function}Merge{combinator}"), parameters),
        };
        let arguments = std::iter::once(view_column(position)).chain(condition.cloned()).collect();
        Some(Expr::Call(Call { name: name.clone(), function: name, parameters, arguments, distinct: false }))
    }

    /// The position of a stored number of rows per key: `count()`, or `count(x)` of an x that is never NULL.
    fn rows_stored(&self) -> Option<usize> {
        self.stored("count()").or_else(|| {
            self.view.columns.iter().position(|column| {
                let argument = column.expr.normal.as_call("count").and_then(|c| c.arguments.first());
                argument.is_some_and(|a| self.is_never_null(a))
            })
        })
    }

    /// Expressions of a view number tables as the view does, those of the query as the query does.
    fn is_never_null(&self, in_view: &Expr) -> bool {
        column_type(in_view, &self.view.tables, self.schema).is_some_and(|t| !may_be_null(t))
    }

    fn count(&self, condition: Option<&Expr>) -> Option<Expr> {
        self.merge(self.rows_stored()?, None, condition)
    }

    fn count_of(&self, argument: &Keyed, condition: Option<&Expr>) -> Option<Expr> {
        if let Some(position) = self.stored(&format!("count({})", argument.key)) {
            return self.merge(position, None, condition);
        }
        if column_type(&argument.expr, &self.block.tables, self.schema).is_some_and(|t| !may_be_null(t)) {
            return self.count(condition);
        }
        let is_there = Expr::call("isNotNull", vec![self.row(argument).ok()?]);
        let both = match condition {
            Some(condition) => Expr::call("and", vec![is_there, condition.clone()]),
            None => is_there,
        };
        self.merge(self.rows_stored()?, None, Some(&both))
    }

    /// `sum(argument * factor)`, from a stored sum, from dimensions and a count, or term by term.
    fn sum(&self, argument: &Keyed, factor: Option<&Expr>, condition: Option<&Expr>) -> Option<Expr> {
        let times = |value: Expr| match factor {
            Some(factor) => Expr::call("multiply", vec![value, factor.clone()]),
            None => value,
        };
        let summed = |value: Expr| match condition {
            Some(condition) => Expr::call("sumIf", vec![value, condition.clone()]),
            None => Expr::call("sum", vec![value]),
        };
        if let Some(position) = self.stored(&format!("sum({})", argument.key)) {
            let plain =
                matches!(self.view.columns[position].kind, ColumnKind::Aggregate { storage: Storage::Simple(_), .. });
            return plain.then(|| summed(times(view_column(position))));
        }
        if let (Ok(value), Some(rows)) = (self.row(argument), self.rows_stored()) {
            return Some(summed(times(Expr::call("multiply", vec![value, view_column(rows)]))));
        }
        if !self.is_exact(argument) {
            return None;
        }
        let Expr::Call(call) = &argument.expr else { return None };
        match (&*call.function, argument.arguments()) {
            ("plus" | "minus", [left, right]) => {
                let sides = vec![self.sum(left, factor, condition)?, self.sum(right, factor, condition)?];
                Some(Expr::call(&call.function, sides))
            }
            ("negate", [inner]) => Some(Expr::call("negate", vec![self.sum(inner, factor, condition)?])),
            ("multiply", [left, right]) => {
                let with = |kept: &Keyed, summed: &Keyed| {
                    let kept = times(self.row(kept).ok()?);
                    self.sum(summed, Some(&kept), condition)
                };
                with(left, right).or_else(|| with(right, left))
            }
            _ => None,
        }
    }

    /// Whether sums may be taken apart: whole numbers, never NULL, for which arithmetic is exact modulo 2^64 whatever
    /// the order. (Floats would change in the digits, NULLs drop whole terms.)
    fn is_exact(&self, expr: &Keyed) -> bool {
        match &expr.expr {
            Expr::Column { .. } => column_type(&expr.expr, &self.block.tables, self.schema).is_some_and(is_small_int),
            Expr::Literal(Literal { value: Value::Int(n), .. }) => n.abs() < 1 << 31,
            Expr::Call(call) => {
                matches!(&*call.function, "plus" | "minus" | "multiply" | "negate")
                    && expr.children.iter().all(|child| self.is_exact(child))
            }
            _ => false,
        }
    }
}
