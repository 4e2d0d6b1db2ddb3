//! Finds the line and column of a value in a YAML text, and of a byte within a block of text that YAML holds.
//!
//! The parser keeps no positions in its values, but its errors have them. So the text is read once more with a visitor
//! that fails on purpose at the value in question: exact for every style of YAML, and only done when there is a
//! problem to show.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

use super::problem::Place;

/// One step from a value to a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// The place of the value at the end of `path`; of the whole document if the path leads nowhere.
pub fn of_value(text: &str, path: &[Step<'_>]) -> Place {
    probe(text, Probe { path, at_key: false })
}

/// The place of the key that ends `path`.
pub fn of_key(text: &str, path: &[Step<'_>]) -> Place {
    probe(text, Probe { path, at_key: true })
}

fn probe(text: &str, probe: Probe<'_>) -> Place {
    let error = probe.deserialize(serde_yaml::Deserializer::from_str(text)).err();
    let location = error.and_then(|error| error.location());
    location.map_or(Place { line: 1, column: 1 }, |at| Place { line: at.line(), column: at.column() })
}

/// The place of byte `offset` of `content`, the string value that starts at `start`.
///
/// Folding and indentation change white space only, so both texts are walked side by side by their other characters.
pub fn within(text: &str, start: Place, content: &str, offset: usize) -> Place {
    let mut source = Cursor::new(text, start);
    let style = source.peek();
    match style {
        // `|-`, `>2`, with a comment perhaps: the content begins on the next line.
        Some('|' | '>') => source.skip_line(),
        Some('"' | '\'') => source.advance(),
        _ => {}
    }
    for wanted in content[..offset.min(content.len())].chars().filter(|c| !c.is_whitespace()) {
        source.skip_whitespace();
        match (style, source.peek()) {
            // `''` stands for one quote.
            (Some('\''), Some('\'')) => source.advance(),
            (Some('"'), Some('\\')) if wanted != '\\' || source.peek_second() == Some('\\') => {
                source.advance();
                if source.peek() == Some('n') && wanted != 'n' {
                    source.advance();
                    source.skip_whitespace();
                }
            }
            _ => {}
        }
        source.advance();
    }
    source.skip_whitespace();
    source.place
}

/// Walks a text by characters.
struct Cursor<'a> {
    rest: std::str::Chars<'a>,
    place: Place,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str, start: Place) -> Self {
        let mut cursor = Self { rest: text.chars(), place: Place { line: 1, column: 1 } };
        while cursor.place < start && cursor.peek().is_some() {
            cursor.advance();
        }
        cursor
    }

    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn peek_second(&self) -> Option<char> {
        self.rest.clone().nth(1)
    }

    fn advance(&mut self) {
        match self.rest.next() {
            Some('\n') => self.place = Place { line: self.place.line + 1, column: 1 },
            Some(_) => self.place.column += 1,
            None => {}
        }
    }

    fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.advance();
        }
    }

    fn skip_line(&mut self) {
        let line = self.place.line;
        while self.place.line == line && self.peek().is_some() {
            self.advance();
        }
    }
}

/// Fails at the end of its path.
#[derive(Clone, Copy)]
struct Probe<'a> {
    path: &'a [Step<'a>],
    at_key: bool,
}

impl<'de> DeserializeSeed<'de> for Probe<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Any value at the end of the path, or of another kind than the path presumes.
macro_rules! fail {
    ($($method:ident: $type:ty),*) => {
        $(fn $method<E: Error>(self, _: $type) -> Result<(), E> { Err(E::custom("here")) })*
    };
}

impl<'de> Visitor<'de> for Probe<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fail! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(E::custom("here"))
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Err(E::custom("here"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let [Step::Index(wanted), rest @ ..] = self.path else { return Err(A::Error::custom("here")) };
        for _ in 0..*wanted {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Probe { path: rest, ..self })?;
        Err(A::Error::custom("no such item"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let [Step::Key(wanted), rest @ ..] = self.path else { return Err(A::Error::custom("here")) };
        let fail = self.at_key && rest.is_empty();
        while let Some(found) = entries.next_key_seed(KeyProbe { wanted, fail })? {
            if found {
                entries.next_value_seed(Probe { path: rest, ..self })?;
            }
            entries.next_value::<IgnoredAny>()?;
        }
        Err(A::Error::custom("no such key"))
    }
}

/// Compares a key, and fails there if asked to.
struct KeyProbe<'a> {
    wanted: &'a str,
    fail: bool,
}

impl<'de> DeserializeSeed<'de> for KeyProbe<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyProbe<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<bool, E> {
        if key == self.wanted && self.fail {
            return Err(E::custom("here"));
        }
        Ok(key == self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "views:\n  - name: a\n    query: |  # text\n\n      SELECT x,\n        y FROM t\n  - {name: b, query: 'SELECT ''q'', z'}\n  - name: c\n    query: SELECT one,\n      two\n";

    fn place(line: usize, column: usize) -> Place {
        Place { line, column }
    }

    #[test]
    fn values_and_keys_are_found() {
        let name = [Step::Key("views"), Step::Index(1), Step::Key("name")];
        assert_eq!(of_value(TEXT, &name), place(7, 12));
        assert_eq!(of_key(TEXT, &name), place(7, 6));
        assert_eq!(of_value(TEXT, &[Step::Key("views"), Step::Index(0)]), place(2, 5));
        assert_eq!(of_value(TEXT, &[Step::Key("views"), Step::Index(0), Step::Key("query")]), place(3, 12));
    }

    #[test]
    fn bytes_of_texts_are_found_in_every_style() {
        let found = |view: usize, query: &str, what: &str| {
            let start = of_value(TEXT, &[Step::Key("views"), Step::Index(view), Step::Key("query")]);
            within(TEXT, start, query, query.find(what).unwrap())
        };
        assert_eq!(found(0, "\nSELECT x,\n  y FROM t\n", "y FROM"), place(6, 9));
        assert_eq!(found(0, "\nSELECT x,\n  y FROM t\n", "SELECT"), place(5, 7));
        assert_eq!(found(1, "SELECT 'q', z", "z"), place(7, 37));
        assert_eq!(found(2, "SELECT one, two", "two"), place(10, 7));
    }
}
