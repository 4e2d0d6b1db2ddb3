//! Public clients, unchanged, with the proxy between: they must see what they see without it.
//!
//! The clients come from their package registries, once per build folder. Where a developer has no Python or no npm,
//! the test says so and passes; in CI (`CI` is set) that is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::http_serve::Served;
use crate::{http_relay, support};

const CLICKHOUSE_CONNECT: &str = "clickhouse-connect[async]==1.12.0";
const CLICKHOUSE_CLIENT: &str = "@clickhouse/client@1.23.1";

/// Where the clients are installed; kept from one run to the next.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a program; what it printed, or why it failed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{command:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs steps until one fails. The last one leaves a mark, so that the next run skips them all.
fn install(folder: &Path, package: &str, steps: &mut [Command]) -> Result<(), String> {
    let mark = folder.join("installed");
    if std::fs::read_to_string(&mark).is_ok_and(|installed| installed == package) {
        return Ok(());
    }
    steps.iter_mut().try_for_each(|step| run(step).map(|_| ()))?;
    std::fs::write(&mark, package).map_err(|e| e.to_string())
}

/// A proxy with a view on the table `sales` of this database, which it makes.
fn accelerated(database: &support::Database) -> Served {
    database.sql(
        "CREATE TABLE sales (day Date, region LowCardinality(String), amount UInt64) ENGINE = MergeTree ORDER BY day",
    );
    let regions = "['north', 'east', 'south', 'west'][1 + number % 4]";
    database.sql(&format!(
        "INSERT INTO sales SELECT '2023-01-01'::Date + number % 700, {regions}, number FROM numbers(50000)"
    ));
    let views = support::folder(&format!("{}.yaml", database.name));
    let text = format!(
        "views:\n  - name: sales_by_day\n    query: SELECT day, region, sum(amount), count() FROM {}.sales GROUP BY day, region\n",
        database.name
    );
    std::fs::write(&views, text).unwrap();
    let options = ["--upstream", &support::server().http_url(), "--views", views.to_str().unwrap()];
    run(Command::new(env!("CARGO_BIN_EXE_tributary")).arg("rebuild").args(options))
        .unwrap_or_else(|error| panic!("{error}"));
    Served::start(&options)
}

/// Compares what a client's script prints without the proxy and with it.
fn compare(client: &str, installed: Result<(), String>, mut script: impl FnMut(u16, &str) -> Command) {
    if let Err(error) = installed {
        assert!(std::env::var_os("CI").is_none(), "{client} cannot be installed: {error}");
        return eprintln!("not tested: {client} cannot be installed: {error}");
    }
    // One database for both: its name is in error texts.
    let database = support::Database::new(&format!("client_{client}"));
    let served = accelerated(&database);
    let seen = [support::server().http_port(), served.port]
        .map(|port| run(&mut script(port, &database.name)).unwrap_or_else(|error| panic!("{error}")));
    let [direct, proxy] = &seen;
    assert!(!direct.is_empty());
    for (direct, proxy) in direct.lines().zip(proxy.lines()) {
        assert_eq!(direct, proxy, "{client}");
    }
    assert_eq!(direct.lines().count(), proxy.lines().count(), "{client}");
}

#[test]
fn clickhouse_connect_sees_no_difference() {
    let folder = place("clickhouse-connect");
    let python = folder.join("bin/python");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&folder);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLICKHOUSE_CONNECT]);
    let installed = install(&folder, CLICKHOUSE_CONNECT, &mut [venv, pip]);
    compare("clickhouse_connect", installed, |port, database| {
        let mut script = Command::new(&python);
        script.args(["tests/clients/python.py", &port.to_string(), database]);
        script
    });
}

#[test]
fn clickhouse_client_for_node_sees_no_difference() {
    let folder = place("clickhouse-client");
    std::fs::create_dir_all(&folder).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", CLICKHOUSE_CLIENT, "--prefix"])
        .arg(&folder);
    let installed = install(&folder, CLICKHOUSE_CLIENT, &mut [npm]);
    compare("clickhouse_client", installed, |port, database| {
        let mut script = Command::new("node");
        script.arg("tests/clients/node.mjs").arg(&folder).args([&port.to_string(), database]);
        script
    });
}

#[derive(Debug, PartialEq, clickhouse::Row, serde::Serialize, serde::Deserialize)]
struct Item {
    id: u32,
    name: String,
    tags: Vec<Option<String>>,
}

/// What a program sees that uses the `clickhouse` crate.
async fn rust_client(port: u16, database: &str) -> Vec<String> {
    let client = clickhouse::Client::default().with_url(format!("http://127.0.0.1:{port}")).with_database(database);
    let mut seen = Vec::new();
    let table = "CREATE OR REPLACE TABLE items (id UInt32, name String, tags Array(Nullable(String))) ENGINE = MergeTree ORDER BY id";
    client.query(table).execute().await.unwrap();
    let mut insert = client.insert::<Item>("items").await.unwrap();
    for id in 0..20_000 {
        insert.write(&Item { id, name: format!("näme {id}"), tags: vec![None, Some("a".into())] }).await.unwrap();
    }
    insert.end().await.unwrap();
    let mut cursor =
        client.query("SELECT ?fields FROM items WHERE id % ? = 1 ORDER BY id").bind(4000).fetch::<Item>().unwrap();
    while let Some(item) = cursor.next().await.unwrap() {
        seen.push(format!("{item:?}"));
    }
    let count =
        client.query("SELECT count() FROM items WHERE name = {n:String}").param("n", "näme 7").fetch_one::<u64>().await;
    seen.push(format!("{count:?}"));
    let limited = client.query("SELECT number FROM numbers(10)").with_setting("limit", "2").fetch_all::<u64>().await;
    seen.push(format!("{limited:?}"));
    for broken in [
        "SELECT no_such_column FROM items",
        "SELEC 1",
        "SELECT toUInt64(throwIf(number = 200000)) FROM numbers(300000)",
    ] {
        seen.push(format!("{:?}", client.query(broken).fetch_all::<u64>().await.map(|rows| rows.len())));
    }
    let wrong = client.clone().with_user("reader").with_password("wrong");
    seen.push(format!("{:?}", wrong.query("SELECT 1").fetch_one::<u8>().await));
    seen
}

#[test]
fn the_clickhouse_crate_sees_no_difference() {
    let database = support::Database::new("client_clickhouse");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let [direct, proxy] = [support::server().http_port(), http_relay::plain()]
        .map(|port| runtime.block_on(rust_client(port, &database.name)));
    assert_eq!(direct, proxy);
    assert_eq!(direct.len(), 11, "{direct:?}");
}
