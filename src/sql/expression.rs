//! Expressions: tokens -> sqlparser's tree -> our tree.
//!
//! sqlparser is only given what it reads as ClickHouse does. Before it sees the tokens, every word that is no operator
//! is quoted (so that `date`, `left` or `FINAL` are plain names), sub-queries, parameters and type names become
//! placeholders, and forms whose meaning differs (`a ? b : c`, `DIV`, `-1::Int8`, aliases inside) are refused.

use std::ops::Range;

use sqlparser::ast::{
    self, AccessExpr, BinaryOperator, CaseWhen, CastKind, FunctionArg, FunctionArgExpr, FunctionArguments,
    UnaryOperator,
};
use sqlparser::dialect::{ClickHouseDialect, Dialect};
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token as SqlToken;

use super::functions::canonical;
use super::lexer::{Token, TokenKind, unquote};
use super::parse::{Blocks, Unsupported};
use super::render::string_literal;
use super::tree::{Call, Expr, Literal, Value};

/// ClickHouse's dialect with the precedence of `||` as ClickHouse has it: below `+`, above comparisons.
#[derive(Debug)]
struct Tuned(ClickHouseDialect);

impl Dialect for Tuned {
    fn dialect(&self) -> std::any::TypeId {
        std::any::TypeId::of::<ClickHouseDialect>()
    }
    fn is_identifier_start(&self, c: char) -> bool {
        self.0.is_identifier_start(c)
    }
    fn is_identifier_part(&self, c: char) -> bool {
        self.0.is_identifier_part(c)
    }
    fn supports_filter_during_aggregation(&self) -> bool {
        true
    }
    fn supports_in_unparenthesized_expr(&self) -> bool {
        self.0.supports_in_unparenthesized_expr()
    }
    fn supports_tuple_element_access(&self) -> bool {
        self.0.supports_tuple_element_access()
    }
    fn supports_array_typedef_with_parentheses(&self) -> bool {
        self.0.supports_array_typedef_with_parentheses()
    }
    fn supports_lambda_functions(&self) -> bool {
        self.0.supports_lambda_functions()
    }
    fn get_next_precedence(&self, parser: &Parser) -> Option<Result<u8, ParserError>> {
        match parser.peek_token().token {
            SqlToken::StringConcat => Some(Ok(24)),
            _ => self.0.get_next_precedence(parser),
        }
    }
}

/// Placeholders stand for what sqlparser must not see; the control character cannot come from a bare word.
const SUBQUERY: &str = "\u{1}subquery";
const PARAMETER: &str = "\u{1}parameter";
const TYPE: &str = "\u{1}type";

/// Words that are operators or parts of them wherever they stand in an expression.
const OPERATORS: [&str; 16] = [
    "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "BETWEEN", "IS", "NULL", "CASE", "WHEN", "THEN", "ELSE", "END",
    "DISTINCT", "AS",
];

/// Operators in one expression.
const OPERATORS_MAX: usize = 6000;

/// Depth of one expression's tree: trees are walked by recursion. A chain of operators is as deep as it is long, except
/// that AND, OR and `||` make one call with many arguments.
const DEPTH_MAX: usize = 150;

/// What the placeholders of one expression stand for.
#[derive(Default)]
struct Placeholders {
    subqueries: Vec<Range<usize>>,
    parameters: Vec<String>,
    types: Vec<String>,
}

/// Reads the expression that the tokens at `range` form; sub-queries in it are handed to `blocks`.
pub fn expression(blocks: &mut Blocks<'_>, range: Range<usize>) -> Result<Expr, Unsupported> {
    unambiguous(blocks, range.clone())?;
    let mut holders = Placeholders::default();
    let tokens = prepare(blocks, range, &mut holders)?;
    let dialect = Tuned(ClickHouseDialect {});
    let count = tokens.len();
    let mut parser = Parser::new(&dialect).with_tokens(tokens);
    let tree = parser.parse_expr().map_err(|_| unsupported("an expression that is not understood"))?;
    if parser.peek_token().token != SqlToken::EOF || count == 0 {
        return Err(unsupported("an expression that is not understood"));
    }
    lower(&tree, &holders, 0)
}

