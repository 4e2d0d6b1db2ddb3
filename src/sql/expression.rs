//! Expressions: prepared tokens ([`super::prepare`]) -> sqlparser's tree -> our tree.

use std::ops::Range;

use sqlparser::ast::{
    self, AccessExpr, BinaryOperator, CaseWhen, CastKind, FunctionArg, FunctionArgExpr, FunctionArguments,
    UnaryOperator,
};
use sqlparser::dialect::{ClickHouseDialect, Dialect};
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token as SqlToken;

use super::functions::canonical;
use super::lexer::unquote;
use super::parse::{Blocks, Unsupported};
use super::prepare::{OverClause, PARAMETER, Placeholders, SUBQUERY, TYPE, WINDOW, prepare, unambiguous};
use super::render::string_literal;
use super::tree::{Call, Expr, Literal, Value, Window};

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

/// Depth of one expression's tree: trees are walked by recursion. A chain of operators is as deep as it is long, except
/// that AND, OR and `||` make one call with many arguments.
const DEPTH_MAX: usize = 150;

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

pub(super) fn unsupported(what: impl Into<String>) -> Unsupported {
    Unsupported(what.into())
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
        ast::Expr::IsDistinctFrom(left, right) => call("isDistinctFrom", vec![down(left)?, down(right)?]),
        ast::Expr::IsNotDistinctFrom(left, right) => call("isNotDistinctFrom", vec![down(left)?, down(right)?]),
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
        ast::Expr::Function(function) => function_call(function, holders, &down),
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
        BinaryOperator::Spaceship => "isNotDistinctFrom",
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
    holders: &Placeholders,
    down: &dyn Fn(&ast::Expr) -> Result<Expr, Unsupported>,
) -> Result<Expr, Unsupported> {
    let plain = function.null_treatment.is_none() && function.within_group.is_empty();
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
    let call = Call { function: canonical(&name), name, parameters, arguments, distinct };
    match &function.over {
        None => Ok(Expr::Call(call)),
        Some(ast::WindowType::NamedWindow(ident)) => {
            let index = ident.value.strip_prefix(WINDOW).and_then(|index| index.parse::<usize>().ok());
            let over = index.and_then(|index| holders.windows.get(index)).cloned();
            let OverClause { partition_by, order_by, frame } =
                over.ok_or_else(|| unsupported("a window that has a name"))?;
            Ok(Expr::Window(Window { call, partition_by, order_by, frame }))
        }
        Some(_) => Err(unsupported("a window that is not understood")),
    }
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
