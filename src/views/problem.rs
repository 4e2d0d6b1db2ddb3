//! What is wrong with a file, shown with the place and a way out.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

/// A YAML file as it was read.
#[derive(Debug, PartialEq, Eq)]
pub struct SourceFile {
    pub path: PathBuf,
    pub text: String,
}

/// A place in a file. Both numbers count from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// One fault of a view file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub file: Arc<SourceFile>,
    pub place: Place,
    pub message: String,
    /// What to do, or what was probably meant.
    pub hint: Option<String>,
}

impl Problem {
    /// The line at fault; empty past the end of the file.
    pub fn snippet(&self) -> &str {
        self.file.text.lines().nth(self.place.line.saturating_sub(1)).unwrap_or_default()
    }
}

/// ```text
/// error: column P_BRANDX is in none of the tables
///   --> views/ssb_flat.yaml:12:30
///    |
/// 12 |       SELECT P_BRANDX, sum(LO_REVENUE)
///    |              ^
///    = help: did you mean P_BRAND?
/// ```
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column } = self.place;
        let margin = " ".repeat(line.to_string().len());
        writeln!(f, "{}", self.message)?;
        write!(f, "{margin}--> {}:{line}:{column}", self.file.path.display())?;
        let snippet = self.snippet();
        if !snippet.is_empty() {
            // Tabs are kept, so that the caret stands under its character.
            let indent: String =
                snippet.chars().take(column.saturating_sub(1)).map(|c| if c == '\t' { c } else { ' ' }).collect();
            write!(f, "\n{margin} |\n{line} | {snippet}\n{margin} | {indent}^")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n{margin} = help: {hint}"),
            None => Ok(()),
        }
    }
}
