//! The architecture's invariants, read off the sources: the order of modules, a core without side effects, small files.

use std::path::{Path, PathBuf};

/// The modules in dependency order (ARCHITECTURE.md); the first five are the core.
const ORDER: [&str; 14] = [
    "wire", "state", "merge", "sql", "matching", "config", "upstream", "views", "maintain", "proxy", "embedded", "ssb",
    "torture", "cli",
];
const CORE: usize = 5;

const LINES_MAX: usize = 600;

fn sources() -> Vec<(PathBuf, String)> {
    // Tests may use what they like.
    let is_code = |path: &Path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if is_code(&path) {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found
}

/// The module below src/ that a file belongs to.
fn module(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    below.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

#[test]
fn a_module_uses_only_those_above_it() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let own = module(&path);
        if own == "lib" || own == "main" {
            continue;
        }
        let Some(own) = ORDER.iter().position(|m| *m == own) else {
            faults.push(format!("{} is of no known module", path.display()));
            continue;
        };
        for name in &ORDER[own + 1..] {
            if text.contains(&format!("crate::{name}::")) || text.contains(&format!("crate::{name};")) {
                faults.push(format!("{} uses {name}, which is below it", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_core_does_no_io_reads_no_clock_and_logs_nothing() {
    let banned = [
        "std::fs",
        "std::net",
        "std::process",
        "std::env",
        "Instant",
        "SystemTime",
        "tokio::",
        "tracing::",
        "async fn",
        "println!",
    ];
    let mut faults = Vec::new();
    for (path, text) in sources().iter().filter(|(path, _)| ORDER[..CORE].contains(&&*module(path))) {
        // The tests of a module may read files.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let is_test = path.to_string_lossy().contains("tests.rs");
        for word in banned.iter().filter(|word| !is_test && code.contains(**word)) {
            faults.push(format!("{} has {word}", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn files_are_small_enough_to_be_read() {
    let long: Vec<String> = sources()
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{} has {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn nothing_is_left_unfinished() {
    let mut left = Vec::new();
    for (path, text) in sources() {
        for word in ["todo!(", "unimplemented!(", concat!("#[", "ignore"), concat!("FIX", "ME"), concat!("X", "XX")] {
            if text.contains(word) {
                left.push(format!("{} has {word}", path.display()));
            }
        }
    }
    assert!(left.is_empty(), "{}", left.join("\n"));
}
