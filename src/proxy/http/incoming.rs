//! Finds the query in a request to `/`, as ClickHouse's HTTP interface would.
//!
//! The text is the URL parameter `query`, or the body, or both: a line feed goes between them when the parameter is not
//! empty (seen in 26.9: `?query=SELECT hex('` with the body `')` answers `0A`). Headers win over URL parameters for
//! the database and the format. Every parameter that is not one of the interface's own is a setting.

use std::borrow::Cow;
use std::sync::Arc;

use super::head::RequestHead;
use crate::proxy::query::{Identity, IncomingQuery, Wish};

/// URL parameters that belong to the interface and are no settings (ClickHouse's `HTTPHandler`, 26.9).
const INTERFACE_PARAMETERS: &[&str] = &[
    "buffer_size",
    "client_protocol_version",
    "close_session",
    "compress",
    "database",
    "decompress",
    "default_format",
    "password",
    "query",
    "query_id",
    "quota_key",
    "role",
    "session_id",
    "session_timeout",
    "stacktrace",
    "tributary",
    "user",
    "wait_end_of_query",
];

/// Who asks, by URL.
const IDENTITY_PARAMETERS: &[&str] = &["user", "password", "role", "quota_key"];

/// Who asks, by header. The forwarded address counts: a server may check and account by it.
const IDENTITY_HEADERS: &[&str] = &[
    "authorization",
    "x-clickhouse-user",
    "x-clickhouse-key",
    "x-clickhouse-quota",
    "x-clickhouse-ssl-certificate-auth",
    "x-forwarded-for",
];

/// Headers in which a client says what it wants of Tributary; they go no further.
pub const WISH_HEADERS: &[&str] = &["x-tributary", "tributary"];

/// The part of a request target behind the `?`, piece by piece. The pieces keep their bytes.
#[derive(Debug)]
pub struct UrlQuery {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    /// As it stood between two `&`.
    raw: Vec<u8>,
    name: String,
    value: String,
}

impl UrlQuery {
    /// Reads the target of a request to `/`. The error is the reason for which the query cannot be seen.
    pub fn read(target: &[u8]) -> Result<Self, &'static str> {
        let text = match target {
            b"/" => b"",
            _ => target.strip_prefix(b"/?").ok_or("not a path that takes queries")?,
        };
        let pieces = text.split(|b| *b == b'&').filter(|p| !p.is_empty()).map(Piece::read).collect::<Option<Vec<_>>>();
        let pieces = pieces.ok_or("the URL is not percent-encoded UTF-8")?;
        if text.contains(&b'#') {
            return Err("the URL has a fragment");
        }
        Ok(Self { pieces })
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.pieces.iter().find(|p| p.name == name).map(|p| p.value.as_str())
    }

    fn count(&self, name: &str) -> usize {
        self.pieces.iter().filter(|p| p.name == name).count()
    }

    /// A target with the parameter `query` set to another text, or left out; everything else stays as it was, except
    /// that Tributary's own parameter is dropped.
    pub fn target(&self, query: QueryParameter) -> Vec<u8> {
        let mut out = b"/".to_vec();
        let mut separator = b'?';
        for piece in &self.pieces {
            let text: Cow<[u8]> = match (piece.name.as_str(), query) {
                ("tributary", _) | ("query", QueryParameter::Omit) => continue,
                ("query", QueryParameter::Set(sql)) => {
                    let value: String = url::form_urlencoded::byte_serialize(sql.as_bytes()).collect();
                    format!("query={value}").into_bytes().into()
                }
                _ => (&*piece.raw).into(),
            };
            out.push(separator);
            out.extend_from_slice(&text);
            separator = b'&';
        }
        out
    }

    /// Does the target name Tributary's own parameter, which ClickHouse must not see?
    pub fn has_wish(&self) -> bool {
        self.count("tributary") > 0
    }
}

/// What becomes of the URL parameter `query`.
#[derive(Debug, Clone, Copy)]
pub enum QueryParameter<'a> {
    Keep,
    Set(&'a str),
    Omit,
}

impl Piece {
    fn read(raw: &[u8]) -> Option<Self> {
        let (name, value) = match raw.iter().position(|b| *b == b'=') {
            Some(at) => (&raw[..at], &raw[at + 1..]),
            None => (raw, &b""[..]),
        };
        Some(Self { raw: raw.to_vec(), name: decode(name)?, value: decode(value)? })
    }
}

