//! Whether accelerated answers are right while everything changes: tables are written, mutated, merged, their partitions
//! dropped and replaced, view files rewritten, sidecars killed, and each answer that comes through the proxy is compared
//! with the states that the tables may have been in between the query's arrival and its end.
//!
//! # Why a wrong answer is caught
//!
//! *Each change has one effect at one moment.* Every statement that changes the fact table changes one partition of it, and
//! takes effect as a whole when ClickHouse, under the lock of the table's list of parts, swaps some parts for others:
//!
//! - an INSERT of one small block into one partition makes one part;
//! - a mutation rewrites part by part, so each one concerns a single batch (the rows of one INSERT). These were written
//!   as one part, and part merges keep them in one part; the mutation of all other parts changes no row;
//! - a lightweight UPDATE adds one patch part;
//! - DROP, DETACH, REPLACE and MOVE PARTITION, and ATTACH PARTITION FROM, swap all parts of a partition at once; ATTACH
//!   PARTITION adds part by part, and is used only when there is one part;
//! - part merges and OPTIMIZE change no row, nor does an INSERT that is sent again under the same token.
//!
//! *Effects are known exactly and do not depend on their order.* Nobody changes a batch that another statement is just
//! changing, and statements on whole partitions wait for those on batches of that partition and keep others out. So the rows that
//! a statement takes away and adds are known before it is sent. As formal sums of rows ([`cube`]) they commute: the state
//! of the table after any set of changes is the sum of its first rows and of these changes, and every aggregate is
//! computed from such sums in whole numbers.
//!
//! *When they took effect is known within bounds*: not before the statement was sent, not after its answer came. So, at a
//! moment `t`, exactly the changes that ended before `t` are certainly in effect, those that began after `t` are
//! certainly not, and the others may be in any combination, as they do not wait for each other ([`oracle`]).
//!
//! *A right answer shows the table at one moment.* ClickHouse reads a table by one list of its parts. A view that covers
//! its source holds what one look at the parts showed, after the query arrived. So an answer is right only if it is that of a
//! state of some moment between arrival and end, and all such states are tried. For joins the dimension table is as of a
//! moment of its own, in both cases. A hybrid answer is made of partitions as a look showed them and of others as they were
//! read later; a look after that must have shown the first ones unchanged, so that it is one moment again.
//!
//! *Different states give different answers.* Amounts are random numbers up to a million, so sums of different sets of
//! rows are equal by rare chance only. How many states were allowed per answer is reported; about as many answers in
//! 10^6 that are wrong would be taken for right.
//!
//! The other way round, the oracle cannot call a right answer wrong, as long as the above holds of ClickHouse; raw answers are
//! judged as well, and at the end the tables themselves are compared with the history.

pub mod changes;
pub mod cube;
pub mod history;
pub mod oracle;
pub mod random;
pub mod readers;
pub mod report;
pub mod shape;
pub mod sidecars;
pub mod stage;
pub mod views;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::UpstreamConfig;
use crate::upstream::{Upstream, UpstreamError};
use changes::Outcome;
use random::Random;
use readers::Reader;
pub use report::Report;
use report::Seen;
use shape::{SHAPES, Shape};
use sidecars::Sidecars;
use stage::Stage;
use views::Files;

const WRITERS: u64 = 4;
const READERS: u64 = 4;

/// Of the ClickHouse: wrong answers are shown with what was sent to it in place of the query.
pub const SERVER_CONFIG: &str = "<clickhouse><query_log><database>system</database><table>query_log</table>\
    <flush_interval_milliseconds>2000</flush_interval_milliseconds></query_log></clickhouse>";

/// Once nothing changes any more, all answers must come from views within this time.
const CATCH_UP: Duration = Duration::from_secs(60);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    /// One of the statements that change the tables.
    #[error(transparent)]
    Statement(#[from] UpstreamError),
    #[error("{path}: {error}")]
    Folder { path: String, error: std::io::Error },
    #[error("{program}: {why}")]
    Program { program: String, why: String },
    /// The verdicts mean nothing then.
    #[error("the torture's own history is wrong: {0}")]
    History(String),
    #[error("internal: a task ended early: {0}")]
    Task(String),
}

impl TortureError {
    pub fn folder(path: &Path, error: std::io::Error) -> Self {
        Self::Folder { path: path.display().to_string(), error }
    }

    pub fn program(program: &Path, why: String) -> Self {
        Self::Program { program: program.display().to_string(), why }
    }
}

pub struct Plan {
    /// The `tributary` program.
    pub program: PathBuf,
    /// A ClickHouse of which the database `torture` is made anew.
    pub upstream: UpstreamConfig,
    /// For view files and the sidecars' logs.
    pub folder: PathBuf,
    pub duration: Duration,
    /// Decides what is done and asked; odd numbers are run on a table that keeps block numbers.
    pub seed: u64,
    /// Of every view: `exact`; with `manual` wrong answers are to be expected.
    pub consistency: &'static str,
}

