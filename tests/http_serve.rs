//! `tributary serve` as a program: what it prints, how it ends, how it complains.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support;

/// The program, running; ended when dropped.
pub struct Served {
    process: Child,
    pub port: u16,
}

impl Served {
    pub fn start(args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["serve", "--listen-http", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port =
            line.strip_prefix("listening on http://127.0.0.1:").and_then(|rest| rest.split('/').next()?.parse().ok());
        Self { process, port: port.unwrap_or_else(|| panic!("{line:?}")) }
    }
}

impl Served {
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn serve(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tributary")).arg("serve").args(args).output().unwrap()
}

fn complaint(args: &[&str]) -> (Option<i32>, String) {
    let output = serve(args);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_running_query_ends_before_the_program_does() {
    let mut served = Served::start(&["--upstream", &support::server().http_url()]);
    let mut idle = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    let mut busy = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    busy.write_all(b"GET /?query=SELECT+sleep(1),'done' HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    support::signal("TERM", served.process.id());
    // Idle connections end at once, and no new ones are taken.
    assert_eq!(idle.read(&mut [0; 10]).unwrap(), 0);
    std::thread::sleep(Duration::from_millis(100));
    assert!(TcpStream::connect(("127.0.0.1", served.port)).is_err());
    let mut answer = String::new();
    busy.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("7\r\n0\tdone\n\r\n0\r\n\r\n"), "{answer}");
    assert!(served.process.wait().unwrap().success());
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    let mut served = Served::start(&["--upstream", &support::server().http_url()]);
    let mut busy = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    busy.write_all(b"GET /?query=SELECT+sleep(3) HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    support::signal("INT", served.process.id());
    std::thread::sleep(Duration::from_millis(300));
    assert!(served.process.try_wait().unwrap().is_none());
    support::signal("INT", served.process.id());
    let start = Instant::now();
    served.process.wait().unwrap();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn a_configuration_file_is_followed_and_options_go_first() {
    let folder = support::folder("serve-config");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("tributary.yaml");
    let text =
        format!("upstream:\n  url: {}\nlisten:\n  http: 127.0.0.1:1\nlog: error\n", support::server().http_url());
    std::fs::write(&file, text).unwrap();
    let served = Served::start(&["--config", file.to_str().unwrap()]);
    let url = format!("http://127.0.0.1:{}/", served.port);
    assert_eq!(support::ask(&url, "SELECT 1"), Ok("1\n".into()));

    std::fs::write(&file, "upstream:\n  url: http://127.0.0.1:1/\n  port: 3\n").unwrap();
    let (code, text) = complaint(&["--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(text.contains("tributary.yaml:3:3: ") && text.contains("unknown field `port`"), "{text}");
    std::fs::write(&file, "upstream:\n  url: https://127.0.0.1:1/\n").unwrap();
    let (code, text) = complaint(&["--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(text.contains("upstream.url: 'https://127.0.0.1:1/'"), "{text}");
}

#[test]
fn wrong_options_are_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (args, code, words) in [
        (&["--listen-http", taken.as_str()][..], 1, ["cannot listen on 127.0.0.1", "in use"]),
        (&["--listen-http", "nonsense"], 1, ["cannot listen on nonsense", "address"]),
        (&["--upstream", "nonsense"], 2, ["--upstream: 'nonsense'", "http://user:password@host:8123/"]),
        (&["--config", "/no/such.yaml"], 2, ["cannot read /no/such.yaml", "No such file"]),
        (&["--log", "=,="], 2, ["--log '=,='", "invalid"]),
        (&["--no-such-option"], 2, ["--no-such-option", "--help"]),
    ] {
        let (seen, text) = complaint(args);
        assert_eq!(seen, Some(code), "{args:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{args:?}: {text}");
    }
}
