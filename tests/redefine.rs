//! Views that are declared anew while they answer: the previous definition does until the new one is built.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tributary::embedded::free_port;
use tributary::maintain::lease::Leases;
use tributary::maintain::manifest::Store;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::keeper::Keeper;
use tributary::proxy::query::{Decision, IncomingQuery};
use tributary::views::catalog::CatalogView;

use crate::http_serve::Served;
use crate::maintain_live::{BY_KEY, build, views_of};
use crate::maintain_loop::{ask_proxy, ask_until_covered, tables};
use crate::support::{Database, exchange, folder, server};

const PATIENCE: Duration = Duration::from_secs(60);

/// Answered by [`BY_KEY`] alone.
const KEYS: &str = "SELECT k, sum(v), count() FROM t GROUP BY k ORDER BY k";

/// Answered by definitions that [`by_rest`] gives for 7, and no others.
const RESTS: &str = "SELECT v % 7 AS rest, sum(v), count() FROM t GROUP BY rest ORDER BY rest";

const OTHER: &str = "
  - name: other
    query: SELECT d, min(v) FROM t GROUP BY d
";

/// The view of [`BY_KEY`] defined anew.
fn by_rest(divisor: u32) -> String {
    format!(
        "
  - name: by_key
    query: SELECT toYear(d) AS year, v % {divisor} AS rest, sum(v) AS s, count() FROM t GROUP BY year, rest
"
    )
}

/// A keeper of one view file without maintenance, so that views are built when the test says so.
struct Kept {
    database: Database,
    file: PathBuf,
    keeper: Arc<Keeper>,
    views: watch::Receiver<Arc<Vec<CatalogView>>>,
}

impl Kept {
    async fn start(database: Database, list: &str) -> Self {
        let files = folder(&database.name);
        std::fs::create_dir_all(&files).unwrap();
        let file = files.join("views.yaml");
        std::fs::write(&file, format!("views:{list}")).unwrap();
        let client = HttpUpstream::new(database.config().url);
        let keeper = Arc::new(Keeper::new(database.upstream(), client, files));
        keeper.clone().start().await;
        let views = keeper.views();
        Self { database, file, keeper, views }
    }

    /// Writes the view file, as many editors do: beside, and then in its place.
    fn declare(&self, list: &str) {
        let beside = self.file.with_extension("new");
        std::fs::write(&beside, format!("views:{list}")).unwrap();
        std::fs::rename(&beside, &self.file).unwrap();
    }

    /// Storage tables of the definitions in force, and which are previous ones.
    fn in_force(&self) -> Vec<(String, bool)> {
        let views = self.views.borrow().clone();
        views.iter().map(|view| (view.storage_name().to_string(), view.is_previous)).collect()
    }

