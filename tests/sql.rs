//! Expressions as ClickHouse reads them: the tree of our rendering is the tree of the original text.

use std::path::Path;

use tributary::sql::parse;
use tributary::sql::render::render;

use crate::support::sql;

#[test]
fn rendered_expressions_have_the_trees_that_clickhouse_makes_of_the_originals() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql/expressions.txt");
    let mut faults = Vec::new();
    for text in std::fs::read_to_string(path).unwrap().lines() {
        let statement = parse(&format!("SELECT {text}")).unwrap();
        let block = &statement.blocks[0];
        if let Some(why) = &block.unsupported {
            faults.push(format!("{text}: {why}"));
            continue;
        }
        let rendered = render(&block.items[0].expr, &|_, name| name.into(), &|_| String::new());
        let (wanted, got) = (tree(text), tree(&rendered));
        if wanted != got {
            faults.push(format!("{text}\n{wanted}\nis not\n{rendered}\n{got}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// ClickHouse's syntax tree.
fn tree(expression: &str) -> String {
    sql(&format!("EXPLAIN AST SELECT {expression} FORMAT TSVRaw"))
}
