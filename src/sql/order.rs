//! ORDER BY: text -> keys with their directions.

use std::ops::Range;

use super::expression::expression;
use super::lexer::TokenKind;
use super::parse::{Blocks, Unsupported, unsupported};
use super::tree::OrderItem;

impl Blocks<'_> {
    pub(super) fn order_by(&mut self, body: Range<usize>) -> Result<Vec<OrderItem>, Unsupported> {
        if self.find_at_depth(body.clone(), "INTERPOLATE").is_some() {
            return unsupported("INTERPOLATE");
        }
        let mut items = Vec::new();
        for part in self.split(body) {
            const DIRECTIONS: [&str; 7] = ["ASC", "DESC", "ASCENDING", "DESCENDING", "NULLS", "COLLATE", "WITH"];
            let starts = |at: &usize| *at > part.start && DIRECTIONS.iter().any(|w| self.word(*at, w));
            let cut = self.top_level(part.clone()).find(starts).unwrap_or(part.end);
            const PARTS: [&str; 2] = ["FIRST", "LAST"];
            let is_direction = |at: usize| {
                DIRECTIONS.iter().chain(&PARTS).any(|w| self.word(at, w))
                    || (self.tokens[at].kind == TokenKind::Text && self.word(at - 1, "COLLATE"))
            };
            let fill = self.find_at_depth(cut..part.end, "FILL").unwrap_or(part.end);
            if !(cut..fill).all(is_direction) || !(fill..part.end).all(|at| self.is_of_fill(at)) {
                return unsupported("ORDER BY with more than a direction");
            }
            let direction = self.text(cut..part.end);
            items.push(OrderItem { expr: expression(self, part.start..cut)?, direction });
        }
        Ok(items)
    }

    /// Whether a token belongs to `FILL FROM .. TO .. STEP ..` with constants: names of columns would be those of the view.
    fn is_of_fill(&self, at: usize) -> bool {
        const WORDS: [&str; 12] =
            ["FILL", "FROM", "TO", "STEP", "INTERVAL", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"];
        match self.tokens[at].kind {
            TokenKind::Number | TokenKind::Text => true,
            TokenKind::Symbol => ["(", ")", ",", "-", "+"].contains(&self.tokens[at].text(self.sql)),
            TokenKind::Word => WORDS.iter().any(|w| self.word(at, w)) || self.symbol(at + 1, "("),
            TokenKind::QuotedWord => false,
        }
    }
}
