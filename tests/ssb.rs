//! The benchmark's data: the same rows every time, with the sizes and distributions of the paper, and no empty query.

use std::path::Path;
use std::sync::Arc;

use tributary::maintain::rebuild::{Options, Silent, rebuild};
use tributary::proxy::accelerator::Accelerator;
use tributary::proxy::client::HttpUpstream;
use tributary::proxy::query::{Decision, IncomingQuery, Mode};
use tributary::ssb::{self, QUERIES, Scale};
use tributary::views;

use crate::support::Database;

async fn generated(name: &str, factor: f64) -> Database {
    let database = Database::new(name);
    let mut reports = Vec::new();
    let mut progress = |_: &str, done: u64, total: u64| reports.push((done, total));
    ssb::ensure(&database.upstream(), Scale::new(factor).unwrap(), &mut progress).await.unwrap();
    assert!(reports.is_sorted(), "progress only moves forward: {reports:?}");
    assert!(reports.iter().all(|(done, total)| done < total), "and not past its end: {reports:?}");
    database
}

#[tokio::test]
async fn data_of_the_same_scale_is_kept_of_another_replaced_and_of_others_refused() {
    let database = generated("ssb_again", 0.01).await;
    let upstream = database.upstream();
    let ensure = async |factor| {
        let mut steps = 0;
        let mut progress = |_: &str, _: u64, _: u64| steps += 1;
        ssb::ensure(&upstream, Scale::new(factor).unwrap(), &mut progress).await.map(|()| steps)
    };
    assert_eq!(ensure(0.01).await.unwrap(), 0, "nothing to do");
    assert!(ensure(0.02).await.unwrap() > 0);
    assert_eq!(database.sql("SELECT count() FROM customer"), "600\n");

    let other = Database::new("ssb_foreign");
    other.sql("CREATE TABLE lineorder (a UInt8) ENGINE = MergeTree ORDER BY a");
    let mut progress = |_: &str, _: u64, _: u64| {};
    let error = ssb::ensure(&other.upstream(), Scale::new(0.01).unwrap(), &mut progress).await.unwrap_err().to_string();
    assert!(error.contains(&other.name) && error.contains("lineorder"), "{error}");
    assert_eq!(other.sql("SELECT count() FROM lineorder"), "0\n");
}

#[tokio::test]
async fn the_views_that_come_with_it_are_in_order() {
    let database = generated("ssb_views", 0.01).await;
    let loaded = views::declaration::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/views")));
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let catalog = views::catalog::resolve(&database.upstream(), loaded).await.unwrap();
    let problems: Vec<String> = catalog.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(catalog.views.len(), 15);
}

/// Every query, after rows were added that the views do not hold: answered from both, as the raw tables answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_queries_are_answered_from_views_and_rows_that_these_lack() {
    let database = generated("ssb_hybrid", 0.02).await;
    let upstream = database.upstream();
    let loaded = views::declaration::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/views")));
    let catalog = views::catalog::resolve(&upstream, loaded).await.unwrap();
    for view in &catalog.views {
        rebuild(&upstream, view, &Options::default(), Arc::new(Silent)).await.unwrap();
    }
    database.sql("INSERT INTO lineorder_flat SELECT * FROM lineorder_flat WHERE LO_ORDERKEY % 100 = 7");
    database.sql("INSERT INTO lineorder SELECT * FROM lineorder WHERE LO_ORDERKEY % 100 = 7");
    let accelerator = Accelerator::connect(upstream, HttpUpstream::new(database.config().url), catalog).await.unwrap();
    let mut modes = Vec::new();
    for query in QUERIES {
        let asked =
            IncomingQuery { sql: query.sql.into(), database: Some(database.name.clone()), ..IncomingQuery::default() };
        match accelerator.decide(asked).await {
            Decision::View { mode, sql, .. } => {
                let answer = |sql: &str| {
                    let text =
                        database.sql(&format!("{} FORMAT TSVWithNamesAndTypes", sql.trim().trim_end_matches(';')));
                    let mut rows: Vec<String> = text.lines().map(str::to_string).collect();
                    rows[2..].sort();
                    rows
                };
                assert_eq!(answer(&sql), answer(query.sql), "{} {}: {sql}", query.form.name(), query.name);
                modes.push(mode);
            }
            // At so small a scale some views have nearly as many rows as their sources.
            Decision::Raw { reason } => assert!(reason.contains("not smaller"), "{}: {reason}", query.name),
            Decision::NotAQuery => panic!("{}", query.name),
        }
    }
    assert!(modes.len() >= 20 && modes.iter().all(|mode| *mode == Mode::Hybrid), "{modes:?}");
}

/// Rows and a checksum that does not depend on their order.
fn checksum(database: &Database, table: &str) -> String {
    database.sql(&format!("SELECT count(), hex(sum(cityHash64(*))) FROM {table}")).trim().replace('\t', " ")
}

