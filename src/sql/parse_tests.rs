use super::*;
use crate::sql::render::render;

fn one(sql: &str) -> Select {
    let statement = parse(sql).unwrap();
    assert_eq!(statement.blocks.len(), 1, "{sql}");
    statement.blocks[0].clone()
}

fn shown(expr: &Expr) -> String {
    render(expr, &|_, name| name.into(), &|range| format!("<{}..{}>", range.start, range.end))
}

#[test]
fn cuts_clauses_and_aliases() {
    let select = one(
        "SELECT sum(a * b) AS r, toYear(d) year, P_BRAND FROM db.t AS x, u WHERE x.k = u.k AND a BETWEEN 1 AND 3 \
         GROUP BY year, P_BRAND HAVING r > 0 ORDER BY year, r DESC NULLS LAST LIMIT 5 OFFSET 2 SETTINGS max_threads = 1 FORMAT JSON",
    );
    assert_eq!(select.unsupported, None);
    let aliases: Vec<_> = select.items.iter().map(|i| i.alias.as_deref()).collect();
    assert_eq!(aliases, [Some("r"), Some("year"), None]);
    assert_eq!(shown(&select.filters[0]), "and(equals(x.k, u.k), and(greaterOrEquals(a, 1), lessOrEquals(a, 3)))");
    assert_eq!(select.order_by[1].direction, "DESC NULLS LAST");
    assert_eq!(select.limit.as_deref(), Some("LIMIT 5 OFFSET 2"));
    assert_eq!(select.from.len(), 2);
}