/// `+` and `%xx`, strictly: ClickHouse refuses a `%` without two digits, and so must the query then.
fn decode(text: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(*bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(out).ok()
}

/// What the client asks of Tributary, by URL or header. An unknown word asks for nothing.
pub fn wish(head: &RequestHead, url: Option<&UrlQuery>) -> Wish {
    let in_headers = WISH_HEADERS.iter().find_map(|name| head.value(name));
    let word = url.and_then(|u| u.value("tributary").map(str::as_bytes)).or(in_headers);
    match word {
        Some(w) if w.eq_ignore_ascii_case(b"off") => Wish::Off,
        Some(w) if w.eq_ignore_ascii_case(b"require") => Wish::Require,
        _ => Wish::Normal,
    }
}

/// Why the body of this request cannot be read as query text, if it cannot.
pub fn body_is_unreadable(head: &RequestHead, url: &UrlQuery) -> Option<&'static str> {
    let has = |name, prefix: &[u8]| {
        head.value(name).is_some_and(|v| v.len() >= prefix.len() && v[..prefix.len()].eq_ignore_ascii_case(prefix))
    };
    if has("content-type", b"multipart/") {
        return Some("multipart form (external tables)");
    }
    if head.value("content-encoding").is_some_and(|v| !v.is_empty() && !v.eq_ignore_ascii_case(b"identity")) {
        return Some("compressed query text");
    }
    if url.value("decompress").is_some_and(|v| v != "0") {
        return Some("compressed query text");
    }
    if head.method() != b"POST" {
        return Some("a body with a method other than POST");
    }
    None
}

/// Why a query in this request must not be judged at all, if so.
pub fn is_beyond_judging(head: &RequestHead, url: &UrlQuery) -> Option<&'static str> {
    if url.count("query") > 1 {
        return Some("several query parameters");
    }
    // Kerberos tokens are good for one request: a check under the client's name would use them up.
    let authorization = head.value("authorization").unwrap_or_default();
    if authorization.len() >= 9 && authorization[..9].eq_ignore_ascii_case(b"negotiate") {
        return Some("Kerberos authentication");
    }
    None
}

/// The text as ClickHouse joins it.
pub fn join(in_url: &str, in_body: &str) -> String {
    if in_url.is_empty() { in_body.to_owned() } else { format!("{in_url}\n{in_body}") }
}

/// Everything that a decision needs to know about the request.
pub fn incoming_query(head: &RequestHead, url: &UrlQuery, sql: String) -> IncomingQuery {
    let in_header =
        |name| head.value(name).and_then(|v| std::str::from_utf8(v).ok()).filter(|v| !v.is_empty()).map(str::to_owned);
    let in_url = |name| url.value(name).filter(|v| !v.is_empty()).map(str::to_owned);
    let mut query = IncomingQuery {
        sql,
        database: in_header("x-clickhouse-database").or_else(|| in_url("database")),
        settings: Vec::new(),
        parameters: Vec::new(),
        format: in_header("x-clickhouse-format").or_else(|| in_url("default_format")),
        identity: Arc::new(identity(head, url)),
        session_id: url.value("session_id").map(str::to_owned),
        wish: wish(head, Some(url)),
    };
    for Piece { name, value, .. } in &url.pieces {
        if let Some(parameter) = name.strip_prefix("param_") {
            query.parameters.push((parameter.to_owned(), value.clone()));
        } else if !name.is_empty() && !INTERFACE_PARAMETERS.contains(&name.as_str()) {
            query.settings.push((name.clone(), value.clone()));
        }
    }
    query
}

fn identity(head: &RequestHead, url: &UrlQuery) -> Identity {
    let headers = head.fields().filter_map(|(name, value)| {
        let name = String::from_utf8(name.to_ascii_lowercase()).ok()?;
        IDENTITY_HEADERS.contains(&name.as_str()).then(|| (name, value.to_vec()))
    });
    let parameters = url.pieces.iter().filter(|p| IDENTITY_PARAMETERS.contains(&p.name.as_str()));
    Identity {
        headers: headers.collect(),
        url_parameters: parameters.map(|p| (p.name.clone(), p.value.clone())).collect(),
    }
}

/// What the first word of a statement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// SELECT, WITH, FROM or a parenthesis: may be a query.
    Query,
    /// INSERT, DDL and everything else: none of our business.
    Other,
    /// Only blanks and comments so far, or a word that may go on.
    Open,
}

