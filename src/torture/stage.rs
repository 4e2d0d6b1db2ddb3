//! The tables under torture, and the only way to change them: every statement goes through the history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::RwLock;

use super::TortureError;
use super::cube::{CATEGORIES, Cell, Cube, DAYS, Day, MONTHS, PRICE_MAX, PRODUCTS, REGIONS, Sale};
use super::history::{Assortment, History, Moment};
use super::random::Random;
use crate::maintain::lock;
use crate::upstream::{Upstream, UpstreamError};

pub const DATABASE: &str = "torture";

/// Storms, in which everything changes at once, and calms with a change now and then take turns: in a calm the views
/// catch up, and each change meets queries that go by what was covered a moment ago.
const TIDE: Duration = Duration::from_secs(6);

/// Rows of the first batch of each partition.
const FIRST_ROWS: usize = 1200;

/// A mutation that was interrupted is done again within this time.
const MUTATION_TIMEOUT: Duration = Duration::from_secs(60);

/// A partition of the fact table.
pub struct Partition {
    pub number: usize,
    /// Held shared by statements on a single batch, alone by those on the whole partition.
    pub access: RwLock<()>,
    /// The batches that no statement is just changing, by number.
    batches: Mutex<BTreeMap<u64, Vec<Sale>>>,
}

impl Partition {
    /// As `system.parts` and `PARTITION ID` call it.
    pub fn id(&self) -> String {
        Day { month: self.number as u8, day: 0 }.year_month().to_string()
    }

    pub fn put(&self, batch: u64, rows: Vec<Sale>) {
        if !rows.is_empty() {
            lock(&self.batches).insert(batch, rows);
        }
    }

    /// Takes a batch by chance, so that nobody else changes it.
    pub fn take(&self, random: &mut Random) -> Option<(u64, Vec<Sale>)> {
        let mut batches = lock(&self.batches);
        let numbers: Vec<u64> = batches.keys().copied().collect();
        batches.remove_entry(&random.pick(&numbers)?)
    }

    /// All rows, under exclusive access.
    pub fn take_all(&self) -> BTreeMap<u64, Vec<Sale>> {
        std::mem::take(&mut *lock(&self.batches))
    }

    pub fn put_all(&self, batches: BTreeMap<u64, Vec<Sale>>) {
        lock(&self.batches).extend(batches);
    }
}

pub struct Stage {
    pub upstream: Upstream,
    pub partitions: Vec<Partition>,
    /// Whether the fact table keeps block numbers, which exact tails of partitions and lightweight updates need.
    pub numbered: bool,
    history: Mutex<History>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    batches: AtomicU64,
    began: Instant,
}

impl Stage {
    /// Makes the tables and fills them. `upstream` may have any default database.
    pub async fn set(upstream: &Upstream, numbered: bool, random: &mut Random) -> Result<Self, TortureError> {
        let upstream = upstream.in_database(DATABASE);
        let default = upstream.in_database("default");
        default.execute(&format!("DROP DATABASE IF EXISTS {DATABASE} SYNC")).await?;
        default.execute(&format!("CREATE DATABASE {DATABASE}")).await?;
        let numbers = if numbered { ", enable_block_number_column = 1, enable_block_offset_column = 1" } else { "" };
        // The window makes ClickHouse drop inserts that are sent twice.
        let sales = format!(
            "CREATE TABLE sales (day Date, region LowCardinality(String), product UInt8, batch UInt64, amount Int64, \
             price UInt32) ENGINE = MergeTree PARTITION BY toYYYYMM(day) ORDER BY (region, day) \
             SETTINGS non_replicated_deduplication_window = 100{numbers}"
        );
        upstream.execute(&sales).await?;
        upstream.execute("CREATE TABLE aside AS sales").await?;
        upstream
            .execute(
                "CREATE TABLE products (product UInt8, category LowCardinality(String)) \
                 ENGINE = MergeTree ORDER BY product",
            )
            .await?;
        let assortment: Assortment = std::array::from_fn(|_| Some(random.below(CATEGORIES.len()) as u8));
        let rows: Vec<String> = (0..PRODUCTS).filter_map(|product| product_row(product, assortment[product])).collect();
        upstream.execute(&format!("INSERT INTO products SETTINGS async_insert = 0 VALUES {}", rows.join(", "))).await?;
        let partition = |number| Partition { number, access: RwLock::default(), batches: Mutex::default() };
        let stage = Self {
            upstream,
            partitions: (0..MONTHS).map(partition).collect(),
            numbered,
            history: Mutex::new(History::new(assortment)),
            counts: Mutex::default(),
            batches: AtomicU64::new(1),
            began: Instant::now(),
        };
        for partition in &stage.partitions {
            stage.insert(partition, FIRST_ROWS, false, random).await?;
        }
        Ok(stage)
    }

    /// Mostly one of two that change much for a while.
    pub fn some_partition(&self, random: &mut Random) -> &Partition {
        let tide = (self.began.elapsed().as_millis() / TIDE.as_millis()) as usize;
        let number = match random.percent(70) {
            true => tide * 5 + random.below(2),
            false => random.below(self.partitions.len()),
        };
        &self.partitions[number % self.partitions.len()]
    }

    pub fn now(&self) -> Moment {
        self.began.elapsed().as_micros() as Moment
    }

    /// The history, locked. Moments that are noted in it must be taken while it is.
    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub fn count(&self, what: &'static str) {
        *lock(&self.counts).entry(what).or_default() += 1;
    }

