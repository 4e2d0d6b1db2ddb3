//! Statements: text -> blocks with their clauses.
//!
//! Clauses are cut by our own lexer at the keywords of bracket depth zero, each expression is read by
//! [`super::expression`]. A construct that the matcher does not handle marks its block as unsupported, with the
//! reason; the other blocks of the statement stay usable.

use std::ops::Range;

use super::expression::expression;
use super::lexer::{Token, TokenKind, lex, unquote};
use super::tree::{
    Constraint, Expr, FromEntry, Grouping, Item, JoinKind, OrderItem, Select, Source, Statement, Value, With,
};

/// Longest text that is parsed at all; ClickHouse's own `max_query_size` is 256 KiB, and planning time must stay bounded.
pub const SQL_BYTES_MAX: usize = 64 * 1024;

/// Deepest nesting of brackets that is followed.
const DEPTH_MAX: usize = 64;

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

fn unsupported<T>(what: impl Into<String>) -> Result<T, Unsupported> {
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
    let mut blocks = Blocks { sql, tokens: &lexed.tokens, closes: Vec::new(), statement: Statement::default() };
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

    fn word(&self, at: usize, word: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is_word(self.sql, word))
    }

    fn symbol(&self, at: usize, symbol: &str) -> bool {
        self.tokens.get(at).is_some_and(|t| t.is_symbol(self.sql, symbol))
    }

    /// Positions of a range at its own bracket depth.
    fn top_level(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
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
    fn split(&self, range: Range<usize>) -> Vec<Range<usize>> {
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

    fn bytes(&self, range: Range<usize>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        self.tokens[range.start].start..self.tokens[range.end - 1].end
    }

    fn text(&self, range: Range<usize>) -> String {
        self.sql[self.bytes(range)].to_string()
    }

    /// A query: SELECT blocks joined by UNION and its like, or one in brackets.
    pub fn query(&mut self, range: Range<usize>) -> Result<(), Unsupported> {
        let mut start = range.start;
        let places: Vec<usize> = self.top_level(range.clone()).collect();
        for at in places {
            let operator = self.word(at, "UNION")
                || self.word(at, "INTERSECT")
                || (self.word(at, "EXCEPT") && at > start && !self.symbol(at - 1, "*") && !self.symbol(at + 1, "("));
            if operator {
                self.term(start..at)?;
                start = at + 1;
                if self.word(start, "ALL") || self.word(start, "DISTINCT") {
                    start += 1;
                }
            }
        }
        self.term(start..range.end)
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
            let is_name =
                std::mem::replace(&mut after_as, self.word(at, "AS")) || (at > range.start && self.symbol(at - 1, "."));
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
            "SETTINGS" if self.symbol(at + 2, "=") => (Clause::Settings, 1),
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
    fn name(&self, at: usize) -> Result<String, Unsupported> {
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

    /// The tables are noted also where something after them is not handled, so that it is known whom the block concerns.
    fn from(&mut self, body: Range<usize>, entries: &mut Vec<FromEntry>) -> Result<(), Unsupported> {
        let mut at = body.start;
        let mut join = JoinKind::Inner;
        loop {
            let (mut entry, next) = self.table(at, body.end)?;
            entry.join = join;
            entries.push(entry);
            at = next;
            for modifier in ["FINAL", "SAMPLE"] {
                if at < body.end && self.word(at, modifier) {
                    return unsupported(modifier);
                }
            }
            let end = self.join_end(at, body.end);
            let mut constraint = Constraint::None;
            if self.word(at, "ON") {
                constraint = Constraint::On(expression(self, at + 1..end)?);
            } else if self.word(at, "USING") {
                let list = if self.symbol(at + 1, "(") { at + 2..self.close(at + 1)? } else { at + 1..end };
                let names = self.split(list).into_iter().map(|r| self.name(r.start)).collect::<Result<_, _>>()?;
                constraint = Constraint::Using(names);
            } else if at < end {
                let what = self.tokens[at].text(self.sql).to_ascii_uppercase();
                return unsupported(if what == "WITH" {
                    "WITH TOTALS without GROUP BY".into()
                } else {
                    format!("{what} after a table")
                });
            }
            if let Some(entry) = entries.last_mut() {
                entry.constraint = constraint;
            }
            at = end;
            if at >= body.end {
                return Ok(());
            }
            (join, at) = self.join(at)?;
        }
    }

    /// One table with its alias; returns the position after it.
    fn table(&mut self, at: usize, end: usize) -> Result<(FromEntry, usize), Unsupported> {
        if at >= end {
            return unsupported("an empty FROM");
        }
        let (source, mut next) = if self.symbol(at, "(") {
            let close = self.close(at)?;
            if self.word(at + 1, "SELECT") || self.word(at + 1, "WITH") || self.symbol(at + 1, "(") {
                self.query(at + 1..close)?;
                (Source::Subquery(self.bytes(at + 1..close)), close + 1)
            } else {
                return unsupported("a join in brackets");
            }
        } else if self.symbol(at, "{") {
            let close = self.close(at)?;
            (Source::Other("a parameter as the table".into()), close + 1)
        } else {
            let first = self.name(at)?;
            if self.symbol(at + 1, "(") {
                let close = self.close(at + 1)?;
                (Source::Other(format!("the table function {first}")), close + 1)
            } else if self.symbol(at + 1, ".") && at + 2 < end {
                (Source::Table { database: Some(first), table: self.name(at + 2)? }, at + 3)
            } else {
                (Source::Table { database: None, table: first }, at + 1)
            }
        };
        let mut alias = None;
        if self.word(next, "AS") && next < end {
            alias = Some(self.name(next + 1)?);
            next += 2;
        } else if next < end && self.is_table_alias(next) {
            alias = Some(self.name(next)?);
            next += 1;
        }
        Ok((FromEntry { source, alias, join: JoinKind::Inner, constraint: Constraint::None }, next))
    }

    fn is_table_alias(&self, at: usize) -> bool {
        const NOT_ALIASES: [&str; 22] = [
            "FINAL", "SAMPLE", "ON", "USING", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "OUTER", "ANY", "ALL",
            "ASOF", "SEMI", "ANTI", "PASTE", "GLOBAL", "LOCAL", "ARRAY", "WITH", "NATURAL",
        ];
        match self.tokens[at].kind {
            TokenKind::QuotedWord => true,
            TokenKind::Word => !NOT_ALIASES.iter().any(|w| self.word(at, w)),
            _ => false,
        }
    }

    /// Where the join that follows starts.
    fn join_end(&self, at: usize, end: usize) -> usize {
        const STARTS: [&str; 14] = [
            "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "ANY", "ALL", "ASOF", "SEMI", "ANTI", "PASTE", "GLOBAL",
            "ARRAY",
        ];
        let joins = |p: &usize| {
            self.symbol(*p, ",")
                || (STARTS.iter().any(|w| self.word(*p, w)) && !self.symbol(*p + 1, "(") && !self.symbol(*p + 1, "."))
        };
        self.top_level(at..end).find(joins).unwrap_or(end)
    }

    fn join(&self, mut at: usize) -> Result<(JoinKind, usize), Unsupported> {
        if self.symbol(at, ",") {
            return Ok((JoinKind::Inner, at + 1));
        }
        let mut kind = JoinKind::Inner;
        while !self.word(at, "JOIN") {
            let Some(token) = self.tokens.get(at) else { return unsupported("an unfinished join") };
            match &*token.text(self.sql).to_ascii_uppercase() {
                "INNER" | "CROSS" | "OUTER" | "ALL" => {}
                "LEFT" => kind = JoinKind::Left,
                "RIGHT" => kind = JoinKind::Right,
                "FULL" => kind = JoinKind::Full,
                other => return unsupported(format!("{other} JOIN")),
            }
            at += 1;
        }
        Ok((kind, at + 1))
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

    fn order_by(&mut self, body: Range<usize>) -> Result<Vec<OrderItem>, Unsupported> {
        if let Some(at) = self.find_at_depth(body.clone(), "INTERPOLATE").or(self.find_at_depth(body.clone(), "WITH")) {
            let words = self.text(at..(at + 2).min(body.end));
            return unsupported(words.to_ascii_uppercase());
        }
        if body.len() == 1 && self.word(body.start, "ALL") {
            return unsupported("ORDER BY ALL");
        }
        let mut items = Vec::new();
        for part in self.split(body) {
            const DIRECTIONS: [&str; 6] = ["ASC", "DESC", "ASCENDING", "DESCENDING", "NULLS", "COLLATE"];
            let starts = |at: &usize| *at > part.start && DIRECTIONS.iter().any(|w| self.word(*at, w));
            let cut = self.top_level(part.clone()).find(starts).unwrap_or(part.end);
            let direction = self.text(cut..part.end);
            items.push(OrderItem { expr: expression(self, part.start..cut)?, direction });
        }
        Ok(items)
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
mod tests {
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
            ("a IN (1, 2) OR a NOT IN ('x')", "or(in(a, (1, 2)), notIn(a, tuple('x')))"),
            ("CASE WHEN a THEN 1 ELSE 2 END", "multiIf(a, 1, 2)"),
            ("count(DISTINCT a, b)", "count(DISTINCT a, b)"),
            ("quantile(0.9)(x)", "quantile(0.9)(x)"),
            ("sum(x) FILTER (WHERE y > 1) + count(*) FILTER (WHERE z)", "plus(sumIf(x, greater(y, 1)), countIf(z))"),
            ("t.a.1 + arr[1]", "plus(tupleElement(t.a, 1), arrayElement(arr, 1))"),
            ("arrayMap(x -> x + 1, [1, 2])", "arrayMap((x) -> plus(x, 1), [1, 2])"),
            ("-5 - -a", "minus(-5, negate(a))"),
            ("x LIKE 'a\\_b%'", "like(x, 'a\\_b%')"),
            ("a = {p:UInt8}", "equals(a, {p:UInt8})"),
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
            ("SELECT sum(a) OVER () FROM t", "a window function"),
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
}
