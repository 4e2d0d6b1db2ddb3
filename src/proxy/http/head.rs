//! Heads of requests and answers: the original bytes, and where in them the few things stand that a relay must know.

use std::ops::Range;
use std::time::Duration;

use super::body::Body;

/// Longer heads are not read but tunnelled. ClickHouse takes URIs of 1 MiB (`http_max_uri_size`).
pub const HEAD_BYTES_MAX: usize = 2 << 20;

/// No method of HTTP is longer; what has no space so far is no request.
const METHOD_BYTES_MAX: usize = 32;

/// The head of a request, byte for byte as it came.
#[derive(Debug)]
pub struct RequestHead {
    bytes: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    is_http_1_0: bool,
    fields: Vec<Field>,
}

/// One header line: places within the head's bytes.
#[derive(Debug)]
struct Field {
    line: Range<usize>,
    name: Range<usize>,
    value: Range<usize>,
}

/// What the first bytes on a connection are.
#[derive(Debug)]
pub enum Reading {
    /// The blank line has not come yet.
    Incomplete,
    Head(RequestHead),
    /// Not HTTP/1, or in a form that two readers may understand in two ways (bare line feeds, folded lines,
    /// two lengths): not for us to judge.
    NotUnderstood,
}

/// How far a head that comes in pieces was looked at.
#[derive(Debug, Default)]
pub struct Scan {
    line_start: usize,
    seen: usize,
}

/// What is changed in a head when it is sent on. Lines that are not named here keep their bytes and their order.
#[derive(Debug, Default)]
pub struct Edit<'a> {
    pub target: Option<Vec<u8>>,
    /// Lines with these names (lower case) are left out.
    pub without: Vec<&'a str>,
    /// Goes to the end of the head.
    pub content_length: Option<usize>,
}

impl RequestHead {
    /// Reads the head at the start of `bytes`, which may hold more. `scan` is kept while the answer is `Incomplete`.
    pub fn read(bytes: &[u8], scan: &mut Scan) -> Reading {
        let method_bytes = bytes.iter().take(METHOD_BYTES_MAX).take_while(|b| is_token(**b)).count();
        if method_bytes < bytes.len() && (method_bytes == 0 || bytes[method_bytes] != b' ') {
            return Reading::NotUnderstood;
        }
        while let Some(length) = bytes[scan.seen..].iter().position(|b| *b == b'\n') {
            let end = scan.seen + length;
            if end == 0 || bytes[end - 1] != b'\r' {
                return Reading::NotUnderstood;
            }
            let is_blank = end - scan.line_start == 1;
            *scan = Scan { line_start: end + 1, seen: end + 1 };
            if is_blank {
                return match Self::from_whole(&bytes[..=end]) {
                    Some(head) if head.is_unambiguous() => Reading::Head(head),
                    _ => Reading::NotUnderstood,
                };
            }
        }
        scan.seen = bytes.len();
        if bytes.len() < HEAD_BYTES_MAX { Reading::Incomplete } else { Reading::NotUnderstood }
    }

    fn from_whole(bytes: &[u8]) -> Option<Self> {
        let mut lines = Vec::new();
        let mut start = 0;
        while let Some(length) = bytes[start..].iter().position(|b| *b == b'\n') {
            lines.push(start..start + length - 1);
            start += length + 1;
        }
        lines.pop();
        Self::from_lines(bytes, &lines)
    }

    fn from_lines(bytes: &[u8], lines: &[Range<usize>]) -> Option<Self> {
        let (first, rest) = lines.split_first()?;
        let line = &bytes[first.clone()];
        let method_end = line.iter().position(|b| *b == b' ')?;
        let target_end = line.iter().rposition(|b| *b == b' ')?;
        let is_http_1_0 = match &line[target_end + 1..] {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return None,
        };
        let target = method_end + 1..target_end;
        if target.is_empty() || line[target.clone()].iter().any(|b| *b <= b' ') {
            return None;
        }
        let fields = rest.iter().map(|line| Field::read(bytes, line.clone())).collect::<Option<Vec<_>>>()?;
        Some(Self { bytes: bytes.to_vec(), method: 0..method_end, target, is_http_1_0, fields })
    }

    /// Exactly one reading of where the body ends?
    fn is_unambiguous(&self) -> bool {
        let mut lengths = self.values("content-length");
        let mut codings = self.values("transfer-encoding");
        let first = (lengths.next(), codings.next());
        if lengths.next().is_some() || codings.next().is_some() {
            return false;
        }
        match first {
            (None, None) => true,
            (Some(length), None) => parse_length(length).is_some(),
            (None, Some(coding)) => coding.eq_ignore_ascii_case(b"chunked") && !self.is_http_1_0,
            (Some(_), Some(_)) => false,
        }
    }

