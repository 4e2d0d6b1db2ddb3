//! Traps that other systems' views fell into, each played on a real server while maintenance runs.

use std::time::{Duration, Instant};

use serde::Deserialize;
use tributary::views::{catalog, declaration};

use crate::maintain_live::{BY_KEY, views_of};
use crate::maintain_loop::Loop;
use crate::support::{Database, ask, server};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trap {
    name: String,
    #[serde(default)]
    engine: Option<String>,
    /// What stands after ORDER BY.
    #[serde(default)]
    settings: String,
    #[serde(default)]
    view: Option<String>,
    #[serde(default)]
    setup: Vec<String>,
    steps: Vec<Vec<String>>,
    rows: u64,
}

fn tables(database: &Database, engine: &str, settings: &str) {
    for table in ["t", "u"] {
        database.sql(&format!(
            "CREATE TABLE {table} (d Date, k String, v UInt32) ENGINE = {engine} PARTITION BY toYear(d) ORDER BY (k, d) \
             {settings}"
        ));
    }
    database.sql("CREATE TABLE dim (k String, name String) ENGINE = MergeTree ORDER BY k");
}

async fn play(trap: Trap) {
    let database = Database::new("trap");
    tables(&database, trap.engine.as_deref().unwrap_or("MergeTree"), &trap.settings);
    trap.setup.iter().for_each(|sql| drop(database.sql(sql)));
    let list = match &trap.view {
        Some(query) => format!("\n  - {{name: trap, query: \"{query}\"}}\n"),
        None => BY_KEY.to_string(),
    };
    let views = views_of(&database.upstream(), &list).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up(&trap.name).await;
    for step in &trap.steps {
        for sql in step {
            database.sql(&sql.replace("{storage}", &upkeep.views[0].storage.quoted()));
        }
        upkeep.catch_up(&format!("{step:?} of '{}'", trap.name)).await;
    }
    assert_eq!(database.sql("SELECT count() FROM t").trim(), trap.rows.to_string(), "{}", trap.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_trap_that_others_fell_into_catches_a_maintained_view() {
    let traps: Vec<Trap> = serde_yaml::from_str(include_str!("maintain/traps.yaml")).unwrap();
    let mut running = tokio::task::JoinSet::new();
    let mut failed = 0;
    for trap in traps {
        if running.len() >= 4 {
            failed += usize::from(running.join_next().await.unwrap().is_err());
        }
        running.spawn(play(trap));
    }
    while let Some(ended) = running.join_next().await {
        failed += usize::from(ended.is_err());
    }
    assert_eq!(failed, 0, "cases failed, see above");
}

/// ClickHouse 119040, 108726, 108715 and dbt-clickhouse 612: POPULATE and catch-up queries lose what is inserted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_inserted_while_a_view_is_first_built_is_neither_lost_nor_doubled() {
    let database = Database::new("populate");
    tables(&database, "MergeTree", "");
    database.sql(
        "INSERT INTO t SELECT toDate('2020-01-01') + number % 900, toString(number % 999), 1 FROM numbers(300000)",
    );
    let views = views_of(&database.upstream(), BY_KEY).await;
    let url = format!("{}?database={}", server().http_url(), database.name);
    let until = Instant::now() + Duration::from_secs(4);
    let writer = std::thread::spawn(move || {
        while Instant::now() < until {
            ask(&url, "INSERT INTO t SELECT toDate('2020-01-01') + number, toString(number), 1 FROM numbers(500)")
                .unwrap();
        }
    });
    let upkeep = Loop::start(database.upstream(), views).await;
    writer.join().unwrap();
    upkeep.catch_up("inserts during the first build").await;
}

/// Timescale 2867: single late rows made the same bucket be computed again and again.
#[tokio::test(flavor = "multi_thread")]
async fn many_late_rows_are_read_together_and_their_partition_is_not_built_anew() {
    let database = Database::new("late");
    tables(&database, "MergeTree", "");
    database.sql("SYSTEM STOP MERGES t");
    database
        .sql("INSERT INTO t SELECT toDate('2020-01-01') + number % 300, toString(number % 99), 1 FROM numbers(20000)");
    let views = views_of(&database.upstream(), BY_KEY).await;
    let upkeep = Loop::start(database.upstream(), views).await;
    upkeep.catch_up("nothing").await;
    let before = upkeep.manifest(&upkeep.views[0]).await;
    for at in 0..100 {
        database.sql(&format!("INSERT INTO t VALUES ('2020-06-06', 'late', {at})"));
    }
    upkeep.catch_up("late rows").await;
    let after = upkeep.manifest(&upkeep.views[0]).await;
    assert!(
        after.body.runs.iter().any(|run| run.id == before.body.runs[0].id && run.dead.is_empty()),
        "{:?}",
        after.body
    );
    assert!(after.version - before.version < 100, "{} commits", after.version - before.version);
}

/// ClickHouse 77006: such a view sees only the inserted block on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_over_a_table_joined_with_itself_is_refused() {
    let database = Database::new("self_join");
    tables(&database, "MergeTree", "");
    let list = "views:\n  - {name: v, query: 'SELECT a.k AS k, count() AS n FROM t AS a JOIN t AS b ON a.k = b.k GROUP BY k'}\n";
    let loaded = declaration::parse("views.yaml".as_ref(), list.into());
    let catalog = catalog::resolve(&database.upstream(), loaded).await.unwrap();
    assert!(catalog.views.is_empty() && catalog.problems[0].message.contains("twice"), "{:?}", catalog.problems);
}