/// Looks at the start of a statement, past blanks and comments.
pub fn opening(text: &[u8]) -> Opening {
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        let skipped = match rest {
            [b'-', b'-', ..] | [b'#', b' ' | b'!', ..] => rest.iter().position(|b| *b == b'\n').map(|at| at + 1),
            [b'/', b'*', ..] => rest[2..].windows(2).position(|w| w == b"*/").map(|at| at + 4),
            [] | [b'-'] | [b'#'] | [b'/'] => None,
            _ => break,
        };
        match skipped {
            Some(n) => rest = &rest[n..],
            None => return Opening::Open,
        }
    }
    if rest[0] == b'(' {
        return Opening::Query;
    }
    let word = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let is_query = [&b"SELECT"[..], b"WITH", b"FROM"].iter().any(|q| rest[..word].eq_ignore_ascii_case(q));
    match (is_query, word == rest.len()) {
        (_, true) => Opening::Open,
        (true, false) => Opening::Query,
        (false, false) => Opening::Other,
    }
}

/// As [`opening`], for a statement that has come whole.
pub fn opening_of_whole(text: &str) -> Opening {
    match opening(format!("{text} ").as_bytes()) {
        Opening::Open => Opening::Other,
        known => known,
    }
}

#[cfg(test)]
mod tests {
    use super::super::head::{Reading, Scan};
    use super::*;

    fn head(text: &str) -> RequestHead {
        match RequestHead::read(text.as_bytes(), &mut Scan::default()) {
            Reading::Head(head) => head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_query_is_told_from_a_statement_by_its_first_word() {
        let opens = [
            ("SELECT 1", Opening::Query),
            ("  \n-- x\n# y\n/* z */select*", Opening::Query),
            ("(SELECT 1)", Opening::Query),
            ("WITH 1 AS x SELECT x", Opening::Query),
            ("FROM t SELECT 1", Opening::Query),
            ("INSERT INTO t SELECT 1", Opening::Other),
            ("selection", Opening::Open),
            ("selection of", Opening::Other),
            ("SEL", Opening::Open),
            ("/* tributary: off", Opening::Open),
            ("-", Opening::Open),
            ("", Opening::Open),
            ("\u{1f600} ", Opening::Other),
        ];
        for (text, expected) in opens {
            assert_eq!(opening(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(opening_of_whole("SELECT"), Opening::Query);
        assert_eq!(opening_of_whole("-- nothing"), Opening::Other);
    }

    #[test]
    fn only_the_named_parameters_change_in_a_url() {
        let url = UrlQuery::read(b"/?a=%41+b&query=SELECT+1&tributary=off&max_threads=1&b").unwrap();
        assert_eq!(url.target(QueryParameter::Keep), b"/?a=%41+b&query=SELECT+1&max_threads=1&b");
        assert_eq!(
            url.target(QueryParameter::Set("SELECT '&+%'")),
            b"/?a=%41+b&query=SELECT+%27%26%2B%25%27&max_threads=1&b"
        );
        assert_eq!(url.target(QueryParameter::Omit), b"/?a=%41+b&max_threads=1&b");
        assert_eq!(UrlQuery::read(b"/?tributary=off").unwrap().target(QueryParameter::Keep), b"/");
        assert!(UrlQuery::read(b"/?query=%zz").is_err());
        assert!(UrlQuery::read(b"/?query=%ff").is_err());
        assert!(UrlQuery::read(b"/play").is_err());
    }

    #[test]
    fn settings_are_what_is_no_parameter_of_the_interface() {
        let head = head(concat!(
            "POST /?query=SELECT+1&database=d&max_threads=2&param_x=y&role=a&role=b&user=u&session_id=s",
            "&default_format=CSV&wait_end_of_query=1&tributary=require HTTP/1.1\r\n",
            "X-ClickHouse-Database: e\r\nAuthorization: Basic x\r\n\r\n"
        ));
        let url = UrlQuery::read(head.target()).unwrap();
        let query = incoming_query(&head, &url, join("SELECT 1", ""));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(query.sql, "SELECT 1\n");
        assert_eq!(query.database.as_deref(), Some("e"));
        assert_eq!(query.format.as_deref(), Some("CSV"));
        assert_eq!(query.settings, [pair("max_threads", "2")]);
        assert_eq!(query.parameters, [pair("x", "y")]);
        assert_eq!(query.session_id.as_deref(), Some("s"));
        assert_eq!(query.wish, Wish::Require);
        assert_eq!(query.identity.headers, [("authorization".to_owned(), b"Basic x".to_vec())]);
        assert_eq!(query.identity.url_parameters, [pair("role", "a"), pair("role", "b"), pair("user", "u")]);
    }
}