/// Refuses what ClickHouse and sqlparser group in different ways: several comparisons in a row, anything behind the list of
/// IN, comparisons in the bounds of BETWEEN.
fn unambiguous(blocks: &Blocks<'_>, range: Range<usize>) -> Result<(), Unsupported> {
    const RELATIONS: [&str; 13] = ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "IN", "LIKE", "ILIKE", "BETWEEN", "IS"];
    const SEPARATORS: [&str; 9] = ["AND", "OR", "CASE", "WHEN", "THEN", "ELSE", "END", ",", "->"];
    let sql = blocks.sql;
    let is_any = |at: usize, list: &[&str]| {
        let token = blocks.tokens[at];
        let is_bare = matches!(token.kind, TokenKind::Word | TokenKind::Symbol);
        is_bare && list.iter().any(|word| token.text(sql).eq_ignore_ascii_case(word))
    };
    let (mut relations, mut is_bound, mut last_in) = (0, false, None);
    for at in blocks.top_level(range.clone()) {
        if let Some(list_at) = last_in
            && at > list_at + 1
            && !is_any(at, &SEPARATORS)
        {
            return Err(unsupported("an operator behind the list of IN"));
        }
        if is_any(at, &SEPARATORS) {
            is_bound = is_any(at, &["AND"]) && relations == 1 && is_bound;
            relations = usize::from(is_bound);
            last_in = None;
        } else if is_any(at, &RELATIONS) {
            relations += 1;
            if relations > 1 {
                return Err(unsupported("several comparisons without brackets"));
            }
            is_bound = is_any(at, &["BETWEEN"]);
            last_in = is_any(at, &["IN"]).then_some(at);
        }
        let opens = is_any(at, &["(", "["]) && !(blocks.tokens.get(at + 1).is_some_and(|t| t.is_word(sql, "SELECT") || t.is_word(sql, "WITH")));
        if opens {
            unambiguous(blocks, at + 1..blocks.close(at)?)?;
        }
    }
    Ok(())
}

fn unsupported(what: impl Into<String>) -> Unsupported {
    Unsupported(what.into())
}

fn quoted(name: &str) -> SqlToken {
    SqlToken::make_word(name, Some('`'))
}

fn placeholder(kind: &str, index: usize) -> SqlToken {
    quoted(&format!("{kind}{index}"))
}

