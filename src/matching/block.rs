//! A block of a query (or of a view) with every name resolved: the SPJG normal form of Goldstein and Larson,
//! "Optimizing queries using materialized views" (SIGMOD 2001), section 3.

use std::collections::{HashMap, HashSet};

use super::normal::Keyed;
use super::refusal::BlockRefusal;
use super::schema::{Schema, Table, TableName};
use crate::sql::functions;
use crate::sql::tree::{Constraint, Expr, Grouping, JoinKind, Select, Source, Value, With};

/// A resolved block.
#[derive(Debug, Clone)]
pub struct Block {
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

/// What surrounds a block: names that mean something else than a table or a column.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Names of common table expressions anywhere in the statement.
    pub ctes: HashSet<String>,
    /// Aliases of WITH in enclosing blocks.
    pub outer_aliases: HashSet<String>,
}

impl Block {
    /// Resolves the names of a block.
    pub fn new(select: &Select, scope: &Scope, database: &str, schema: &Schema) -> Result<Self, BlockRefusal> {
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
        let group_by = match select.grouping {
            Grouping::None => Vec::new(),
            Grouping::Expressions => select.group_by.iter().map(positional).collect::<Result<_, _>>()?,
            Grouping::All => group_by_all(&outputs)?,
        };
        let order_by = select
            .order_by
            .iter()
            .map(|item| Ok((positional(&item.expr)?, item.direction.clone())))
            .collect::<Result<Vec<_>, BlockRefusal>>()?;
        let limit_by = match &select.limit_by {
            Some((head, list)) => Some((head.clone(), list.iter().map(positional).collect::<Result<_, _>>()?)),
            None => None,
        };
        let having = select.having.as_ref().map(keyed).transpose()?;
        if group_by.iter().any(|key: &Keyed| key.expr.is_constant()) {
            return Err(BlockRefusal::Unsupported("a constant as a group key".into()));
        }
        if !aggregated && group_by.is_empty() && !select.distinct {
            return Err(BlockRefusal::NotAggregated);
        }
        let mut block = Block {
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

struct Resolver<'a> {
    tables: Vec<&'a Table>,
    names: Vec<TableName>,
    /// The name by which each table is qualified.
    qualifiers: Vec<String>,
    aliases: HashMap<&'a str, &'a Expr>,
    scope: &'a Scope,
    /// Columns of USING: the table on the left that an unqualified name means.
    using: HashMap<String, usize>,
    /// The equalities that USING stands for.
    using_conditions: Vec<Expr>,
}

impl<'a> Resolver<'a> {
    fn new(select: &'a Select, scope: &'a Scope, database: &str, schema: &'a Schema) -> Result<Self, BlockRefusal> {
        let mut resolver = Resolver {
            tables: Vec::new(),
            names: Vec::new(),
            qualifiers: Vec::new(),
            aliases: HashMap::new(),
            scope,
            using: HashMap::new(),
            using_conditions: Vec::new(),
        };
        if select.from.is_empty() {
            return Err(BlockRefusal::NotATable("no table".into()));
        }
        for entry in &select.from {
            let (database, table) = match &entry.source {
                Source::Table { database: None, table } if scope.ctes.contains(table) => {
                    return Err(BlockRefusal::NotATable(format!("the common table expression {table}")));
                }
                Source::Table { database: named, table } => (named.as_deref().unwrap_or(database), table),
                Source::Subquery(_) => return Err(BlockRefusal::NotATable("a sub-query".into())),
                Source::Other(what) => return Err(BlockRefusal::NotATable(what.clone())),
            };
            let name = TableName::new(database, table);
            let known = schema.table(&name).ok_or_else(|| BlockRefusal::UnknownTable(name.to_string()))?;
            if resolver.names.contains(&name) {
                return Err(BlockRefusal::SelfJoin(name.to_string()));
            }
            resolver.tables.push(known);
            resolver.names.push(name);
            resolver.qualifiers.push(entry.alias.clone().unwrap_or_else(|| table.clone()));
        }
        for (at, entry) in select.from.iter().enumerate() {
            if let Constraint::Using(columns) = &entry.constraint {
                columns.iter().try_for_each(|column| resolver.using(at, column))?;
            }
        }
        let with = select.with.iter().filter_map(|with| match with {
            With::Alias { name, expr } => Some((name, expr)),
            With::Cte { .. } => None,
        });
        let items = select.items.iter().filter_map(|item| item.alias.as_ref().map(|alias| (alias, &item.expr)));
        for (alias, expr) in with.chain(items) {
            if let Some(earlier) = resolver.aliases.insert(alias, expr)
                && earlier != expr
            {
                return Err(BlockRefusal::AmbiguousName(alias.clone()));
            }
        }
        Ok(resolver)
    }

    /// `JOIN right USING (column)`: an equality, and one meaning of the unqualified name.
    fn using(&mut self, right: usize, column: &str) -> Result<(), BlockRefusal> {
        let type_of = |table: usize| self.tables[table].column(column).map(|c| &c.type_name);
        let left = match self.using.get(column) {
            Some(left) => *left,
            None => {
                let mut candidates = (0..right).filter(|table| type_of(*table).is_some());
                let left = candidates.next().ok_or_else(|| BlockRefusal::UnknownName(column.into()))?;
                if candidates.next().is_some() {
                    return Err(BlockRefusal::AmbiguousName(column.into()));
                }
                left
            }
        };
        // With different types the result column would have a common one.
        if type_of(left) != type_of(right) {
            return Err(BlockRefusal::Unsupported("USING over columns of different types".into()));
        }
        let side = |table| Expr::Column { table, name: column.to_string() };
        self.using_conditions.push(Expr::call("equals", vec![side(left), side(right)]));
        self.using.insert(column.to_string(), left);
        Ok(())
    }

    /// The conjuncts of WHERE and inner joins, and the outer joins.
    #[allow(clippy::type_complexity)]
    fn filters(
        &self,
        select: &Select,
        keyed: &dyn Fn(&Expr) -> Result<Keyed, BlockRefusal>,
    ) -> Result<(Vec<Keyed>, Vec<(usize, JoinKind, Keyed)>), BlockRefusal> {
        let mut conditions: Vec<Expr> = Vec::new();
        let mut outer = Vec::new();
        for (at, entry) in select.from.iter().enumerate() {
            let condition = match &entry.constraint {
                Constraint::None if entry.join == JoinKind::Inner => continue,
                Constraint::None => return Err(BlockRefusal::Unsupported("an outer join without ON".into())),
                Constraint::On(expr) => expr.clone(),
                Constraint::Using(_) if entry.join == JoinKind::Inner => continue,
                Constraint::Using(_) => return Err(BlockRefusal::Unsupported("an outer join with USING".into())),
            };
            if entry.join == JoinKind::Inner {
                if outer.is_empty() {
                    conditions.push(condition);
                } else {
                    return Err(BlockRefusal::Unsupported("an inner join after an outer one".into()));
                }
            } else {
                outer.push((at, entry.join, keyed(&condition)?));
            }
        }
        conditions.extend(select.filters.iter().cloned());
        let mut conjuncts: Vec<Keyed> = self.using_conditions.iter().map(|e| Keyed::new(e, &self.names)).collect();
        for condition in &conditions {
            let mut stack = vec![self.resolve(condition, &mut Vec::new())?];
            while let Some(expr) = stack.pop() {
                match expr.as_call("and") {
                    Some(call) => stack.extend(call.arguments.iter().rev().cloned()),
                    None => {
                        let conjunct = Keyed::new(&expr, &self.names);
                        if !conjuncts.iter().any(|c| c.key == conjunct.key) {
                            conjuncts.push(conjunct);
                        }
                    }
                }
            }
        }
        Ok((conjuncts, outer))
    }

    /// Replaces names by columns, and aliases by what they stand for. `open` holds the aliases being expanded: inside
    /// its own definition an alias is the column of that name.
    fn resolve(&self, expr: &Expr, open: &mut Vec<String>) -> Result<Expr, BlockRefusal> {
        match expr {
            Expr::Name(parts) => self.name(parts, open),
            Expr::Lambda { parameters, body } => {
                // A parameter hides aliases and columns; marking it as open keeps it a plain name.
                let hidden: Vec<String> = parameters.iter().map(|p| format!("\u{1}{p}")).collect();
                let depth = open.len();
                open.extend(hidden);
                let body = self.resolve(body, open);
                open.truncate(depth);
                Ok(Expr::Lambda { parameters: parameters.clone(), body: Box::new(body?) })
            }
            Expr::Call(call) if !functions::is_known(&call.function) => {
                Err(BlockRefusal::Unsupported(format!("the function {}", call.name)))
            }
            other => other.map_children(&mut |child| self.resolve(child, open)),
        }
    }

    fn name(&self, parts: &[String], open: &mut Vec<String>) -> Result<Expr, BlockRefusal> {
        let unknown = || BlockRefusal::UnknownName(parts.join("."));
        if let [name] = parts {
            if open.iter().any(|o| o.strip_prefix('\u{1}') == Some(name)) {
                return Ok(Expr::Name(parts.to_vec()));
            }
            if let Some(aliased) = self.aliases.get(&**name)
                && !open.contains(name)
            {
                open.push(name.clone());
                let resolved = self.resolve(aliased, open);
                open.pop();
                return resolved;
            }
            if self.scope.outer_aliases.contains(name) {
                return Err(unknown());
            }
            if let Some(table) = self.using.get(name) {
                return Ok(Expr::Column { table: *table, name: name.clone() });
            }
            let mut having = self.tables.iter().enumerate().filter(|(_, t)| t.column(name).is_some());
            let first = having.next().ok_or_else(unknown)?;
            if having.next().is_some() {
                return Err(BlockRefusal::AmbiguousName(name.clone()));
            }
            return Ok(Expr::Column { table: first.0, name: name.clone() });
        }
        // `a.b` may be a sub-column of an alias or a Nested column: left alone.
        if self.aliases.contains_key(&*parts[0]) || self.tables.iter().any(|t| t.column(&parts.join(".")).is_some()) {
            return Err(unknown());
        }
        let found = match parts {
            [qualifier, column] => self
                .qualifiers
                .iter()
                .position(|q| q == qualifier)
                .filter(|_| self.qualifiers.iter().filter(|q| *q == qualifier).count() == 1)
                .map(|table| (table, column)),
            [database, table, column] => self
                .names
                .iter()
                .position(|n| n.database == *database && n.table == *table)
                .filter(|at| self.qualifiers[*at] == *table)
                .map(|table| (table, column)),
            _ => None,
        };
        match found {
            Some((table, column)) if self.tables[table].column(column).is_some() => {
                Ok(Expr::Column { table, name: column.clone() })
            }
            _ => Err(unknown()),
        }
    }
}
