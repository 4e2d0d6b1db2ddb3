//! The torture test, and that it notices answers that are not exact.

use std::path::PathBuf;
use std::time::Duration;

use tributary::config::UpstreamConfig;
use tributary::embedded::{Options, Server};
use tributary::torture::{Plan, Report, SERVER_CONFIG, run};

use crate::support::folder;

/// On a server of its own: others would be slowed down, and their load would leave fewer answers to check.
async fn torture(name: &str, seed: u64, seconds: u64, consistency: &'static str) -> Report {
    let folder = folder(name);
    let options = Options { server_config: Some(SERVER_CONFIG.into()), ..Options::new(folder.join("clickhouse")) };
    let server = Server::start(&options).unwrap_or_else(|error| panic!("{error}"));
    let plan = Plan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_tributary")),
        upstream: UpstreamConfig::parse(&server.http_url()).unwrap(),
        folder,
        duration: Duration::from_secs(seconds),
        seed,
        consistency,
    };
    let report = run(&plan, |_, _| {}).await.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{report}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_right_while_everything_changes() {
    let report = torture("torture", 1, 60, "exact").await;
    assert_eq!((report.wrong, report.failed, report.undecided), (0, 0, 0));
    assert!(report.kills >= 2, "{} kills", report.kills);
    assert!(report.answers >= 200, "{} answers", report.answers);
    assert!(report.accelerated * 10 >= report.answers, "{} of {} accelerated", report.accelerated, report.answers);
    assert!(report.hybrid > 0 && report.accelerated > report.hybrid, "{} hybrid", report.hybrid);
    assert!(report.accelerated_amid_changes >= 10, "{} amid changes", report.accelerated_amid_changes);
    assert_eq!(report.shapes.len(), 10);
    assert_eq!(report.lagging, Vec::<String>::new(), "views lag behind when nothing changes any more");
    assert!(report.states_median <= 8, "an answer may be any of {} states", report.states_median);
}

/// With views that are as fresh as their last rebuild, on the operator's word.
#[tokio::test(flavor = "multi_thread")]
async fn the_torture_notices_answers_that_are_not_exact() {
    let report = torture("torture-manual", 2, 8, "manual").await;
    assert!(report.wrong > 0);
    let wrong = report.faults.iter().find(|fault| fault.kind == "wrong").unwrap();
    assert!(wrong.decision.starts_with("view="), "{wrong}");
    assert!(!wrong.allowed.contains(&wrong.answer) && !wrong.history.is_empty(), "{wrong}");
    assert!(report.failure().unwrap().contains("wrong answers"));
}