    /// Bytes of the whole head, with the blank line.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn method(&self) -> &[u8] {
        &self.bytes[self.method.clone()]
    }

    /// The request target: path and query as they came.
    pub fn target(&self) -> &[u8] {
        &self.bytes[self.target.clone()]
    }

    /// The values of all header lines of that (lower-case) name, in order, without surrounding blanks.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.fields
            .iter()
            .filter(move |f| self.bytes[f.name.clone()].eq_ignore_ascii_case(name.as_bytes()))
            .map(|f| &self.bytes[f.value.clone()])
    }

    pub fn value(&self, name: &str) -> Option<&[u8]> {
        self.fields
            .iter()
            .find(|f| self.bytes[f.name.clone()].eq_ignore_ascii_case(name.as_bytes()))
            .map(|f| &self.bytes[f.value.clone()])
    }

    /// All header lines as (name, value).
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|f| (&self.bytes[f.name.clone()], &self.bytes[f.value.clone()]))
    }

    pub fn body(&self) -> Body {
        if self.value("transfer-encoding").is_some() {
            return Body::chunked();
        }
        Body::length(self.value("content-length").and_then(parse_length).unwrap_or(0))
    }

    /// May another request follow on this connection?
    pub fn keeps_alive(&self) -> bool {
        keeps_alive(self.is_http_1_0, self.values("connection"))
    }

    /// Does the client ask for another protocol on this connection?
    pub fn leaves_http(&self) -> bool {
        self.method() == b"CONNECT" || self.values("upgrade").any(|v| v.eq_ignore_ascii_case(b"websocket"))
    }

    /// The bytes to send on.
    pub fn render(&self, edit: &Edit) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + 64);
        match &edit.target {
            None => out.extend_from_slice(&self.bytes[..self.first_line_end()]),
            Some(target) => {
                out.extend_from_slice(&self.bytes[..self.target.start]);
                out.extend_from_slice(target);
                out.extend_from_slice(&self.bytes[self.target.end..self.first_line_end()]);
            }
        }
        for field in &self.fields {
            let name = &self.bytes[field.name.clone()];
            if !edit.without.iter().any(|n| name.eq_ignore_ascii_case(n.as_bytes())) {
                out.extend_from_slice(&self.bytes[field.line.clone()]);
                out.extend_from_slice(b"\r\n");
            }
        }
        if let Some(length) = edit.content_length {
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    fn first_line_end(&self) -> usize {
        self.target.end + " HTTP/1.1\r\n".len()
    }
}

impl Field {
    fn read(bytes: &[u8], line: Range<usize>) -> Option<Self> {
        let text = &bytes[line.clone()];
        let colon = text.iter().position(|b| *b == b':')?;
        if colon == 0 || !text[..colon].iter().all(|b| is_token(*b)) || text.contains(&b'\r') || text.contains(&0) {
            return None;
        }
        let padded = &text[colon + 1..];
        let start = line.start + colon + 1 + (padded.len() - padded.trim_ascii_start().len());
        Some(Self { name: line.start..line.start + colon, value: start..start + padded.trim_ascii().len(), line })
    }
}

/// What a relay must know of an answer, gathered line by line while the lines are already on their way to the client.
#[derive(Debug, Default)]
pub struct ResponseHead {
    pub status: u16,
    is_http_1_0: bool,
    closes: bool,
    asks_keep_alive: bool,
    is_chunked: bool,
    content_length: Option<u64>,
    /// `X-ClickHouse-Exception-Code`.
    pub exception_code: Option<i32>,
    /// `Keep-Alive: timeout=..`: how long the server lets an idle connection live.
    pub keep_alive: Option<Duration>,
}

impl ResponseHead {
    /// Takes in the first line (without its end).
    pub fn first_line(line: &[u8]) -> Option<Self> {
        let rest = line.strip_prefix(b"HTTP/1.")?;
        let (minor, rest) = rest.split_first()?;
        let status = std::str::from_utf8(rest.get(1..4)?).ok()?.parse().ok()?;
        Some(Self { status, is_http_1_0: *minor == b'0', ..Self::default() })
    }

    /// Takes in one header line (without its end).
    pub fn header_line(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is = |n: &str| name.eq_ignore_ascii_case(n.as_bytes());
        let text = || std::str::from_utf8(value).ok();
        if is("content-length") {
            self.content_length = parse_length(value);
        } else if is("transfer-encoding") {
            self.is_chunked = value.eq_ignore_ascii_case(b"chunked");
        } else if is("connection") {
            self.closes |= has_token(value, b"close");
            self.asks_keep_alive |= has_token(value, b"keep-alive");
        } else if is("x-clickhouse-exception-code") {
            self.exception_code = text().and_then(|t| t.parse().ok());
        } else if is("keep-alive") {
            let timeout =
                text().and_then(|t| t.split(',').find_map(|p| p.trim().strip_prefix("timeout=")?.parse().ok()));
            self.keep_alive = timeout.map(Duration::from_secs);
        }
    }

    /// The head of an answer that ended with its connection.
    pub fn closing(status: u16) -> Self {
        Self { status, closes: true, ..Self::default() }
    }

