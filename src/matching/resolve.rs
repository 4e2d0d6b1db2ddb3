//! Names -> columns, by ClickHouse's rules.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::normal::Keyed;
use super::refusal::BlockRefusal;
use super::schema::{Schema, Table, TableName};
use crate::sql::functions;
use crate::sql::tree::{Constraint, Expr, FromEntry, Grouping, JoinKind, Select, Source, With};

/// Names that one block may resolve, aliases and sub-queries opened: more is a trap (`WITH a + a AS b, b + b AS c, ..`).
const NAMES_MAX: usize = 5000;

/// Sub-queries merged into one another.
const MERGES_MAX: usize = 8;

/// What surrounds a block: names that mean something else than a table or a column.
#[derive(Debug, Clone, Default)]
pub struct Scope<'a> {
    /// Common table expressions that the block can see, with the ranges of their queries.
    ctes: HashMap<String, Range<usize>>,
    /// Aliases of WITH in enclosing blocks.
    outer_aliases: HashSet<String>,
    /// All blocks of the statement.
    blocks: &'a [Select],
    /// Sub-queries around, that were merged into each other.
    depth: usize,
}

impl<'a> Scope<'a> {
    /// The scope of one of `blocks`. A common table expression is seen by its own SELECT and by what stands after it
    /// inside of that, never by itself; the innermost of a name counts.
    pub fn of(select: &Select, blocks: &'a [Select]) -> Self {
        let mut scope = Scope { blocks, ..Scope::default() };
        let mut around: Vec<&Select> = blocks.iter().filter(|other| encloses(&other.span, &select.span)).collect();
        around.sort_by_key(|other| other.span.len());
        for other in around.into_iter().rev() {
            let is_own = other.span == select.span;
            for with in &other.with {
                match with {
                    With::Cte { name, query } if is_own || query.end <= select.span.start => {
                        scope.ctes.insert(name.clone(), query.clone());
                    }
                    With::Alias { name, .. } if !is_own => _ = scope.outer_aliases.insert(name.clone()),
                    _ => {}
                }
            }
        }
        scope
    }

    /// The block that is the only source of `select`, if that is a sub-query or a common table expression; an error if it
    /// does more than pick, compute and filter.
    fn only_source(&self, select: &Select) -> Option<Result<&'a Select, BlockRefusal>> {
        let [entry] = &*select.from else { return None };
        let (range, what) = match &entry.source {
            Source::Subquery(range) => (range, "a sub-query".to_string()),
            Source::Table { database: None, table } => {
                (self.ctes.get(table)?, format!("the common table expression {table}"))
            }
            _ => return None,
        };
        let inner = self.blocks.iter().find(|block| block.span == *range).filter(|_| self.depth < MERGES_MAX);
        Some(inner.filter(|inner| only_picks(inner)).ok_or(BlockRefusal::NotATable(what)))
    }
}