/// Our tokens -> sqlparser's, with everything ambiguous replaced.
fn prepare(
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
                    "OVER" => return Err(unsupported("a window function")),
                    "FILTER" if next_is("(") && blocks.tokens.get(at + 2).is_some_and(|t| t.is_word(sql, "WHERE")) => {
                        out.push(SqlToken::make_word("FILTER", None));
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

/// sqlparser's tree -> ours.
fn lower(tree: &ast::Expr, holders: &Placeholders, depth: usize) -> Result<Expr, Unsupported> {
    if depth > DEPTH_MAX {
        return Err(unsupported("a very deep expression"));
    }
    let depth = depth + 1;
    let down = |e: &ast::Expr| lower(e, holders, depth);
    let call = |function: &str, arguments: Vec<Expr>| Ok(Expr::call(function, arguments));
    match tree {
        ast::Expr::Nested(inner) => down(inner),
        ast::Expr::Identifier(ident) => Ok(name(&[ident], holders)),
        ast::Expr::CompoundIdentifier(idents) => Ok(name(&idents.iter().collect::<Vec<_>>(), holders)),
        ast::Expr::Value(value) => literal(&value.value),
        ast::Expr::BinaryOp { .. } => {
            // A chain leans to the left: followed by a loop, since it may be long.
            let mut spine = Vec::new();
            let mut at = tree;
            while let ast::Expr::BinaryOp { left, op, right } = at {
                spine.push((op, right));
                at = left;
            }
            let first = spine.first().map(|(op, _)| *op);
            let is_one_call =
                matches!(first, Some(BinaryOperator::And | BinaryOperator::Or | BinaryOperator::StringConcat))
                    && spine.iter().all(|(op, _)| Some(*op) == first);
            let depth = if is_one_call { depth } else { depth + spine.len() };
            let mut expr = lower(at, holders, depth)?;
            let mut last = None;
            for (op, right) in spine.into_iter().rev() {
                expr = binary(op, expr, lower(right, holders, depth)?, last == Some(op))?;
                last = Some(op);
            }
            Ok(expr)
        }
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            // `-5` is one literal to ClickHouse.
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(number, _), .. }) => {
                Ok(number_literal(format!("-{number}")))
            }
            other => call("negate", vec![down(other)?]),
        },
        ast::Expr::UnaryOp { op: UnaryOperator::Not, expr } => call("not", vec![down(expr)?]),
        ast::Expr::IsNull(expr) => call("isNull", vec![down(expr)?]),
        ast::Expr::IsNotNull(expr) => call("isNotNull", vec![down(expr)?]),
        ast::Expr::Between { expr, negated, low, high } => {
            let (subject, low, high) = (down(expr)?, down(low)?, down(high)?);
            // NOT BETWEEN is no negation: NaN is outside of every range both ways.
            let (outer, above, below) =
                if *negated { ("or", "less", "greater") } else { ("and", "greaterOrEquals", "lessOrEquals") };
            let sides = vec![Expr::call(above, vec![subject.clone(), low]), Expr::call(below, vec![subject, high])];
            call(outer, sides)
        }
        ast::Expr::In { expr, target: ast::InTarget::List(list), negated, global: false } => {
            let function = if *negated { "notIn" } else { "in" };
            let subject = down(expr)?;
            let mut elements = list.iter().map(down).collect::<Result<Vec<_>, _>>()?;
            let set = match elements.len() {
                0 => return Err(unsupported("an empty IN list")),
                1 => elements.remove(0),
                _ => Expr::call("tuple", elements),
            };
            call(function, vec![subject, set])
        }
        ast::Expr::Like { negated, any: false, expr, pattern, escape_char: None } => {
            call(if *negated { "notLike" } else { "like" }, vec![down(expr)?, down(pattern)?])
        }
        ast::Expr::ILike { negated, any: false, expr, pattern, escape_char: None } => {
            call(if *negated { "notILike" } else { "ilike" }, vec![down(expr)?, down(pattern)?])
        }
        ast::Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, format: None, .. } => {
            let type_name = type_name(data_type, holders)?;
            call("CAST", vec![down(expr)?, text_literal(&type_name)])
        }
        ast::Expr::Case { operand, conditions, else_result, .. } => {
            case(operand.as_deref(), conditions, else_result.as_deref(), &down)
        }
        ast::Expr::Tuple(items) => call("tuple", items.iter().map(down).collect::<Result<_, _>>()?),
        ast::Expr::Array(array) => call("array", array.elem.iter().map(down).collect::<Result<_, _>>()?),
        ast::Expr::CompoundFieldAccess { root, access_chain } => {
            let mut expr = down(root)?;
            for access in access_chain {
                expr = match access {
                    AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                        Expr::call("arrayElement", vec![expr, down(index)?])
                    }
                    AccessExpr::Dot(field) => match (expr, down(field)?) {
                        (tuple, index @ Expr::Literal(_)) => Expr::call("tupleElement", vec![tuple, index]),
                        (tuple, Expr::Name(part)) if part.iter().all(|p| p.bytes().all(|b| b.is_ascii_digit())) => {
                            Expr::call("tupleElement", vec![tuple, number_literal(part.concat())])
                        }
                        // `t.a.1`: the names before the index come one by one.
                        (Expr::Name(parts), Expr::Name(part)) => Expr::Name([parts, part].concat()),
                        _ => return Err(unsupported("access to a named field")),
                    },
                    AccessExpr::Subscript(_) => return Err(unsupported("a slice")),
                };
            }
            Ok(expr)
        }
        ast::Expr::Lambda(lambda) => {
            let parameters = match &lambda.params {
                ast::OneOrManyWithParens::One(p) => vec![p.name.value.clone()],
                ast::OneOrManyWithParens::Many(ps) => ps.iter().map(|p| p.name.value.clone()).collect(),
            };
            Ok(Expr::Lambda { parameters, body: Box::new(down(&lambda.body)?) })
        }
        ast::Expr::Function(function) => function_call(function, &down),
        _ => Err(unsupported("an expression that is not understood")),
    }
}

fn name(idents: &[&ast::Ident], holders: &Placeholders) -> Expr {
    if let [ident] = idents
        && let Some(expr) = resolve_placeholder(&ident.value, holders)
    {
        return expr;
    }
    Expr::Name(idents.iter().map(|i| i.value.clone()).collect())
}

fn resolve_placeholder(value: &str, holders: &Placeholders) -> Option<Expr> {
    if let Some(index) = value.strip_prefix(SUBQUERY) {
        return holders.subqueries.get(index.parse::<usize>().ok()?).map(|r| Expr::Subquery(r.clone()));
    }
    let index = value.strip_prefix(PARAMETER)?.parse::<usize>().ok()?;
    holders.parameters.get(index).map(|text| Expr::Parameter(text.clone()))
}

fn type_name(data_type: &ast::DataType, holders: &Placeholders) -> Result<String, Unsupported> {
    if let ast::DataType::Custom(object, _) = data_type
        && let [ast::ObjectNamePart::Identifier(ident)] = &*object.0
        && let Some(text) =
            ident.value.strip_prefix(TYPE).and_then(|i| i.parse::<usize>().ok()).and_then(|i| holders.types.get(i))
    {
        return Ok(text.clone());
    }
    Err(unsupported("a type name that is not understood"))
}

fn literal(value: &ast::Value) -> Result<Expr, Unsupported> {
    match value {
        ast::Value::Number(text, _) => Ok(number_literal(text.clone())),
        ast::Value::SingleQuotedString(raw) => {
            let text = format!("'{raw}'");
            let value = unquote(&text).map_or(Value::Other, Value::Text);
            Ok(Expr::Literal(Literal { text, value }))
        }
        ast::Value::Null => Ok(Expr::Literal(Literal { text: "NULL".into(), value: Value::Null })),
        ast::Value::Boolean(b) => Ok(Expr::Literal(Literal { text: b.to_string(), value: Value::Other })),
        _ => Err(unsupported("a literal that is not understood")),
    }
}

