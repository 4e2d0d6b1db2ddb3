//! Tokens of an expression -> tokens that sqlparser reads as ClickHouse does.
//!
//! Every word that is no operator is quoted (so that `date`, `left` or `FINAL` are plain names), sub-queries, parameters and
//! type names become placeholders, and forms whose meaning differs (`a ? b : c`, `DIV`, `-1::Int8`, several comparisons in
//! a row, aliases inside) are refused.

use std::ops::Range;

use sqlparser::tokenizer::Token as SqlToken;

use super::expression::{expression, unsupported};
use super::lexer::{Token, TokenKind, unquote};
use super::parse::{Blocks, Unsupported};
use super::tree::{Expr, OrderItem};

/// Placeholders stand for what sqlparser must not see; the control character cannot come from a bare word.
pub const SUBQUERY: &str = "\u{1}subquery";
pub const PARAMETER: &str = "\u{1}parameter";
pub const TYPE: &str = "\u{1}type";
pub const WINDOW: &str = "\u{1}window";

/// Words that are operators or parts of them wherever they stand in an expression.
const OPERATORS: [&str; 16] = [
    "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "BETWEEN", "IS", "NULL", "CASE", "WHEN", "THEN", "ELSE", "END",
    "DISTINCT", "AS",
];

/// Operators in one expression.
const OPERATORS_MAX: usize = 6000;

/// What the placeholders of one expression stand for.
#[derive(Default)]
pub struct Placeholders {
    pub subqueries: Vec<Range<usize>>,
    pub parameters: Vec<String>,
    pub types: Vec<String>,
    pub windows: Vec<OverClause>,
}

/// What stands in the brackets after OVER.
#[derive(Default, Clone)]
pub struct OverClause {
    pub partition_by: Vec<Expr>,
    pub order_by: Vec<OrderItem>,
    pub frame: String,
}

/// Refuses what ClickHouse and sqlparser group in different ways: several comparisons in a row, anything behind the list of
/// IN, comparisons in the bounds of BETWEEN.
pub fn unambiguous(blocks: &Blocks<'_>, range: Range<usize>) -> Result<(), Unsupported> {
    const RELATIONS: [&str; 14] =
        ["<=>", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "IN", "LIKE", "ILIKE", "BETWEEN", "IS"];
    const SEPARATORS: [&str; 9] = ["AND", "OR", "CASE", "WHEN", "THEN", "ELSE", "END", ",", "->"];
    let sql = blocks.sql;
    let is_any = |at: usize, list: &[&str]| {
        let token = blocks.tokens[at];
        let is_bare = matches!(token.kind, TokenKind::Word | TokenKind::Symbol);
        is_bare && list.iter().any(|word| token.text(sql).eq_ignore_ascii_case(word))
    };
    // A BETWEEN was seen, and whether its AND was.
    let (mut relations, mut between, mut last_in) = (0, None, None);
    for at in blocks.top_level(range.clone()) {
        if let Some(list_at) = last_in
            && at > list_at + 1
            && !is_any(at, &SEPARATORS)
        {
            return Err(unsupported("an operator behind the list of IN"));
        }
        if is_any(at, &SEPARATORS) {
            // Up to the next separator stands the upper bound, which may hold no comparison.
            between = if between == Some(false) && is_any(at, &["AND"]) { Some(true) } else { None };
            relations = usize::from(between.is_some());
            last_in = None;
        } else if is_any(at, &RELATIONS) {
            relations += 1;
            if relations > 1 {
                return Err(unsupported("several comparisons without brackets"));
            }
            between = is_any(at, &["BETWEEN"]).then_some(false);
            last_in = is_any(at, &["IN"]).then_some(at);
        }
        let opens = is_any(at, &["(", "["])
            && !(blocks.tokens.get(at + 1).is_some_and(|t| t.is_word(sql, "SELECT") || t.is_word(sql, "WITH")));
        if opens {
            unambiguous(blocks, at + 1..blocks.close(at)?)?;
        }
    }
    Ok(())
}

fn quoted(name: &str) -> SqlToken {
    SqlToken::make_word(name, Some('`'))
}

fn placeholder(kind: &str, index: usize) -> SqlToken {
    quoted(&format!("{kind}{index}"))
}

