//! A declared view, resolved against the schema.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::block::Block;
use super::domain::bare_type;
use super::normal::Keyed;
use super::resolve::Scope;
use super::schema::{Schema, TableName};
use crate::sql::functions;
use crate::sql::lexer::backquote;
use crate::sql::render::render;
use crate::sql::tree::{Call, Expr, JoinKind, With};
use crate::sql::{ParseError, parse};

/// Alias prefix of source tables in the texts that read partial states; qualified columns cannot be taken for aliases.
const SOURCE_ALIAS: &str = "_source";

/// How the partial state of an aggregate is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// `SimpleAggregateFunction(f, T)`: the state is a finished value, merged by `f` once more.
    Simple(&'static str),
    /// `AggregateFunction(..)`.
    State,
}

#[derive(Debug, Clone)]
pub enum ColumnKind {
    Dimension,
    Aggregate { function: String, storage: Storage },
}

/// One output of a view's SELECT.
#[derive(Debug, Clone)]
pub struct ViewColumn {
    /// The alias, if one is written.
    pub name: Option<String>,
    /// The expression as written, without its alias.
    pub text: String,
    pub kind: ColumnKind,
    pub expr: Keyed,
}

/// A view: a block whose outputs are its group keys and single aggregate calls.
#[derive(Debug, Clone)]
pub struct View {
    pub name: String,
    /// Name of the storage table, which tells two definitions of one view apart. Empty until it is known.
    pub storage: String,
    /// In the order of FROM; the partitions of the first one, the fact table, key the runs.
    pub tables: Vec<TableName>,
    pub columns: Vec<ViewColumn>,
    pub block: Block,
    /// Key of a dimension or an aggregate -> position in `columns`.
    pub(super) by_key: HashMap<Arc<str>, usize>,
}

/// Which rows of its source a view's states are made of, and what is told of them besides.
#[derive(Debug, Clone, Copy, Default)]
pub struct Excerpt<'a> {
    /// Restricts the fact table; `{fact}` stands for its qualifier.
    pub fact_predicate: Option<&'a str>,
    /// Virtual columns of the fact table that tell the states apart; they come first, under the names given with them.
    pub origins: &'a [(&'a str, &'a str)],
    /// The name of a last column: how many rows a state was made of.
    pub rows: Option<&'a str>,
}

/// Why a text declares no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ViewError {
    pub message: String,
    pub hint: String,
    /// Byte offset in the query text, as near to the fault as is known.
    pub offset: usize,
}

impl ViewError {
    fn new(message: impl Into<String>, hint: impl Into<String>, offset: usize) -> Self {
        Self { message: message.into(), hint: hint.into(), offset }
    }
}

/// The tables that a view's query names, before the schema is known: for loading it.
pub fn tables_of(query: &str, database: &str) -> Result<Vec<TableName>, ViewError> {
    let statement = parse(query).map_err(|e| parse_error(&e))?;
    let mut tables: Vec<TableName> = Vec::new();
    for entry in statement.blocks.iter().flat_map(|block| &block.from) {
        if let crate::sql::tree::Source::Table { database: named, table } = &entry.source {
            let name = TableName::new(named.as_deref().unwrap_or(database), table);
            if !tables.contains(&name) {
                tables.push(name);
            }
        }
    }
    Ok(tables)
}

fn parse_error(error: &ParseError) -> ViewError {
    match error {
        ParseError::NotASelect => ViewError::new(
            "the query of a view must be a SELECT",
            "write SELECT dimensions, aggregates FROM table GROUP BY dimensions",
            0,
        ),
        ParseError::Unsupported(what) => ViewError::new(
            format!("the query uses {what}"),
            "a view is SELECT .. FROM .. [JOIN ..] [WHERE ..] GROUP BY ..",
            0,
        ),
    }
}

