//! Tributary's own connection to ClickHouse, under its own user: schema, parts, manifest, partial states.
//! Queries of clients never go through here.

use bytes::Bytes;
use clickhouse::query::BytesCursor;
use serde::de::DeserializeOwned;

use crate::config::UpstreamConfig;

/// Shown in `system.query_log` and `system.processes`, so that an operator can tell our queries from clients'.
const PRODUCT: &str = "tributary";

#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// ClickHouse answered with an exception, or could not be reached.
    #[error("ClickHouse at {address}: {message}")]
    Query { address: String, message: String, sql: String },
    /// The answer was not what was asked for: a bug of ours or a server that we do not know.
    #[error("ClickHouse at {address} answered in an unexpected form: {message}")]
    Decode { address: String, message: String, sql: String },
}

impl UpstreamError {
    /// ClickHouse's own words, if it understood the statement and refused it; `None` when it could not be asked.
    pub fn exception(&self) -> Option<&str> {
        let UpstreamError::Query { message, .. } = self else { return None };
        let message = message.strip_prefix("bad response: ").unwrap_or(message);
        message.contains("DB::Exception").then_some(message)
    }
}

/// A handle to one ClickHouse server; cheap to clone, connections are pooled inside.
#[derive(Clone)]
pub struct Upstream {
    client: clickhouse::Client,
    config: UpstreamConfig,
}

impl Upstream {
    pub fn new(config: UpstreamConfig) -> Self {
        let client = clickhouse::Client::default()
            .with_url(config.url.as_str())
            .with_user(&config.user)
            .with_password(&config.password)
            .with_database(&config.database)
            .with_product_info(PRODUCT, env!("CARGO_PKG_VERSION"));
        Self { client, config }
    }

    /// The same connection with another default database.
    pub fn in_database(&self, database: &str) -> Self {
        Self::new(UpstreamConfig { database: database.into(), ..self.config.clone() })
    }

    /// The same connection, with settings sent along with every statement.
    pub fn with_settings<'a>(&self, settings: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let client = settings.fold(self.client.clone(), |client, (name, value)| client.with_setting(name, value));
        Self { client, config: self.config.clone() }
    }

    pub fn config(&self) -> &UpstreamConfig {
        &self.config
    }

    /// Runs a statement that returns no rows.
    pub async fn execute(&self, sql: &str) -> Result<(), UpstreamError> {
        self.client.query_raw(sql).execute().await.map_err(|e| self.failed(sql, e))
    }

    /// All rows of a SELECT (without FORMAT), as JSON objects read into `T`. 64-bit integers arrive as numbers.
    pub async fn rows<T: DeserializeOwned>(&self, sql: &str) -> Result<Vec<T>, UpstreamError> {
        let text = self.bytes(sql, "JSONEachRow").await?;
        text.split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).map_err(|e| self.undecoded(sql, &e.to_string())))
            .collect()
    }

    /// The whole answer of a SELECT in `format`.
    pub async fn bytes(&self, sql: &str, format: &str) -> Result<Bytes, UpstreamError> {
        self.stream(sql, format, &[])?.collect().await.map_err(|e| self.failed(sql, e))
    }

    /// The answer of a SELECT in `format`, chunk by chunk as it arrives.
    pub fn stream(&self, sql: &str, format: &str, settings: &[(&str, &str)]) -> Result<BytesCursor, UpstreamError> {
        let mut query = self
            .client
            .query_raw(sql)
            .with_setting("output_format_json_quote_64bit_integers", "0")
            // Our answers are small: threads to format them cost a third of a millisecond.
            .with_setting("output_format_parallel_formatting", "0");
        for (name, value) in settings {
            query = query.with_setting(*name, *value);
        }
        query.fetch_bytes(format).map_err(|e| self.failed(sql, e))
    }

    /// Runs `INSERT INTO .. FORMAT ..` with `body` as its data, sent chunk by chunk.
    pub async fn insert(&self, sql: &str, body: impl IntoIterator<Item = Bytes>) -> Result<(), UpstreamError> {
        let mut insert = self.client.insert_formatted_with(sql);
        for chunk in body {
            insert.send(chunk).await.map_err(|e| self.failed(sql, e))?;
        }
        insert.end().await.map_err(|e| self.failed(sql, e))
    }

    pub fn failed(&self, sql: &str, error: clickhouse::error::Error) -> UpstreamError {
        UpstreamError::Query {
            address: self.config.url.to_string(),
            message: error.to_string().trim().to_string(),
            sql: sql.into(),
        }
    }

    pub fn undecoded(&self, sql: &str, message: &str) -> UpstreamError {
        UpstreamError::Decode { address: self.config.url.to_string(), message: message.into(), sql: sql.into() }
    }
}