/// Our tokens -> sqlparser's, with everything ambiguous replaced.
pub fn prepare(
    blocks: &mut Blocks<'_>,
    range: Range<usize>,
    holders: &mut Placeholders,
) -> Result<Vec<SqlToken>, Unsupported> {
    let sql = blocks.sql;
    let mut out = Vec::with_capacity(range.len() + 4);
    // Positions of the AS of each open CAST, with the position of its closing bracket.
    let mut casts: Vec<(usize, usize)> = Vec::new();
    let mut at = range.start;
    let is_operator = |t: &&Token| match t.kind {
        TokenKind::Symbol => !["(", ")", ",", "[", "]", "{", "}", "."].contains(&t.text(sql)),
        TokenKind::Word => OPERATORS.iter().any(|w| t.is_word(sql, w)),
        _ => false,
    };
    if blocks.tokens[range.clone()].iter().filter(is_operator).count() > OPERATORS_MAX {
        return Err(unsupported("an expression with very many operators"));
    }
    while at < range.end {
        let token = blocks.tokens[at];
        let text = token.text(sql);
        let next = (at + 1 < range.end).then(|| blocks.tokens[at + 1]);
        let next_is = |symbol: &str| next.is_some_and(|t| t.is_symbol(sql, symbol));
        match token.kind {
            TokenKind::Number => out.push(SqlToken::Number(text.into(), false)),
            TokenKind::Text => out.push(SqlToken::SingleQuotedString(text[1..text.len() - 1].into())),
            TokenKind::QuotedWord => {
                let name = unquote(text).and_then(|b| String::from_utf8(b).ok());
                out.push(quoted(&name.ok_or_else(|| unsupported("an escape in a quoted name"))?));
            }
            TokenKind::Word => {
                let upper = text.to_ascii_uppercase();
                match &*upper {
                    "AS" => match casts.pop_if(|(as_at, _)| *as_at == at) {
                        Some((_, close)) => {
                            let (first, last) = (blocks.tokens[at + 1], blocks.tokens[close - 1]);
                            holders.types.push(sql[first.start..last.end].to_string());
                            out.push(SqlToken::make_word("AS", None));
                            out.push(placeholder(TYPE, holders.types.len() - 1));
                            at = close;
                            continue;
                        }
                        None => return Err(unsupported("an alias inside an expression")),
                    },
                    "CAST" if next_is("(") => {
                        let close = blocks.close(at + 1)?;
                        match blocks.find_at_depth(at + 2..close, "AS") {
                            Some(as_at) => {
                                casts.push((as_at, close));
                                out.push(SqlToken::make_word("CAST", None));
                            }
                            None => out.push(quoted(text)),
                        }
                    }
                    "EXTRACT" if next_is("(") && is_extract(blocks, at) => {
                        let unit = blocks.tokens[at + 2].text(sql).to_ascii_uppercase();
                        out.push(quoted(extract_function(&unit).ok_or_else(|| unsupported("this form of EXTRACT"))?));
                        out.push(SqlToken::LParen);
                        at += 4;
                        continue;
                    }
                    "INTERVAL" if next.is_some_and(|t| t.kind == TokenKind::Number) && at + 2 < range.end => {
                        let unit = blocks.tokens[at + 2].text(sql).to_ascii_uppercase();
                        let function = interval_function(&unit).ok_or_else(|| unsupported("this form of INTERVAL"))?;
                        let number = blocks.tokens[at + 1].text(sql);
                        out.extend([quoted(function), SqlToken::LParen, SqlToken::Number(number.into(), false)]);
                        out.push(SqlToken::RParen);
                        at += 3;
                        continue;
                    }
                    "INTERVAL" if next.is_some_and(|t| t.kind != TokenKind::Symbol) || next_is("(") => {
                        return Err(unsupported("this form of INTERVAL"));
                    }
                    "DATE" if next.is_some_and(|t| t.kind == TokenKind::Text) => {
                        let date = blocks.tokens[at + 1].text(sql);
                        out.extend([quoted("toDate"), SqlToken::LParen]);
                        out.push(SqlToken::SingleQuotedString(date[1..date.len() - 1].into()));
                        out.push(SqlToken::RParen);
                        at += 2;
                        continue;
                    }
                    "TIMESTAMP" if next.is_some_and(|t| t.kind == TokenKind::Text) => {
                        return Err(unsupported("a TIMESTAMP literal"));
                    }
                    "OVER" if next_is("(") => {
                        let close = blocks.close(at + 1)?;
                        holders.windows.push(over(blocks, at + 2..close)?);
                        out.push(SqlToken::make_word("OVER", None));
                        out.push(placeholder(WINDOW, holders.windows.len() - 1));
                        at = close + 1;
                        continue;
                    }
                    "OVER" => return Err(unsupported("a window that has a name")),
                    "FILTER" if next_is("(") && blocks.tokens.get(at + 2).is_some_and(|t| t.is_word(sql, "WHERE")) => {
                        out.push(SqlToken::make_word("FILTER", None));
                    }
                    "FROM" if at > range.start && blocks.word(at - 1, "DISTINCT") => {
                        out.push(SqlToken::make_word("FROM", None));
                    }
                    "WHERE" => out.push(SqlToken::make_word("WHERE", None)),
                    "GLOBAL" | "DIV" | "MOD" | "REGEXP" | "EXISTS" | "RESPECT" | "IGNORE" | "COLUMNS" | "APPLY"
                        if next.is_some() =>
                    {
                        return Err(unsupported(format!("{upper} in an expression")));
                    }
                    // Read as literals by ClickHouse; a column of that name needs a qualifier there as well.
                    "TRUE" | "FALSE" => out.push(SqlToken::make_word(&upper, None)),
                    _ if OPERATORS.contains(&&*upper) => out.push(SqlToken::make_word(text, None)),
                    _ => out.push(quoted(text)),
                }
            }
            TokenKind::Symbol => match text {
                "(" if next.is_some_and(|t| t.is_word(sql, "SELECT") || t.is_word(sql, "WITH")) => {
                    let close = blocks.close(at)?;
                    blocks.query(at + 1..close)?;
                    holders.subqueries.push(token.start..blocks.tokens[close].end);
                    out.extend([SqlToken::LParen, placeholder(SUBQUERY, holders.subqueries.len() - 1)]);
                    out.push(SqlToken::RParen);
                    at = close + 1;
                    continue;
                }
                "{" => {
                    let close = blocks.close(at)?;
                    let named = at + 2 < close
                        && blocks.tokens[at + 1].kind == TokenKind::Word
                        && blocks.tokens[at + 2].is_symbol(sql, ":");
                    if !named {
                        return Err(unsupported("a map literal"));
                    }
                    // A name, not a value: it would be looked up among the view's columns.
                    if blocks.tokens[at + 3..close].iter().any(|t| t.is_word(sql, "Identifier")) {
                        return Err(unsupported("a parameter that is a name"));
                    }
                    holders.parameters.push(sql[token.start..blocks.tokens[close].end].to_string());
                    out.push(placeholder(PARAMETER, holders.parameters.len() - 1));
                    at = close + 1;
                    continue;
                }
                "::" => {
                    if is_negative_number(blocks.tokens, sql, at, range.start) {
                        return Err(unsupported("a cast of a negative number by '::'"));
                    }
                    let (end, text) = type_after(blocks, at + 1, range.end)?;
                    holders.types.push(text);
                    out.extend([SqlToken::DoubleColon, placeholder(TYPE, holders.types.len() - 1)]);
                    at = end;
                    continue;
                }
                _ => out.push(symbol(text).ok_or_else(|| unsupported(format!("'{text}' in an expression")))?),
            },
        }
        at += 1;
    }
    Ok(out)
}

