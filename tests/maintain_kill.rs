//! Processes that end in the middle of maintenance, at every point between which the world differs.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tributary::maintain::failpoint::POINTS;
use tributary::maintain::look::{Coverage, Looker};
use tributary::maintain::manifest::{Commit, Store};
use tributary::maintain::verify::{Verdict, verify};
use tributary::views::catalog::CatalogView;

use crate::maintain_live::{BY_KEY, views_of};
use crate::support::{Database, folder, server, sql, times};

/// Maintenance yields to all other work on the machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Times that each point kills, in every other round not at the first time that it is come to. `TRIBUTARY_KILL_ROUNDS` asks
/// for more.
const ROUNDS: usize = 2;

/// Tables side by side, because most of a round is waiting for the lease of the killed to end.
const SCENES: usize = 4;

/// Rounds before a table is left for a new one: without part merges it gets a part for each insert, and ClickHouse slows
/// inserts down when there are a thousand.
const SCENE_ROUNDS: usize = 8;

/// A process that ends with its owner.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A table, a view over it, and a sidecar that can be told where to die.
struct Scene {
    database: Database,
    view: CatalogView,
    config: std::path::PathBuf,
    rows: u32,
}

impl Scene {
    async fn new(number: usize) -> Self {
        let database = Database::new(&format!("kills_{number}"));
        database
            .sql("CREATE TABLE t (d Date, k String, v UInt32) ENGINE = MergeTree PARTITION BY toYear(d) ORDER BY k");
        database.sql(
            "INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number % 40), number FROM numbers(1000)",
        );
        // Without part merges runs are never buried, so that they soon become many.
        database.sql("SYSTEM STOP MERGES t");
        let name = format!("kills_{number}.views.yaml");
        let (views, config) = (folder(&name), folder(&format!("kills_{number}.yaml")));
        std::fs::write(&views, format!("views:{BY_KEY}")).unwrap();
        std::fs::write(&config, format!("views: {name}\nmaintenance: {{interval: 100ms, share: 1}}\n")).unwrap();
        let view = views_of(&database.upstream(), BY_KEY).await.remove(0);
        Self { database, view, config, rows: 0 }
    }

    fn sidecar(&self, failpoint: &str) -> Sidecar {
        let url = format!("{}?database={}", server().http_url(), self.database.name);
        let process = Command::new(env!("CARGO_BIN_EXE_tributary"))
            .args(["serve", "--listen-http", "127.0.0.1:0", "--upstream", &url, "--config"])
            .arg(&self.config)
            .env("TRIBUTARY_FAILPOINT", failpoint)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Sidecar(process.unwrap())
    }

    fn change(&mut self) {
        self.rows += 1;
        let year = 2020 + self.rows % 5;
        self.database
            .sql(&format!("INSERT INTO t SELECT '{year}-01-01', toString(number), {} FROM numbers(30)", self.rows));
    }

    /// Changes the table until the sidecar is killed by its failpoint.
    async fn until_killed(&mut self, sidecar: &mut Sidecar, point: &str) {
        use std::os::unix::process::ExitStatusExt;
        let began = Instant::now();
        loop {
            if let Some(status) = sidecar.0.try_wait().unwrap() {
                assert_eq!(status.signal(), Some(9), "{point}");
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{point} was not come to");
            self.change();
            if point.starts_with("collection") {
                self.let_runs_be_due().await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Retired runs are kept for a minute; this one is over for those that there are.
    async fn let_runs_be_due(&self) {
        let store = Store::new(self.database.upstream());
        let Some(manifest) = store.latest(&self.view.storage.name.table).await.unwrap() else { return };
        let mut body = manifest.body.clone();
        let due = manifest.committed_at_ms.saturating_sub(100_000);
        if body.retired.iter().all(|retired| retired.since_ms < due + 30_000) {
            return;
        }
        body.retired.iter_mut().for_each(|retired| retired.since_ms = due);
        let committed = store.commit(&manifest.storage, "by_key", Some(&manifest), &body).await;
        assert!(matches!(committed.unwrap(), Commit::Won(_) | Commit::Lost));
    }

    /// Waits until the view covers its source, and compares the two.
    async fn catch_up(&self, point: &str) {
        let upstream = self.database.upstream();
        let looker = Looker::connect(upstream.clone(), vec![self.view.target()]).await.unwrap();
        let began = Instant::now();
        loop {
            let storage = self.view.storage_name();
            let coverage = looker.look(&[storage]).await.unwrap().coverage(storage);
            if let Coverage::Covered(_) = coverage {
                match verify(&upstream, &self.view).await.unwrap() {
                    Verdict::Equal { .. } => return,
                    differs => panic!("after a kill at {point}: {differs:?}"),
                }
            }
            assert!(began.elapsed() < PATIENCE, "after a kill at {point}: {coverage:?}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Runs in the storage table that the manifest does not name.
    fn orphans(&self) -> Vec<String> {
        let storage = &self.view.storage.name.table;
        let present = sql(&format!(
            "SELECT DISTINCT partition_id FROM system.parts WHERE active AND rows > 0 AND database = 'tributary' \
             AND table = '{storage}'"
        ));
        let body = sql(&format!(
            "SELECT body FROM tributary.manifest WHERE storage = '{storage}' ORDER BY version DESC LIMIT 1"
        ));
        present.lines().filter(|run| !body.contains(*run)).map(str::to_string).collect()
    }

    /// Kills a sidecar at every point, each time a second one must mend what is left.
    async fn round(&mut self, round: usize) {
        for point in POINTS {
            // Left-over runs are there to be abandoned only after a kill that left some.
            if point == "orphans.abandoned" {
                let mut sidecar = self.sidecar("run.sent:1");
                self.until_killed(&mut sidecar, "run.sent").await;
            }
            let at = if point == "orphans.abandoned" { 1 } else { 1 + round % 2 };
            let mut sidecar = self.sidecar(&format!("{point}:{at}"));
            self.until_killed(&mut sidecar, point).await;
            let sidecar = self.sidecar("");
            self.catch_up(point).await;
            let began = Instant::now();
            while !self.orphans().is_empty() {
                assert!(began.elapsed() < PATIENCE, "after a kill at {point}: {:?}", self.orphans());
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            drop(sidecar);
        }
        println!("round {round}: killed at {} points", POINTS.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kill_at_any_point_leaves_nothing_that_the_next_start_does_not_mend() {
    let rounds = times("TRIBUTARY_KILL_ROUNDS", ROUNDS);
    let scenes = (0..SCENES.min(rounds)).map(|number| {
        tokio::spawn(async move {
            let rounds: Vec<usize> = (number..rounds).step_by(SCENES).collect();
            for rounds in rounds.chunks(SCENE_ROUNDS) {
                let mut scene = Scene::new(number).await;
                for round in rounds {
                    scene.round(*round).await;
                }
            }
        })
    });
    for scene in scenes.collect::<Vec<_>>() {
        scene.await.unwrap();
    }
}