/// Anyone who generates scale 0.01 gets these very rows: figures from different machines are about the same data.
#[tokio::test]
async fn the_same_scale_gives_the_same_rows_everywhere() {
    let database = generated("ssb_same", 0.01).await;
    let sums: Vec<String> = ["customer", "supplier", "part", "dates", "lineorder", "lineorder_flat"]
        .map(|table| format!("{table} {}", checksum(&database, table)))
        .into();
    assert_eq!(
        sums,
        [
            "customer 300 B1635D4E9A8F5B32",
            "supplier 20 489894AB2F8BA0D6",
            "part 2000 EEC0064EDCF4461F",
            "dates 2557 5013400AC28C8800",
            "lineorder 59612 12AE492481BB53C2",
            "lineorder_flat 59612 16CDDCDAD9B52291",
        ]
    );
}

#[tokio::test]
async fn the_data_has_the_shape_of_the_paper_and_no_query_is_empty() {
    for factor in [0.01, 0.1] {
        let database = generated("ssb_shape", factor).await;
        for query in QUERIES {
            let answer = database.sql(query.sql);
            assert!(!matches!(answer.trim(), "" | "0"), "{} {} is empty at {factor}", query.form.name(), query.name);
        }
    }
    let database = generated("ssb_sizes", 0.1).await;
    let one = |sql: &str| database.sql(sql).trim().to_string();
    assert_eq!(
        one("SELECT count(), uniqExact(C_CITY), uniqExact(C_NATION), uniqExact(C_REGION) FROM customer"),
        "3000\t250\t25\t5"
    );
    assert_eq!(
        one("SELECT count(), uniqExact(S_CITY), uniqExact(S_NATION), uniqExact(S_REGION) FROM supplier"),
        "200\t200\t25\t5"
    );
    assert_eq!(
        one("SELECT count(), uniqExact(P_BRAND), uniqExact(P_CATEGORY), uniqExact(P_MFGR) FROM part"),
        "20000\t1000\t25\t5"
    );
    assert_eq!(
        one("SELECT count(), min(D_DATEKEY), max(D_DATEKEY), uniqExact(D_YEARMONTH) FROM dates"),
        "2557\t1992-01-01\t1998-12-31\t84"
    );
    let lines: f64 = one("SELECT count() FROM lineorder").parse().unwrap();
    assert!((lines / 600_000.0 - 1.0).abs() < 0.01, "about 6 million lines times the scale: {lines}");

    // Each finer grain belongs to one coarser, and is named after it.
    let yes = |what: &str, condition: &str| assert_eq!(one(&format!("SELECT {condition}")), "1", "{what}");
    yes("one nation per city", "(SELECT uniqExact(C_CITY, C_NATION, C_REGION) = uniqExact(C_CITY) FROM customer)");
    yes(
        "cities are a padded nation and a digit",
        "(SELECT countIf(C_CITY = 'UNITED KI1' AND C_NATION = 'UNITED KINGDOM') > 0 FROM customer)",
    );
    yes(
        "brands start with their category",
        "(SELECT min(startsWith(P_BRAND, P_CATEGORY) AND startsWith(P_CATEGORY, P_MFGR)) FROM part)",
    );
    yes(
        "orders until August 1998",
        "(SELECT (min(LO_ORDERDATE), max(LO_ORDERDATE)) = ('1992-01-01', '1998-08-02') FROM lineorder)",
    );
    yes(
        "ranges of a line",
        "(SELECT (min(LO_DISCOUNT), max(LO_DISCOUNT), min(LO_QUANTITY), max(LO_QUANTITY), max(LO_TAX)) = (0, 10, 1, 50, 8) FROM lineorder)",
    );
    yes(
        "no quantity is rare",
        "(SELECT min(c) > 0.9 * max(c) FROM (SELECT count() AS c FROM lineorder GROUP BY LO_QUANTITY))",
    );
    yes(
        "revenue is price less discount",
        "(SELECT min(LO_REVENUE = intDiv(LO_EXTENDEDPRICE * (100 - LO_DISCOUNT), 100)) FROM lineorder)",
    );
    yes("profit is never negative", "(SELECT min(LO_REVENUE > LO_SUPPLYCOST) FROM lineorder)");
    yes(
        "the order's total is that of its lines",
        "(SELECT max(abs(total - lines)) < 8 FROM (SELECT any(LO_ORDTOTALPRICE) AS total, sum(LO_REVENUE * (100 + LO_TAX) / 100) AS lines FROM lineorder GROUP BY LO_ORDERKEY))",
    );

    // The flat table is the join, and both are partitioned by year.
    let sums =
        "count(), sum(cityHash64(LO_ORDERKEY, LO_LINENUMBER, C_CITY, S_CITY, P_BRAND, LO_REVENUE, LO_ORDTOTALPRICE))";
    assert_eq!(
        one(&format!("SELECT {sums} FROM lineorder_flat")),
        one(&format!(
            "SELECT {sums} FROM lineorder, customer, supplier, part WHERE LO_CUSTKEY = C_CUSTKEY AND LO_SUPPKEY = S_SUPPKEY AND LO_PARTKEY = P_PARTKEY"
        )),
    );
    for table in ssb::FACT_TABLES {
        let partitions = format!(
            "SELECT groupArray(DISTINCT partition_id) FROM (SELECT * FROM system.parts WHERE active AND database = currentDatabase() AND table = '{table}' ORDER BY partition_id)"
        );
        assert_eq!(one(&partitions), "['1992','1993','1994','1995','1996','1997','1998']");
    }
}
