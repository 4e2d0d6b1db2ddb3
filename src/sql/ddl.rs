//! `CREATE TABLE` statements -> columns and engine: only what the planner needs, for `explain --schema`.

use super::lexer::{Token, TokenKind, lex, unquote};

/// A table as its CREATE statement declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateTable {
    pub database: Option<String>,
    pub table: String,
    pub columns: Vec<CreateColumn>,
    /// Without its arguments; empty if none is named.
    pub engine: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateColumn {
    pub name: String,
    /// As written.
    pub type_name: String,
    /// `DEFAULT`, `MATERIALIZED`, `ALIAS`, `EPHEMERAL` or nothing.
    pub default_kind: String,
    pub default_expression: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct DdlError {
    pub what: String,
    /// Counts from 1.
    pub line: usize,
}

/// All `CREATE TABLE name (..)` statements of a text; other statements are passed over.
pub fn create_tables(sql: &str) -> Result<Vec<CreateTable>, DdlError> {
    let fault = |what: String, offset: usize| DdlError { what, line: 1 + sql[..offset].matches('\n').count() };
    let tokens = lex(sql).map_err(|e| fault(e.what.to_string(), e.offset))?.tokens;
    let mut tables = Vec::new();
    for statement in tokens.split(|t| t.is_symbol(sql, ";")) {
        let mut reader = Reader { sql, tokens: statement, at: 0 };
        if !reader.take_words(&["CREATE"]) && !reader.take_words(&["ATTACH"]) {
            continue;
        }
        reader.take_words(&["OR", "REPLACE"]);
        reader.take_words(&["TEMPORARY"]);
        if !reader.take_words(&["TABLE"]) {
            continue;
        }
        reader.take_words(&["IF", "NOT", "EXISTS"]);
        let offset = statement.first().map_or(0, |t| t.start);
        tables.push(reader.table().map_err(|what| fault(what, offset))?);
    }
    Ok(tables)
}

struct Reader<'a> {
    sql: &'a str,
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take_words(&mut self, words: &[&str]) -> bool {
        let all =
            words.iter().enumerate().all(|(i, w)| self.tokens.get(self.at + i).is_some_and(|t| t.is_word(self.sql, w)));
        if all {
            self.at += words.len();
        }
        all
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let is = self.tokens.get(self.at).is_some_and(|t| t.is_symbol(self.sql, symbol));
        self.at += usize::from(is);
        is
    }

    fn name(&mut self) -> Result<String, String> {
        let token = self.tokens.get(self.at).ok_or("the statement ends where a name is expected")?;
        self.at += 1;
        let text = token.text(self.sql);
        match token.kind {
            TokenKind::Word => Ok(text.into()),
            TokenKind::QuotedWord => unquote(text)
                .and_then(|b| String::from_utf8(b).ok())
                .ok_or_else(|| format!("the name {text} is not understood")),
            _ => Err(format!("'{text}' where a name is expected")),
        }
    }

    fn table(&mut self) -> Result<CreateTable, String> {
        let mut table = self.name()?;
        let mut database = None;
        if self.take_symbol(".") {
            database = Some(std::mem::replace(&mut table, self.name()?));
        }
        if self.take_words(&["UUID"]) {
            self.at += 1;
        }
        if self.take_words(&["ON", "CLUSTER"]) {
            self.at += 1;
        }
        if !self.take_symbol("(") {
            return Err(format!("CREATE TABLE {table} without a list of columns"));
        }
        let mut columns = Vec::new();
        loop {
            let piece = self.until_comma();
            columns.extend(column(self.sql, piece)?);
            if self.take_symbol(")") {
                break;
            }
            if !self.take_symbol(",") {
                return Err(format!("the list of columns of {table} does not end"));
            }
        }
        let mut engine = String::new();
        if self.take_words(&["ENGINE"]) {
            self.take_symbol("=");
            engine = self.name()?;
        }
        Ok(CreateTable { database, table, columns, engine })
    }

    /// The tokens up to the next comma or closing bracket of this depth.
    fn until_comma(&mut self) -> &'a [Token] {
        let start = self.at;
        let mut depth = 0usize;
        while let Some(token) = self.tokens.get(self.at) {
            match token.text(self.sql) {
                "(" | "[" | "{" if token.kind == TokenKind::Symbol => depth += 1,
                ")" | "]" | "}" if token.kind == TokenKind::Symbol && depth > 0 => depth -= 1,
                ")" | "," if token.kind == TokenKind::Symbol && depth == 0 => break,
                _ => {}
            }
            self.at += 1;
        }
        &self.tokens[start..self.at]
    }
}

