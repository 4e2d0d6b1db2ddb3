//! View declarations as operators write them. Reading a file reports every fault in it, each with its place; a view with
//! a fault is left out, the others are kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_yaml::Value;

use super::place::{self, Step};
use super::problem::{Place, Problem, SourceFile};
use crate::config::Consistency;
use crate::matching::view::nearest;

/// One view of a file, well formed; whether its query makes sense is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declaration {
    pub name: String,
    pub query: String,
    /// `None`: as the configuration says.
    pub consistency: Option<Consistency>,
    /// Names of output columns to sort the storage table by; `None`: the dimensions in their order.
    pub order_by: Option<Vec<String>>,
    pub file: Arc<SourceFile>,
    /// Position in the file's list, from 0.
    pub index: usize,
}

impl Declaration {
    pub fn consistency(&self) -> Consistency {
        self.consistency.unwrap_or_default()
    }

    /// The place of the value under one of the view's keys.
    pub fn place(&self, key: &str) -> Place {
        place::of_value(&self.file.text, &[VIEWS, Step::Index(self.index), Step::Key(key)])
    }

    /// A problem at byte `offset` of the query.
    pub fn query_problem(&self, offset: usize, message: String, hint: Option<String>) -> Problem {
        let place = place::within(&self.file.text, self.place(QUERY), &self.query, offset);
        Problem { file: self.file.clone(), place, message: format!("view {}: {message}", self.name), hint }
    }

    /// A problem with the name at `position` of `order_by`.
    pub fn order_by_problem(&self, position: usize, message: String, hint: Option<String>) -> Problem {
        let path = [VIEWS, Step::Index(self.index), Step::Key(ORDER_BY), Step::Index(position)];
        let place = place::of_value(&self.file.text, &path);
        Problem { file: self.file.clone(), place, message: format!("view {}: {message}", self.name), hint }
    }
}

/// What was found in files.
#[derive(Debug, Default)]
pub struct Loaded {
    pub declarations: Vec<Declaration>,
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// With the consistency of the configuration for views that say nothing of it.
    pub fn with_default(mut self, consistency: Consistency) -> Self {
        for declaration in &mut self.declarations {
            declaration.consistency.get_or_insert(consistency);
        }
        self
    }
}

const VIEWS: Step<'static> = Step::Key("views");
const QUERY: &str = "query";
const ORDER_BY: &str = "order_by";
const KEYS: [&str; 4] = ["name", QUERY, "consistency", ORDER_BY];

/// Storage tables are called after the view, and file names of tables have a limit (ClickHouse escapes them).
const NAME_BYTES_MAX: usize = 100;