    /// How many changes of each kind there were.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.counts).clone()
    }

    /// Waits about as long in a storm. In a calm mostly until the next storm, else until any moment before it.
    pub async fn pause(&self, milliseconds: i64, random: &mut Random) {
        let (now, half) = (self.began.elapsed().as_millis() as u64, TIDE.as_millis() as u64 / 2);
        let next_half = half - now % half;
        let pause = match (now / half).is_multiple_of(2) {
            true => random.between(milliseconds / 2, milliseconds * 3 / 2) as u64,
            false if random.percent(25) => random.below(next_half as usize) as u64,
            false => next_half,
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Runs a statement that has an atomic effect on one partition of the fact table, and notes when.
    pub async fn change(
        &self,
        kind: &'static str,
        partition: &Partition,
        what: String,
        delta: Cube<Cell>,
        sql: &str,
    ) -> Result<(), TortureError> {
        self.changing(kind, partition, what, delta, self.upstream.execute(sql)).await
    }

    /// As [`Stage::change`], for a mutation of one batch.
    pub async fn mutate(
        &self,
        kind: &'static str,
        partition: &Partition,
        batch: u64,
        delta: Cube<Cell>,
        sql: &str,
    ) -> Result<(), TortureError> {
        let what = format!("{kind} in batch {batch}");
        self.changing(kind, partition, what, delta, self.mutation(sql, &format!("batch = {batch}"))).await
    }

    /// Runs a mutation to its end. A statement on whole partitions interrupts those of others, which is told to who
    /// waits for them, but they go on.
    pub async fn mutation(&self, sql: &str, condition: &str) -> Result<(), UpstreamError> {
        let interrupted = match self.upstream.execute(sql).await {
            Err(error) if error.exception().is_some_and(|text| text.contains("(UNFINISHED)")) => error,
            other => return other,
        };
        let until = Instant::now() + MUTATION_TIMEOUT;
        let pending = format!(
            "SELECT count() AS n FROM system.mutations WHERE database = '{DATABASE}' AND NOT is_done \
             AND match(command, '{condition}\\\\b')"
        );
        while self.upstream.rows::<Count>(&pending).await?.iter().any(|pending| pending.n > 0) {
            if Instant::now() > until {
                return Err(interrupted);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.count("interrupted mutations");
        Ok(())
    }

    async fn changing(
        &self,
        kind: &'static str,
        partition: &Partition,
        what: String,
        delta: Cube<Cell>,
        statement: impl Future<Output = Result<(), UpstreamError>>,
    ) -> Result<(), TortureError> {
        let what = format!("{what} in {}", partition.id());
        let number = {
            let mut history = self.history();
            let now = self.now();
            history.begin(partition.number, what, delta, now)
        };
        statement.await?;
        let mut history = self.history();
        let now = self.now();
        history.end(number, now);
        self.count(kind);
        Ok(())
    }

    /// Inserts a batch as one block into one partition; `twice` sends it once more, as a client does that has not seen
    /// the answer.
    pub async fn insert(
        &self,
        partition: &Partition,
        rows: usize,
        twice: bool,
        random: &mut Random,
    ) -> Result<(), TortureError> {
        let _access = partition.access.read().await;
        let batch = self.new_batch();
        let rows = some_rows(partition.number, rows, random);
        let mut delta = Cube::default();
        delta.add_rows(&rows, 1);
        self.changing(
            "inserts",
            partition,
            format!("insert of batch {batch}"),
            delta,
            self.send("sales", batch, &rows),
        )
        .await?;
        if twice {
            let what = format!("insert of batch {batch} again");
            self.changing("repeated inserts", partition, what, Cube::default(), self.send("sales", batch, &rows))
                .await?;
        }
        partition.put(batch, rows);
        Ok(())
    }

    pub fn new_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends rows to `sales` or to a table beside it.
    pub async fn send(&self, table: &str, batch: u64, rows: &[Sale]) -> Result<(), UpstreamError> {
        let line = |row: &Sale| {
            let Cell { day, region, product } = row.cell;
            let region = REGIONS[usize::from(region)];
            format!("{}\t{region}\t{product}\t{batch}\t{}\t{}\n", day.text(), row.amount, row.price)
        };
        let body: String = rows.iter().map(line).collect();
        let sql = format!(
            "INSERT INTO {table} (day, region, product, batch, amount, price) SETTINGS async_insert = 0, \
             insert_deduplication_token = '{batch}' FORMAT TabSeparated"
        );
        self.upstream.insert(&sql, [Bytes::from(body)]).await
    }

    /// How many parts with rows a partition of `sales` has.
    pub async fn parts(&self, partition: &Partition) -> Result<u64, TortureError> {
        let sql = format!(
            "SELECT count() AS n FROM system.parts WHERE database = '{DATABASE}' AND table = 'sales' AND active \
             AND rows > 0 AND partition_id = '{}'",
            partition.id()
        );
        Ok(self.upstream.rows::<Count>(&sql).await?.first().map_or(0, |parts| parts.n))
    }
}

#[derive(Deserialize)]
struct Count {
    n: u64,
}

/// A row of `products` as VALUES takes it.
pub fn product_row(product: usize, category: Option<u8>) -> Option<String> {
    category.map(|category| format!("({product}, '{}')", CATEGORIES[usize::from(category)]))
}

pub fn some_rows(partition: usize, count: usize, random: &mut Random) -> Vec<Sale> {
    let row = |_| Sale {
        cell: Cell {
            day: Day { month: partition as u8, day: random.below(DAYS.len()) as u8 },
            region: random.below(REGIONS.len()) as u8,
            product: random.below(PRODUCTS) as u8,
        },
        amount: random.between(-1_000_000, 1_000_000),
        price: random.below(PRICE_MAX as usize) as u32,
    };
    (0..count).map(row).collect()
}