    /// An answer before the answer, such as `100 Continue`.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    pub fn body(&self, is_head_request: bool) -> Body {
        match self.status {
            101 => Body::UntilClose,
            204 | 304 => Body::Done,
            _ if is_head_request => Body::Done,
            _ if self.is_chunked => Body::chunked(),
            _ => self.content_length.map_or(Body::UntilClose, Body::length),
        }
    }

    /// May the connection be used again once the body has ended?
    pub fn keeps_alive(&self) -> bool {
        !self.closes && (!self.is_http_1_0 || self.asks_keep_alive)
    }
}

fn keeps_alive<'a>(is_http_1_0: bool, mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    if is_http_1_0 { values.any(|v| has_token(v, b"keep-alive")) } else { !values.any(|v| has_token(v, b"close")) }
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
}

/// Digits only: `+5`, `5, 5` and the empty text are no length.
fn parse_length(value: &[u8]) -> Option<u64> {
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> RequestHead {
        match RequestHead::read(text.as_bytes(), &mut Scan::default()) {
            Reading::Head(head) => head,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn an_unedited_head_is_sent_on_as_it_came() {
        let text = "POST /?query=SELECT+1 HTTP/1.1\r\nhOsT: x\r\nX-Empty:\r\nX-Padded:  a b \t\r\nX-A: 1\r\nX-B: 2\r\nX-A: 3\r\nContent-Length: 3\r\n\r\n";
        let head = head(&format!("{text}abc"));
        assert_eq!(head.len(), text.len());
        assert_eq!(head.render(&Edit::default()), text.as_bytes());
        assert_eq!(head.value("x-empty"), Some(&b""[..]));
        assert_eq!(head.value("x-padded"), Some(&b"a b"[..]));
        assert_eq!(head.values("x-a").collect::<Vec<_>>(), [b"1", b"3"]);
        // The same when it comes byte by byte.
        let mut scan = Scan::default();
        for end in 0..text.len() {
            assert!(matches!(RequestHead::read(&text.as_bytes()[..end], &mut scan), Reading::Incomplete), "{end}");
        }
        assert!(
            matches!(RequestHead::read(text.as_bytes(), &mut scan), Reading::Head(h) if h.render(&Edit::default()) == text.as_bytes())
        );
        assert_eq!(head.body(), Body::Length(3));
    }

    #[test]
    fn an_edit_touches_only_what_it_names() {
        let head = head("POST /?q HTTP/1.1\r\nX-Tributary: off\r\nA: 1\r\nContent-Length: 3\r\n\r\n");
        let edit = Edit {
            target: Some(b"/".to_vec()),
            without: vec!["x-tributary", "content-length"],
            content_length: Some(9),
        };
        assert_eq!(head.render(&edit), b"POST / HTTP/1.1\r\nA: 1\r\nContent-Length: 9\r\n\r\n");
    }

    #[test]
    fn what_two_readers_may_read_in_two_ways_is_not_understood() {
        for text in [
            "GET / HTTP/1.1\nHost: x\n\n",
            "GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nA : 1\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET / SELECT HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "\u{0}\u{1}",
            "PRI * HTTP/2.0\r\n\r\n",
        ] {
            assert!(
                matches!(RequestHead::read(text.as_bytes(), &mut Scan::default()), Reading::NotUnderstood),
                "{text:?}"
            );
        }
        for text in ["", "G", "GET", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r"] {
            assert!(
                matches!(RequestHead::read(text.as_bytes(), &mut Scan::default()), Reading::Incomplete),
                "{text:?}"
            );
        }
    }

    #[test]
    fn connections_end_as_their_version_says() {
        assert!(head("GET / HTTP/1.1\r\n\r\n").keeps_alive());
        assert!(!head("GET / HTTP/1.1\r\nConnection: x, Close\r\n\r\n").keeps_alive());
        assert!(!head("GET / HTTP/1.0\r\n\r\n").keeps_alive());
        assert!(head("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keeps_alive());
    }

    proptest::proptest! {
        /// No bytes make the reader fail, and a head that comes in pieces reads as the whole one does.
        #[test]
        fn any_bytes_are_read_in_any_pieces(
            noise in proptest::collection::vec(proptest::sample::select(b"GET /?a HTTP/1.1\r\n\r\n:\0\xff".to_vec()), 0..60),
            is_request in proptest::bool::ANY,
        ) {
            let bytes = if is_request { [b"GET / HTTP/1.1\r\n".as_slice(), &noise].concat() } else { noise };
            let mut scan = Scan::default();
            let mut in_pieces = Reading::Incomplete;
            for end in 0..=bytes.len() {
                in_pieces = RequestHead::read(&bytes[..end], &mut scan);
                if !matches!(in_pieces, Reading::Incomplete) {
                    break;
                }
            }
            let whole = RequestHead::read(&bytes, &mut Scan::default());
            proptest::prop_assert_eq!(format!("{in_pieces:?}"), format!("{whole:?}"));
        }
    }
}
