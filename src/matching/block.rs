//! A block of a query (or of a view) with every name resolved: the SPJG normal form of Goldstein and Larson,
//! "Optimizing queries using materialized views" (SIGMOD 2001), section 3.

use super::normal::Keyed;
use super::refusal::BlockRefusal;
use super::resolve::{Resolver, Scope};
use super::schema::{Schema, TableName};
use crate::sql::functions;
use crate::sql::tree::{Constraint, Expr, Grouping, JoinKind, Select, Value, With};

/// A resolved block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Whether a sub-query of FROM was taken into the block.
    pub is_merged: bool,
    /// In the order of FROM; no table twice.
    pub tables: Vec<TableName>,
    /// Joins that are not inner, in order: (position of the right table, kind, condition).
    pub outer_joins: Vec<(usize, JoinKind, Keyed)>,
    /// Conjuncts of WHERE, PREWHERE and of the conditions of inner joins.
    pub conjuncts: Vec<Keyed>,
    pub outputs: Vec<Output>,
    pub group_by: Vec<Keyed>,
    pub distinct: bool,
    /// `ROLLUP` or `CUBE` over the group keys.
    pub subtotals: Option<&'static str>,
    pub with_totals: bool,
    /// Sub-queries inside expressions, as byte ranges of the text; whoever sends a rewrite must know that they stand for
    /// themselves (read no name of this block).
    pub subqueries: Vec<std::ops::Range<usize>>,
    pub having: Option<Keyed>,
    /// Expression and direction as written.
    pub order_by: Vec<(Keyed, String)>,
    pub limit_by: Option<(String, Vec<Keyed>)>,
    pub limit: Option<String>,
    /// Whether any output is an aggregate.
    pub aggregated: bool,
}

/// One column of a block's result.
#[derive(Debug, Clone)]
pub struct Output {
    pub expr: Keyed,
    pub alias: Option<String>,
    /// Byte range in the text, alias included.
    pub span: std::ops::Range<usize>,
}

impl Block {
    /// Resolves the names of a block.
    pub fn new(select: &Select, scope: &Scope<'_>, database: &str, schema: &Schema) -> Result<Self, BlockRefusal> {
        if let Some(what) = &select.unsupported {
            return Err(BlockRefusal::Unsupported(what.clone()));
        }
        // `a RIGHT JOIN b` is `b LEFT JOIN a`: one form for both.
        let mut swapped;
        let mut select = select;
        if let [_, right] = &*select.from
            && right.join == JoinKind::Right
        {
            swapped = select.clone();
            swapped.from.swap(0, 1);
            let constraint = std::mem::replace(&mut swapped.from[0].constraint, Constraint::None);
            swapped.from[0].join = JoinKind::Inner;
            swapped.from[1].join = JoinKind::Left;
            swapped.from[1].constraint = constraint;
            select = &swapped;
        }
        let resolver = Resolver::new(select, scope, database, schema)?;
        let keyed = |expr: &Expr| -> Result<Keyed, BlockRefusal> {
            Ok(Keyed::new(&resolver.resolve(expr, &mut Vec::new())?, &resolver.names))
        };
        let mut outputs = Vec::with_capacity(select.items.len());
        for item in &select.items {
            // Inside its own definition an alias is the column of that name.
            let mut open: Vec<String> = item.alias.iter().cloned().collect();
            let expr = Keyed::new(&resolver.resolve(&item.expr, &mut open)?, &resolver.names);
            outputs.push(Output { expr, alias: item.alias.clone(), span: item.span.clone() });
        }
        let (conjuncts, outer_joins) = resolver.filters(select, &keyed)?;
        // A whole number in GROUP BY, ORDER BY or LIMIT BY is the position of an output.
        let positional = |expr: &Expr| match expr {
            Expr::Literal(literal) => match literal.value {
                Value::Int(n) if n >= 1 && n <= outputs.len() as i128 => Ok(outputs[n as usize - 1].expr.clone()),
                _ => Err(BlockRefusal::Unsupported("a constant as a key".into())),
            },
            other => keyed(other),
        };
        let aggregated =
            outputs.iter().any(|o| has_aggregate(&o.expr.expr)) || select.having.as_ref().is_some_and(has_aggregate);
        let mut group_by = match select.grouping {
            Grouping::None => Vec::new(),
            Grouping::Expressions => select.group_by.iter().map(positional).collect::<Result<_, _>>()?,
            Grouping::All => group_by_all(&outputs)?,
        };
        let order_by = match select.is_ordered_by_all {
            true => outputs.iter().map(|output| (output.expr.clone(), String::new())).collect(),
            false => select
                .order_by
                .iter()
                .map(|item| Ok((positional(&item.expr)?, item.direction.clone())))
                .collect::<Result<Vec<_>, BlockRefusal>>()?,
        };
        let limit_by = match &select.limit_by {
            Some((head, list)) => Some((head.clone(), list.iter().map(positional).collect::<Result<_, _>>()?)),
            None => None,
        };
        let having = select.having.as_ref().map(keyed).transpose()?;
        let has_window = |keyed: &Keyed| keyed.expr.any(&mut |expr| matches!(expr, Expr::Window(_)));
        let mut above = outputs.iter().map(|o| &o.expr).chain(order_by.iter().map(|(expr, _)| expr));
        let has_windows = above.any(has_window);
        if has_windows && (select.with_totals || select.subtotals.is_some() || select.grouping == Grouping::All) {
            return Err(BlockRefusal::Unsupported("a window over totals".into()));
        }
        if group_by.is_empty() && (select.with_totals || select.subtotals.is_some()) {
            return Err(BlockRefusal::Unsupported("totals without group keys".into()));
        }
        // Beside other keys a constant groups nothing; alone it makes no group of no rows. Totals show other values of it.
        let is_constant = |key: &Keyed| key.expr.is_constant();
        if !group_by.iter().all(is_constant) && !select.with_totals && select.subtotals.is_none() {
            group_by.retain(|key| !is_constant(key));
        }
        if group_by.iter().any(is_constant) {
            return Err(BlockRefusal::Unsupported("a constant as a group key".into()));
        }
        if !aggregated && group_by.is_empty() && !select.distinct {
            return Err(BlockRefusal::NotAggregated);
        }
        let is_merged = resolver.is_merged();
        let mut block = Block {
            is_merged,
            tables: resolver.names,
            outer_joins,
            conjuncts,
            outputs,
            group_by,
            distinct: select.distinct,
            subtotals: select.subtotals,
            with_totals: select.with_totals,
            subqueries: Vec::new(),
            having,
            order_by,
            limit_by,
            limit: select.limit.clone(),
            aggregated,
        };
        let mut subqueries = Vec::new();
        block.visit(&mut |keyed| {
            keyed.expr.any(&mut |expr| {
                if let Expr::Subquery(range) = expr
                    && !subqueries.contains(range)
                {
                    subqueries.push(range.clone());
                }
                false
            });
        });
        block.subqueries = subqueries;
        if !block.subqueries.is_empty() && select.with.iter().any(|with| matches!(with, With::Cte { .. })) {
            return Err(BlockRefusal::Unsupported("a sub-query inside an expression, beside WITH".into()));
        }
        let is_output = |expr: &Keyed| expr.expr.is_constant() || block.outputs.iter().any(|o| o.expr.key == expr.key);
        let mut ordering = block.order_by.iter().map(|(expr, _)| expr);
        let mut limiting = block.limit_by.iter().flat_map(|(_, list)| list);
        if block.is_distinct_rows() && !(ordering.all(is_output) && limiting.all(is_output)) {
            return Err(BlockRefusal::Unsupported("DISTINCT ordered by something else".into()));
        }
        Ok(block)
    }