fn number_literal(text: String) -> Expr {
    let value = text.replace('_', "").parse::<i128>().map_or(Value::Other, Value::Int);
    Expr::Literal(Literal { text, value })
}

/// A string literal of the tree.
pub fn text_literal(text: &str) -> Expr {
    Expr::Literal(Literal { text: string_literal(text), value: Value::Text(text.as_bytes().to_vec()) })
}

/// `is_chain`: the left side is the same operator, without brackets.
fn binary(op: &BinaryOperator, left: Expr, right: Expr, is_chain: bool) -> Result<Expr, Unsupported> {
    let function = match op {
        BinaryOperator::Plus => "plus",
        BinaryOperator::Minus => "minus",
        BinaryOperator::Multiply => "multiply",
        BinaryOperator::Divide => "divide",
        BinaryOperator::Modulo => "modulo",
        BinaryOperator::Eq => "equals",
        BinaryOperator::NotEq => "notEquals",
        BinaryOperator::Lt => "less",
        BinaryOperator::LtEq => "lessOrEquals",
        BinaryOperator::Gt => "greater",
        BinaryOperator::GtEq => "greaterOrEquals",
        BinaryOperator::And => "and",
        BinaryOperator::Or => "or",
        BinaryOperator::StringConcat => "concat",
        _ => return Err(unsupported("an operator that is not understood")),
    };
    // `a AND b AND c` and `a || b || c` are one call with three arguments.
    let flattens = is_chain && matches!(function, "and" | "or" | "concat");
    let mut arguments = Vec::new();
    match left {
        Expr::Call(inner) if flattens => arguments.extend(inner.arguments),
        other => arguments.push(other),
    }
    arguments.push(right);
    Ok(Expr::call(function, arguments))
}

fn case(
    operand: Option<&ast::Expr>,
    conditions: &[CaseWhen],
    otherwise: Option<&ast::Expr>,
    down: &dyn Fn(&ast::Expr) -> Result<Expr, Unsupported>,
) -> Result<Expr, Unsupported> {
    let mut arguments = Vec::new();
    if let Some(operand) = operand {
        arguments.push(down(operand)?);
    }
    for branch in conditions {
        arguments.push(down(&branch.condition)?);
        arguments.push(down(&branch.result)?);
    }
    arguments.push(match otherwise {
        Some(expr) => down(expr)?,
        None => Expr::Literal(Literal { text: "NULL".into(), value: Value::Null }),
    });
    Ok(Expr::call(if operand.is_some() { "caseWithExpression" } else { "multiIf" }, arguments))
}

fn function_call(
    function: &ast::Function,
    down: &dyn Fn(&ast::Expr) -> Result<Expr, Unsupported>,
) -> Result<Expr, Unsupported> {
    let plain = function.over.is_none() && function.null_treatment.is_none() && function.within_group.is_empty();
    let [ast::ObjectNamePart::Identifier(ident)] = &*function.name.0 else {
        return Err(unsupported("a qualified function name"));
    };
    if !plain {
        return Err(unsupported(format!("modifiers after {}(..)", ident.value)));
    }
    let (mut arguments, distinct) = list(&function.args, down)?;
    let parameters = match &function.parameters {
        FunctionArguments::None => None,
        other => Some(list(other, down)?.0),
    };
    let mut name = ident.value.clone();
    if let Some(condition) = &function.filter {
        // `sum(x) FILTER (WHERE c)` is `sumIf(x, c)`.
        name.push_str("If");
        arguments.retain(|argument| *argument != Expr::Star);
        arguments.push(down(condition)?);
    }
    Ok(Expr::Call(Call { function: canonical(&name), name, parameters, arguments, distinct }))
}

fn list(
    arguments: &FunctionArguments,
    down: &dyn Fn(&ast::Expr) -> Result<Expr, Unsupported>,
) -> Result<(Vec<Expr>, bool), Unsupported> {
    let FunctionArguments::List(list) = arguments else {
        return Err(unsupported("a sub-query as the argument of a function"));
    };
    if !list.clauses.is_empty() {
        return Err(unsupported("clauses inside a function call"));
    }
    let expressions = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => down(expr),
        FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => Ok(Expr::Star),
        _ => Err(unsupported("an argument that is not understood")),
    });
    let distinct = matches!(list.duplicate_treatment, Some(ast::DuplicateTreatment::Distinct));
    Ok((expressions.collect::<Result<_, _>>()?, distinct))
}