fn encloses(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Whether a block gives one row for each row of its tables that passes its filter.
fn only_picks(select: &Select) -> bool {
    select.unsupported.is_none()
        && !select.distinct
        && select.grouping == Grouping::None
        && !select.with_totals
        && select.having.is_none()
        && select.limit.is_none()
        && select.limit_by.is_none()
        && select.with.iter().all(|with| matches!(with, With::Alias { .. }))
        && !select.items.iter().any(|item| super::block::has_aggregate(&item.expr))
}

pub(super) struct Resolver<'a, 's> {
    tables: Vec<&'a Table>,
    pub names: Vec<TableName>,
    /// The name by which each table is qualified.
    qualifiers: Vec<String>,
    aliases: HashMap<&'a str, &'a Expr>,
    scope: &'s Scope<'a>,
    /// Names resolved so far.
    resolved: Cell<usize>,
    /// Columns of USING: the table on the left that an unqualified name means.
    using: HashMap<String, usize>,
    /// The equalities that USING stands for, and the filters of a sub-query that was merged in.
    given: Vec<Expr>,
    /// The equalities that USING of left joins stands for, with the position of the right table.
    outer_equalities: Vec<(usize, Expr)>,
    /// The columns of a sub-query that was merged in, over its tables; then no other columns have names.
    derived: Option<HashMap<String, Expr>>,
}

impl<'a, 's> Resolver<'a, 's> {
    pub fn new(
        select: &'a Select,
        scope: &'s Scope<'a>,
        database: &str,
        schema: &'a Schema,
    ) -> Result<Self, BlockRefusal> {
        let mut resolver = Resolver {
            tables: Vec::new(),
            names: Vec::new(),
            qualifiers: Vec::new(),
            aliases: HashMap::new(),
            scope,
            resolved: Cell::new(0),
            using: HashMap::new(),
            given: Vec::new(),
            outer_equalities: Vec::new(),
            derived: None,
        };
        if let Some(inner) = scope.only_source(select) {
            resolver.merge(inner?, select, database, schema)?;
            return resolver.with_aliases(select);
        }
        if select.from.is_empty() {
            return Err(BlockRefusal::NotATable("no table".into()));
        }
        for entry in &select.from {
            let (database, table) = match &entry.source {
                Source::Table { database: None, table } if scope.ctes.contains_key(table) => {
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
                columns.iter().try_for_each(|column| resolver.using(at, column, entry.join))?;
            }
        }
        resolver.with_aliases(select)
    }

    /// Whether a sub-query of FROM was taken in.
    pub fn is_merged(&self) -> bool {
        self.derived.is_some()
    }

    fn with_aliases(mut self, select: &'a Select) -> Result<Self, BlockRefusal> {
        let with = select.with.iter().filter_map(|with| match with {
            With::Alias { name, expr } => Some((name, expr)),
            With::Cte { .. } => None,
        });
        let items = select.items.iter().filter_map(|item| item.alias.as_ref().map(|alias| (alias, &item.expr)));
        for (alias, expr) in with.chain(items) {
            if let Some(earlier) = self.aliases.insert(alias, expr)
                && earlier != expr
            {
                return Err(BlockRefusal::AmbiguousName(alias.clone()));
            }
        }
        Ok(self)
    }

    /// Takes a sub-query in FROM that only picks, computes and filters into this block: its tables are this block's,
    /// its columns are expressions over them.
    fn merge(
        &mut self,
        inner: &'a Select,
        outer: &Select,
        database: &str,
        schema: &'a Schema,
    ) -> Result<(), BlockRefusal> {
        // Aliases of the outer WITH are seen inside as well.
        let is_outer_alias = |expr: &Expr| {
            let Expr::Name(parts) = expr else { return false };
            outer.with.iter().any(|w| matches!(w, With::Alias { name, .. } if parts.first() == Some(name)))
        };
        let mut read = inner.items.iter().map(|item| &item.expr).chain(&inner.filters);
        if read.any(|expr| expr.any(&mut |e| is_outer_alias(e))) {
            return Err(BlockRefusal::NotATable("a sub-query that names an alias of the query around it".into()));
        }
        let scope = Scope { depth: self.scope.depth + 1, ..Scope::of(inner, self.scope.blocks) };
        let resolver = Resolver::new(inner, &scope, database, schema)?;
        self.resolved.set(resolver.resolved.get());
        let mut columns: HashMap<String, Expr> = HashMap::new();
        let mut add = |name: String, expr: Expr| match columns.insert(name.clone(), expr) {
            Some(_) => Err(BlockRefusal::AmbiguousName(name)),
            None => Ok(()),
        };
        for item in &inner.items {
            match (&item.expr, &item.alias) {
                (Expr::Star, None) => {
                    resolver.all_columns()?.into_iter().try_for_each(|(name, expr)| add(name, expr))?
                }
                (expr, alias) => {
                    let mut open: Vec<String> = alias.iter().cloned().collect();
                    let resolved = resolver.resolve(expr, &mut open)?;
                    let name = alias.clone().or_else(|| match expr {
                        Expr::Name(parts) => parts.last().cloned(),
                        _ => None,
                    });
                    // Without an alias its name is not known here, and nobody can be seen to mean it.
                    if let Some(name) = name {
                        add(name, resolved)?;
                    }
                }
            }
        }
        let keyed = |expr: &Expr| -> Result<Keyed, BlockRefusal> {
            Ok(Keyed::new(&resolver.resolve(expr, &mut Vec::new())?, &resolver.names))
        };
        let (conjuncts, outer_joins) = resolver.filters(inner, &keyed)?;
        if !outer_joins.is_empty() {
            return Err(BlockRefusal::NotATable("a sub-query with an outer join".into()));
        }
        self.given = conjuncts.into_iter().map(|conjunct| conjunct.expr).collect();
        self.derived = Some(columns);
        let qualifier = |entry: &FromEntry| match (&entry.alias, &entry.source) {
            (None, Source::Table { table, .. }) => table.clone(),
            (alias, _) => alias.clone().unwrap_or_default(),
        };
        self.qualifiers = outer.from.iter().map(qualifier).collect();
        self.names = resolver.names;
        self.tables = resolver.tables;
        Ok(())
    }

    /// What `*` stands for.
    fn all_columns(&self) -> Result<Vec<(String, Expr)>, BlockRefusal> {
        if let Some(derived) = &self.derived {
            return Ok(derived.clone().into_iter().collect());
        }
        let [table] = &*self.tables else {
            return Err(BlockRefusal::Unsupported("* over a join".into()));
        };
        let ordinary = table.columns.iter().filter(|c| c.default_kind.is_empty() || c.default_kind == "DEFAULT");
        Ok(ordinary.map(|c| (c.name.clone(), Expr::Column { table: 0, name: c.name.clone() })).collect())
    }

    /// `JOIN right USING (column)`: an equality, and one meaning of the unqualified name.
    fn using(&mut self, right: usize, column: &str, join: JoinKind) -> Result<(), BlockRefusal> {
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
        let equality = Expr::call("equals", vec![side(left), side(right)]);
        match join {
            JoinKind::Inner => self.given.push(equality),
            JoinKind::Left => self.outer_equalities.push((right, equality)),
            _ => return Err(BlockRefusal::Unsupported("an outer join with USING".into())),
        }
        self.using.insert(column.to_string(), left);
        Ok(())
    }

    /// The conjuncts of WHERE and inner joins, and the outer joins.
    #[allow(clippy::type_complexity)]
    pub fn filters(
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
                // Resolved already.
                Constraint::Using(_) => {
                    let equalities = self.outer_equalities.iter().filter(|(right, _)| *right == at);
                    let mut equalities: Vec<Expr> = equalities.map(|(_, equality)| equality.clone()).collect();
                    let all = match equalities.len() {
                        1 => equalities.remove(0),
                        _ => Expr::call("and", equalities),
                    };
                    outer.push((at, entry.join, Keyed::new(&all, &self.names)));
                    continue;
                }
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
        let mut conjuncts: Vec<Keyed> = self.given.iter().map(|e| Keyed::new(e, &self.names)).collect();
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
    pub fn resolve(&self, expr: &Expr, open: &mut Vec<String>) -> Result<Expr, BlockRefusal> {
        self.resolved.set(self.resolved.get() + 1);
        if self.resolved.get() > NAMES_MAX {
            return Err(BlockRefusal::Unsupported("aliases that stand for very much".into()));
        }
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
            Expr::Window(window) if !functions::is_window(&window.call.function) => {
                Err(BlockRefusal::Unsupported(format!("the window function {}", window.call.name)))
            }
            other => other.map_children(&mut |child| self.resolve(child, open)),
        }
    }

    fn name(&self, parts: &[String], open: &mut Vec<String>) -> Result<Expr, BlockRefusal> {
        let unknown = || BlockRefusal::UnknownName(parts.join("."));
        let is_parameter = |name: &String| open.iter().any(|o| o.strip_prefix('\u{1}') == Some(name));
        if parts.len() > 1 && is_parameter(&parts[0]) {
            return Err(unknown());
        }
        if let [name] = parts {
            if is_parameter(name) {
                return Ok(Expr::Name(parts.to_vec()));
            }
            // Aliases that stand for each other: what ClickHouse makes of them depends on their order.
            if open.contains(name) && open.last() != Some(name) && self.aliases.contains_key(&**name) {
                return Err(BlockRefusal::AmbiguousName(name.clone()));
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
            if let Some(derived) = &self.derived {
                return derived.get(name).cloned().ok_or_else(unknown);
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
        if let Some(derived) = &self.derived {
            return match parts {
                [qualifier, name]
                    if self.qualifiers.contains(qualifier) && !self.aliases.contains_key(&**qualifier) =>
                {
                    derived.get(name).cloned().ok_or_else(unknown)
                }
                _ => Err(unknown()),
            };
        }
        // `a.b` may be a sub-column of an alias or a Nested column: left alone.
        let is_column = |name: &str| self.tables.iter().any(|t| t.column(name).is_some());
        if self.aliases.contains_key(&*parts[0]) || is_column(&parts[0]) || is_column(&parts.join(".")) {
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
