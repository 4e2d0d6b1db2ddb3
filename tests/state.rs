//! Every function of `state/functions.yaml`, on a real server: states made by ClickHouse, merged here, written back;
//! `finalizeAggregation` of them is what ClickHouse's own `-Merge` says.

use bytes::Bytes;
use serde::Deserialize;
use tributary::merge::{Layout, Options, Strategy, merge};
use tributary::state;
use tributary::upstream::Upstream;
use tributary::wire::{Block, DataType, Reader, native};

use crate::support::Database;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    function: String,
    #[serde(rename = "type")]
    type_: String,
    bytes: String,
    result: String,
}

/// Groups `k` of 1, 2, 4 .. 131072 rows, each in four tables `t`.
const SOURCE: &str = "(
    SELECT number, toUInt8(floor(log2(number + 1))) AS k, cityHash64(number) % 4 AS t,
        toUInt64(cityHash64(number, 1) % 1000000) AS x, if(x % 7 = 0, NULL, x) AS n
    FROM numbers(300000)
)";

fn cases() -> Vec<Case> {
    serde_yaml::from_str(include_str!("state/functions.yaml")).unwrap()
}

/// `sum(x)` -> `sumState(x)`, `quantile(0.5)(x)` -> `quantileState(0.5)(x)`.
fn state_expression(function: &str) -> String {
    let open = function.find('(').unwrap();
    format!("{}State{}", &function[..open], &function[open..])
}

