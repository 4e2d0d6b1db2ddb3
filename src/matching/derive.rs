//! Expressions of a query -> expressions over the columns of a view: Goldstein and Larson, section 3.1.3 and 3.3.
//!
//! In a derived expression `Column { table: n }` is the view's column at position n. Row expressions (filters, group
//! keys) are built from dimensions; outputs from group keys and aggregates. Aggregates are always merged once more,
//! since a view holds several rows for one key (runs, source partitions, unmerged states).

use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::buckets::Buckets;
use super::domain::bare_type;
use super::normal::Keyed;
use super::refusal::Refusal;
use super::schema::{Schema, TableName};
use super::view::{View, is_small_int};
use crate::sql::functions;
use crate::sql::tree::Expr;

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

pub(super) fn column_type<'a>(expr: &Expr, tables: &[TableName], schema: &'a Schema) -> Option<&'a str> {
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

pub(super) fn view_column(position: usize) -> Expr {
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
                let buckets = Buckets { view: self.view, tables, schema: self.schema, classes: self.classes };
                buckets.coarsening(&expr.expr).or_else(|| buckets.aligned(expr)).ok_or(missing)
            }
            Expr::Lambda { .. } => self.children(expr, &|child| self.row(child)),
            Expr::Call(call) => Err(format!("{}(..)", call.name)),
            Expr::Window(window) => Err(format!("{}(..) OVER (..)", window.call.name)),
            Expr::Subquery(_) => Ok(expr.expr.clone()),
            Expr::Star => Err("an expression that is not understood".into()),
        }
    }

    fn dimension(&self, key: &str) -> Option<Expr> {
        self.view.position(key).filter(|p| self.view.is_dimension(*p)).map(view_column)
    }

    pub(super) fn children<E>(&self, expr: &Keyed, derive: &dyn Fn(&Keyed) -> Result<Expr, E>) -> Result<Expr, E> {
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
            // Windows are over the groups, whatever these are made of.
            Expr::Lambda { .. } | Expr::Window(_) => self.children(expr, &|child| self.output(child)),
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
}