impl View {
    /// Reads and resolves the query of a view.
    pub fn new(name: &str, query: &str, database: &str, schema: &Schema) -> Result<Self, ViewError> {
        let statement = parse(query).map_err(|e| parse_error(&e))?;
        let [select] = &*statement.blocks else {
            return Err(ViewError::new(
                "a view must be one SELECT without sub-queries or UNION",
                "declare one view for each SELECT",
                statement.blocks.get(1).map_or(0, |b| b.span.start),
            ));
        };
        let at = |needle: &str| query.to_ascii_uppercase().rfind(needle).unwrap_or(0);
        for (present, clause) in [
            (select.having.is_some(), "HAVING"),
            (!select.order_by.is_empty() || select.is_ordered_by_all, "ORDER BY"),
            (select.limit.is_some() || select.limit_by.is_some(), "LIMIT"),
            (select.with_totals, "WITH TOTALS"),
            (select.subtotals.is_some(), "ROLLUP or CUBE"),
            (select.distinct, "DISTINCT"),
            (!statement.settings.is_empty(), "SETTINGS"),
            (statement.format.is_some(), "FORMAT"),
        ] {
            if present {
                let hint = "a view keeps every group of its source; put this clause into the queries";
                return Err(ViewError::new(format!("a view cannot have {clause}"), hint, at(clause)));
            }
        }
        if let Some(With::Cte { name, .. }) = select.with.iter().find(|w| matches!(w, With::Cte { .. })) {
            return Err(ViewError::new(
                format!("a view cannot have the common table expression {name}"),
                "name the tables in FROM",
                0,
            ));
        }
        let block = Block::new(select, &Scope::default(), database, schema).map_err(|refusal| {
            let (hint, offset) = explain(&refusal, query, schema);
            ViewError::new(refusal.to_string(), hint, offset)
        })?;
        if let Some(range) = block.subqueries.first() {
            let hint = "join the table, or filter in the queries";
            return Err(ViewError::new("a view cannot have a sub-query", hint, range.start));
        }
        let volatile = |k: &Keyed| {
            k.expr.any(&mut |e| {
                matches!(e, Expr::Call(c) if functions::is_constant_per_query(&c.function))
                    || matches!(e, Expr::Parameter(_))
            })
        };
        let mut all = block.conjuncts.iter().chain(&block.group_by).chain(block.outputs.iter().map(|o| &o.expr));
        if all.any(volatile) {
            return Err(ViewError::new(
                "the query depends on the moment at which it runs",
                "now(), today() and parameters have no place in a view; filter in the queries instead",
                0,
            ));
        }
        let columns = columns(&block, query)?;
        let by_key = columns.iter().enumerate().rev().map(|(i, c)| (c.expr.key.clone(), i)).collect();
        let (name, storage, tables) = (name.into(), String::new(), block.tables.clone());
        Ok(View { name, storage, tables, columns, block, by_key })
    }

    /// Whether every row of the source is in exactly one state: nothing is filtered, joined or repeated.
    pub fn takes_each_row_once(&self) -> bool {
        self.tables.len() == 1 && self.conditions().is_empty()
    }