fn merge_expression(type_: &DataType) -> String {
    let DataType::Aggregate(aggregate) = type_ else { panic!("{type_} is no aggregate") };
    let parameters = aggregate.parameters.as_ref().map(|text| format!("({text})")).unwrap_or_default();
    format!("{}Merge{parameters}(s)", aggregate.function)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn merged_states_are_what_clickhouse_merges() {
    let database = Database::new("state");
    let upstream = database.upstream();
    let mut failures = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        if let Err(what) = run(&upstream, number, case).await {
            failures.push(format!("{}: {what}", case.function));
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

async fn run(upstream: &Upstream, number: usize, case: &Case) -> Result<(), String> {
    let (source, merged) = (format!("source_{number}"), format!("merged_{number}"));
    let state = state_expression(&case.function);
    let sql = format!("CREATE TABLE {source} ENGINE = Memory AS SELECT t, k, {state} AS s FROM {SOURCE} GROUP BY t, k");
    upstream.execute(&sql).await.map_err(|e| e.to_string())?;
    let type_ = DataType::parse(&case.type_).map_err(|e| e.to_string())?;
    golden(upstream, case, &type_, &state).await?;
    let carried = state::carrier(&type_, "s");
    if !carried.mergeable {
        return Err("is opaque".into());
    }
    // As the rebuild reads them, and as bare states.
    for (select, strategy) in [(carried.select.as_str(), Strategy::Radix), ("s", Strategy::Serial)] {
        if select == "s" && matches!(&type_, DataType::Aggregate(aggregate) if aggregate.version.is_some()) {
            // Over HTTP bare states come in version 0, which is not the one in question.
            continue;
        }
        let read = format!("SELECT k, {select} AS s FROM {source} ORDER BY t");
        let bytes = upstream.bytes(&read, "Native").await.map_err(|e| e.to_string())?;
        let blocks = native::decode(&bytes, state::skip).map_err(|e| e.to_string())?;
        let layout = Layout { key_count: 1, state_types: vec![type_.clone()] };
        let blocks = merge(blocks, &layout, &Options { threads: 2, strategy }).map_err(|e| e.to_string())?;
        let rows: usize = blocks.iter().map(|block| block.rows).sum();
        if rows != 19 {
            return Err(format!("{rows} groups of 19"));
        }
        let table = format!("{merged}_{strategy:?}");
        upstream
            .execute(&format!("CREATE TABLE {table} (k UInt8, s {type_}) ENGINE = Memory"))
            .await
            .map_err(|e| e.to_string())?;
        insert(upstream, &table, &blocks).await?;
        let sorted = |value: &str| match case.result.as_str() {
            "sorted" => format!("arraySort({value})"),
            _ => value.to_string(),
        };
        let theirs =
            format!("SELECT k, {} AS v FROM {source} GROUP BY k ORDER BY k", sorted(&merge_expression(&type_)));
        let ours = format!("SELECT k, {} AS v FROM {table} ORDER BY k", sorted("finalizeAggregation(s)"));
        let ours = upstream.bytes(&ours, "TabSeparated").await.map_err(|e| e.to_string())?;
        let theirs = upstream.bytes(&theirs, "TabSeparated").await.map_err(|e| e.to_string())?;
        compare(&case.result, &String::from_utf8_lossy(&ours), &String::from_utf8_lossy(&theirs))?;
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Simple {
    function: String,
    #[serde(rename = "type")]
    type_: String,
    value: String,
}

#[tokio::test]
async fn simple_columns_merge_as_clickhouse_merges_them() {
    let database = Database::new("simple");
    let upstream = database.upstream();
    let cases: Vec<Simple> = serde_yaml::from_str(include_str!("state/simple.yaml")).unwrap();
    for (number, Simple { function, type_, value }) in cases.iter().enumerate() {
        let storage = DataType::parse(&format!("SimpleAggregateFunction({function}, {type_})")).unwrap();
        let (source, merged) = (format!("source_{number}"), format!("merged_{number}"));
        for table in [&source, &merged] {
            upstream.execute(&format!("CREATE TABLE {table} (k UInt8, s {storage}) ENGINE = Memory")).await.unwrap();
        }
        let fill = format!("INSERT INTO {source} SELECT k, {value} FROM {SOURCE} LIMIT 50000");
        upstream.execute(&fill).await.unwrap_or_else(|error| panic!("{storage}: {error}"));
        let carried = state::carrier(&storage, "s");
        assert!(carried.mergeable, "{storage}");
        let bytes = upstream.bytes(&format!("SELECT k, {} FROM {source}", carried.select), "Native").await.unwrap();
        let blocks = native::decode(&bytes, state::skip).unwrap();
        let layout = Layout { key_count: 1, state_types: vec![storage.clone()] };
        let blocks = merge(blocks, &layout, &Options { threads: 2, strategy: Strategy::Radix }).unwrap();
        insert(&upstream, &merged, &blocks).await.unwrap_or_else(|error| panic!("{storage}: {error}"));
        let theirs = database.sql(&format!("SELECT k, {function}(s) FROM {source} GROUP BY k ORDER BY k"));
        assert_eq!(database.sql(&format!("SELECT k, s FROM {merged} ORDER BY k")), theirs, "{storage}");
    }
}

/// States that only ClickHouse can merge travel through a merge, beside one that is merged, and come out whole.
#[tokio::test]
async fn opaque_states_are_merged_by_clickhouse_afterwards() {
    let database = Database::new("opaque");
    let upstream = database.upstream();
    let type_ = DataType::parse("AggregateFunction(topK(3), String)").unwrap();
    let sum = DataType::parse("SimpleAggregateFunction(sum, UInt64)").unwrap();
    let carried = state::carrier(&type_, "t");
    assert!(!carried.mergeable);
    let table = |name: &str| format!("CREATE TABLE {name} (k UInt8, t {type_}, s {sum}) ENGINE = Memory");
    upstream.execute(&table("source")).await.unwrap();
    upstream.execute(&table("merged")).await.unwrap();
    let states = format!("SELECT k, topKState(3)(toString(x % 5)), sum(x) FROM {SOURCE} GROUP BY t, k");
    upstream.execute(&format!("INSERT INTO source {states}")).await.unwrap();
    let bytes = upstream.bytes(&format!("SELECT k, {} AS t, s FROM source", carried.select), "Native").await.unwrap();
    let blocks = native::decode(&bytes, state::skip).unwrap();
    let layout = Layout { key_count: 1, state_types: vec![type_, sum] };
    let blocks = merge(blocks, &layout, &Options { threads: 2, strategy: Strategy::Radix }).unwrap();
    insert(&upstream, "merged", &blocks).await.unwrap();
    let answer =
        |name: &str| format!("SELECT k, topKMerge(3)(t), sum(s), count() > 1 FROM {name} GROUP BY k ORDER BY k");
    assert_eq!(database.sql(&answer("merged")), database.sql(&answer("source")));
}

/// The bytes on record are those of this server, and are one state to us.
async fn golden(upstream: &Upstream, case: &Case, type_: &DataType, state: &str) -> Result<(), String> {
    let sql = format!(
        "SELECT toTypeName(s) AS type, hex(CAST(s AS String)) AS bytes FROM (SELECT {state} AS s FROM
        (SELECT number, number AS x, if(x = 1, NULL, x) AS n, 0::UInt8 AS k, 0::UInt8 AS t FROM numbers(3)))"
    );
    #[derive(Deserialize)]
    struct Row {
        #[serde(rename = "type")]
        type_: String,
        bytes: String,
    }
    let rows = upstream.rows::<Row>(&sql).await.map_err(|e| e.to_string())?;
    if (&rows[0].type_, &rows[0].bytes) != (&case.type_, &case.bytes) {
        return Err(format!("the server's state is {} {}", rows[0].type_, rows[0].bytes));
    }
    let DataType::Aggregate(aggregate) = type_ else { return Err("no aggregate".into()) };
    let bytes = unhex(&case.bytes);
    let mut reader = Reader::new(&bytes);
    state::skip(aggregate, &mut reader).map_err(|e| e.to_string())?;
    if reader.is_empty() { Ok(()) } else { Err(format!("{} bytes are left of the recorded state", reader.remaining())) }
}

async fn insert(upstream: &Upstream, table: &str, blocks: &[Block]) -> Result<(), String> {
    let mut bytes = Vec::new();
    blocks.iter().for_each(|block| native::encode(block, &mut bytes));
    let sql = format!("INSERT INTO {table} FORMAT Native");
    upstream.insert(&sql, [Bytes::from(bytes)]).await.map_err(|e| e.to_string())
}

fn compare(result: &str, ours: &str, theirs: &str) -> Result<(), String> {
    let tolerance = match result.split_once(' ') {
        Some(("within", share)) => share.parse().unwrap(),
        _ if result == "close" => 1e-9,
        _ => 0.0,
    };
    let short = |text: &str| text.chars().take(200).collect::<String>();
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        if ours == theirs {
            continue;
        }
        let numbers = |line: &str| -> Vec<f64> {
            line.split(['\t', ',', '[', ']', '(', ')']).filter_map(|word| word.parse().ok()).collect()
        };
        let (a, b) = (numbers(ours), numbers(theirs));
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1e-3);
        if tolerance == 0.0 || a.len() != b.len() || !a.iter().zip(&b).all(near) {
            return Err(format!("{} here, {} in ClickHouse", short(ours), short(theirs)));
        }
    }
    if ours.lines().count() == theirs.lines().count() { Ok(()) } else { Err("a different number of groups".into()) }
}
