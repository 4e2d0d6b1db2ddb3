//! View files that are wrong: each file under `config/bad` names in its head what must be said about it, and where.

use tributary::views::{catalog, declaration};

use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_view_file_is_reported_with_its_place() {
    let database = Database::new("bad");
    for table in ["t", "t2"] {
        database.sql(&format!("CREATE TABLE {table} (d Date, k String, v UInt32) ENGINE = MergeTree ORDER BY d"));
    }
    database.sql("CREATE TABLE l (d Date) ENGINE = Log");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/bad");
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let head: Vec<String> = text
            .lines()
            .map_while(|line| line.strip_prefix("# expect "))
            .map(|line| line.replace("{database}", &database.name))
            .collect();
        assert!(!head.is_empty(), "{} expects nothing", path.display());
        let mut problems = catalog::resolve(&database.upstream(), declaration::load(&path)).await.unwrap().problems;
        problems.sort_by_key(|problem| problem.place);
        let found: Vec<String> = problems
            .iter()
            .map(|problem| {
                let hint = problem.hint.as_deref().unwrap_or("no hint");
                format!("{}:{} {} | {hint}", problem.place.line, problem.place.column, problem.message)
            })
            .collect();
        let as_expected = |(found, expected): (&String, &String)| {
            let (message, hint) = expected.split_once(" | ").unwrap_or((expected, ""));
            found.starts_with(message) && found.split_once(" | ").is_some_and(|(_, said)| said.contains(hint))
        };
        if found.len() != head.len() || !found.iter().zip(&head).all(as_expected) {
            wrong.push(format!("{}:\n  {}", path.display(), found.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
