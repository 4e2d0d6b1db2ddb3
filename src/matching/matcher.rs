//! The test whether one view answers one block, step by step as in Goldstein and Larson, section 3.
//!
//! An example: `SELECT toYear(d) AS y, sum(x) FROM t WHERE city = 'A' AND d >= '1997-01-01' GROUP BY y` against
//! `SELECT toYear(d), city, sum(x), count() FROM t WHERE d >= '1990-01-01' GROUP BY ..`: the tables agree; the view's
//! filter is implied, because all days from 1997 on are days from 1990 on; `city = 'A'` is over a dimension, and
//! `d >= '1997-01-01'` is `toYear(d) >= 1997`, over another one; `toYear(d)` is a dimension; `sum(x)` is merged from
//! the stored sums.

use std::collections::{BTreeSet, HashMap};

use super::block::Block;
use super::derive::{Classes, Deriver, equality};
use super::domain::Domains;
use super::normal::Keyed;
use super::refusal::Refusal;
use super::schema::Schema;
use super::view::View;
use crate::sql::tree::Expr;

/// A block as a query on a view's columns (`Column { table: n }` is the view's column at position n).
#[derive(Debug, Clone)]
pub struct Match {
    pub outputs: Vec<Expr>,
    pub filters: Vec<Expr>,
    pub group_by: Vec<Expr>,
    pub having: Option<Expr>,
    pub order_by: Vec<(Expr, String)>,
    pub limit_by: Option<(String, Vec<Expr>)>,
}

impl Match {
    /// Positions of the view's columns that are needed above the filters, and by those of `filters`.
    pub fn columns_read(&self, filters: &[&Expr]) -> Vec<usize> {
        let mut found = BTreeSet::new();
        let above = self.outputs.iter().chain(&self.group_by).chain(&self.having);
        let ordering = self.order_by.iter().map(|(expr, _)| expr);
        let limiting = self.limit_by.iter().flat_map(|(_, list)| list);
        for expr in above.chain(ordering).chain(limiting).chain(filters.iter().copied()) {
            expr.any(&mut |e| {
                if let Expr::Column { table, .. } = e {
                    found.insert(*table);
                }
                false
            });
        }
        found.into_iter().collect()
    }
}

/// What a block lends to every test against it.
pub struct Subject<'a> {
    pub block: &'a Block,
    pub schema: &'a Schema,
    domains: Domains,
    classes: Classes,
}

impl<'a> Subject<'a> {
    pub fn new(block: &'a Block, schema: &'a Schema) -> Self {
        Self { block, schema, domains: Domains::of(block, schema), classes: Classes::of(block, schema) }
    }
}

/// Tests one view; the error says which step failed and on what.
pub fn match_view(subject: &Subject<'_>, view: &View) -> Result<Match, Refusal> {
    let block = subject.block;
    tables_agree(block, view)?;
    joins_agree(block, view)?;
    view_predicate_is_implied(subject, view)?;
    let mut deriver =
        Deriver { view, block, schema: subject.schema, classes: &subject.classes, group_keys: HashMap::new() };
    let filters = compensating_predicates(subject, &deriver)?;
    let group_by = group_keys(&mut deriver)?;
    let output = |expr: &Keyed| deriver.output(expr);
    Ok(Match {
        outputs: block.outputs.iter().map(|o| output(&o.expr)).collect::<Result<_, _>>()?,
        filters,
        group_by,
        having: block.having.as_ref().map(output).transpose()?,
        order_by: block
            .order_by
            .iter()
            .map(|(expr, direction)| Ok((output(expr)?, direction.clone())))
            .collect::<Result<_, Refusal>>()?,
        limit_by: match &block.limit_by {
            Some((head, list)) => Some((head.clone(), list.iter().map(output).collect::<Result<_, _>>()?)),
            None => None,
        },
    })
}

fn tables_agree(block: &Block, view: &View) -> Result<(), Refusal> {
    let same = block.tables.len() == view.tables.len() && block.tables.iter().all(|t| view.tables.contains(t));
    if same { Ok(()) } else { Err(Refusal::Tables) }
}

/// Outer joins must be the very same ones over the same order of tables. Inner joins are conjuncts.
fn joins_agree(block: &Block, view: &View) -> Result<(), Refusal> {
    let (ours, theirs) = (&block.outer_joins, &view.block.outer_joins);
    if ours.is_empty() && theirs.is_empty() {
        return Ok(());
    }
    let same = block.tables == view.tables
        && ours.len() == theirs.len()
        && ours.iter().zip(theirs).all(|(a, b)| a.0 == b.0 && a.1 == b.1 && a.2.key == b.2.key);
    if same { Ok(()) } else { Err(Refusal::Joins) }
}

/// Equijoin and range subsumption: every row that the query wants is in the view.
fn view_predicate_is_implied(subject: &Subject<'_>, view: &View) -> Result<(), Refusal> {
    for conjunct in &view.block.conjuncts {
        let stated = subject.block.conjuncts.iter().any(|c| c.key == conjunct.key);
        let joined = || {
            equality(conjunct, &view.tables, subject.schema)
                .is_some_and(|(left, right)| subject.classes.are_equal(&left, &right))
        };
        if !stated && !joined() && !subject.domains.imply(conjunct, &view.tables, subject.schema) {
            return Err(Refusal::ViewFilter(conjunct.key.to_string()));
        }
    }
    Ok(())
}

/// What is left of the query's filter, over the view's dimensions.
fn compensating_predicates(subject: &Subject<'_>, deriver: &Deriver<'_>) -> Result<Vec<Expr>, Refusal> {
    let (block, view) = (subject.block, deriver.view);
    let of_view = (Domains::of(&view.block, subject.schema), Classes::of(&view.block, subject.schema));
    let mut filters = Vec::new();
    for conjunct in &block.conjuncts {
        let holds_in_view = view.block.conjuncts.iter().any(|c| c.key == conjunct.key)
            || of_view.0.imply(conjunct, &block.tables, subject.schema)
            || equality(conjunct, &block.tables, subject.schema).is_some_and(|(l, r)| of_view.1.are_equal(&l, &r));
        if holds_in_view {
            continue;
        }
        filters.push(deriver.row(conjunct).map_err(Refusal::Filter)?);
    }
    Ok(filters)
}

fn group_keys(deriver: &mut Deriver<'_>) -> Result<Vec<Expr>, Refusal> {
    let mut derived = Vec::with_capacity(deriver.block.group_by.len());
    for key in &deriver.block.group_by {
        let expr = deriver.row(key).map_err(Refusal::Grouping)?;
        // Subtotals would take two keys that became one column for one key.
        if deriver.block.subtotals.is_some() && derived.contains(&expr) {
            return Err(Refusal::Grouping(format!("{} apart from an equal key", key.key)));
        }
        deriver.group_keys.insert(key.key.clone(), expr.clone());
        derived.push(expr);
    }
    Ok(derived)
}
