//! anyLast over seven Nullable(String) columns: ten million rows into a million groups, by reference (as the engine
//! does it) and by copying (the baseline), with the bytes that the states allocate.
//!
//! `cargo bench --bench state`; with ClickHouse's time for the same rows: `TRIBUTARY_UPSTREAM=http://.. cargo bench ..`.
//! Both answers are compared before anything is timed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tributary::config::UpstreamConfig;
use tributary::state::{Lane, Run, Split, Table, function};
use tributary::upstream::Upstream;
use tributary::wire::{self, Block, Bytes, Data, DataType, native};

const COLUMNS: usize = 7;
const ROWS: usize = 10_000_000;
const GROUPS: usize = 1_000_000;
/// Rows of one batch, and of one call of a table.
const BATCH_ROWS: usize = 1 << 16;
const RUN_ROWS: usize = 1 << 12;

/// mimalloc, counting what it is asked for.
struct Counting;

static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code)]
// SAFETY: every call is passed on to mimalloc as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are those that mimalloc asks for.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, which is mimalloc's.
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One state column of all batches: the references to merge, and the buffers that they point into.
struct Column {
    references: Vec<Lane>,
    absent: Vec<Lane>,
    sources: Vec<Bytes>,
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

fn groups() -> Vec<u32> {
    (0..ROWS as u64).map(|row| (mix(row) % GROUPS as u64) as u32).collect()
}

fn column(number: u64) -> Column {
    let type_ = DataType::parse("SimpleAggregateFunction(anyLast, Nullable(String))").unwrap();
    let function = function(&type_).unwrap();
    let mut column = Column { references: Vec::new(), absent: Vec::new(), sources: Vec::new() };
    for (batch, start) in (0..ROWS).step_by(BATCH_ROWS).enumerate() {
        let rows = start as u64..(start + BATCH_ROWS).min(ROWS) as u64;
        let nulls: Vec<u8> = rows.clone().map(|row| u8::from(mix(row ^ number).is_multiple_of(4))).collect();
        let mut values = Bytes::default();
        for (row, null) in rows.zip(&nulls) {
            let text = if *null == 0 { format!("value {} of column {number}", mix(row)) } else { String::new() };
            values.push(text.as_bytes());
        }
        let data = Data::Nullable { nulls, values: Box::new(Data::Bytes(values)) };
        let Split::Rows { values, absent } = function.split(data).unwrap() else { panic!("strings are referred to") };
        let references = (0..values.len()).map(|row| tributary::state::reference(batch, row));
        column.references.push(Lane::W8(references.collect()));
        column.absent.push(Lane::W1(absent.unwrap()));
        column.sources.push(values);
    }
    column
}

/// Calls `merge(groups, batch, rows of the batch)` for every run of rows.
fn runs(groups: &[u32], mut merge: impl FnMut(&[u32], usize, std::ops::Range<usize>)) {
    for (batch, groups) in groups.chunks(BATCH_ROWS).enumerate() {
        for start in (0..groups.len()).step_by(RUN_ROWS) {
            let rows = start..groups.len().min(start + RUN_ROWS);
            merge(&groups[rows.clone()], batch, rows);
        }
    }
}

fn by_reference(column: &Column, groups: &[u32]) -> Box<dyn Table> {
    let type_ = DataType::parse("SimpleAggregateFunction(anyLast, Nullable(String))").unwrap();
    let mut table = function(&type_).unwrap().table();
    table.resize(GROUPS);
    runs(groups, |groups, batch, rows| {
        let lanes = [column.references[batch].slice(rows.clone()), column.absent[batch].slice(rows)];
        table.merge(&Run { groups, lanes: &lanes, sources: &column.sources }).unwrap();
    });
    table
}

/// What a state of its own per group costs: the bytes of each value that may be the last are copied.
fn by_copying(column: &Column, groups: &[u32]) -> Vec<Option<Vec<u8>>> {
    let mut states: Vec<Option<Vec<u8>>> = vec![None; GROUPS];
    runs(groups, |groups, batch, rows| {
        let Lane::W1(absent) = &column.absent[batch] else { panic!("absence is a byte") };
        for (group, row) in groups.iter().zip(rows) {
            if absent[row] == 0 {
                states[*group as usize] = Some(column.sources[batch].get(row).to_vec());
            }
        }
    });
    states
}

/// Milliseconds, and bytes allocated meanwhile, of a pass over all columns.
fn measured<T>(columns: &[Column], merge: impl Fn(&Column) -> T) -> (f64, u64) {
    let allocated = ALLOCATED_BYTES.load(Ordering::Relaxed);
    let start = Instant::now();
    let tables: Vec<T> = columns.iter().map(merge).collect();
    let ms = start.elapsed().as_secs_f64() * 1e3;
    drop(tables);
    (ms, ALLOCATED_BYTES.load(Ordering::Relaxed) - allocated)
}

fn main() {
    let groups = groups();
    let columns: Vec<Column> = (0..COLUMNS as u64).map(column).collect();
    for column in &columns {
        let Data::Nullable { nulls, values } = by_reference(column, &groups).finish(&column.sources) else {
            panic!("the column is Nullable")
        };
        let Data::Bytes(values) = *values else { panic!("the column is of strings") };
        for (group, copied) in by_copying(column, &groups).iter().enumerate() {
            let value = (nulls[group] == 0).then(|| values.get(group));
            assert_eq!(value, copied.as_deref(), "group {group}");
        }
    }
    // The groups' slots are the same in both and not counted: 8 bytes by reference, 24 by copying.
    let slots = |bytes: u64, each: usize| bytes.saturating_sub((COLUMNS * GROUPS * each) as u64);
    for round in 1..=3 {
        let (reference_ms, reference_bytes) = measured(&columns, |column| by_reference(column, &groups));
        let (copying_ms, copying_bytes) = measured(&columns, |column| by_copying(column, &groups));
        let (reference_bytes, copying_bytes) = (slots(reference_bytes, 8), slots(copying_bytes, 24));
        println!(
            "round {round}: by reference {reference_ms:.0} ms, {reference_bytes} bytes of states; by copying \
             {copying_ms:.0} ms, {copying_bytes} bytes: {:.2} times the speed, {} times fewer bytes",
            copying_ms / reference_ms,
            copying_bytes / reference_bytes.max(1)
        );
    }
    if let Ok(address) = std::env::var("TRIBUTARY_UPSTREAM") {
        let upstream = Upstream::new(UpstreamConfig::parse(&address).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        println!(
            "ClickHouse, one thread, looking up the groups as well: {:.0} ms",
            runtime.block_on(clickhouse_ms(&upstream, &columns, &groups))
        );
    }
}

/// ClickHouse's best time of three for the same rows in a Memory table.
async fn clickhouse_ms(upstream: &Upstream, columns: &[Column], groups: &[u32]) -> f64 {
    let named = |name: String, type_: &str, data| wire::Column { name, type_: DataType::parse(type_).unwrap(), data };
    let states: Vec<String> = (0..COLUMNS).map(|number| format!("s{number} Nullable(String)")).collect();
    upstream.execute("DROP TABLE IF EXISTS tributary_bench_state").await.unwrap();
    let create = format!("CREATE TABLE tributary_bench_state (k UInt32, {}) ENGINE = Memory", states.join(", "));
    upstream.execute(&create).await.unwrap();
    for (batch, groups) in groups.chunks(BATCH_ROWS).enumerate() {
        let mut block =
            Block { columns: vec![named("k".into(), "UInt32", Data::W4(groups.to_vec()))], rows: groups.len() };
        for (number, column) in columns.iter().enumerate() {
            let Lane::W1(nulls) = &column.absent[batch] else { panic!("absence is a byte") };
            let values = Box::new(Data::Bytes(column.sources[batch].clone()));
            let data = Data::Nullable { nulls: nulls.clone(), values };
            block.columns.push(named(format!("s{number}"), "Nullable(String)", data));
        }
        let mut bytes = Vec::new();
        native::encode(&block, &mut bytes);
        upstream.insert("INSERT INTO tributary_bench_state FORMAT Native", [bytes.into()]).await.unwrap();
    }
    let last: Vec<String> = (0..COLUMNS).map(|number| format!("anyLast(s{number})")).collect();
    let select = format!(
        "SELECT k, {} FROM tributary_bench_state GROUP BY k FORMAT Null SETTINGS max_threads = 1",
        last.join(", ")
    );
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        upstream.execute(&select).await.unwrap();
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    upstream.execute("DROP TABLE tributary_bench_state").await.unwrap();
    best
}
