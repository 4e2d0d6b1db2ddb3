//! Declarations checked against the live schema: what `serve` answers from, what `rebuild` builds, what `check` reports.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::declaration::{Declaration, Loaded};
use super::neutral::neutral;
use super::problem::Problem;
use super::schema;
use super::storage::{StorageError, StorageTable};
use crate::config::Consistency;
use crate::matching::schema::{Schema, TableName};
use crate::matching::view::{View, ViewError, nearest, tables_of};
use crate::sql::tree::JoinKind;
use crate::upstream::{Upstream, UpstreamError};

/// A declared view that can be built and matched.
#[derive(Debug, Clone)]
pub struct CatalogView {
    pub declaration: Declaration,
    pub view: Arc<View>,
    pub storage: StorageTable,
    /// The view was declared anew since, and this definition answers until the new one is built.
    pub is_previous: bool,
}

impl CatalogView {
    pub fn name(&self) -> &str {
        &self.declaration.name
    }

    /// Name of the storage table within `storage::DATABASE`: what tells definitions apart, of one view too.
    pub fn storage_name(&self) -> &str {
        &self.storage.name.table
    }

    /// What must be looked at to know whether the view's runs still hold what its sources hold.
    pub fn target(&self) -> Target {
        let columns = self.view.block.columns_read();
        let columns_of = |table: &TableName| {
            columns.iter().filter(|(of, _)| of == table).map(|(_, column)| column.clone()).collect()
        };
        let source = |table: &TableName| SourceUse { table: table.clone(), columns: columns_of(table) };
        Target {
            view: self.declaration.name.clone(),
            storage: self.storage_name().to_string(),
            consistency: self.declaration.consistency(),
            sources: self.view.tables.iter().map(source).collect(),
        }
    }
}

/// What must be looked at for one view.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub view: String,
    /// Name of the definition's storage table, within `storage::DATABASE`.
    pub storage: String,
    pub consistency: Consistency,
    /// In the order of the view's FROM; the first is the fact table.
    pub sources: Vec<SourceUse>,
}

/// A table that a view reads, and the columns of it that it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceUse {
    pub table: TableName,
    pub columns: Vec<String>,
}

/// The views that are in order, and what is wrong with the others.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The tables that the views read.
    pub schema: Schema,
    /// Of two definitions of one view the previous one comes later.
    pub views: Vec<CatalogView>,
    pub problems: Vec<Problem>,
}

/// Resolves every declaration. A view with a fault is left out; only a server that does not answer is an error. The
/// problems of the files come first.
pub async fn resolve(upstream: &Upstream, loaded: Loaded) -> Result<Catalog, UpstreamError> {
    let database = upstream.config().database.clone();
    let mut catalog = Catalog { problems: loaded.problems, ..Catalog::default() };
    let mut wanted = BTreeSet::new();
    let mut readable = Vec::new();
    for declaration in loaded.declarations {
        match tables_of(&declaration.query, &database) {
            Ok(tables) => {
                wanted.extend(tables.iter().cloned());
                readable.push((declaration, tables));
            }
            Err(error) => catalog.problems.push(view_problem(&declaration, error)),
        }
    }
    let upstream = &neutral(upstream).await?;
    let schema = schema::load(upstream, &wanted.into_iter().collect::<Vec<_>>()).await?;
    for (declaration, tables) in readable {
        let missing = tables.iter().find(|table| schema.table(table).is_none());
        if let Some(table) = missing {
            catalog.problems.push(missing_table(&declaration, table, upstream, &schema));
            continue;
        }
        match resolve_one(upstream, &declaration, &database, &schema).await? {
            Ok((mut view, storage)) => {
                view.storage.clone_from(&storage.name.table);
                catalog.views.push(CatalogView { declaration, view: Arc::new(view), storage, is_previous: false });
            }
            Err(problems) => catalog.problems.extend(problems),
        }
    }
    catalog.schema = schema;
    Ok(catalog)
}