#[test]
fn reads_expressions_as_clickhouse_does() {
    for (sql, wanted) in [
        ("a || b + c", "concat(a, plus(b, c))"),
        ("NOT a = 1 AND b", "and(not(equals(a, 1)), b)"),
        ("date + INTERVAL 2 DAYS", "plus(`date`, toIntervalDay(2))"),
        ("CAST(left(x, 2) AS DateTime('UTC'))", r"CAST(left(x, 2), 'DateTime(\'UTC\')')"),
        ("x::Decimal(10, 2) * 2", "multiply(CAST(x, 'Decimal(10, 2)'), 2)"),
        ("EXTRACT(YEAR FROM d)", "toYear(d)"),
        ("DATE '2020-01-01'", "toDate('2020-01-01')"),
        ("a IN (1, 2) OR a NOT IN ('x')", "or(in(a, (1, 2)), notIn(a, 'x'))"),
        ("CASE WHEN a THEN 1 ELSE 2 END", "multiIf(a, 1, 2)"),
        ("count(DISTINCT a, b)", "count(DISTINCT a, b)"),
        ("quantile(0.9)(x)", "quantile(0.9)(x)"),
        ("sum(x) FILTER (WHERE y > 1) + count(*) FILTER (WHERE z)", "plus(sumIf(x, greater(y, 1)), countIf(z))"),
        ("t.a.1 + arr[1]", "plus(tupleElement(t.a, 1), arrayElement(arr, 1))"),
        ("arrayMap(x -> x + 1, [1, 2])", "arrayMap((x) -> plus(x, 1), [1, 2])"),
        ("-5 - -a", "minus(-5, negate(a))"),
        ("x LIKE 'a\\_b%'", "like(x, 'a\\_b%')"),
        ("a = {p:UInt8}", "equals(a, {p:UInt8})"),
        ("a IS NOT DISTINCT FROM b AND a <=> 1", "and(isNotDistinctFrom(a, b), isNotDistinctFrom(a, 1))"),
        (
            "sum(a) OVER (PARTITION BY b, c ORDER BY a + 1 DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
            "sum(a) OVER (PARTITION BY b, c ORDER BY plus(a, 1) DESC ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        ),
    ] {
        let select = one(&format!("SELECT {sql}"));
        assert_eq!(select.unsupported, None, "{sql}");
        assert_eq!(shown(&select.items[0].expr), wanted, "{sql}");
    }
}

#[test]
fn names_what_it_does_not_handle() {
    for (sql, reason) in [
        ("SELECT a FROM t FINAL", "FINAL"),
        ("SELECT a FROM t AS x FINAL WHERE 1", "FINAL"),
        ("SELECT a FROM t SAMPLE 1/10", "SAMPLE"),
        ("SELECT a FROM t ANY LEFT JOIN u ON t.a = u.a", "ANY JOIN"),
        ("SELECT a FROM t ARRAY JOIN b", "ARRAY JOIN"),
        ("SELECT sum(a) OVER w FROM t", "a window that has a name"),
        ("SELECT a FROM t GROUP BY GROUPING SETS ((a), ())", "GROUPING SETS"),
        ("SELECT a ? 1 : 2 FROM t", "'?' in an expression"),
        ("SELECT -1::Int8", "a cast of a negative number by '::'"),
        ("SELECT (a + 1 AS b) * 2", "an alias inside an expression"),
        ("SELECT sum(a) FILTER (b) FROM t", "an expression that is not understood"),
    ] {
        assert_eq!(one(sql).unsupported.as_deref(), Some(reason), "{sql}");
    }
}

#[test]
fn finds_blocks_in_any_depth() {
    let sql = "WITH c AS (SELECT a FROM t), 5 AS five SELECT x FROM (SELECT 1 AS x UNION ALL SELECT 2) WHERE x IN (SELECT a FROM c)";
    let statement = parse(sql).unwrap();
    let texts: Vec<&str> = statement.blocks.iter().map(|b| &sql[b.span.clone()]).collect();
    assert_eq!(texts, [sql, "SELECT a FROM t", "SELECT 1 AS x", "SELECT 2", "SELECT a FROM c"]);
}

#[test]
fn tells_other_statements_apart() {
    for sql in ["INSERT INTO t SELECT 1", "EXPLAIN SELECT 1", "SHOW TABLES", "", "/* x */"] {
        assert_eq!(parse(sql).unwrap_err(), ParseError::NotASelect, "{sql}");
    }
    assert_eq!(parse("SELECT 1 -- tributary: off").unwrap().wish.as_deref(), Some("off"));
}

#[test]
fn long_and_deep_texts_are_refused_without_harm() {
    let chain = |operator: &str, n: usize| format!("SELECT 1 WHERE {}", vec!["a"; n].join(operator));
    let deep = |open: &str, close: &str, n: usize| format!("SELECT {}a{}", open.repeat(n), close.repeat(n));
    let texts = [
        chain(" OR ", 9000),
        chain(" + ", 9000),
        chain(" || ", 1900),
        chain(" = 1 OR ", 1900),
        chain(" + ", 149),
        format!("{} OR {}", chain(" OR ", 1900), vec!["b"; 4000].join(" + ")),
        format!("SELECT {}", (0..40).fold("a".to_string(), |inner, _| format!("({inner}{})", " + f(1, 1)".repeat(3)))),
        deep("(", ")", 5000),
        deep("f(", ")", 60),
        deep("[", "]", 5000),
        deep("NOT ", "", 390),
        deep("- ", "", 5000),
        deep("(SELECT ", ")", 60),
        format!("SELECT a IN ({})", vec!["1"; 20000].join(",")),
        "SELECT ".repeat(5000),
        "SELECT a AS".into(),
        "SELECT CAST(a AS".into(),
        "SELECT CAST(a AS)".into(),
        "SELECT a::".into(),
        "SELECT INTERVAL".into(),
        "SELECT {".into(),
        "SELECT {a:}".into(),
        "WITH".into(),
        "WITH a AS".into(),
        "SELECT a FROM t JOIN".into(),
        "SELECT a FROM t USING".into(),
        "SELECT a FROM t AS".into(),
        "SELECT a FROM t LIMIT BY".into(),
        "SELECT a FORMAT".into(),
        "SELECT a SETTINGS x =".into(),
        "SELECT EXTRACT(YEAR FROM".into(),
        "SELECT EXTRACT(YEAR".into(),
        "SELECT f() FILTER (WHERE".into(),
        "SELECT 1 UNION".into(),
    ];
    for text in texts {
        // An answer of any kind; what counts is that there is one.
        let _ = parse(&text);
    }
}