    /// The SELECT that computes the view's partial states from the source: one column for each view column, called
    /// `names`.
    pub fn state_select(&self, names: &[String], excerpt: &Excerpt) -> String {
        let mut sql = String::from("SELECT ");
        for (column, name) in excerpt.origins {
            let _ = write!(sql, "{SOURCE_ALIAS}0.{column} AS {}, ", backquote(name));
        }
        for (position, name) in names.iter().enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            let _ = write!(sql, "{comma}{} AS {}", self.state(position), backquote(name));
        }
        if let Some(name) = excerpt.rows {
            let _ = write!(sql, ", count() AS {}", backquote(name));
        }
        let _ = write!(sql, " FROM {}", self.from());
        let mut conditions = self.conditions();
        conditions.extend(excerpt.fact_predicate.map(of_fact));
        if !conditions.is_empty() {
            let _ = write!(sql, " WHERE {}", conditions.join(" AND "));
        }
        let keys = self.block.group_by.iter().map(|k| source_text(&k.expr));
        let origins = excerpt.origins.iter().map(|(column, _)| format!("{SOURCE_ALIAS}0.{column}"));
        let keys: Vec<String> = origins.chain(keys).collect();
        if keys.is_empty() {
            // Without keys ClickHouse gives one row also for no rows at all, whose zeros must not be merged.
            sql.push_str(" HAVING count() > 0");
        } else {
            let _ = write!(sql, " GROUP BY {}", keys.join(", "));
        }
        sql
    }

    /// The partial state of a column, or the value of a dimension, over the source.
    pub(super) fn state(&self, position: usize) -> String {
        let column = &self.columns[position];
        match &column.kind {
            ColumnKind::Aggregate { storage: Storage::State, .. } => {
                source_text(&with_suffix(&column.expr.expr, "State"))
            }
            _ => source_text(&column.expr.expr),
        }
    }

    /// The source tables under their aliases, with their outer joins.
    pub(super) fn from(&self) -> String {
        let mut sql = String::new();
        for (at, table) in self.tables.iter().enumerate() {
            let outer = self.block.outer_joins.iter().find(|(right, ..)| *right == at);
            let word = match outer {
                None if at == 0 => "",
                None => ", ",
                Some((_, JoinKind::Left, _)) => " LEFT JOIN ",
                Some((_, JoinKind::Right, _)) => " RIGHT JOIN ",
                Some((_, _, _)) => " FULL JOIN ",
            };
            let _ =
                write!(sql, "{word}{}.{} AS {SOURCE_ALIAS}{at}", backquote(&table.database), backquote(&table.table));
            if let Some((_, _, on)) = outer {
                let _ = write!(sql, " ON {}", source_text(&on.expr));
            }
        }
        sql
    }

    /// The view's own filters and inner joins, over the source.
    pub(super) fn conditions(&self) -> Vec<String> {
        self.block.conjuncts.iter().map(|c| source_text(&c.expr)).collect()
    }

    /// The position of the column with this key.
    pub fn position(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub fn is_dimension(&self, position: usize) -> bool {
        matches!(self.columns[position].kind, ColumnKind::Dimension)
    }
}

pub(super) fn source_column(table: usize, name: &str) -> String {
    format!("{SOURCE_ALIAS}{table}.{}", backquote(name))
}

fn source_text(expr: &Expr) -> String {
    render(expr, &source_column, &|_| String::new())
}

/// A predicate with the fact table's qualifier for `{fact}`.
pub(super) fn of_fact(predicate: &str) -> String {
    format!("({})", predicate.replace("{fact}", &format!("{SOURCE_ALIAS}0")))
}

/// The same call with a combinator appended to its name.
fn with_suffix(expr: &Expr, suffix: &str) -> Expr {
    match expr {
        Expr::Call(call) => {
            // `count(DISTINCT x)` is stored as uniqExact, and SUM as sum, since combinators go onto canonical names.
            let function = if call.distinct { "uniqExact" } else { &*call.function };
            let name = format!("{function}{suffix}");
            Expr::Call(Call { name: name.clone(), function: name, distinct: false, ..call.clone() })
        }
        other => other.clone(),
    }
}

fn columns(block: &Block, query: &str) -> Result<Vec<ViewColumn>, ViewError> {
    let mut columns = Vec::with_capacity(block.outputs.len());
    for output in &block.outputs {
        let text = written(&query[output.span.clone()], output.alias.as_deref());
        let fault = |message: String, hint: &str| ViewError::new(message, hint, output.span.start);
        let is_key = block.group_by.iter().any(|key| key.key == output.expr.key);
        let kind = match &output.expr.normal {
            _ if is_key => ColumnKind::Dimension,
            Expr::Call(call) if functions::aggregate(&call.function).is_some() => {
                if call.distinct {
                    let hint = "store the set of values instead: uniqExact(x) or groupUniqArray(x)";
                    return Err(fault(format!("{text}: DISTINCT cannot be merged"), hint));
                }
                if call.arguments.iter().any(super::block::has_aggregate) {
                    return Err(fault(
                        format!("{text}: an aggregate inside an aggregate"),
                        "ClickHouse refuses it as well",
                    ));
                }
                ColumnKind::Aggregate { function: call.function.clone(), storage: storage(call) }
            }
            other if super::block::has_aggregate(other) => {
                let hint = "declare each aggregate as a column of its own; queries may compute with them";
                return Err(fault(format!("{text} computes with aggregates"), hint));
            }
            _ => {
                let hint = "add it to GROUP BY, or aggregate it";
                return Err(fault(format!("{text} is neither a group key nor an aggregate"), hint));
            }
        };
        columns.push(ViewColumn { name: output.alias.clone(), text, kind, expr: output.expr.clone() });
    }
    for key in &block.group_by {
        if !columns.iter().any(|c| c.expr.key == key.key) {
            return Err(ViewError::new(
                format!("the group key {} is not in the SELECT list", key.key),
                "a view stores its group keys; add it to the list",
                0,
            ));
        }
    }
    if block.group_by.is_empty() && !block.aggregated {
        return Err(ViewError::new(
            "a view must aggregate",
            "add GROUP BY and aggregates such as sum(x) and count()",
            0,
        ));
    }
    Ok(columns)
}

