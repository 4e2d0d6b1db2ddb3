//! ClickHouse's lexical rules: text -> tokens that tile it, comments and white space left out.
//!
//! Seen in ClickHouse 26.9 `src/Parsers/Lexer.cpp`: backslash escapes inside all three kinds of quotes, `''` inside
//! strings, `$tag$ .. $tag$` heredocs, `--`, `//`, `# ` and `#!` comments to the end of the line. What is read
//! differently by different server versions (nested block comments, typographic quotes) is refused here.

/// What a token is; its text is `sql[start..end]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A bare word: keyword, function or identifier.
    Word,
    /// An identifier in backquotes or double quotes.
    QuotedWord,
    /// A string in single quotes.
    Text,
    /// A number in any of ClickHouse's forms.
    Number,
    /// An operator or a bracket, of one to three bytes.
    Symbol,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub kind: TokenKind,
    pub start: usize,
    pub end: usize,
}

impl Token {
    pub fn text<'a>(&self, sql: &'a str) -> &'a str {
        &sql[self.start..self.end]
    }

    /// Whether this token is the given symbol.
    pub fn is_symbol(&self, sql: &str, symbol: &str) -> bool {
        self.kind == TokenKind::Symbol && self.text(sql) == symbol
    }

    /// Whether this token is the given keyword, in any case.
    pub fn is_word(&self, sql: &str, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text(sql).eq_ignore_ascii_case(word)
    }
}

/// A byte sequence that is no token, or that server versions read differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at offset {offset}")]
pub struct LexError {
    pub what: &'static str,
    /// Byte offset in the text.
    pub offset: usize,
}

/// The tokens of a text and the comments that it holds.
#[derive(Debug, Clone, Default)]
pub struct Lexed {
    pub tokens: Vec<Token>,
    /// Byte ranges of comments, delimiters included.
    pub comments: Vec<(usize, usize)>,
}

const SYMBOLS_LONG: [&str; 13] = ["<=>", "::", "->", "<=", ">=", "<>", "!=", "==", "||", "&&", "@@", "=>", ".."];

/// Splits `sql` into tokens.
pub fn lex(sql: &str) -> Result<Lexed, LexError> {
    let bytes = sql.as_bytes();
    let mut out = Lexed { tokens: Vec::with_capacity(sql.len() / 5), comments: Vec::new() };
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        match bytes[at] {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
                at += 1;
                continue;
            }
            b'-' if next == b'-' => at = comment_line(bytes, at, &mut out),
            b'/' if next == b'/' => at = comment_line(bytes, at, &mut out),
            b'#' if next == b' ' || next == b'!' => at = comment_line(bytes, at, &mut out),
            b'/' if next == b'*' => {
                at = comment_block(bytes, at)?;
                out.comments.push((start, at));
            }
            b'\'' => {
                at = quoted(bytes, at)?;
                out.tokens.push(Token { kind: TokenKind::Text, start, end: at });
            }
            b'`' | b'"' => {
                at = quoted(bytes, at)?;
                out.tokens.push(Token { kind: TokenKind::QuotedWord, start, end: at });
            }
            b'0'..=b'9' => {
                // After a dot (`t.1`, `arr.2`) digits are a tuple index, never a fraction.
                let after_dot = out.tokens.last().is_some_and(|t| t.is_symbol(sql, ".") && t.end == start);
                at = if after_dot { skip(bytes, at, |b| b.is_ascii_digit()) } else { number(bytes, at)? };
                if bytes.get(at).copied().is_some_and(is_word_byte) {
                    return Err(LexError { what: "a number runs into a word", offset: start });
                }
                out.tokens.push(Token { kind: TokenKind::Number, start, end: at });
            }
            b'.' if next.is_ascii_digit() && !follows_operand(sql, out.tokens.last(), start) => {
                at = number(bytes, at)?;
                out.tokens.push(Token { kind: TokenKind::Number, start, end: at });
            }
            b'$' => return Err(LexError { what: "a heredoc or a '$'", offset: start }),
            b if is_word_start(b) => {
                at = skip(bytes, at, |b| is_word_byte(b) || b == b'$');
                out.tokens.push(Token { kind: TokenKind::Word, start, end: at });
            }
            b if b.is_ascii_graphic() => {
                let rest = &sql[at..];
                at += SYMBOLS_LONG.iter().find(|s| rest.starts_with(**s)).map_or(1, |s| s.len());
                out.tokens.push(Token { kind: TokenKind::Symbol, start, end: at });
            }
            _ => return Err(LexError { what: "a byte that starts no token", offset: start }),
        }
    }
    Ok(out)
}

/// Whether the token before, touching `start`, ends an operand, so that a dot after it selects a part of it.
fn follows_operand(sql: &str, last: Option<&Token>, start: usize) -> bool {
    last.is_some_and(|t| {
        t.end == start
            && (matches!(t.kind, TokenKind::Word | TokenKind::QuotedWord | TokenKind::Number)
                || t.is_symbol(sql, ")")
                || t.is_symbol(sql, "]"))
    })
}

fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn skip(bytes: &[u8], mut at: usize, keep: impl Fn(u8) -> bool) -> usize {
    while at < bytes.len() && keep(bytes[at]) {
        at += 1;
    }
    at
}

