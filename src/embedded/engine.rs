//! Which ClickHouse runs: a `clickhouse` program on PATH, else the engine inside Python's chdb-core.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{StartError, wheel};

/// Oldest release of a `clickhouse` program that is taken: the oldest that the maintenance queries are meant for.
/// (Debian still packages 18.16 under the same name.)
const VERSION_MIN: (u32, u32) = (24, 8);
pub(super) const VERSION_MIN_TEXT: &str = "24.8";

/// Something that can be run as a ClickHouse server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// The `clickhouse` program.
    Binary { program: PathBuf, version: String },
    /// The Python interpreter of the private environment that holds chdb-core.
    Wheel { python: PathBuf },
}

impl Engine {
    /// Finds an engine, or makes the private Python environment (once per machine and user, under a lock).
    pub fn obtain(notice: fn(&str)) -> Result<Self, StartError> {
        let binary = match Self::on_path(&std::env::var_os("PATH").unwrap_or_default()) {
            Ok(engine) => return Ok(engine),
            Err(reason) => reason,
        };
        match wheel::obtain(notice) {
            Ok(python) => Ok(Self::Wheel { python }),
            Err(error) => Err(StartError::NoEngine { binary, wheel: error.to_string() }),
        }
    }

    /// The first `clickhouse` program in the folders of `path`, or why it is not taken.
    fn on_path(path: &OsStr) -> Result<Self, String> {
        let program = std::env::split_paths(path)
            .map(|folder| folder.join("clickhouse"))
            .find(|candidate| candidate.is_file())
            .ok_or("none on PATH")?;
        let output = Command::new(&program)
            .args(["local", "--version"])
            .output()
            .map_err(|e| format!("{} does not run: {e}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        match version(&text) {
            Some(found) if found >= VERSION_MIN => {
                Ok(Self::Binary { program, version: format!("{}.{}", found.0, found.1) })
            }
            Some((year, month)) => {
                Err(format!("{} is release {year}.{month}, older than {VERSION_MIN_TEXT}", program.display()))
            }
            None => Err(format!("{} does not tell its version", program.display())),
        }
    }

    /// The command that runs the server in the foreground, with `data_dir` as its current folder.
    pub(super) fn command(&self, data_dir: &Path) -> Command {
        match self {
            Self::Binary { program, .. } => {
                let mut command = Command::new(program);
                command.args(["server", "--config-file"]).arg(data_dir.join("config.xml"));
                command
            }
            Self::Wheel { python } => {
                let mut command = Command::new(python);
                // -I: neither the user's environment nor the current folder may put other modules before ours.
                command.args(["-I", "-c", wheel::SERVE]);
                command
            }
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binary { program, version } => write!(f, "{} {version}", program.display()),
            Self::Wheel { .. } => write!(f, "chdb-core {}", wheel::VERSION),
        }
    }
}

/// (year, month) out of `ClickHouse local version 26.9.2.1 (official build).`
fn version(text: &str) -> Option<(u32, u32)> {
    let rest = text.split("version ").nth(1)?;
    let mut parts = rest.split('.');
    Some((parts.next()?.trim().parse().ok()?, parts.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_program_prints() {
        assert_eq!(version("ClickHouse local version 26.9.2.1 (official build)."), Some((26, 9)));
        assert_eq!(version("ClickHouse client version 18.16.1."), Some((18, 16)));
        assert_eq!(version("usage: clickhouse local"), None);
    }

    #[test]
    fn a_program_on_path_is_taken_unless_it_is_too_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        assert_eq!(Engine::on_path(path).unwrap_err(), "none on PATH");
        let program = folder.path().join("clickhouse");
        let print = |text: &str| {
            // By another process: a file that this one had open for writing may not be run while others start.
            let write = format!("printf '#!/bin/sh\\necho \"%s\"\\n' '{text}' >\"$0\"; chmod +x \"$0\"");
            assert!(Command::new("sh").arg("-c").arg(write).arg(&program).status().unwrap().success());
            Engine::on_path(path)
        };
        let found = print("ClickHouse local version 25.3.1.1 (official build).").unwrap();
        assert_eq!(found, Engine::Binary { program: program.clone(), version: "25.3".into() });
        assert!(print("ClickHouse client version 18.16.1.").unwrap_err().contains("older than 24.8"));
        assert!(print("hello").unwrap_err().contains("does not tell its version"));
    }
}