    /// Waits until these definitions are in force; what the old ones answer is right all the time.
    async fn until(&mut self, newest: &CatalogView, previous: Option<&CatalogView>) {
        let mut expected = vec![(newest.storage_name().to_string(), false)];
        expected.extend(previous.map(|view| (view.storage_name().to_string(), true)));
        let until = Instant::now() + PATIENCE;
        while self.in_force() != expected {
            assert!(Instant::now() < until, "{:?} instead of {expected:?}", self.in_force());
            self.ask(KEYS).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The next time that anything is put into force.
    async fn changed(&mut self) {
        tokio::time::timeout(PATIENCE, self.views.changed()).await.unwrap().unwrap();
    }

    /// The decision as its header, after the answer was compared with that of the raw tables.
    async fn ask(&self, sql: &str) -> String {
        let name = self.database.name.clone();
        let query = IncomingQuery { sql: sql.into(), database: Some(name), ..IncomingQuery::default() };
        let decided = self.keeper.decide(query).await;
        if let Decision::View { sql: rewritten, .. } = &decided.decision {
            let answer = self.database.sql(rewritten);
            if let Some(proof) = &decided.confirmation
                && let Err(reason) = proof.confirm().await
            {
                return Decision::Raw { reason }.header().unwrap();
            }
            assert_eq!(answer, self.database.sql(sql), "{rewritten}");
        }
        decided.decision.header().unwrap()
    }
}

const ANSWERED: &str = "view=by_key; mode=full";

/// A keeper whose view is built, and some definitions of it.
async fn scene<const N: usize>(name: &str, lists: [&str; N]) -> (Kept, [CatalogView; N]) {
    let database = Database::new(name);
    tables(&database);
    let mut definitions = Vec::new();
    for list in lists {
        definitions.push(views_of(&database.upstream(), list).await.remove(0));
    }
    build(&database.upstream(), &definitions[0]).await.unwrap();
    let kept = Kept::start(database, lists[0]).await;
    assert_eq!(kept.ask(KEYS).await, ANSWERED);
    (kept, definitions.try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_declared_anew_answers_by_its_previous_definition_until_the_new_one_is_built() {
    let (mut kept, [old, new]) = scene("redefined", [BY_KEY, &by_rest(7)]).await;
    kept.declare(&by_rest(7));
    kept.until(&new, Some(&old)).await;
    assert_eq!(kept.ask(KEYS).await, ANSWERED);
    assert_eq!(kept.ask(RESTS).await, "raw; reason=stale: view by_key: never built");
    // Exact as ever: what comes in is read beside the view, and it can be brought up to date.
    kept.database.sql("INSERT INTO t VALUES ('2021-03-01', '3', 1)");
    assert_ne!(kept.ask(KEYS).await, ANSWERED);
    build(&kept.database.upstream(), &old).await.unwrap();
    assert_eq!(kept.ask(KEYS).await, ANSWERED);

    build(&kept.database.upstream(), &new).await.unwrap();
    kept.until(&new, None).await;
    assert_eq!(kept.ask(RESTS).await, ANSWERED);
    assert!(kept.ask(KEYS).await.starts_with("raw; reason=view by_key: "), "{}", kept.ask(KEYS).await);

    // Back again: runs of the first definition are still there, and nothing has to be built.
    kept.declare(BY_KEY);
    kept.until(&old, None).await;
    assert_eq!(kept.ask(KEYS).await, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_definitions_that_follow_each_other_the_one_that_is_built_stays() {
    let (mut kept, [old, second, third]) = scene("redefined_twice", [BY_KEY, &by_rest(5), &by_rest(7)]).await;
    kept.declare(&by_rest(5));
    kept.until(&second, Some(&old)).await;
    kept.declare(&by_rest(7));
    kept.until(&third, Some(&old)).await;
    assert_eq!(kept.ask(KEYS).await, ANSWERED);
    build(&kept.database.upstream(), &second).await.unwrap();
    assert_eq!(kept.ask(KEYS).await, ANSWERED, "the second one is in force no more");
    build(&kept.database.upstream(), &third).await.unwrap();
    kept.until(&third, None).await;
    assert_eq!(kept.ask(RESTS).await, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_or_another_consistency_leaves_both_definitions_in_force() {
    let (mut kept, [old, new]) = scene("redefined_broken", [BY_KEY, &by_rest(7)]).await;
    kept.declare(&by_rest(7));
    kept.until(&new, Some(&old)).await;
    for list in [
        by_rest(7).replace("v %", "no_such_column %"),
        "\n  - name: [".to_string(),
        format!("{}    consistency: 'bounded: 1h'\n", by_rest(7)),
    ] {
        kept.views.borrow_and_update();
        kept.declare(&list);
        kept.changed().await;
        kept.until(&new, Some(&old)).await;
        assert_eq!(kept.ask(KEYS).await, ANSWERED);
    }
    build(&kept.database.upstream(), &new).await.unwrap();
    kept.until(&new, None).await;
    // The storage table is the same, so there is nothing to build or to wait for.
    kept.views.borrow_and_update();
    kept.declare(&by_rest(7));
    kept.changed().await;
    kept.until(&new, None).await;
    assert_eq!(kept.ask(RESTS).await, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_removed_leaves_with_all_its_definitions() {
    let (mut kept, [old, new, other]) = scene("redefined_removed", [BY_KEY, &by_rest(7), OTHER]).await;
    kept.declare(&by_rest(7));
    kept.until(&new, Some(&old)).await;
    kept.declare(OTHER);
    kept.until(&other, None).await;
    assert!(kept.ask(KEYS).await.starts_with("raw; reason=view other: "), "{}", kept.ask(KEYS).await);
    // It is a view like any other when it comes back.
    kept.declare(&by_rest(7));
    kept.until(&new, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_previous_definition_that_its_tables_do_not_fit_any_more_goes() {
    let (mut kept, [_, _]) = scene("redefined_altered", [BY_KEY, &by_rest(7)]).await;
    kept.database.sql("ALTER TABLE t MODIFY COLUMN v Int64 SETTINGS mutations_sync = 2, alter_sync = 2");
    let altered = views_of(&kept.database.upstream(), &by_rest(7)).await.remove(0);
    kept.declare(&by_rest(7));
    kept.until(&altered, None).await;
}

/// What the admin listener says of the view.
pub fn status(admin: &str) -> Value {
    let port = admin.rsplit(':').next().unwrap().parse().unwrap();
    let answer = exchange(port, b"GET /status HTTP/1.0\r\n\r\n");
    let mut status: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    status["views"]["by_key"].take()
}

/// A sidecar with its view file, and its admin listener.
fn serve(database: &Database, file: &str) -> (Served, PathBuf, String) {
    let file = folder(&format!("{}_{file}", database.name)).with_extension("yaml");
    std::fs::write(&file, format!("views:{BY_KEY}")).unwrap();
    let url = format!("{}?database={}", server().http_url(), database.name);
    let admin = format!("127.0.0.1:{}", free_port());
    let served = Served::start(&["--upstream", &url, "--views", file.to_str().unwrap(), "--listen-admin", &admin]);
    (served, file, admin)
}

/// Asks until the view is stored here, and the previous definition of it there; the answer is right at every time, and
/// comes from the view.
fn ask_until_stored(
    (served, database, admin): (&Served, &Database, &str),
    sql: &str,
    (newest, previous): (&CatalogView, Option<&CatalogView>),
) {
    let name = |view: &CatalogView| Value::from(view.storage.name.to_string());
    let expected = (name(newest), previous.map_or(Value::Null, name));
    let until = Instant::now() + PATIENCE;
    loop {
        let (decision, answer) = ask_proxy(served, database, sql);
        assert!(decision.starts_with("view=by_key; "), "{decision}");
        assert_eq!(answer, database.sql(sql), "{decision}");
        let seen = status(admin);
        if (&seen["storage"], &seen["previous"]["storage"]) == (&expected.0, &expected.1) {
            return;
        }
        assert!(Instant::now() < until, "{seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_new_definition_waits_to_be_built_the_previous_one_follows_its_sources() {
    let database = Database::new("redefined_held");
    tables(&database);
    let upstream = database.upstream();
    let definition = async |list: &str| views_of(&upstream, list).await.remove(0);
    let old = definition(BY_KEY).await;
    let (second, third) = (definition(&by_rest(5)).await, definition(&by_rest(7)).await);
    let (served, file, admin) = serve(&database, "only");
    ask_until_covered(&served, &database, KEYS);
    // Somebody else maintains the new definitions, and takes his time.
    let storages = [&second, &third].map(|view| view.storage_name().to_string());
    let leases = Leases::claim(upstream.clone(), storages.to_vec());
    while !storages.iter().all(|storage| leases.holds(storage)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (at, (list, newest)) in [(by_rest(5), &second), (by_rest(7), &third)].iter().enumerate() {
        std::fs::write(&file, format!("views:{list}")).unwrap();
        ask_until_stored((&served, &database, &admin), KEYS, (newest, Some(&old)));
        database.sql(&format!("INSERT INTO t SELECT '2031-0{}-01', toString(number), 5 FROM numbers(90)", at + 1));
        ask_until_covered(&served, &database, KEYS);
        let (decision, _) = ask_proxy(&served, &database, RESTS);
        assert!(decision.starts_with("raw; "), "{decision}");
    }
    let url = format!("{}?database={}", server().http_url(), database.name);
    let output = Command::new(env!("CARGO_BIN_EXE_tributary"))
        .args(["status", "--upstream", &url, "--views", file.to_str().unwrap(), "--admin", &admin])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("by_key  building"), "{text}");
    assert!(text.contains("the previous definition answers meanwhile: current, 0 rows behind"), "{text}");

    build(&upstream, &third).await.unwrap();
    ask_until_covered(&served, &database, RESTS);
    let until = Instant::now() + PATIENCE;
    while !status(&admin)["previous"].is_null() {
        assert!(Instant::now() < until, "{}", status(&admin));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (decision, _) = ask_proxy(&served, &database, KEYS);
    assert!(decision.starts_with("raw; reason=view by_key: "), "{decision}");
    assert!(Store::new(upstream).latest(second.storage_name()).await.unwrap().is_none(), "nobody has built the second");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_query_misses_the_view_while_wider_definitions_are_built_one_after_another() {
    let database = Database::new("redefined_wider");
    tables(&database);
    let (served, file, admin) = serve(&database, "only");
    ask_until_covered(&served, &database, KEYS);
    for more in ["", ", min(v)", ", min(v), any(v)"] {
        let list = BY_KEY.replace("uniqExact(v) AS u", &format!("uniqExact(v) AS u, max(v + 1){more}"));
        let newest = views_of(&database.upstream(), &list).await.remove(0);
        std::fs::write(&file, format!("views:{list}")).unwrap();
        ask_until_stored((&served, &database, &admin), KEYS, (&newest, None));
        let (decision, _) = ask_proxy(&served, &database, "SELECT k, max(v + 1) FROM t GROUP BY k");
        assert_eq!(decision, ANSWERED);
        database.sql("INSERT INTO t SELECT '2031-01-01', toString(number), 5 FROM numbers(90)");
        ask_until_covered(&served, &database, KEYS);
    }
}

/// Files of several sidecars are not changed in the same moment, and some may be left as they are.
#[test]
fn a_sidecar_that_does_not_know_a_view_any_more_leaves_it_to_the_others() {
    let database = Database::new("given_up");
    tables(&database);
    let (first, file, admin) = serve(&database, "first");
    ask_until_covered(&first, &database, KEYS);
    let (second, ..) = serve(&database, "second");
    for list in [OTHER, BY_KEY] {
        std::fs::write(&file, format!("views:{list}")).unwrap();
        let until = Instant::now() + PATIENCE;
        while status(&admin).is_null() == (list == BY_KEY) {
            assert!(Instant::now() < until, "{}", status(&admin));
            std::thread::sleep(Duration::from_millis(20));
        }
        database.sql("INSERT INTO t SELECT '2031-01-01', toString(number), 5 FROM numbers(90)");
        ask_until_covered(&second, &database, KEYS);
    }
    ask_until_covered(&first, &database, KEYS);
}
