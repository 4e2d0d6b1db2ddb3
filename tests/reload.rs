//! A configuration file that changes while `serve` runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::http_serve::Served;
use crate::maintain_live::BY_KEY;
use crate::maintain_loop::{ask_proxy, ask_until_covered, tables};
use crate::redefine::status;
use crate::support::{Database, folder, server};
use tributary::embedded::free_port;

const PATIENCE: Duration = Duration::from_secs(60);

const FULL: &str = "view=by_key; mode=full";

const KEYS: &str = "SELECT k, sum(v), count() FROM t GROUP BY k ORDER BY k";

/// Writes a file as editors and config maps do: beside, and then in its place.
fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, file).unwrap();
}

/// The folder of a view file and a configuration, and the address of ClickHouse.
fn files(database: &Database, config: &str) -> (PathBuf, String) {
    let files = folder(&database.name);
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("views.yaml"), format!("views:{BY_KEY}")).unwrap();
    replace(&files.join("tributary.yaml"), &format!("views: views.yaml\n{config}"));
    (files, format!("{}?database={}", server().http_url(), database.name))
}

#[test]
fn maintenance_and_consistency_follow_the_configuration_and_a_broken_one_changes_nothing() {
    let database = Database::new("reconfigured");
    tables(&database);
    let (files, url) = files(&database, "maintenance: {enabled: false}\n");
    let config = files.join("tributary.yaml");
    let admin = format!("127.0.0.1:{}", free_port());
    let options = ["--upstream", &url, "--config", config.to_str().unwrap(), "--listen-admin", &admin];
    let served = Served::start(&options);
    let decision = || ask_proxy(&served, &database, KEYS).0;
    assert_eq!(decision(), "raw; reason=stale: view by_key: never built");

    let insert = || database.sql("INSERT INTO t SELECT '2031-01-01', toString(number), 5 FROM numbers(90)");
    replace(&config, "views: views.yaml\nmaintenance: {interval: 200ms}\n");
    ask_until_covered(&served, &database, KEYS);
    for broken in ["views: views.yaml\nverify: 7\n", "maintenance: {share: 5}\n", "maintenance: [\n"] {
        replace(&config, broken);
        insert();
        ask_until_covered(&served, &database, KEYS);
    }

    // The answer may be older than the source.
    replace(&config, "views: views.yaml\nconsistency: 'bounded: 1h'\nmaintenance: {interval: 200ms}\n");
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "{}", decision());
        if decision() == FULL {
            insert();
            let (decision, answer) = ask_proxy(&served, &database, KEYS);
            if decision == FULL && answer != database.sql(KEYS) {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    replace(&config, "views: views.yaml\nmaintenance: {enabled: false}\n");
    let until = Instant::now() + PATIENCE;
    while !status(&admin).is_null() {
        assert!(Instant::now() < until, "{}", status(&admin));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_logged_follows_the_configuration_unless_an_option_says_it() {
    let database = Database::new("logged");
    tables(&database);
    let (files, url) = files(&database, "");
    let config = files.join("tributary.yaml");
    let start = |name: &str, options: &[&str]| {
        let log = files.join(name);
        let process = Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["serve", "--listen-http", "127.0.0.1:0", "--upstream", &url, "--config", config.to_str().unwrap()])
            .args(options)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        (process, log)
    };
    let wait_for = |log: &Path, text: &str| {
        let until = Instant::now() + PATIENCE;
        loop {
            let logged = std::fs::read_to_string(log).unwrap();
            if logged.contains(text) {
                return logged;
            }
            assert!(Instant::now() < until, "no {text} in {logged}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (mut follows, followed) = start("followed.log", &[]);
    let (mut fixed, said) = start("said.log", &["--log", "info"]);
    for log in [&followed, &said] {
        assert!(!wait_for(log, "1 views in force").contains("DEBUG"));
    }
    replace(&config, "views: views.yaml\nlog: debug\nlisten: {http: '127.0.0.1:1'}\n");
    for log in [&followed, &said] {
        wait_for(log, "listen and views of the configuration take effect at the next start");
    }
    database.sql("INSERT INTO t VALUES ('2031-01-01', 'x', 5)");
    wait_for(&followed, "DEBUG");
    assert!(!std::fs::read_to_string(&said).unwrap().contains("DEBUG"));
    for process in [&mut follows, &mut fixed] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
