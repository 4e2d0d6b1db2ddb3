//! Statements: text -> blocks with their clauses.
//!
//! Clauses are cut by our own lexer at the keywords of bracket depth zero, each expression is read by
//! [`super::expression`]. A construct that the matcher does not handle marks its block as unsupported, with the
//! reason; the other blocks of the statement stay usable.

use std::ops::Range;

use super::expression::expression;
use super::lexer::{Token, TokenKind, lex, unquote};
use super::tree::{Expr, Grouping, Item, Select, Statement, Value, With};

/// Longest text that is parsed at all; ClickHouse's own `max_query_size` is 256 KiB, and planning time must stay bounded.
pub const SQL_BYTES_MAX: usize = 64 * 1024;

/// Deepest nesting of brackets that is followed.
const DEPTH_MAX: usize = 64;

/// Deepest nesting of queries that is followed.
const QUERIES_MAX: usize = 12;

/// What is not handled, in words that finish "the query uses ..".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Why a text gave no statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// INSERT, DDL, SHOW, ..: nothing to accelerate.
    #[error("not a SELECT")]
    NotASelect,
    /// A SELECT whose structure could not be followed.
    #[error("the query uses {0}")]
    Unsupported(#[from] Unsupported),
}

pub(super) fn unsupported<T>(what: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported(what.into()))
}

/// Reads a whole statement.
pub fn parse(sql: &str) -> Result<Statement, ParseError> {
    if sql.len() > SQL_BYTES_MAX {
        return Err(Unsupported(format!("a text of more than {} KiB", SQL_BYTES_MAX / 1024)).into());
    }
    let lexed = lex(sql).map_err(|e| Unsupported(e.to_string()))?;
    let mut end = lexed.tokens.len();
    while end > 0 && lexed.tokens[end - 1].is_symbol(sql, ";") {
        end -= 1;
    }
    let first = lexed.tokens[..end].iter().find(|t| !t.is_symbol(sql, "("));
    if !first.is_some_and(|t| ["SELECT", "WITH", "FROM"].iter().any(|w| t.is_word(sql, w))) {
        return Err(ParseError::NotASelect);
    }
    let mut blocks =
        Blocks { sql, tokens: &lexed.tokens, closes: Vec::new(), statement: Statement::default(), depth: 0 };
    blocks.closes = match_brackets(sql, &lexed.tokens)?;
    blocks.statement.wish = lexed.comments.iter().find_map(|(start, end)| wish(&sql[*start..*end]));
    blocks.query(0..end)?;
    Ok(blocks.statement)
}

/// `tributary: off` inside a comment.
fn wish(comment: &str) -> Option<String> {
    let rest = comment.split_once("tributary")?.1.trim_start().strip_prefix(':')?.trim_start();
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
    (!word.is_empty()).then_some(word)
}

/// For each opening bracket the position of its closing one (and 0 elsewhere).
fn match_brackets(sql: &str, tokens: &[Token]) -> Result<Vec<usize>, Unsupported> {
    let mut closes = vec![0; tokens.len()];
    let mut open: Vec<(usize, &str)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.kind != TokenKind::Symbol {
            continue;
        }
        match token.text(sql) {
            "(" => open.push((at, ")")),
            "[" => open.push((at, "]")),
            "{" => open.push((at, "}")),
            close @ (")" | "]" | "}") => match open.pop() {
                Some((start, wanted)) if wanted == close => closes[start] = at,
                _ => return unsupported("brackets that do not match"),
            },
            ";" => return unsupported("more than one statement"),
            _ => {}
        }
        if open.len() > DEPTH_MAX {
            return unsupported(format!("more than {DEPTH_MAX} nested brackets"));
        }
    }
    if open.is_empty() { Ok(closes) } else { unsupported("brackets that do not match") }
}

/// The statement being read.
pub struct Blocks<'a> {
    pub sql: &'a str,
    pub tokens: &'a [Token],
    closes: Vec<usize>,
    statement: Statement,
    /// Queries around the place that is read.
    depth: usize,
}

/// Clauses in the order in which they may follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Clause {
    With,
    Select,
    From,
    Prewhere,
    Where,
    GroupBy,
    Having,
    Window,
    Qualify,
    OrderBy,
    Limit,
    Settings,
    Format,
}