/// An item's text without its alias.
fn written(item: &str, alias: Option<&str>) -> String {
    let Some(alias) = alias else { return item.into() };
    let cut = item.rfind(alias).unwrap_or(item.len());
    let head = item[..cut].trim_end_matches(['`', '"']).trim_end();
    let without_as = head.len().checked_sub(3).filter(|at| {
        head.get(*at..).is_some_and(|t| t[1..].eq_ignore_ascii_case("AS") && t.starts_with(char::is_whitespace))
    });
    head[..without_as.unwrap_or(head.len())].trim_end().into()
}

/// How the state of an aggregate call is stored. Only functions whose result over nothing is neutral in the merge are
/// stored as values: `minIf` over no rows gives 0, which must not win.
fn storage(call: &Call) -> Storage {
    match functions::aggregate(&call.function) {
        Some(("count", combinators)) if combinators.is_empty() || combinators == ["If"] => Storage::Simple("sum"),
        Some(("sum", combinators)) if combinators.is_empty() || combinators == ["If"] => Storage::Simple("sum"),
        Some((
            function @ ("sumWithOverflow" | "min" | "max" | "any" | "anyLast" | "groupBitAnd" | "groupBitOr"
            | "groupBitXor"),
            combinators,
        )) if combinators.is_empty() => Storage::Simple(function),
        _ => Storage::State,
    }
}

fn explain(refusal: &super::refusal::BlockRefusal, query: &str, schema: &Schema) -> (String, usize) {
    use super::refusal::BlockRefusal as R;
    let find = |name: &str| query.find(name.rsplit('.').next().unwrap_or(name)).unwrap_or(0);
    match refusal {
        R::UnknownTable(table) => {
            let wanted = table.rsplit('.').next().unwrap_or(table);
            let near = nearest(wanted, schema.tables().map(|t| &*t.name.table));
            (
                near.map_or_else(
                    || "does it exist, and may the user read it?".into(),
                    |n| format!("did you mean {n}?"),
                ),
                find(table),
            )
        }
        R::UnknownName(name) => {
            let columns = schema.tables().flat_map(|t| &t.columns).map(|c| &*c.name);
            let near = nearest(name.rsplit('.').next().unwrap_or(name), columns);
            (
                near.map_or_else(|| "it is no column of the tables in FROM".into(), |n| format!("did you mean {n}?")),
                find(name),
            )
        }
        R::AmbiguousName(name) => ("write table.column".into(), find(name)),
        R::NotAggregated => ("add GROUP BY and aggregates such as sum(x) and count()".into(), 0),
        R::SelfJoin(table) => ("a view may read each table once".into(), find(table)),
        _ => ("a view is SELECT .. FROM .. [JOIN ..] [WHERE ..] GROUP BY ..".into(), 0),
    }
}

