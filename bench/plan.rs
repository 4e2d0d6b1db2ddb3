//! Time to plan the SSB queries against 100 views (target: 200 microseconds a query, parsing included).
//!
//! `cargo bench --bench plan`

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use tributary::matching::plan::plan;
use tributary::matching::schema::{Column, Schema, Table, TableName};
use tributary::matching::view::View;
use tributary::sql::ddl::create_tables;
use tributary::sql::parse;
use tributary::ssb::{Form, QUERIES};
use tributary::views::declaration;

const VIEWS: usize = 100;

fn schema() -> Schema {
    let mut schema = Schema::default();
    for created in create_tables(include_str!("../src/ssb/schema.sql")).unwrap() {
        let columns = created.columns.into_iter().map(|c| Column {
            name: c.name,
            type_name: c.type_name,
            default_kind: c.default_kind,
            default_expression: c.default_expression,
        });
        let name = TableName::new("ssb", created.table);
        schema.insert(Table { name, uuid: String::new(), engine: created.engine, columns: columns.collect() });
    }
    schema
}

/// The benchmark's own views of one form, and others over the same tables up to 100: the worst case, since no view can be
/// ruled out by its tables.
fn views(file: &str, schema: &Schema) -> Vec<Arc<View>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("views").join(file);
    let declared = declaration::load(&path).declarations;
    let mut views: Vec<Arc<View>> =
        declared.iter().map(|d| Arc::new(View::new(&d.name, &d.query, "ssb", schema).unwrap())).collect();
    let dimensions = ["C_MKTSEGMENT", "LO_SHIPMODE", "LO_ORDERPRIORITY", "P_COLOR", "P_CONTAINER", "LO_TAX", "P_SIZE"];
    let (year, from) = if file.contains("flat") {
        ("toYear(LO_ORDERDATE)", "lineorder_flat WHERE ")
    } else {
        let joins =
            "LO_CUSTKEY = C_CUSTKEY AND LO_SUPPKEY = S_SUPPKEY AND LO_PARTKEY = P_PARTKEY AND LO_ORDERDATE = D_DATEKEY";
        ("D_YEAR", &*format!("lineorder, customer, supplier, part, dates WHERE {joins} AND "))
    };
    for n in views.len()..VIEWS {
        let (a, b) = (dimensions[n % 7], dimensions[(n % 7 + 1 + n / 7 % 6) % 7]);
        let keys = format!("{a}, {b}, P_BRAND, S_REGION, C_REGION");
        let query = format!(
            "SELECT {year} AS y, {keys}, sum(LO_REVENUE) AS r, count() AS c FROM {from} LO_QUANTITY > {n} GROUP BY y, {keys}"
        );
        views.push(Arc::new(View::new(&format!("other_{n}"), &query, "ssb", schema).unwrap()));
    }
    views
}

fn planning(c: &mut Criterion) {
    let schema = schema();
    for (form, file) in [(Form::Flat, "ssb_flat.yaml"), (Form::Star, "ssb_star.yaml")] {
        let views = views(file, &schema);
        let mut group = c.benchmark_group(format!("plan/{form:?}"));
        for query in QUERIES.iter().filter(|q| q.form == form) {
            let run = || plan(&parse(query.sql).unwrap(), "ssb", &schema, &views);
            assert!(run().matches(), "{} is answered by a view", query.name);
            group.bench_function(query.name, |b| b.iter(|| black_box(run())));
        }
        group.finish();
    }
}

criterion_group!(benches, planning);
criterion_main!(benches);
