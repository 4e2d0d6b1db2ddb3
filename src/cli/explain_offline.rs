//! `tributary explain --schema`: planning from CREATE TABLE statements, without a server.

use std::path::Path;
use std::sync::Arc;

use super::CliError;
use crate::matching::names;
use crate::matching::plan::{is_inside_any, plan, splice};
use crate::matching::rewrite::{StoredColumn, StoredView, rewrite};
use crate::matching::schema::{Column, Schema, Table, TableName};
use crate::matching::settings::first_that_matters;
use crate::matching::view::View;
use crate::proxy::accelerator::Explanation;
use crate::proxy::query::{Decision, Mode};
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
    if let Some(name) = first_that_matters(settings.iter().chain(&statement.settings), &statement) {
        explanation.decision = raw(format!("the setting {name} may change the answer"));
        return Ok(explanation);
    }
    let plan = plan(&statement, database, &schema, &known);
    let mut used = Vec::new();
    let mut replacements = Vec::new();
    for block in plan.replaceable() {
        if is_inside_any(&block.span, &replacements) {
            continue;
        }
        let matched = block.candidates.iter().find_map(|c| Some((&c.view, c.outcome.as_ref().ok()?)));
        let select = statement.blocks.iter().find(|select| select.span == block.span);
        if let (Some((view, matched)), Some(select)) = (matched, select) {
            let stored = StoredView {
                database: DATABASE.into(),
                table: view.name.clone(),
                columns: view
                    .columns
                    .iter()
                    .map(|c| StoredColumn {
                        name: c.name.clone().unwrap_or_else(|| c.text.clone()),
                        type_name: String::new(),
                    })
                    .collect(),
                runs: vec![RUN],
            };
            let names: Vec<String> = select.items.iter().map(names::of_item).collect();
            replacements.push((block.span.clone(), rewrite(&block.block, matched, &stored, &names, sql)));
            used.push(view.name.clone());
        }
    }
    explanation.decision = if replacements.is_empty() {
        raw(plan.reason())
    } else {
        Decision::View { views: used, mode: Mode::Full, sql: splice(sql, replacements) }
    };
    explanation.plan = Some(Arc::new(plan));
    Ok(explanation)
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