/// `PARTITION BY .. ORDER BY .. ROWS BETWEEN ..`, each of which may be missing.
fn over(blocks: &mut Blocks<'_>, range: Range<usize>) -> Result<OverClause, Unsupported> {
    const OF_FRAMES: [&str; 10] =
        ["ROWS", "RANGE", "GROUPS", "BETWEEN", "UNBOUNDED", "PRECEDING", "FOLLOWING", "CURRENT", "ROW", "AND"];
    let clause =
        |word: &str| blocks.top_level(range.clone()).find(|at| blocks.word(*at, word) && blocks.word(*at + 1, "BY"));
    let (partition, order) = (clause("PARTITION"), clause("ORDER"));
    let frame = blocks.top_level(range.clone()).find(|at| {
        let is_first = *at == range.start || !blocks.word(*at - 1, "BY");
        is_first && ["ROWS", "RANGE", "GROUPS"].iter().any(|word| blocks.word(*at, word))
    });
    let frame = frame.unwrap_or(range.end);
    let first = [partition, order, Some(frame)].into_iter().flatten().min().unwrap_or(range.end);
    if first != range.start || order.is_some_and(|at| partition.is_some_and(|p| p > at) || at > frame) {
        return Err(unsupported("a window that is not understood"));
    }
    let is_plain =
        |at: usize| blocks.tokens[at].kind == TokenKind::Number || OF_FRAMES.iter().any(|word| blocks.word(at, word));
    if !(frame..range.end).all(is_plain) {
        return Err(unsupported("a window that is not understood"));
    }
    let mut clause = OverClause { frame: blocks.sql[blocks.bytes(frame..range.end)].into(), ..OverClause::default() };
    if let Some(at) = partition {
        for part in blocks.split(at + 2..order.unwrap_or(frame)) {
            clause.partition_by.push(expression(blocks, part)?);
        }
    }
    if let Some(at) = order {
        clause.order_by = blocks.order_by(at + 2..frame)?;
    }
    Ok(clause)
}

