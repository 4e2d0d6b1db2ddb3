//! `tributary explain --schema`: planning from CREATE TABLE statements, without a server.

use std::path::Path;
use std::sync::Arc;

use super::CliError;
use crate::matching::names;
use crate::matching::plan::plan;
use crate::matching::rewrite::{StoredColumn, StoredView};
use crate::matching::schema::{Column, Schema, Table, TableName};
use crate::matching::settings;
use crate::matching::view::{View, ViewColumn};
use crate::proxy::accelerator::Explanation;
use crate::proxy::decide::{Offer, Walk, choose};
use crate::proxy::query::Decision;
use crate::sql::ddl::create_tables;
use crate::sql::parse;
use crate::views::declaration;
use crate::views::storage::DATABASE;

/// The run that stands for the live ones in the printed text.
const RUN: u64 = 1;

/// Plans `sql` over the tables of a DDL file; every view counts as up to date.
pub fn explain(
    sql: &str,
    ddl: &Path,
    views: &Path,
    database: &str,
    settings: &[(String, String)],
) -> Result<Explanation, CliError> {
    let schema = read_schema(ddl, database)?;
    let loaded = declaration::load(views);
    for problem in &loaded.problems {
        eprintln!("error: {problem}\n");
    }
    let mut known = Vec::new();
    for declared in &loaded.declarations {
        match View::new(&declared.name, &declared.query, database, &schema) {
            Ok(view) => known.push(Arc::new(view)),
            Err(error) => {
                let problem = declared.query_problem(error.offset, error.message, Some(error.hint));
                eprintln!("error: {problem}\n");
            }
        }
    }
    let mut explanation =
        Explanation { decision: Decision::NotAQuery, plan: None, coverages: Vec::new(), confirmation: None };
    let raw = |reason: String| Decision::Raw { reason };
    let statement = match parse(sql) {
        Ok(statement) => statement,
        Err(crate::sql::ParseError::NotASelect) => return Ok(explanation),
        Err(error) => {
            explanation.decision = raw(error.to_string());
            return Ok(explanation);
        }
    };
    if let Some(refusal) = settings::refusal(sql, settings, &statement) {
        explanation.decision = raw(refusal);
        return Ok(explanation);
    }
    let plan = plan(&statement, database, &schema, &known);
    let mut walk = Walk::new(&plan);
    while let Some(block) = walk.next_block() {
        let select = statement.blocks.iter().find(|select| select.span == block.span);
        let names: Vec<String> = select.into_iter().flat_map(|select| &select.items).map(names::of_item).collect();
        match choose(block, &|view| Ok(offer(view))) {
            Ok(choice) => walk.answered(&choice, choice.text(&names, sql)),
            Err(reason) => walk.refused(reason),
        }
    }
    explanation.decision = walk.decision(sql);
    explanation.plan = Some(Arc::new(plan));
    Ok(explanation)
}

/// A view of which nothing is known but its definition.
fn offer(view: &View) -> Offer {
    let name = |c: &ViewColumn| c.name.clone().unwrap_or_else(|| c.text.clone());
    let columns = view.columns.iter().map(|c| StoredColumn { name: name(c), type_name: String::new() });
    let stored = StoredView {
        database: DATABASE.into(),
        table: view.name.clone(),
        columns: columns.collect(),
        runs: vec![RUN],
        dead: Vec::new(),
        raw: None,
    };
    Offer { stored, rows: 0, source_rows: 0 }
}

fn read_schema(path: &Path, database: &str) -> Result<Schema, CliError> {
    let fault = |what: String| CliError::Usage(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
    let mut schema = Schema::default();
    for created in create_tables(&text).map_err(|e| fault(e.to_string()))? {
        let columns = created.columns.into_iter().map(|c| Column {
            name: c.name,
            type_name: c.type_name,
            default_kind: c.default_kind,
            default_expression: c.default_expression,
        });
        schema.insert(Table {
            name: TableName::new(created.database.unwrap_or_else(|| database.into()), created.table),
            uuid: String::new(),
            engine: created.engine,
            columns: columns.collect(),
        });
    }
    Ok(schema)
}
