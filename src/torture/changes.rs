//! Those who change the tables: writers, a mutator, one for whole partitions, one for the dimension table, and one who
//! asks for part merges. Each runs until its task is dropped between two statements.

use tokio::sync::watch;

use super::TortureError;
use super::cube::{CATEGORIES, Cell, Cube, PRODUCTS, Sale};
use super::history::Assortment;
use super::random::Random;
use super::stage::{Partition, Stage, product_row, some_rows};

/// Says when to stop; looked at between two statements.
pub type Stop = watch::Receiver<bool>;

pub type Outcome = Result<(), TortureError>;

pub async fn write(stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
    while !*stop.borrow() {
        let partition = stage.some_partition(&mut random);
        let rows_max = 1 << random.below(9);
        let rows = 1 + random.below(rows_max);
        let twice = random.percent(10);
        stage.insert(partition, rows, twice, &mut random).await?;
        stage.pause(120, &mut random).await;
    }
    Ok(())
}

pub async fn mutate(stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
    while !*stop.borrow() {
        let partition = stage.some_partition(&mut random);
        let access = partition.access.read().await;
        if let Some((batch, rows)) = partition.take(&mut random) {
            let rows = mutate_batch(stage, partition, batch, rows, &mut random).await?;
            partition.put(batch, rows);
        }
        drop(access);
        stage.pause(200, &mut random).await;
    }
    Ok(())
}

/// All rows of a batch were written as one block, so that they are always together in one part: a mutation of them takes
/// effect in one moment, when that part is replaced.
async fn mutate_batch(
    stage: &Stage,
    partition: &Partition,
    batch: u64,
    rows: Vec<Sale>,
    random: &mut Random,
) -> Result<Vec<Sale>, TortureError> {
    let id = partition.id();
    let limit = random.below(PRODUCTS + 1) as u8;
    let of_batch = format!("batch = {batch} AND product < {limit}");
    let is_hit = |row: &Sale| row.cell.product < limit;
    let more = random.between(-5000, 5000);
    let price = random.below(500) as u32;
    let updated = |row: &Sale| Sale { amount: row.amount + more, price, ..*row };
    // A patch part makes a partition stale until a part merge applies it, so there are few.
    let choice = if stage.numbered && random.percent(4) { 4 } else { random.below(4) };
    let (kind, sql, left): (_, _, Vec<Sale>) = match choice {
        0 => (
            "deletes",
            format!("ALTER TABLE sales DELETE IN PARTITION ID '{id}' WHERE {of_batch} SETTINGS mutations_sync = 1"),
            rows.iter().filter(|row| !is_hit(row)).copied().collect(),
        ),
        1 => (
            "lightweight deletes",
            format!("DELETE FROM sales IN PARTITION ID '{id}' WHERE {of_batch} SETTINGS lightweight_deletes_sync = 1"),
            rows.iter().filter(|row| !is_hit(row)).copied().collect(),
        ),
        2 => (
            "deletes",
            format!(
                "ALTER TABLE sales DELETE IN PARTITION ID '{id}' WHERE batch = {batch} SETTINGS mutations_sync = 1"
            ),
            Vec::new(),
        ),
        3 => (
            "updates",
            format!(
                "ALTER TABLE sales UPDATE amount = amount + {more}, price = {price} IN PARTITION ID '{id}' \
                 WHERE {of_batch} SETTINGS mutations_sync = 1"
            ),
            rows.iter().map(|row| if is_hit(row) { updated(row) } else { *row }).collect(),
        ),
        _ => (
            "lightweight updates",
            format!("UPDATE sales SET amount = amount + {more}, price = {price} WHERE {of_batch}"),
            rows.iter().map(|row| if is_hit(row) { updated(row) } else { *row }).collect(),
        ),
    };
    let mut delta = Cube::default();
    delta.add_rows(&rows, -1);
    delta.add_rows(&left, 1);
    stage.mutate(kind, partition, batch, delta, &sql).await?;
    Ok(left)
}

