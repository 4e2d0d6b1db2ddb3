//! The embedded server: it answers, keeps its data, refuses a second owner, and leaves no process behind.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tributary::embedded::{Engine, Options, Server, StartError};

use crate::support::{Database, alive, ask, folder, server, signal, sql};

fn small(name: &str) -> Options {
    Options { memory_bytes_max: Some(1 << 30), threads_max: Some(1), ..Options::new(folder(name)) }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "still not so after 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_shared_server_answers_as_an_ordinary_clickhouse() {
    let database = Database::new("ordinary");
    assert_eq!(database.sql("SELECT 1 AS a, 'x' AS b"), "1\tx\n", "TabSeparated is the default format");
    assert_eq!(database.sql("SELECT currentDatabase()"), format!("{}\n", database.name));
    assert!(database.error("SELEC 1").contains("SYNTAX_ERROR"), "implicit_select is off");
    assert!(TcpStream::connect(("127.0.0.1", server().tcp_port())).is_ok(), "the native protocol listens");
}

#[test]
fn users_come_from_the_given_document() {
    let url = format!("{}?user=reader&password=reader", server().http_url());
    assert_eq!(ask(&url, "SELECT currentUser()").unwrap(), "reader\n");
    assert!(ask(&url, "CREATE DATABASE forbidden").unwrap_err().contains("READONLY"));
    let wrong = format!("{}?user=reader&password=wrong", server().http_url());
    assert!(ask(&wrong, "SELECT 1").unwrap_err().contains("AUTHENTICATION_FAILED"));
}

#[test]
fn settings_of_the_server_and_of_the_profile_are_taken() {
    let options = Options {
        server_config: Some("<clickhouse><macros><place>here</place></macros></clickhouse>".into()),
        ..small("settings")
    };
    let server = Server::start(&options).unwrap();
    let answer = ask(
        &server.http_url(),
        "SELECT getMacro('place'), getSetting('max_threads'),
            (SELECT value FROM system.server_settings WHERE name = 'max_server_memory_usage')",
    );
    assert_eq!(answer.unwrap(), "here\t1\t1073741824\n");
}

#[test]
fn data_outlives_a_stop_and_the_folder_has_one_owner() {
    let options = small("owner");
    let first = Server::start(&options).unwrap();
    let pid = first.pid().unwrap();
    ask(&first.http_url(), "CREATE TABLE kept (a UInt8) ENGINE = MergeTree ORDER BY a").unwrap();
    ask(&first.http_url(), "INSERT INTO kept VALUES (1), (2)").unwrap();

    let refused = Server::start(&options).unwrap_err();
    assert!(matches!(refused, StartError::Locked { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("process {pid}")), "{refused}");
    assert_eq!(ask(&first.http_url(), "SELECT count() FROM kept").unwrap(), "2\n", "the first one is not disturbed");

    first.stop();
    assert!(!alive(pid), "a stopped server is gone when stop returns");
    let second = Server::start(&options).unwrap();
    assert_eq!(ask(&second.http_url(), "SELECT count() FROM kept").unwrap(), "2\n");
}

/// A program that takes the arguments of the `clickhouse` program and runs the same engine: what a binary on PATH goes
/// through, on a machine without one.
fn binary() -> Engine {
    let Engine::Wheel { python } = Engine::obtain(|_| {}).unwrap() else {
        return Engine::obtain(|_| {}).unwrap();
    };
    let program = folder("program").join("clickhouse");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    let serve = "import os; from chdb import _chdb; _chdb.query('SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP; \
        SELECT sleepEachRow(1) FROM numbers(1000000) SETTINGS max_block_size = 1 FORMAT Null', 'TabSeparated', path='data')";
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'server --config-file' ] && [ -f \"$3\" ] && mkdir -p data && exec {} -I -c \"{serve}\"\n",
        python.display()
    );
    // By another process: a file that this one had open for writing may not be run while others start.
    let write = "printf %s \"$1\" >\"$0\" && chmod +x \"$0\"";
    assert!(Command::new("sh").args(["-c", write]).arg(&program).arg(script).status().unwrap().success());
    Engine::Binary { program, version: "26.9".into() }
}

#[test]
fn a_clickhouse_program_runs_as_the_wheel_does() {
    let server = Server::start_engine(&binary(), &small("program_data")).unwrap();
    let pid = server.pid().unwrap();
    assert_eq!(ask(&server.http_url(), "SELECT 1").unwrap(), "1\n");
    server.stop();
    assert!(!alive(pid));
}

#[test]
fn a_server_that_cannot_start_tells_the_end_of_its_log() {
    let options = Options { users_config: Some("<clickhouse><users>".into()), ..small("broken") };
    let error = Server::start(&options).unwrap_err();
    assert!(matches!(error, StartError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("given.xml"), "the text names the bad file: {error}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Server::start(&Options { http_port: Some(port), ..small("taken") }).unwrap_err();
    assert!(error.to_string().contains("Address already in use"), "{error}");
}

#[test]
fn a_server_that_is_too_slow_is_not_waited_for_and_not_left_behind() {
    let options = Options { ready_timeout: Duration::ZERO, ..small("slow") };
    let error = Server::start(&options).unwrap_err();
    assert!(matches!(error, StartError::NotReady { .. }), "{error}");
    let pid: u32 = std::fs::read_to_string(options.data_dir.join("server.pid")).unwrap().trim().parse().unwrap();
    assert!(!alive(pid));
}

/// What `no_server_outlives_its_parent` runs as a process of its own: a parent that starts a server and hangs.
#[test]
fn parent_in_a_process_of_its_own() {
    if std::env::var_os("TRIBUTARY_TEST_PARENT").is_none() {
        return;
    }
    // On a thread that ends, so that nothing depends on the thread that started the server.
    let server = std::thread::spawn(|| Server::start(&small("orphan")).unwrap()).join().unwrap();
    println!("\nserver {} {}", server.pid().unwrap(), server.http_url());
    std::thread::sleep(Duration::from_secs(300));
}

#[test]
fn no_server_outlives_its_parent() {
    for name in ["KILL", "TERM", "INT"] {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["embedded::parent_in_a_process_of_its_own", "--exact", "--nocapture"])
            .env("TRIBUTARY_TEST_PARENT", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(parent.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with("server ")).unwrap();
        let mut words = line.split(' ').skip(1);
        let pid: u32 = words.next().unwrap().parse().unwrap();
        assert_eq!(ask(words.next().unwrap(), "SELECT 1").unwrap(), "1\n");
        assert!(alive(pid));
        signal(name, parent.id());
        parent.wait().unwrap();
        wait_until(&format!("server gone after SIG{name} of its parent"), || !alive(pid));
    }
}

#[tokio::test]
async fn our_own_connection_reads_rows_and_inserts() {
    let database = Database::new("upstream");
    let upstream = database.upstream();
    upstream.execute("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a").await.unwrap();
    upstream.insert("INSERT INTO t FORMAT CSV", ["1\n".into(), "2\n".into()]).await.unwrap();
    let rows: Vec<serde_json::Value> = upstream.rows("SELECT sum(a) AS s FROM t").await.unwrap();
    assert_eq!(rows, [serde_json::json!({"s": 3})]);
}

#[test]
fn databases_of_tests_are_apart() {
    let (one, two) = (Database::new("apart"), Database::new("apart"));
    one.sql("CREATE TABLE t (a UInt8) ENGINE = Memory");
    assert!(two.error("SELECT * FROM t").contains("UNKNOWN_TABLE"));
    let name = one.name.clone();
    drop(one);
    assert_eq!(sql(&format!("EXISTS DATABASE {name}")), "0\n");
}
