//! FROM: tables, aliases, joins.

use std::ops::Range;

use super::expression::expression;
use super::lexer::TokenKind;
use super::parse::{Blocks, Unsupported, unsupported};
use super::tree::{Constraint, FromEntry, JoinKind, Source};

impl Blocks<'_> {
    /// The tables are noted also where something after them is not handled, so that it is known whom the block concerns.
    pub(super) fn from(&mut self, body: Range<usize>, entries: &mut Vec<FromEntry>) -> Result<(), Unsupported> {
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
                let parts = self.split(list);
                if parts.iter().any(|part| part.len() != 1) {
                    return unsupported("USING with expressions");
                }
                let names = parts.into_iter().map(|part| self.name(part.start)).collect::<Result<_, _>>()?;
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
}