/// Drops, replaces, attaches, moves whole partitions.
pub async fn change_partitions(stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
    while !*stop.borrow() {
        let partition = stage.some_partition(&mut random);
        match random.below(5) {
            0 => drop_partition(stage, partition).await?,
            1 => replace_partition(stage, partition, &mut random).await?,
            2 => attach_from_aside(stage, partition, &mut random).await?,
            3 => move_aside(stage, partition).await?,
            _ => detach_and_attach(stage, partition, &mut random).await?,
        }
        // Small partitions make views that are not smaller than their source.
        if random.percent(60) {
            stage.insert(partition, 600, false, &mut random).await?;
        }
        stage.pause(900, &mut random).await;
    }
    Ok(())
}

fn sum(batches: impl IntoIterator<Item = impl AsRef<[Sale]>>, times: i64) -> Cube<Cell> {
    let mut cube = Cube::default();
    batches.into_iter().for_each(|rows| cube.add_rows(rows.as_ref(), times));
    cube
}

async fn drop_partition(stage: &Stage, partition: &Partition) -> Outcome {
    let _access = partition.access.write().await;
    let delta = sum(partition.take_all().values(), -1);
    let sql = format!("ALTER TABLE sales DROP PARTITION ID '{}'", partition.id());
    stage.change("drops", partition, "DROP PARTITION".into(), delta, &sql).await
}

async fn replace_partition(stage: &Stage, partition: &Partition, random: &mut Random) -> Outcome {
    let _access = partition.access.write().await;
    let (batch, rows) = fill_aside(stage, partition, random).await?;
    let mut delta = sum(partition.take_all().values(), -1);
    delta.add_rows(&rows, 1);
    let sql = format!("ALTER TABLE sales REPLACE PARTITION ID '{}' FROM aside", partition.id());
    stage.change("replaces", partition, format!("REPLACE PARTITION by batch {batch}"), delta, &sql).await?;
    partition.put(batch, rows);
    clear_aside(stage).await
}

async fn attach_from_aside(stage: &Stage, partition: &Partition, random: &mut Random) -> Outcome {
    let _access = partition.access.write().await;
    let (batch, rows) = fill_aside(stage, partition, random).await?;
    let sql = format!("ALTER TABLE sales ATTACH PARTITION ID '{}' FROM aside", partition.id());
    stage.change("attaches", partition, format!("ATTACH PARTITION of batch {batch}"), sum([&rows], 1), &sql).await?;
    partition.put(batch, rows);
    clear_aside(stage).await
}

async fn move_aside(stage: &Stage, partition: &Partition) -> Outcome {
    let _access = partition.access.write().await;
    if stage.numbered {
        // ClickHouse refuses to move rows that a lightweight UPDATE still lies over.
        let apply = format!("APPLY PATCHES IN PARTITION ID '{}'", partition.id());
        let sql = format!("ALTER TABLE sales {apply} SETTINGS mutations_sync = 1");
        stage.mutation(&sql, "APPLY PATCHES IN PARTITION").await?;
    }
    let delta = sum(partition.take_all().values(), -1);
    let sql = format!("ALTER TABLE sales MOVE PARTITION ID '{}' TO TABLE aside", partition.id());
    stage.change("moves", partition, "MOVE PARTITION away".into(), delta, &sql).await?;
    clear_aside(stage).await
}

/// ATTACH PARTITION of detached parts takes effect part by part, so there must be one.
async fn detach_and_attach(stage: &Stage, partition: &Partition, random: &mut Random) -> Outcome {
    let _access = partition.access.write().await;
    merge_parts(stage, &format!("OPTIMIZE TABLE sales PARTITION ID '{}' FINAL", partition.id())).await?;
    if stage.parts(partition).await? != 1 {
        return Ok(());
    }
    let batches = partition.take_all();
    let sql = format!("ALTER TABLE sales DETACH PARTITION ID '{}'", partition.id());
    stage.change("detaches", partition, "DETACH PARTITION".into(), sum(batches.values(), -1), &sql).await?;
    stage.pause(20, random).await;
    let sql = format!("ALTER TABLE sales ATTACH PARTITION ID '{}'", partition.id());
    stage.change("attaches", partition, "ATTACH PARTITION".into(), sum(batches.values(), 1), &sql).await?;
    partition.put_all(batches);
    Ok(())
}