fn comment_line(bytes: &[u8], start: usize, out: &mut Lexed) -> usize {
    let end = skip(bytes, start, |b| b != b'\n');
    out.comments.push((start, end));
    end
}

fn comment_block(bytes: &[u8], start: usize) -> Result<usize, LexError> {
    let mut at = start + 2;
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'*', b'/') => return Ok(at + 2),
            // Newer servers nest comments, older ones do not.
            (b'/', b'*') => return Err(LexError { what: "a comment inside a comment", offset: at }),
            _ => at += 1,
        }
    }
    Err(LexError { what: "a comment that does not end", offset: start })
}

/// The end of a quoted token; the quote may be escaped by a backslash or by doubling it.
fn quoted(bytes: &[u8], start: usize) -> Result<usize, LexError> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b if b == quote => {
                if bytes.get(at + 1) != Some(&quote) {
                    return Ok(at + 1);
                }
                at += 2;
            }
            _ => at += 1,
        }
    }
    Err(LexError { what: "a quote that is not closed", offset: start })
}

/// Decimal, hexadecimal (`0x`), binary (`0b`), with fraction, exponent and `_` between digits.
fn number(bytes: &[u8], start: usize) -> Result<usize, LexError> {
    let prefix = (bytes[start], bytes.get(start + 1).map(u8::to_ascii_lowercase));
    if prefix == (b'0', Some(b'x')) {
        let end = skip(bytes, start + 2, |b| b.is_ascii_hexdigit() || b == b'_');
        if matches!(bytes.get(end), Some(b'.' | b'p' | b'P')) || end == start + 2 {
            return Err(LexError { what: "a hexadecimal fraction", offset: start });
        }
        return Ok(end);
    }
    if prefix == (b'0', Some(b'b')) {
        return Ok(skip(bytes, start + 2, |b| matches!(b, b'0' | b'1' | b'_')));
    }
    let digits = |at| skip(bytes, at, |b: u8| b.is_ascii_digit() || b == b'_');
    let mut at = digits(start);
    if bytes.get(at) == Some(&b'.') {
        at = digits(at + 1);
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        if bytes.get(at + 1 + sign).is_some_and(u8::is_ascii_digit) {
            at = digits(at + 1 + sign);
        }
    }
    Ok(at)
}

/// The value of a quoted token (string or identifier), escapes resolved; `None` for escapes that are not known here.
pub fn unquote(token: &str) -> Option<Vec<u8>> {
    let bytes = token.as_bytes();
    let quote = *bytes.first()?;
    let inner = bytes.get(1..bytes.len().checked_sub(1)?)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut at = 0;
    while at < inner.len() {
        match inner[at] {
            b'\\' => {
                let escaped = *inner.get(at + 1)?;
                at += 2;
                match escaped {
                    b'n' => out.push(b'\n'),
                    b't' => out.push(b'\t'),
                    b'r' => out.push(b'\r'),
                    b'0' => out.push(0),
                    b'a' => out.push(7),
                    b'b' => out.push(8),
                    b'f' => out.push(12),
                    b'v' => out.push(11),
                    b'e' => out.push(27),
                    b'\\' | b'\'' | b'"' | b'`' | b'/' => out.push(escaped),
                    // `\%` and `\_` keep their backslash; `\x41` and `\N` are rare enough to leave alone.
                    b'%' | b'_' => out.extend([b'\\', escaped]),
                    _ => return None,
                }
            }
            b if b == quote => {
                out.push(quote);
                at += 2;
            }
            b => {
                out.push(b);
                at += 1;
            }
        }
    }
    Some(out)
}

/// `name` in backquotes, readable by ClickHouse as exactly this identifier.
pub fn backquote(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    out.push('`');
    for c in name.chars() {
        match c {
            '`' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            _ => out.push(c),
        }
    }
    out.push('`');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sql: &str) -> Vec<&str> {
        lex(sql).unwrap().tokens.iter().map(|t| t.text(sql)).collect()
    }

    #[test]
    fn splits_words_numbers_and_operators() {
        assert_eq!(
            texts("SELECT a.b, t.1, 1.5e3+.5 FROM t--x\nWHERE a<=>b"),
            [
                "SELECT", "a", ".", "b", ",", "t", ".", "1", ",", "1.5e3", "+", ".5", "FROM", "t", "WHERE", "a", "<=>",
                "b"
            ]
        );
    }

    #[test]
    fn keeps_quotes_and_escapes_in_one_token() {
        assert_eq!(texts(r"'a\'b' 'c''d' `e\`f` /* x */ 0xFF"), [r"'a\'b'", "'c''d'", r"`e\`f`", "0xFF"]);
        assert_eq!(unquote(r"'a\'b''c\n'"), Some(b"a'b'c\n".to_vec()));
        assert_eq!(unquote(r"'a\_b'"), Some(br"a\_b".to_vec()));
        assert_eq!(unquote(r"'\x41'"), None);
    }

    #[test]
    fn refuses_what_servers_read_differently() {
        for sql in ["2col", "/* a /* b */ */", "'open", "$$x$$", "a \u{2212} b", "0x1p3"] {
            assert!(lex(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn backquotes_round_trip() {
        for name in ["a", "a b", "a`b", r"a\b", "sum(x)"] {
            assert_eq!(unquote(&backquote(name)), Some(name.as_bytes().to_vec()));
        }
    }
}