type Resolved = Result<(View, StorageTable), Vec<Problem>>;

async fn resolve_one(
    upstream: &Upstream,
    declaration: &Declaration,
    database: &str,
    schema: &Schema,
) -> Result<Resolved, UpstreamError> {
    let view = match View::new(&declaration.name, &declaration.query, database, schema) {
        Ok(view) => view,
        Err(error) => return Ok(Err(vec![view_problem(declaration, error)])),
    };
    let problems = source_problems(declaration, &view, schema);
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let fault = |message: String| vec![declaration.query_problem(0, message, None)];
    Ok(match StorageTable::describe(upstream, declaration, &view).await {
        Ok(storage) => Ok((view, storage)),
        Err(StorageError::OrderBy { position, name, dimensions }) => {
            let hint = match nearest(&name, dimensions.iter().map(String::as_str)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the dimensions are {}", dimensions.join(", ")),
            };
            let message = format!("{name} is no dimension that the storage could be sorted by");
            Err(vec![declaration.order_by_problem(position, message, Some(hint))])
        }
        // ClickHouse understood the question and refuses the query: its own words are the best explanation.
        Err(StorageError::Upstream(error)) => match error.exception() {
            Some(exception) => Err(fault(format!("ClickHouse refuses the query: {exception}"))),
            None => return Err(error),
        },
        Err(error) => Err(fault(error.to_string())),
    })
}

fn view_problem(declaration: &Declaration, error: ViewError) -> Problem {
    let hint = (!error.hint.is_empty()).then_some(error.hint);
    declaration.query_problem(error.offset, error.message, hint)
}

fn missing_table(declaration: &Declaration, table: &TableName, upstream: &Upstream, schema: &Schema) -> Problem {
    let neighbours = schema.tables().filter(|other| other.name.database == table.database);
    let hint = match nearest(&table.table, neighbours.map(|other| other.name.table.as_str())) {
        Some(near) => format!("did you mean {near}?"),
        None => "write database.table, or name the database with --database".into(),
    };
    let message = format!("table {table} does not exist, or user {} may not see it", upstream.config().user);
    let offset = table_offset(&declaration.query, &table.table);
    declaration.query_problem(offset, message, Some(hint))
}

/// Where a query names a table: as a word of its own after FROM, or the start of the query.
fn table_offset(query: &str, table: &str) -> usize {
    let from = query.to_ascii_uppercase().find("FROM").unwrap_or(0);
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let whole =
        |at: &usize| !query[..*at].ends_with(part_of_word) && !query[at + table.len()..].starts_with(part_of_word);
    query.match_indices(table).map(|(at, _)| at).filter(|at| *at >= from).find(whole).unwrap_or(0)
}

/// Sources of which coverage could never be proved, and joins that cannot be built partition by partition.
fn source_problems(declaration: &Declaration, view: &View, schema: &Schema) -> Vec<Problem> {
    let mut problems = Vec::new();
    let at = |table: &TableName| table_offset(&declaration.query, &table.table);
    for table in view.tables.iter().filter_map(|name| schema.table(name)) {
        if declaration.consistency() != Consistency::Manual && !table.engine.ends_with("MergeTree") {
            let message =
                format!("engine {} of {} keeps no parts, so no look can prove what it holds", table.engine, table.name);
            let hint = "read a MergeTree table, or declare 'consistency: manual': the view is then as fresh as its last \
                        rebuild, on your word";
            problems.push(declaration.query_problem(at(&table.name), message, Some(hint.into())));
        }
    }
    for (right, kind, _) in &view.block.outer_joins {
        if !matches!(kind, JoinKind::Left) {
            let table = &view.tables[*right];
            let message =
                format!("rows of {table} without a match would be counted in every partition of {}", view.tables[0]);
            let hint = "name the larger table first and use LEFT or INNER JOIN";
            problems.push(declaration.query_problem(at(table), message, Some(hint.into())));
        }
    }
    problems
}