impl Blocks<'_> {
    /// The position of the bracket that closes the one at `at`.
    pub fn close(&self, at: usize) -> Result<usize, Unsupported> {
        match self.closes.get(at) {
            Some(close) if *close > at => Ok(*close),
            _ => unsupported("brackets that do not match"),
        }
    }

    pub(super) fn word(&self, at: usize, word: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is_word(self.sql, word))
    }

    pub(super) fn symbol(&self, at: usize, symbol: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is_symbol(self.sql, symbol))
    }

    /// Positions of a range at its own bracket depth.
    pub(super) fn top_level(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let here = at;
            if here >= range.end {
                return None;
            }
            at = if self.closes[here] > here { self.closes[here] + 1 } else { here + 1 };
            Some(here)
        })
    }

    /// The first place of a keyword at the range's own depth.
    pub fn find_at_depth(&self, range: Range<usize>, word: &str) -> Option<usize> {
        self.top_level(range).find(|at| self.word(*at, word))
    }

    /// The range cut at its commas of depth zero.
    pub(super) fn split(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        for at in self.top_level(range.clone()) {
            if self.symbol(at, ",") {
                parts.push(start..at);
                start = at + 1;
            }
        }
        parts.push(start..range.end);
        parts
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        self.tokens[range.start].start..self.tokens[range.end - 1].end
    }

    pub(super) fn text(&self, range: Range<usize>) -> String {
        self.sql[self.bytes(range)].to_string()
    }

    /// A query: SELECT blocks joined by UNION and its like, or one in brackets.
    pub fn query(&mut self, range: Range<usize>) -> Result<(), Unsupported> {
        if self.depth == QUERIES_MAX {
            return unsupported(format!("more than {QUERIES_MAX} nested queries"));
        }
        self.depth += 1;
        let outcome = self.terms(range);
        self.depth -= 1;
        outcome
    }

    fn terms(&mut self, range: Range<usize>) -> Result<(), Unsupported> {
        let first = self.statement.blocks.len();
        let mut is_union = false;
        let mut start = range.start;
        let places: Vec<usize> = self.top_level(range.clone()).collect();
        for at in places {
            let operator = self.word(at, "UNION")
                || self.word(at, "INTERSECT")
                || (self.word(at, "EXCEPT") && at > start && !self.symbol(at - 1, "*") && !self.symbol(at + 1, "("));
            if operator {
                self.term(start..at)?;
                is_union = true;
                start = at + 1;
                if self.word(start, "ALL") || self.word(start, "DISTINCT") {
                    start += 1;
                }
            }
        }
        self.term(start..range.end)?;
        // The WITH of the first SELECT counts in the others as well.
        if is_union && self.statement.blocks.get(first).is_some_and(|block| !block.with.is_empty()) {
            for block in &mut self.statement.blocks[first..] {
                block.unsupported.get_or_insert("WITH before UNION".into());
            }
        }
        Ok(())
    }

    fn term(&mut self, range: Range<usize>) -> Result<(), Unsupported> {
        if range.is_empty() {
            return unsupported("an empty query");
        }
        if self.symbol(range.start, "(") {
            let close = self.close(range.start)?;
            self.query(range.start + 1..close)?;
            return self.tail(close + 1..range.end);
        }
        let index = self.statement.blocks.len();
        self.statement.blocks.push(Select::default());
        let block = self.select(range)?;
        self.statement.blocks[index] = block;
        Ok(())
    }

    /// What may follow a query in brackets: SETTINGS and FORMAT.
    fn tail(&mut self, range: Range<usize>) -> Result<(), Unsupported> {
        let mut select = Select::default();
        for (clause, body) in self.clauses(range.clone())? {
            match clause {
                Clause::Settings | Clause::Format => self.clause(clause, body, &mut select)?,
                _ => return unsupported("clauses after a query in brackets"),
            }
        }
        Ok(())
    }

    fn select(&mut self, range: Range<usize>) -> Result<Select, Unsupported> {
        let mut select = Select::default();
        let clauses = self.clauses(range.clone())?;
        let end = clauses.iter().filter(|(c, _)| *c < Clause::Settings).map(|(_, body)| body.end).max();
        select.span = self.bytes(range.start..end.unwrap_or(range.end));
        for (clause, body) in clauses {
            if let Err(Unsupported(reason)) = self.clause(clause, body, &mut select) {
                select.unsupported.get_or_insert(reason);
            }
        }
        if select.items.is_empty() && select.unsupported.is_none() {
            return unsupported("a SELECT without columns");
        }
        Ok(select)
    }

    /// The clauses of a block with the ranges of their bodies.
    fn clauses(&self, range: Range<usize>) -> Result<Vec<(Clause, Range<usize>)>, Unsupported> {
        let mut found: Vec<(Clause, Range<usize>)> = Vec::new();
        let mut after_as = false;
        for at in self.top_level(range.clone()) {
            // FROM is also part of `WITH FILL FROM 1 TO 5` and `IS DISTINCT FROM`.
            let is_inner_from = |before: usize| {
                self.word(before, "FILL") || (self.word(before, "DISTINCT") && self.is_negatable(before))
            };
            let is_name = std::mem::replace(&mut after_as, self.word(at, "AS"))
                || (at > range.start && (self.symbol(at - 1, ".") || is_inner_from(at - 1)));
            if is_name {
                continue;
            }
            let Some((clause, words)) = self.clause_at(at, range.clone()) else { continue };
            let first_is_from = found.len() == 1;
            if let Some((last, body)) = found.last_mut() {
                let repeats = clause == *last && clause == Clause::Limit;
                // `FROM t SELECT a` is read as `SELECT a FROM t`.
                let from_first = *last == Clause::From && clause == Clause::Select && first_is_from;
                if (clause < *last && !from_first) || (clause == *last && !repeats) {
                    return unsupported("clauses in an order that is not understood");
                }
                body.end = at;
            }
            found.push((clause, at + words..range.end));
        }
        Ok(found)
    }

    /// Whether IS or IS NOT stands before `at`.
    fn is_negatable(&self, at: usize) -> bool {
        at >= 1 && (self.word(at - 1, "IS") || (at >= 2 && self.word(at - 1, "NOT") && self.word(at - 2, "IS")))
    }

    /// The clause that starts at `at`, and how many words name it.
    fn clause_at(&self, at: usize, range: Range<usize>) -> Option<(Clause, usize)> {
        let token = self.tokens[at];
        if token.kind != TokenKind::Word {
            return None;
        }
        let by = at + 1 < range.end && self.word(at + 1, "BY");
        Some(match &*token.text(self.sql).to_ascii_uppercase() {
            "WITH" if at == range.start => (Clause::With, 1),
            "SELECT" => (Clause::Select, 1),
            "FROM" => (Clause::From, 1),
            "PREWHERE" => (Clause::Prewhere, 1),
            "WHERE" => (Clause::Where, 1),
            "GROUP" if by => (Clause::GroupBy, 2),
            "HAVING" => (Clause::Having, 1),
            "WINDOW" => (Clause::Window, 1),
            "QUALIFY" => (Clause::Qualify, 1),
            "ORDER" if by => (Clause::OrderBy, 2),
            "LIMIT" => (Clause::Limit, 0),
            "FETCH" if !self.offset_precedes(at, range.start) => (Clause::Limit, 0),
            // `LIMIT 5 OFFSET 2` is one clause, OFFSET alone is one too.
            "OFFSET" if !self.limit_precedes(at, range.start) => (Clause::Limit, 0),
            "SETTINGS" if at + 1 < range.end && self.tokens[at + 1].kind == TokenKind::Word => (Clause::Settings, 1),
            "FORMAT"
                if at + 1 < range.end
                    && self.tokens[at + 1].kind == TokenKind::Word
                    && self.ends(at + 2, range.end) =>
            {
                (Clause::Format, 1)
            }
            "INTO" if self.word(at + 1, "OUTFILE") => (Clause::Format, 0),
            _ => return None,
        })
    }

    fn limit_precedes(&self, at: usize, start: usize) -> bool {
        (start..at).rev().take(8).any(|before| self.word(before, "LIMIT"))
    }

    /// `OFFSET 2 ROWS FETCH FIRST 5 ROWS ONLY` is one clause.
    fn offset_precedes(&self, at: usize, start: usize) -> bool {
        (start..at).rev().take(4).any(|before| self.word(before, "OFFSET"))
    }

    fn ends(&self, at: usize, end: usize) -> bool {
        at >= end || self.word(at, "SETTINGS") || self.word(at, "INTO")
    }

    fn clause(&mut self, clause: Clause, body: Range<usize>, select: &mut Select) -> Result<(), Unsupported> {
        match clause {
            Clause::With => select.with = self.with(body)?,
            Clause::Select => self.items(body, select)?,
            Clause::From => self.from(body, &mut select.from)?,
            Clause::Prewhere | Clause::Where => {
                let body = self.without_totals(body, select)?;
                select.filters.push(expression(self, body)?);
            }
            Clause::GroupBy => self.group_by(body, select)?,
            Clause::Having => select.having = Some(expression(self, body)?),
            Clause::Window => return unsupported("a window"),
            Clause::Qualify => return unsupported("QUALIFY"),
            Clause::OrderBy if body.len() == 1 && self.word(body.start, "ALL") => select.is_ordered_by_all = true,
            Clause::OrderBy => select.order_by = self.order_by(body)?,
            Clause::Limit => self.limit(body, select)?,
            Clause::Settings => self.settings(body)?,
            Clause::Format if self.word(body.start, "INTO") => return unsupported("INTO OUTFILE"),
            Clause::Format => self.statement.format = Some(self.text(body.start..body.start + 1)),
        }
        Ok(())
    }

    fn with(&mut self, body: Range<usize>) -> Result<Vec<With>, Unsupported> {
        if self.word(body.start, "RECURSIVE") {
            return unsupported("WITH RECURSIVE");
        }
        let mut list = Vec::new();
        for part in self.split(body) {
            let as_at = self.find_at_depth(part.clone(), "AS");
            let Some(as_at) = as_at else { return unsupported("a WITH element without AS") };
            if as_at == part.start + 1 && self.symbol(as_at + 1, "(") && self.close(as_at + 1)? + 1 == part.end {
                let (name, close) = (self.name(part.start)?, self.close(as_at + 1)?);
                self.query(as_at + 2..close)?;
                list.push(With::Cte { name, query: self.bytes(as_at + 2..close) });
            } else if as_at + 2 == part.end {
                let name = self.name(as_at + 1)?;
                list.push(With::Alias { name, expr: expression(self, part.start..as_at)? });
            } else {
                return unsupported("this form of WITH");
            }
        }
        Ok(list)
    }

    /// The identifier at `at`, unquoted.
    pub(super) fn name(&self, at: usize) -> Result<String, Unsupported> {
        match self.tokens.get(at) {
            Some(t) if t.kind == TokenKind::Word => Ok(t.text(self.sql).to_string()),
            Some(t) if t.kind == TokenKind::QuotedWord => {
                let name = unquote(t.text(self.sql)).and_then(|b| String::from_utf8(b).ok());
                name.ok_or_else(|| Unsupported("an escape in a quoted name".into()))
            }
            _ => unsupported("something else where a name is expected"),
        }
    }

    fn items(&mut self, mut body: Range<usize>, select: &mut Select) -> Result<(), Unsupported> {
        if self.word(body.start, "DISTINCT") {
            select.distinct = true;
            body.start += 1;
            if self.word(body.start, "ON") && self.symbol(body.start + 1, "(") {
                return unsupported("DISTINCT ON");
            }
        } else if self.word(body.start, "ALL") && body.len() > 1 {
            body.start += 1;
        } else if self.word(body.start, "TOP")
            && self.tokens.get(body.start + 1).is_some_and(|t| t.kind == TokenKind::Number)
        {
            return unsupported("TOP");
        }
        let body = self.without_totals(body, select)?;
        for part in self.split(body) {
            let (range, alias) = self.alias(part.clone())?;
            let span = self.bytes(part);
            let is_star = range.len() == 1 && self.symbol(range.start, "*");
            let expr = if is_star { Expr::Star } else { expression(self, range)? };
            select.items.push(Item { expr, alias, span });
        }
        Ok(())
    }

    /// Cuts `AS alias` or a bare alias from the end of an expression.
    fn alias(&self, part: Range<usize>) -> Result<(Range<usize>, Option<String>), Unsupported> {
        if part.len() < 2 {
            return Ok((part, None));
        }
        let last = part.end - 1;
        if self.word(last - 1, "AS") {
            return Ok((part.start..last - 1, Some(self.name(last)?)));
        }
        let is_name = match self.tokens[last].kind {
            TokenKind::QuotedWord => true,
            TokenKind::Word => !["END", "NULL"].iter().any(|w| self.word(last, w)),
            _ => false,
        };
        let is_unit = last >= part.start + 2 && self.word(last - 2, "INTERVAL");
        if is_name && !is_unit && self.ends_operand(last - 1) {
            return Ok((part.start..last, Some(self.name(last)?)));
        }
        Ok((part, None))
    }

    fn ends_operand(&self, at: usize) -> bool {
        const OPERATORS: [&str; 18] = [
            "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "BETWEEN", "IS", "CASE", "WHEN", "THEN", "ELSE", "DIV", "MOD",
            "GLOBAL", "DISTINCT", "INTERVAL", "REGEXP",
        ];
        match self.tokens[at].kind {
            TokenKind::Word => !OPERATORS.iter().any(|w| self.word(at, w)),
            TokenKind::Symbol => [")", "]", "}"].contains(&self.tokens[at].text(self.sql)),
            _ => true,
        }
    }

    /// Cuts `WITH TOTALS` from the end of a clause.
    fn without_totals(&self, body: Range<usize>, select: &mut Select) -> Result<Range<usize>, Unsupported> {
        let Some(at) = self.find_at_depth(body.clone(), "WITH") else { return Ok(body) };
        if self.word(at + 1, "TOTALS") && at + 2 == body.end {
            select.with_totals = true;
            return Ok(body.start..at);
        }
        let subtotals = ["ROLLUP", "CUBE"].into_iter().find(|word| self.word(at + 1, word));
        let totals = self.word(at + 2, "WITH") && self.word(at + 3, "TOTALS");
        if subtotals.is_some() && (at + 2 == body.end || (totals && at + 4 == body.end)) {
            select.subtotals = subtotals;
            select.with_totals = totals && at + 4 == body.end;
            return Ok(body.start..at);
        }
        unsupported(format!("WITH {}", self.tokens.get(at + 1).map_or("", |t| t.text(self.sql)).to_ascii_uppercase()))
    }

    fn group_by(&mut self, body: Range<usize>, select: &mut Select) -> Result<(), Unsupported> {
        let body = self.without_totals(body, select)?;
        if body.len() == 1 && self.word(body.start, "ALL") {
            select.grouping = Grouping::All;
            return Ok(());
        }
        let mut body = body;
        if self.word(body.start, "GROUPING") && self.word(body.start + 1, "SETS") {
            return unsupported("GROUPING SETS");
        }
        for word in ["ROLLUP", "CUBE"] {
            if self.word(body.start, word) && self.symbol(body.start + 1, "(") {
                if self.close(body.start + 1)? + 1 != body.end || select.subtotals.replace(word).is_some() {
                    return unsupported(format!("{word} with other keys"));
                }
                body = body.start + 2..body.end - 1;
            }
        }
        select.grouping = Grouping::Expressions;
        for part in self.split(body) {
            let (range, alias) = self.alias(part)?;
            let expr = expression(self, range)?;
            select.with.extend(alias.map(|name| With::Alias { name, expr: expr.clone() }));
            select.group_by.push(expr);
        }
        Ok(())
    }

    fn limit(&mut self, body: Range<usize>, select: &mut Select) -> Result<(), Unsupported> {
        if let Some(by) = self.find_at_depth(body.clone(), "BY") {
            let head = self.limit_text(body.start..by)?;
            let mut expressions = Vec::new();
            for part in self.split(by + 1..body.end) {
                expressions.push(expression(self, part)?);
            }
            if select.limit_by.replace((head, expressions)).is_some() {
                return unsupported("two LIMIT BY");
            }
            return Ok(());
        }
        let text = self.limit_text(body)?;
        if select.limit.replace(text).is_some() {
            return unsupported("two LIMIT clauses");
        }
        Ok(())
    }

    /// LIMIT and OFFSET with plain numbers or parameters.
    fn limit_text(&self, body: Range<usize>) -> Result<String, Unsupported> {
        for at in self.top_level(body.clone()) {
            let token = self.tokens[at];
            let fine = match token.kind {
                TokenKind::Number => true,
                TokenKind::Symbol => [",", "{"].contains(&token.text(self.sql)),
                TokenKind::Word => {
                    const WORDS: [&str; 9] =
                        ["LIMIT", "OFFSET", "FETCH", "FIRST", "NEXT", "ROW", "ROWS", "ONLY", "TIES"];
                    WORDS.iter().any(|w| self.word(at, w)) || (self.word(at, "WITH") && self.word(at + 1, "TIES"))
                }
                _ => false,
            };
            if !fine {
                return unsupported(format!("LIMIT with {}", token.text(self.sql).to_ascii_uppercase()));
            }
        }
        Ok(self.text(body))
    }

    fn settings(&mut self, body: Range<usize>) -> Result<(), Unsupported> {
        for part in self.split(body) {
            if part.len() == 1 {
                // `SETTINGS final` is `SETTINGS final = 1`.
                let name = self.name(part.start)?;
                self.statement.settings.push((name, "1".into()));
                continue;
            }
            if part.len() < 3 || !self.symbol(part.start + 1, "=") {
                return unsupported("SETTINGS that are not understood");
            }
            let value = match expression(self, part.start + 2..part.end)? {
                Expr::Literal(literal) => match literal.value {
                    Value::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                    _ => literal.text,
                },
                _ => self.text(part.start + 2..part.end),
            };
            let name = self.name(part.start)?;
            self.statement.settings.push((name, value));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