/// The candidate that is most like `name`, if any is like it at all.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    candidates
        .map(|c| (distance(&wanted, &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= 1 + name.len() / 4 && *d < name.len())
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Levenshtein's edit distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Whether a column's type can hold NULL, so that `count(column)` is not `count()`.
pub(super) fn may_be_null(type_name: &str) -> bool {
    let inner = type_name.strip_prefix("LowCardinality(").unwrap_or(type_name);
    inner.starts_with("Nullable(") || ["Variant", "Dynamic", "JSON", "Object"].iter().any(|t| inner.starts_with(t))
}

/// Whether a type is a whole number of at most 64 bits that is never NULL: sums of it are exact modulo 2^64.
pub(super) fn is_small_int(type_name: &str) -> bool {
    !may_be_null(type_name)
        && matches!(
            bare_type(type_name),
            "UInt8" | "UInt16" | "UInt32" | "UInt64" | "Int8" | "Int16" | "Int32" | "Int64"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::schema::{Column, Table};

    fn schema() -> Schema {
        let column = |name: &str, type_name: &str| Column {
            name: name.into(),
            type_name: type_name.into(),
            default_kind: String::new(),
            default_expression: String::new(),
        };
        let mut schema = Schema::default();
        schema.insert(Table {
            name: TableName::new("db", "t"),
            uuid: String::new(),
            engine: "MergeTree".into(),
            columns: vec![column("d", "Date"), column("x", "UInt32"), column("city", "String")],
        });
        schema
    }

    fn refused(query: &str) -> String {
        let error = View::new("v", query, "db", &schema()).unwrap_err();
        format!("{} [{}] at {}", error.message, error.hint, error.offset)
    }

    #[test]
    fn states_are_read_with_qualified_columns() {
        let query = "SELECT toYear(d) AS year, city, SUM(x) AS x, avg(x) FROM t WHERE x > 1 GROUP BY year, city";
        let view = View::new("v", query, "db", &schema());
        assert!(view.is_err(), "the alias x stands for the sum inside WHERE");
        let query = "SELECT toYear(d) AS year, city, SUM(x) AS s, avg(x) FROM t WHERE x > 1 GROUP BY year, city";
        let view = View::new("v", query, "db", &schema()).unwrap();
        let texts: Vec<&str> = view.columns.iter().map(|c| &*c.text).collect();
        assert_eq!(texts, ["toYear(d)", "city", "SUM(x)", "avg(x)"]);
        let names: Vec<String> = ["year", "city", "s", "avg(x)"].map(String::from).to_vec();
        assert_eq!(
            view.state_select(
                &names,
                &Excerpt { fact_predicate: Some("{fact}._partition_id = '1'"), ..Excerpt::default() }
            ),
            "SELECT toYear(_source0.`d`) AS `year`, _source0.`city` AS `city`, SUM(_source0.`x`) AS `s`, \
             avgState(_source0.`x`) AS `avg(x)` FROM `db`.`t` AS _source0 WHERE greater(_source0.`x`, 1) AND \
             (_source0._partition_id = '1') GROUP BY toYear(_source0.`d`), _source0.`city`"
        );
    }

    #[test]
    fn faults_name_the_place_and_a_way_out() {
        assert_eq!(
            refused("SELECT d, sum(cityy) FROM t GROUP BY d"),
            "the name cityy is not understood [did you mean city?] at 14"
        );
        assert_eq!(refused("SELECT d, sum(x) FROM tt GROUP BY d"), "no view reads db.tt [did you mean t?] at 22");
        for (query, message) in [
            ("SELECT d, x FROM t", "the query asks for rows, not for groups"),
            ("SELECT d, city, sum(x) FROM t GROUP BY d", "city is neither a group key nor an aggregate"),
            ("SELECT sum(x) FROM t GROUP BY d", "the group key db.t.d is not in the SELECT list"),
            ("SELECT d, sum(x) / count() FROM t GROUP BY d", "sum(x) / count() computes with aggregates"),
            ("SELECT d, sum(x) FROM t GROUP BY d LIMIT 5", "a view cannot have LIMIT"),
            ("SELECT d, sum(DISTINCT x) FROM t GROUP BY d", "sum(DISTINCT x): DISTINCT cannot be merged"),
            (
                "SELECT d, sum(x) FROM t WHERE d > today() GROUP BY d",
                "the query depends on the moment at which it runs",
            ),
            ("SELECT d, sum(x) FROM t FINAL GROUP BY d", "the query uses FINAL"),
            ("DROP TABLE t", "the query of a view must be a SELECT"),
        ] {
            assert!(refused(query).starts_with(message), "{query}: {}", refused(query));
        }
    }
}