/// Everything that the tasks share.
struct Scene {
    stage: Stage,
    sidecars: Sidecars,
    files: Files,
    seen: Seen,
}

/// Runs the torture; `progress` is told now and then how long it has run, and answers, accelerated and faulty ones.
pub async fn run(plan: &Plan, progress: impl Fn(Duration, (u64, u64, u64))) -> Result<Report, TortureError> {
    let mut random = Random::new(plan.seed);
    let numbered = plan.seed % 2 == 1;
    let stage = Stage::set(&Upstream::new(plan.upstream.clone()), numbered, &mut random).await?;
    let files = Files::write(plan.folder.join("views"), plan.consistency)?;
    let sidecars = Sidecars::new(&plan.program, &plan.upstream, &files.folder, &plan.folder)?;
    let scene = Arc::new(Scene { stage, sidecars, files, seen: Seen::default() });
    let children = scene.sidecars.start_all().await?;

    let (stop, stopping) = watch::channel(false);
    let mut tasks: JoinSet<Outcome> = JoinSet::new();
    for number in 0..WRITERS {
        let (scene, random, stop) = (scene.clone(), random.split(100 + number), stopping.clone());
        tasks.spawn(async move { changes::write(&scene.stage, random, stop).await });
    }
    let (own, chance, until) = (scene.clone(), random.split(1), stopping.clone());
    tasks.spawn(async move { changes::mutate(&own.stage, chance, until).await });
    let (own, chance, until) = (scene.clone(), random.split(2), stopping.clone());
    tasks.spawn(async move { changes::change_partitions(&own.stage, chance, until).await });
    let (own, chance, until) = (scene.clone(), random.split(3), stopping.clone());
    tasks.spawn(async move { changes::change_products(&own.stage, chance, until).await });
    let (own, chance, until) = (scene.clone(), random.split(4), stopping.clone());
    tasks.spawn(async move { changes::optimize(&own.stage, chance, until).await });
    let (own, chance, until) = (scene.clone(), random.split(5), stopping.clone());
    tasks.spawn(async move { own.files.redefine(&own.stage, chance, until).await });
    for number in 0..READERS {
        let (scene, random, stop) = (scene.clone(), random.split(200 + number), stopping.clone());
        tasks.spawn(async move {
            Reader::new(&scene.stage, &scene.sidecars, &scene.seen).read(random, stop).await;
            Ok(())
        });
    }
    let (own, chance, until) = (scene.clone(), random.split(6), stopping.clone());
    let killer = tokio::spawn(async move { own.sidecars.kill(children, &own.stage, chance, until).await });

    let began = Instant::now();
    let mut failed = None;
    while began.elapsed() < plan.duration && failed.is_none() && !killer.is_finished() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        progress(began.elapsed(), scene.seen.so_far());
        while let Some(ended) = tasks.try_join_next() {
            failed = failed.or(settled(ended).err());
        }
    }
    let seconds = began.elapsed().as_secs();
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        failed = failed.or(settled(ended).err());
    }
    let _children = killer.await.map_err(|e| TortureError::Task(e.to_string()))??;
    if let Some(error) = failed {
        return Err(error);
    }
    // Apart from the others: these answers are easy.
    let closing = Seen::default();
    let reader = Reader::new(&scene.stage, &scene.sidecars, &closing);
    reader.check_history(&mut random).await.map_err(TortureError::History)?;
    changes::merge_all(&scene.stage).await?;
    let caught_up = match plan.consistency {
        "exact" => catch_up(&reader, &scene.sidecars, &mut random).await,
        // Others need not catch up.
        _ => Err(Vec::new()),
    };
    let mut report = Report::new(plan.seed, seconds, numbered, &scene.seen, scene.stage.counts());
    report.close(&closing, caught_up);
    Ok(report)
}

fn settled(ended: Result<Outcome, tokio::task::JoinError>) -> Outcome {
    ended.map_err(|e| TortureError::Task(e.to_string()))?
}

/// Asks every sidecar every shape until all answers come from views alone: the seconds that took, or the last decisions
/// about those that did not.
async fn catch_up(reader: &Reader<'_>, sidecars: &Sidecars, random: &mut Random) -> Result<f64, Vec<String>> {
    let began = Instant::now();
    loop {
        let mut others = Vec::new();
        for address in sidecars.addresses() {
            for number in 0..SHAPES {
                let shape = Shape::by_chance(number, random);
                let decision = reader.ask(&shape, &address).await.unwrap_or_default();
                if !decision.ends_with("mode=full") {
                    others.push(format!("{}: {decision}", shape.name()));
                }
            }
        }
        match began.elapsed() {
            elapsed if others.is_empty() => return Ok(elapsed.as_secs_f64()),
            elapsed if elapsed > CATCH_UP => return Err(others),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