/// One element of the list of columns; indices, constraints and projections are no columns.
fn column(sql: &str, tokens: &[Token]) -> Result<Option<CreateColumn>, String> {
    const NO_COLUMN: [&str; 5] = ["INDEX", "CONSTRAINT", "PROJECTION", "PRIMARY", "FOREIGN"];
    const ENDS_TYPE: [&str; 11] = [
        "DEFAULT",
        "MATERIALIZED",
        "ALIAS",
        "EPHEMERAL",
        "CODEC",
        "COMMENT",
        "TTL",
        "NULL",
        "NOT",
        "STATISTICS",
        "SETTINGS",
    ];
    let Some(first) = tokens.first() else { return Ok(None) };
    if NO_COLUMN.iter().any(|w| first.is_word(sql, w)) {
        return Ok(None);
    }
    let mut reader = Reader { sql, tokens, at: 0 };
    let name = reader.name()?;
    let ends = |t: &Token| ENDS_TYPE.iter().any(|w| t.is_word(sql, w));
    let type_tokens: Vec<&Token> = tokens[1..].iter().take_while(|t| !ends(t)).collect();
    let (Some(start), Some(end)) = (type_tokens.first(), type_tokens.last()) else {
        return Err(format!("column {name} has no type"));
    };
    let mut type_name = sql[start.start..end.end].to_string();
    let rest = &tokens[1 + type_tokens.len()..];
    if rest.first().is_some_and(|t| t.is_word(sql, "NULL")) {
        type_name = format!("Nullable({type_name})");
    }
    let kind = rest.iter().position(|t| ENDS_TYPE[..4].iter().any(|w| t.is_word(sql, w)));
    let (default_kind, default_expression) = match kind {
        Some(at) => {
            let after = &rest[at + 1..];
            let length =
                after.iter().position(|t| ENDS_TYPE[4..7].iter().any(|w| t.is_word(sql, w))).unwrap_or(after.len());
            let text = match (after.first(), length) {
                (Some(first), 1..) => sql[first.start..after[length - 1].end].to_string(),
                _ => String::new(),
            };
            (rest[at].text(sql).to_ascii_uppercase(), text)
        }
        None => (String::new(), String::new()),
    };
    Ok(Some(CreateColumn { name, type_name, default_kind, default_expression }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_columns_types_and_engines() {
        let sql = "DROP TABLE x;\nCREATE TABLE IF NOT EXISTS db.`my t` (a UInt8, b LowCardinality(String) DEFAULT concat('x', ',') CODEC(ZSTD), \
                   c Decimal(10, 2) NULL, INDEX i a TYPE minmax, e Enum8('a' = 1) COMMENT 'x') ENGINE = MergeTree ORDER BY a;";
        let tables = create_tables(sql).unwrap();
        assert_eq!(tables.len(), 1);
        assert_eq!(
            (tables[0].database.as_deref(), &*tables[0].table, &*tables[0].engine),
            (Some("db"), "my t", "MergeTree")
        );
        let columns: Vec<(&str, &str, &str)> =
            tables[0].columns.iter().map(|c| (&*c.name, &*c.type_name, &*c.default_expression)).collect();
        assert_eq!(
            columns,
            [
                ("a", "UInt8", ""),
                ("b", "LowCardinality(String)", "concat('x', ',')"),
                ("c", "Nullable(Decimal(10, 2))", ""),
                ("e", "Enum8('a' = 1)", "")
            ]
        );
    }

    #[test]
    fn faults_name_the_line() {
        assert_eq!(create_tables("\n\nCREATE TABLE t (a)").unwrap_err().to_string(), "line 3: column a has no type");
        assert_eq!(
            create_tables("CREATE TABLE t").unwrap_err().to_string(),
            "line 1: CREATE TABLE t without a list of columns"
        );
    }
}
