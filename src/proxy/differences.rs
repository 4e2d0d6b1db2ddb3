//! Whether two answers of the same moment are the same, and which queries allow to tell. Pure.

use serde::Deserialize;

use crate::maintain::verify::is_unsteady;
use crate::sql::functions;
use crate::sql::lexer::{TokenKind, lex};
use crate::sql::tree::{Expr, Select, Statement};

/// The format in which answers are compared: every value as a text.
pub const FORMAT: &str = "JSONCompactStrings";

/// Floats that were added up in another order are equal to about this share of them.
const FLOAT_TOLERANCE: f64 = 1e-6;

/// An answer in [`FORMAT`].
#[derive(Deserialize)]
struct Answer {
    meta: Vec<Column>,
    data: Vec<Vec<Option<String>>>,
    #[serde(default)]
    totals: Vec<Option<String>>,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    type_name: String,
}

/// Why two right answers to a query may differ.
pub fn unjudgeable(statement: &Statement) -> Option<String> {
    let blocks = &statement.blocks;
    if blocks.iter().any(|block| block.limit.is_some() || block.limit_by.is_some()) {
        return Some("LIMIT may cut between equal rows".into());
    }
    let mut found = None;
    for expr in blocks.iter().flat_map(Select::expressions) {
        expr.any(&mut |e| match e {
            Expr::Window(window) => {
                found.get_or_insert_with(|| format!("{} over equal rows may differ", window.call.name));
                true
            }
            Expr::Call(call) if is_unsteady(&call.function) || functions::is_constant_per_query(&call.function) => {
                found.get_or_insert_with(|| format!("{} may give another value each time", call.name));
                true
            }
            _ => false,
        });
    }
    found
}

/// The text without its FORMAT clause.
pub fn without_format(sql: &str) -> String {
    let tokens = lex(sql).map(|lexed| lexed.tokens).unwrap_or_default();
    let clause = tokens.windows(2).rposition(|pair| {
        pair[0].is_word(sql, "FORMAT") && matches!(pair[1].kind, TokenKind::Word) && !pair[1].is_word(sql, "FROM")
    });
    match clause {
        Some(at) => format!("{}{}", &sql[..tokens[at].start], &sql[tokens[at + 1].end..]),
        None => sql.to_string(),
    }
}

/// Where two answers differ; `None`: they are the same, whatever the order of their rows.
pub fn difference(raw: &[u8], other: &[u8]) -> Result<Option<String>, serde_json::Error> {
    let (mut raw, mut other) = (serde_json::from_slice::<Answer>(raw)?, serde_json::from_slice::<Answer>(other)?);
    if raw.meta != other.meta {
        return Ok(Some(format!("columns {:?} and {:?}", raw.meta, other.meta)));
    }
    let is_float: Vec<bool> = raw.meta.iter().map(|column| column.type_name.contains("Float")).collect();
    for answer in [&mut raw, &mut other] {
        // Floats last, since their digits may differ.
        answer.data.sort_by_cached_key(|row| {
            let cells = || row.iter().cloned().zip(&is_float);
            let of = |float: bool| cells().filter(move |(_, is)| **is == float).map(|(cell, _)| cell);
            of(false).chain(of(true)).collect::<Vec<_>>()
        });
    }
    let same = |a: &[Option<String>], b: &[Option<String>]| {
        a.len() == b.len()
            && a.iter()
                .zip(b)
                .zip(is_float.iter().chain(std::iter::repeat(&false)))
                .all(|((a, b), float)| a == b || (*float && matches!((a, b), (Some(a), Some(b)) if is_near(a, b))))
    };
    if !same(&raw.totals, &other.totals) {
        return Ok(Some(format!("totals {:?} and {:?}", raw.totals, other.totals)));
    }
    let row = |row: Option<&Vec<Option<String>>>| row.map_or("none".to_string(), |row| format!("{row:?}"));
    let rows = raw.data.len().max(other.data.len());
    let different = (0..rows).find(|at| match (raw.data.get(*at), other.data.get(*at)) {
        (Some(a), Some(b)) => !same(a, b),
        _ => true,
    });
    Ok(different.map(|at| format!("row {} and {}", row(raw.data.get(at)), row(other.data.get(at)))))
}

/// Whether two texts of floats (in arrays and tuples, perhaps) mean nearly the same.
fn is_near(a: &str, b: &str) -> bool {
    let numbers = |text: &str| -> Vec<String> {
        text.split(|c: char| "[](){},' ".contains(c)).filter(|part| !part.is_empty()).map(str::to_string).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    let near = |(a, b): (&String, &String)| match (a.parse::<f64>(), b.parse::<f64>()) {
        _ if a == b => true,
        (Ok(a), Ok(b)) => (a - b).abs() <= FLOAT_TOLERANCE * a.abs().max(b.abs()),
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(&b).all(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parse;

    fn answer(rows: &str) -> Vec<u8> {
        let meta =
            r#"[{"name":"k","type":"String"},{"name":"s","type":"UInt64"},{"name":"f","type":"Array(Float64)"}]"#;
        format!("{{\"meta\":{meta},\"data\":[{rows}],\"rows\":2}}").into_bytes()
    }

    #[test]
    fn order_and_last_digits_of_floats_do_not_count() {
        let of = |a: &str, b: &str| difference(&answer(a), &answer(b)).unwrap();
        let both = r#"["a","1","[0.1]"],["b","2","[0.3,nan]"]"#;
        assert_eq!(of(both, r#"["b","2","[0.30000000000000004,nan]"],["a","1","[0.1]"]"#), None);
        assert_eq!(of(both, both), None);
        for other in [
            r#"["a","1","[0.1]"],["b","3","[0.3,nan]"]"#,
            r#"["a","1","[0.1]"],["b","2","[0.31,nan]"]"#,
            r#"["a","1","[0.1]"],["b","2","[0.3]"]"#,
            r#"["a","1","[0.1]"],[null,"2","[0.3,nan]"]"#,
        ] {
            assert!(of(both, other).is_some_and(|text| text.starts_with("row ")), "{other}");
        }
        assert!(of(both, r#"["a","1","[0.1]"]"#).unwrap().ends_with(" and none"));
    }

    #[test]
    fn queries_that_may_differ_from_themselves_are_not_judged() {
        let of = |sql: &str| unjudgeable(&parse(sql).unwrap()).is_some();
        for sql in [
            "SELECT k, sum(x) FROM t GROUP BY k ORDER BY k LIMIT 5",
            "SELECT any(x) FROM t",
            "SELECT quantile(0.5)(x) FROM t",
            "SELECT sum(x) FROM t WHERE d < today()",
            "SELECT sum(s) FROM (SELECT k, argMax(x, d) AS s FROM t GROUP BY k)",
        ] {
            assert!(of(sql), "{sql}");
        }
        assert!(!of("SELECT k, sum(x), uniq(y), groupBitOr(z) FROM t GROUP BY k WITH TOTALS ORDER BY k"));
    }

    #[test]
    fn the_format_clause_is_cut_out() {
        assert_eq!(without_format("SELECT 1 FORMAT Native"), "SELECT 1 ");
        assert_eq!(without_format("SELECT 1 FORMAT JSON SETTINGS a = 1;"), "SELECT 1  SETTINGS a = 1;");
        assert_eq!(without_format("SELECT 'FORMAT x' AS format FROM t"), "SELECT 'FORMAT x' AS format FROM t");
    }
}