/// A batch in the table beside, to be taken over as a partition.
async fn fill_aside(
    stage: &Stage,
    partition: &Partition,
    random: &mut Random,
) -> Result<(u64, Vec<Sale>), TortureError> {
    let batch = stage.new_batch();
    let rows = some_rows(partition.number, 300 + random.below(1200), random);
    stage.send("aside", batch, &rows).await?;
    Ok((batch, rows))
}

async fn clear_aside(stage: &Stage) -> Outcome {
    Ok(stage.upstream.execute("TRUNCATE TABLE aside").await?)
}

/// One row of the dimension table after the other gets another category, goes, or comes back; a row lies in one part, so
/// each of these takes effect in one moment.
pub async fn change_products(stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
    let mut assortment = first_assortment(stage);
    while !*stop.borrow() {
        let product = random.below(PRODUCTS);
        let category = random.below(CATEGORIES.len()) as u8;
        let name = CATEGORIES[usize::from(category)];
        let (next, sql) = match assortment[product] {
            None => {
                let row = product_row(product, Some(category)).unwrap_or_default();
                (Some(category), format!("INSERT INTO products SETTINGS async_insert = 0 VALUES {row}"))
            }
            Some(_) if random.percent(30) => {
                (None, format!("ALTER TABLE products DELETE WHERE product = {product} SETTINGS mutations_sync = 1"))
            }
            Some(_) => {
                let update = format!("UPDATE category = '{name}' WHERE product = {product}");
                (Some(category), format!("ALTER TABLE products {update} SETTINGS mutations_sync = 1"))
            }
        };
        assortment[product] = next;
        {
            let mut history = stage.history();
            let now = stage.now();
            history.begin_stocking(assortment, sql.clone(), now);
        }
        stage.mutation(&sql, &format!("product = {product}")).await?;
        {
            let mut history = stage.history();
            let now = stage.now();
            history.end_stocking(now);
        }
        stage.count("dimension changes");
        stage.pause(1500, &mut random).await;
    }
    Ok(())
}

fn first_assortment(stage: &Stage) -> Assortment {
    stage.history().stocked.back().map_or([None; PRODUCTS], |stocked| stocked.assortment)
}

/// Part merges that ClickHouse would do later, of one partition or of the table.
pub async fn optimize(stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
    while !*stop.borrow() {
        let partition = stage.some_partition(&mut random).id();
        let sql = match random.below(4) {
            0 => "OPTIMIZE TABLE products FINAL".to_string(),
            1 => "OPTIMIZE TABLE sales".to_string(),
            2 => format!("OPTIMIZE TABLE sales PARTITION ID '{partition}' FINAL"),
            _ => format!("OPTIMIZE TABLE sales PARTITION ID '{partition}'"),
        };
        merge_parts(stage, &sql).await?;
        stage.pause(400, &mut random).await;
    }
    Ok(())
}

/// Merges all parts of each partition, which also applies what lightweight updates left beside them.
pub async fn merge_all(stage: &Stage) -> Outcome {
    for partition in &stage.partitions {
        merge_parts(stage, &format!("OPTIMIZE TABLE sales PARTITION ID '{}' FINAL", partition.id())).await?;
    }
    Ok(())
}

/// A part merge may be refused, such as when its partition is dropped meanwhile; nothing has changed then either.
async fn merge_parts(stage: &Stage, sql: &str) -> Outcome {
    match stage.upstream.execute(sql).await {
        Err(error) if error.exception().is_none() => return Err(error.into()),
        Err(_) => stage.count("refused optimizes"),
        Ok(()) => stage.count("optimizes"),
    }
    Ok(())
}