/// Files larger than this are no view declarations.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Reads a file, or all `*.yaml` and `*.yml` files of a folder in the order of their names.
pub fn load(path: &Path) -> Loaded {
    let mut loaded = Loaded::default();
    let files = match files_of(path) {
        Ok(files) => files,
        Err(message) => {
            loaded.problems.push(file_problem(path, message));
            return loaded;
        }
    };
    for file in files {
        match read(&file) {
            Ok(text) => {
                let Loaded { declarations, problems } = parse(&file, text);
                loaded.declarations.extend(declarations);
                loaded.problems.extend(problems);
            }
            Err(message) => loaded.problems.push(file_problem(&file, message)),
        }
    }
    drop_duplicates(&mut loaded);
    loaded
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>, String> {
    let metadata = path.metadata().map_err(|e| format!("cannot be read: {e}"))?;
    if !metadata.is_dir() {
        return Ok(vec![path.into()]);
    }
    let entries = path.read_dir().map_err(|e| format!("cannot be listed: {e}"))?;
    let is_yaml = |file: &PathBuf| {
        let hidden = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        !hidden && file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|file| is_yaml(file)).collect();
    files.sort();
    if files.is_empty() {
        return Err("the folder has no *.yaml file".into());
    }
    Ok(files)
}

fn read(file: &Path) -> Result<String, String> {
    let size = file.metadata().map_err(|e| format!("cannot be read: {e}"))?.len();
    if size > FILE_BYTES_MAX {
        return Err(format!("has {size} bytes; view files have at most {FILE_BYTES_MAX}"));
    }
    std::fs::read_to_string(file).map_err(|e| format!("cannot be read: {e}"))
}

fn file_problem(file: &Path, message: String) -> Problem {
    let file = Arc::new(SourceFile { path: file.into(), text: String::new() });
    let hint = "give a YAML file, or a folder of such files, that begins with 'views:'".to_string();
    Problem { file, place: Place { line: 1, column: 1 }, message, hint: Some(hint) }
}

/// The declarations of one text.
pub fn parse(path: &Path, text: String) -> Loaded {
    let file = Arc::new(SourceFile { path: path.into(), text });
    let mut reader = Reader { file: file.clone(), problems: Vec::new() };
    let declarations = match serde_yaml::from_str::<Value>(&file.text) {
        Ok(document) => reader.document(&document),
        Err(error) => {
            let place = error
                .location()
                .map_or(Place { line: 1, column: 1 }, |at| Place { line: at.line(), column: at.column() });
            let message = error.to_string();
            // The place is shown beside the text already.
            let message = message.split(" at line ").next().unwrap_or_default();
            let hint = message
                .contains("mapping values are not allowed")
                .then_some("a text with ': ' in it needs quotes, such as consistency: 'bounded: 10s'");
            reader.report(place, format!("no valid YAML: {message}"), hint);
            Vec::new()
        }
    };
    let mut loaded = Loaded { declarations, problems: reader.problems };
    drop_duplicates(&mut loaded);
    loaded
}

/// Keeps the first view of each name and reports the others.
fn drop_duplicates(loaded: &mut Loaded) {
    let mut first: HashMap<String, String> = HashMap::new();
    let problems = &mut loaded.problems;
    loaded.declarations.retain(|declaration| {
        let place = declaration.place("name");
        let here = format!("{}:{}", declaration.file.path.display(), place.line);
        let Some(other) = first.get(&declaration.name) else {
            first.insert(declaration.name.clone(), here);
            return true;
        };
        problems.push(Problem {
            file: declaration.file.clone(),
            place,
            message: format!("view {} is declared twice", declaration.name),
            hint: Some(format!("the first one is at {other}; give this one another name")),
        });
        false
    });
}

/// Walks a document and collects its faults.
struct Reader {
    file: Arc<SourceFile>,
    problems: Vec<Problem>,
}

impl Reader {
    fn report(&mut self, place: Place, message: String, hint: Option<&str>) {
        let hint = hint.map(str::to_string);
        self.problems.push(Problem { file: self.file.clone(), place, message, hint });
    }

    fn report_value(&mut self, path: &[Step<'_>], message: String, hint: &str) {
        self.report(place::of_value(&self.file.text, path), message, Some(hint));
    }

    fn document(&mut self, document: &Value) -> Vec<Declaration> {
        const SHAPE: &str = "a view file is 'views:' with a list of views, each with a name and a query";
        let Value::Mapping(root) = document else {
            self.report_value(&[], "the file holds no views".into(), SHAPE);
            return Vec::new();
        };
        self.unknown_keys(root, &[], &["views"], "file");
        match root.get("views") {
            None => self.report_value(&[], "the key views is missing".into(), SHAPE),
            Some(Value::Sequence(views)) => {
                return views.iter().enumerate().filter_map(|(index, view)| self.view(index, view)).collect();
            }
            Some(Value::Null) => {}
            Some(_) => self.report_value(&[VIEWS], "views must be a list".into(), SHAPE),
        }
        Vec::new()
    }

    fn view(&mut self, index: usize, view: &Value) -> Option<Declaration> {
        let path = [VIEWS, Step::Index(index)];
        let Value::Mapping(entries) = view else {
            let hint = "write '- name: ..' and below it 'query: |' with a SELECT";
            self.report_value(&path, "a view must have the keys name and query".into(), hint);
            return None;
        };
        let before = self.problems.len();
        self.unknown_keys(entries, &path, &KEYS, "view");
        let name = self.text(entries, &path, "name", "such as revenue_by_brand");
        if let Some(name) = &name {
            self.check_name(name, &[path[0], path[1], Step::Key("name")]);
        }
        let query = self.text(entries, &path, QUERY, "SELECT dimensions, aggregates FROM table GROUP BY dimensions");
        let consistency = self.consistency(entries.get("consistency"), &[path[0], path[1], Step::Key("consistency")]);
        let order_by = self.order_by(entries.get(ORDER_BY), &[path[0], path[1], Step::Key(ORDER_BY)]);
        if self.problems.len() > before {
            return None;
        }
        let file = self.file.clone();
        Some(Declaration { name: name?, query: query?, consistency, order_by, file, index })
    }

    fn unknown_keys(&mut self, entries: &serde_yaml::Mapping, path: &[Step<'_>], known: &[&str], of: &str) {
        for key in entries.keys() {
            let Value::String(key) = key else {
                self.report_value(path, format!("a key of a {of} must be a word"), &known.join(", "));
                continue;
            };
            if known.contains(&key.as_str()) {
                continue;
            }
            let mut path = path.to_vec();
            path.push(Step::Key(key));
            let place = place::of_key(&self.file.text, &path);
            let hint = match nearest(key, known.iter().copied()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known keys of a {of}: {}", known.join(", ")),
            };
            self.report(place, format!("unknown key {key}"), Some(&hint));
        }
    }

    /// A text that must be there and not be blank.
    fn text(&mut self, entries: &serde_yaml::Mapping, path: &[Step<'_>], key: &str, example: &str) -> Option<String> {
        let mut at = path.to_vec();
        at.push(Step::Key(key));
        match entries.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => return Some(text.clone()),
            Some(_) => self.report_value(&at, format!("{key} must be a text"), example),
            None => self.report_value(path, format!("the key {key} is missing"), example),
        }
        None
    }

    fn check_name(&mut self, name: &str, path: &[Step<'_>]) {
        let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(letters) {
            let hint = "use letters, digits and underscores, a letter first";
            self.report_value(path, format!("'{name}' cannot be the name of a view"), hint);
        } else if name.len() > NAME_BYTES_MAX {
            let message = format!("the name has {} letters", name.len());
            self.report_value(path, message, &format!("at most {NAME_BYTES_MAX} are possible"));
        }
    }

    fn consistency(&mut self, value: Option<&Value>, path: &[Step<'_>]) -> Option<Consistency> {
        let parsed = Consistency::from_yaml(value?);
        if parsed.is_none() {
            let hint = "exact (the default), 'bounded: 10s' (units ms, s, m, h), or manual";
            self.report_value(path, "this consistency is not known".into(), hint);
        }
        parsed
    }

    fn order_by(&mut self, value: Option<&Value>, path: &[Step<'_>]) -> Option<Vec<String>> {
        const SHAPE: &str = "a list of output columns, such as [year, P_BRAND]";
        let items = match value? {
            Value::Sequence(items) if !items.is_empty() => items,
            _ => {
                self.report_value(path, "order_by must be a list of names".into(), SHAPE);
                return None;
            }
        };
        let mut names = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match item {
                Value::String(name) => names.push(name.clone()),
                _ => {
                    let mut path = path.to_vec();
                    path.push(Step::Index(index));
                    self.report_value(&path, "this is no name of a column".into(), SHAPE);
                }
            }
        }
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(text: &str) -> Loaded {
        parse(Path::new("v.yaml"), text.into())
    }

    fn faults(text: &str) -> Vec<String> {
        let show = |p: &Problem| format!("{}:{} {}", p.place.line, p.place.column, p.message);
        parsed(text).problems.iter().map(show).collect()
    }

    #[test]
    fn a_view_is_read_as_written() {
        let loaded = parsed(
            "views:\n- name: a\n  query: |\n    SELECT d, sum(x)\n    FROM t GROUP BY d\n  consistency: 'bounded: 10s'\n  \
             order_by: [d]\n- {name: b, query: SELECT 1, consistency: manual}\n",
        );
        assert_eq!(loaded.problems, []);
        let [a, b] = &loaded.declarations[..] else { panic!("two views") };
        assert_eq!((a.name.as_str(), a.query.as_str()), ("a", "SELECT d, sum(x)\nFROM t GROUP BY d\n"));
        assert_eq!(a.consistency, Some(Consistency::Bounded(Duration::from_secs(10))));
        assert_eq!(a.order_by, Some(vec!["d".to_string()]));
        assert_eq!((b.consistency, &b.order_by), (Some(Consistency::Manual), &None));
        let problem = a.query_problem(17, "oh".into(), None);
        assert_eq!(problem.place, Place { line: 5, column: 5 });
        assert_eq!(problem.to_string(), "view a: oh\n --> v.yaml:5:5\n  |\n5 |     FROM t GROUP BY d\n  |     ^");
    }

    #[test]
    fn every_fault_is_reported_once() {
        let text = "views:\n  - name: 1a\n    query: SELECT 1\n    order-by: [x]\n  - name: b\n  - nothing\n  - name: c\n    \
                    query: SELECT 1\n    consistency: sometimes\n  - name: c\n    query: SELECT 1\n  - name: c\n    query: \
                    SELECT 1\nview: 1\n";
        assert_eq!(
            faults(text),
            [
                "14:1 unknown key view",
                "4:5 unknown key order-by",
                "2:11 '1a' cannot be the name of a view",
                "5:5 the key query is missing",
                "6:5 a view must have the keys name and query",
                "9:18 this consistency is not known",
                "12:11 view c is declared twice",
            ]
        );
    }

    #[test]
    fn broken_yaml_is_one_fault_with_its_place() {
        assert_eq!(faults("views:\n  - name: [a\n").len(), 1);
        assert_eq!(faults("views:\n  - name: a\n    name: b\n    query: SELECT 1\n").len(), 1);
        assert_eq!(faults(""), ["1:1 the file holds no views"]);
        assert_eq!(faults("views:\n"), Vec::<String>::new());
    }
}
