//! `FORMAT Native` of a real server: every type of `wire/types.yaml` is read, written back byte by byte, and inserted
//! again to the same values.

use bytes::Bytes;
use serde::Deserialize;
use tributary::state;
use tributary::wire::native;

use crate::support::Database;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    #[serde(rename = "type")]
    type_: String,
    /// The value in row `number`.
    value: String,
    /// The type's name in the stream, where it is another one.
    sent_as: Option<String>,
}

const ROWS: usize = 1000;

#[tokio::test]
async fn columns_of_every_type_round_trip() {
    let database = Database::new("wire");
    let upstream = database.upstream();
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("wire/types.yaml")).unwrap();
    for (number, case) in cases.iter().enumerate() {
        let Case { type_, value, sent_as } = case;
        let (source, copy) = (format!("source_{number}"), format!("copy_{number}"));
        for table in [&source, &copy] {
            let create = format!("CREATE TABLE {table} (number UInt64, c {type_}) ENGINE = Memory");
            upstream.execute(&create).await.unwrap_or_else(|error| panic!("{type_}: {error}"));
        }
        let fill = format!("INSERT INTO {source} SELECT number, {value} AS c FROM numbers({ROWS}) GROUP BY number");
        upstream.execute(&fill).await.unwrap_or_else(|error| panic!("{type_}: {error}"));
        let bytes = upstream.bytes(&format!("SELECT number, c FROM {source}"), "Native").await.unwrap();
        let blocks = native::decode(&bytes, state::skip).unwrap_or_else(|error| panic!("{type_}: {error}"));
        assert_eq!(blocks.iter().map(|block| block.rows).sum::<usize>(), ROWS, "{type_}");
        let name = sent_as.as_ref().unwrap_or(type_);
        assert_eq!(blocks[0].columns[1].type_.to_string(), *name, "the type is written as ClickHouse writes it");
        let mut encoded = Vec::new();
        blocks.iter().for_each(|block| native::encode(block, &mut encoded));
        assert!(encoded == bytes, "{type_}: {} bytes encoded of {}", encoded.len(), bytes.len());
        let insert = format!("INSERT INTO {copy} FORMAT Native");
        upstream.insert(&insert, [Bytes::from(encoded)]).await.unwrap_or_else(|error| panic!("{type_}: {error}"));
        // Blocks put together are one block: its dictionaries are joined and its offsets shifted.
        let mut joined = blocks[0].clone();
        blocks[1..].iter().for_each(|block| joined.append(block));
        let mut encoded = Vec::new();
        native::encode(&joined, &mut encoded);
        upstream.insert(&insert, [Bytes::from(encoded)]).await.unwrap_or_else(|error| panic!("{type_}: {error}"));
        let digest = |table: &str, times: usize| {
            format!(
                "SELECT count() = {times} * {ROWS} AND uniqExact(number, ifNull(toString(c), 'NULL')) = {ROWS}, sum(cityHash64(number, ifNull(toString(c), 'NULL')) % 1000003) / {times} FROM {table}"
            )
        };
        let same = database.sql(&digest(&copy, 2));
        assert_eq!(same, database.sql(&digest(&source, 1)), "{type_}");
        assert!(same.starts_with('1'), "{type_}: {same}");
    }
}
