//! Compares a view with the answer that its query gives on the source, inside ClickHouse.

use serde::Deserialize;

use super::look::{Coverage, Covered, LookError, Looker};
use crate::matching::rewrite;
use crate::matching::view::ColumnKind;
use crate::sql::lexer::backquote;
use crate::upstream::{Upstream, UpstreamError};
use crate::views::catalog::CatalogView;
use crate::views::neutral::grouping;
use crate::views::storage::StorageColumn;

/// What the comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `skipped`: columns of functions whose answer depends on the order of rows, such as any or a reservoir quantile.
    Equal { groups: u64, skipped: Vec<String> },
    /// `example`: the key of one group that differs.
    Differs { groups: u64, example: String },
    /// The source is not what the view covers, or was not throughout the comparison.
    SourceChanged,
}

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error(transparent)]
    Look(#[from] LookError),
}

/// Functions, by the beginning of their names, of which two runs of ClickHouse itself need not agree.
const UNSTEADY: [&str; 9] =
    ["any", "arg", "group", "first_value", "last_value", "median", "quantile", "top", "uniqTheta"];

/// Whether two runs of ClickHouse need not agree on what an aggregate function gives.
pub fn is_unsteady(function: &str) -> bool {
    UNSTEADY.iter().any(|unsteady| function.starts_with(unsteady)) && !function.starts_with("groupBit")
}

/// Runs both queries. Sums and averages of floats may differ by the order of addition: they are equal to nine digits.
pub async fn verify(upstream: &Upstream, view: &CatalogView) -> Result<Verdict, VerifyError> {
    let looker = Looker::connect(upstream.clone(), vec![view.target()]).await?;
    let coverage =
        || async { Ok::<_, VerifyError>(looker.look(&[view.storage_name()]).await?.coverage(view.storage_name())) };
    let Coverage::Covered(before) = coverage().await? else { return Ok(Verdict::SourceChanged) };
    let (sql, skipped) = comparison(view, &before);
    #[derive(Deserialize)]
    struct Counts {
        groups: u64,
        different: u64,
        example: String,
    }
    let counts = grouping(upstream).await?.rows::<Counts>(&sql).await?;
    let Coverage::Covered(after) = coverage().await? else { return Ok(Verdict::SourceChanged) };
    match counts.first() {
        Some(Counts { groups, different: 0, .. }) => Ok(Verdict::Equal { groups: *groups, skipped }),
        Some(_) if after.version != before.version => Ok(Verdict::SourceChanged),
        Some(Counts { different, example, .. }) => {
            Ok(Verdict::Differs { groups: *different, example: example.clone() })
        }
        None => Ok(Verdict::SourceChanged),
    }
}

/// Counts groups that are not in both answers with equal values.
fn comparison(view: &CatalogView, covered: &Covered) -> (String, Vec<String>) {
    let columns = &view.storage.columns;
    let mut skipped = Vec::new();
    let mut stored = Vec::new();
    let mut conditions = Vec::new();
    for (at, (column, declared)) in columns.iter().zip(&view.view.columns).enumerate() {
        let name = backquote(&column.name);
        match &declared.kind {
            ColumnKind::Dimension => stored.push(name),
            ColumnKind::Aggregate { function, .. } => {
                stored.push(merged(column));
                if is_unsteady(function) {
                    skipped.push(column.name.clone());
                } else {
                    conditions.push(format!("({})", equal(&format!("_{at}"))));
                }
            }
        }
    }
    let numbered = |prefix: &str| (0..columns.len()).map(|at| format!("{prefix}_{at}")).collect::<Vec<_>>();
    let keys: Vec<String> =
        (0..columns.len()).filter(|at| columns[*at].is_dimension).map(|at| format!("_{at}")).collect();
    let stored_keys: Vec<String> =
        columns.iter().filter(|column| column.is_dimension).map(|column| backquote(&column.name)).collect();
    let group_by =
        |keys: &[String]| if keys.is_empty() { String::new() } else { format!(" GROUP BY {}", keys.join(", ")) };
    let items: Vec<String> =
        stored.iter().zip(numbered("")).map(|(item, alias)| format!("{item} AS {alias}")).collect();
    let raw: Vec<String> = columns
        .iter()
        .zip(numbered(""))
        .map(|(column, alias)| format!("{} AS {alias}", backquote(&column.name)))
        .collect();
    conditions.push("count() = 2".into());
    let example =
        if keys.is_empty() { "'the only group'".into() } else { format!("toString(tuple({}))", keys.join(", ")) };
    // A view without keys: the query gives one row over nothing, the runs none.
    let having = if keys.is_empty() { " HAVING count() > 0" } else { "" };
    let rows = rewrite::that_count("", &covered.runs, &covered.dead);
    let sql = format!(
        "SELECT count() AS groups, countIf(NOT same) AS different, anyIf(key, NOT same) AS example FROM (\
         SELECT {example} AS key, {} AS same FROM (\
         SELECT {} FROM ({}\n) UNION ALL SELECT {} FROM {} WHERE {rows}{}{having}){})",
        conditions.join(" AND "),
        raw.join(", "),
        view.declaration.query.trim().trim_end_matches(';'),
        items.join(", "),
        view.storage.quoted(),
        group_by(&stored_keys),
        group_by(&keys),
    );
    (sql, skipped)
}

/// The finished value of a stored aggregate over several rows.
fn merged(column: &StorageColumn) -> String {
    let name = backquote(&column.name);
    let inner = |prefix: &str| column.type_name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(')'));
    if let Some(arguments) = inner("SimpleAggregateFunction(") {
        let function = arguments.split(',').next().unwrap_or(arguments);
        return format!("{function}({name})");
    }
    // `AggregateFunction(1, quantiles(0.5, 0.9), UInt32)`: a version first, perhaps; parameters, perhaps.
    let arguments = inner("AggregateFunction(").unwrap_or(&column.type_name);
    let arguments = arguments.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches([',', ' ']);
    let end = arguments.find(['(', ',']).unwrap_or(arguments.len());
    let function = &arguments[..end];
    let parameters = match arguments[end..].starts_with('(') {
        true => arguments[end..].find(')').map_or("", |close| &arguments[end..=end + close]),
        false => "",
    };
    format!("{function}Merge{parameters}({name})")
}

/// Whether the two values of a group are equal. NULL equals NULL, NaN equals NaN.
fn equal(column: &str) -> String {
    let float = format!("startsWith(replaceOne(any(toTypeName({column})), 'Nullable(', ''), 'Float')");
    let near = format!(
        "abs(toFloat64OrDefault(toString(max({column}))) - toFloat64OrDefault(toString(min({column})))) <= 1e-9 * \
         greatest(abs(toFloat64OrDefault(toString(max({column})))), abs(toFloat64OrDefault(toString(min({column})))))"
    );
    format!("uniqExact(toString(tuple({column}))) = 1 OR ({float} AND {near})")
}