fn symbol(text: &str) -> Option<SqlToken> {
    Some(match text {
        "(" => SqlToken::LParen,
        ")" => SqlToken::RParen,
        "[" => SqlToken::LBracket,
        "]" => SqlToken::RBracket,
        "," => SqlToken::Comma,
        "." => SqlToken::Period,
        "+" => SqlToken::Plus,
        "-" => SqlToken::Minus,
        "*" => SqlToken::Mul,
        "/" => SqlToken::Div,
        "%" => SqlToken::Mod,
        "=" => SqlToken::Eq,
        "==" => SqlToken::DoubleEq,
        "!=" | "<>" => SqlToken::Neq,
        "<" => SqlToken::Lt,
        "<=" => SqlToken::LtEq,
        ">" => SqlToken::Gt,
        ">=" => SqlToken::GtEq,
        "||" => SqlToken::StringConcat,
        "->" => SqlToken::Arrow,
        "<=>" => SqlToken::Spaceship,
        _ => return None,
    })
}

fn is_extract(blocks: &Blocks<'_>, at: usize) -> bool {
    blocks.tokens.get(at + 3).is_some_and(|t| t.is_word(blocks.sql, "FROM"))
}

fn extract_function(unit: &str) -> Option<&'static str> {
    Some(match unit {
        "SECOND" => "toSecond",
        "MINUTE" => "toMinute",
        "HOUR" => "toHour",
        "DAY" => "toDayOfMonth",
        "MONTH" => "toMonth",
        "QUARTER" => "toQuarter",
        "YEAR" => "toYear",
        _ => return None,
    })
}

fn interval_function(unit: &str) -> Option<&'static str> {
    Some(match unit.strip_suffix('S').unwrap_or(unit) {
        "SECOND" => "toIntervalSecond",
        "MINUTE" => "toIntervalMinute",
        "HOUR" => "toIntervalHour",
        "DAY" => "toIntervalDay",
        "WEEK" => "toIntervalWeek",
        "MONTH" => "toIntervalMonth",
        "QUARTER" => "toIntervalQuarter",
        "YEAR" => "toIntervalYear",
        _ => return None,
    })
}

/// ClickHouse reads `-1::Int8` as a cast of the literal -1, sqlparser as the negation of a cast.
fn is_negative_number(tokens: &[Token], sql: &str, at: usize, first: usize) -> bool {
    at >= first + 2 && tokens[at - 1].kind == TokenKind::Number && tokens[at - 2].is_symbol(sql, "-")
}

/// A type after `::`: a word and, if one follows at once, a bracket. Returns the position after it and its text.
fn type_after(blocks: &Blocks<'_>, at: usize, end: usize) -> Result<(usize, String), Unsupported> {
    let first = blocks.tokens.get(at).filter(|t| at < end && t.kind == TokenKind::Word);
    let first = first.ok_or_else(|| unsupported("'::' without a type name"))?;
    let has_bracket = at + 1 < end && blocks.tokens[at + 1].is_symbol(blocks.sql, "(");
    let last = if has_bracket { blocks.close(at + 1)? } else { at };
    Ok((last + 1, blocks.sql[first.start..blocks.tokens[last].end].to_string()))
}
