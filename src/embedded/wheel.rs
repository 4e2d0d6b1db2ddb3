//! The engine inside Python's chdb-core, in a private virtual environment.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const VERSION: &str = "26.9.0";

/// Runs the HTTP and native servers for as long as the process lives. The query never ends by itself; TabSeparated
/// becomes the default output format, as on any ClickHouse.
pub const SERVE: &str = r#"
import os
from chdb import _chdb
os.makedirs("data", exist_ok=True)
_chdb.query(
    "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; SELECT sleepEachRow(1) FROM numbers(1000000000) SETTINGS"
    " max_block_size = 1, function_sleep_max_microseconds_per_block = 3000000, max_execution_time = 0 FORMAT Null",
    "TabSeparated", path=os.path.join(os.getcwd(), "data"))
"#;

/// Why there is no environment with chdb-core.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    #[error("no folder for it: set HOME or XDG_CACHE_HOME")]
    NoCache,
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("`{command}` failed: {output}")]
    Failed { command: String, output: String },
}

/// The interpreter of the environment, which is made on the first call on this machine: 180 MB to download, under a
/// lock, and moved into place in one step, so that a killed attempt leaves nothing half made.
pub fn obtain(notice: fn(&str)) -> Result<PathBuf, WheelError> {
    obtain_in(&cache_dir().ok_or(WheelError::NoCache)?, notice)
}

fn obtain_in(cache: &Path, notice: fn(&str)) -> Result<PathBuf, WheelError> {
    let made = cache.join(format!("chdb-core-{VERSION}"));
    let python = made.join("bin").join("python");
    if python.exists() {
        return Ok(python);
    }
    let folder = |source| WheelError::Folder { path: cache.to_path_buf(), source };
    std::fs::create_dir_all(cache).map_err(folder)?;
    let lock = File::create(cache.join(format!("chdb-core-{VERSION}.lock"))).map_err(folder)?;
    lock.lock().map_err(folder)?;
    // Another process may have made it while we waited.
    if python.exists() {
        return Ok(python);
    }
    notice(&format!("installing ClickHouse once (Python package chdb-core {VERSION}, 180 MB) into {}", made.display()));
    let making = cache.join(format!("chdb-core-{VERSION}.new"));
    if making.exists() {
        std::fs::remove_dir_all(&making).map_err(folder)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&making))?;
    let interpreter = making.join("bin").join("python");
    let package = format!("chdb-core=={VERSION}");
    run(Command::new(&interpreter)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"])
        .arg(package))?;
    run(Command::new(&interpreter).args(["-I", "-c", "from chdb import _chdb"]).current_dir(&making))?;
    std::fs::rename(&making, &made).map_err(folder)?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), WheelError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| WheelError::Run { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    // venv tells its errors on standard output, pip on standard error.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n");
    let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    Err(WheelError::Failed { command: format!("{program} {}", arguments.join(" ")), output: last })
}

/// `$XDG_CACHE_HOME/tributary`, else `~/.cache/tributary`.
fn cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|folder| folder.join("tributary"))
}