    /// Shows every expression of the block.
    fn visit(&self, see: &mut dyn FnMut(&Keyed)) {
        self.outputs.iter().for_each(|o| see(&o.expr));
        self.conjuncts.iter().chain(&self.group_by).chain(&self.having).for_each(&mut *see);
        self.outer_joins.iter().for_each(|(_, _, on)| see(on));
        self.order_by.iter().for_each(|(expr, _)| see(expr));
        self.limit_by.iter().flat_map(|(_, list)| list).for_each(&mut *see);
    }

    /// Whether the block gives one row per distinct output instead of one per group.
    pub fn is_distinct_rows(&self) -> bool {
        !self.aggregated && self.group_by.is_empty()
    }

    /// The columns of the block's tables that it reads, without repetition.
    pub fn columns_read(&self) -> Vec<(TableName, String)> {
        let mut found = Vec::new();
        self.visit(&mut |keyed| {
            keyed.expr.any(&mut |expr| {
                if let Expr::Column { table, name } = expr {
                    let column = (self.tables[*table].clone(), name.clone());
                    if !found.contains(&column) {
                        found.push(column);
                    }
                }
                false
            });
        });
        found
    }
}

/// Whether an expression holds a call that is, or may be, an aggregate function.
pub fn has_aggregate(expr: &Expr) -> bool {
    expr.any(&mut |e| matches!(e, Expr::Call(call) if functions::aggregate(&call.function).is_some()))
}

/// `GROUP BY ALL`: every output without an aggregate.
fn group_by_all(outputs: &[Output]) -> Result<Vec<Keyed>, BlockRefusal> {
    let mut keys = Vec::new();
    for output in outputs {
        let expr = &output.expr.expr;
        if !has_aggregate(expr) {
            keys.push(output.expr.clone());
        } else if !matches!(expr, Expr::Call(call) if functions::aggregate(&call.function).is_some()) {
            return Err(BlockRefusal::Unsupported("GROUP BY ALL over a mixed expression".into()));
        }
    }
    Ok(keys)
}
