//! `tributary bench merge`: the merge engine on this machine, by strategy and threads, beside the ClickHouse given.
//!
//! Every answer is compared with that of `serial` before its time counts.

mod cases;

use std::hash::{BuildHasher, Hasher};
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::CliError;
use super::connect::ConnectArgs;
use super::format::OutputFormat;
use crate::merge::{Options, Strategy, merge};
use crate::state;
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{Block, Data, native};

pub use cases::{Case, cases};

/// Measure the merging of partial states, and compare it with ClickHouse's own
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Size of the tables; 1 needs about 8 GiB of memory
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Times that each measurement is repeated; the best one counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Only these strategies, besides serial
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    strategy: Vec<String>,
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Line {
    name: String,
    strategy: String,
    threads: usize,
    /// Rows of all inputs.
    cells: usize,
    ms: f64,
    /// Time on processors of all threads, user and system.
    cpu_ms: f64,
    /// The time that reading the inputs and writing the answer once would take at the memory bandwidth of this machine,
    /// with as many threads.
    floor_ms: f64,
    /// Time of `serial` over this one.
    vs_serial: f64,
    /// Time of ClickHouse with as many threads over this one.
    vs_clickhouse: Option<f64>,
    /// The same of the times on processors.
    vs_clickhouse_cpu: Option<f64>,
    /// Whether the answer is that of `serial`.
    equal: bool,
    #[serde(skip)]
    digest: Digest,
}

#[derive(Debug, Serialize)]
struct Report {
    cases: Vec<Line>,
}

/// Rows, and by state column the sum of the hashes of all rows (their keys and that state): the same for any order of rows
/// and blocks.
pub type Digest = (usize, Vec<u64>);

const STRATEGIES: [(&str, Strategy); 5] = [
    ("sharded", Strategy::Sharded),
    ("radix", Strategy::Radix),
    ("tree", Strategy::Tree),
    ("fixed", Strategy::Fixed),
    ("auto", Strategy::Auto),
];

pub fn run(args: Args) -> Result<ExitCode, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::failed)?;
    let upstream = match args.connect.upstream {
        Some(_) => Some(Upstream::new(args.connect.upstream()?)),
        None => None,
    };
    let bandwidth = Bandwidth::measure(&args.threads);
    let mut lines = Vec::new();
    for case in cases(args.scale, &args.case) {
        let mut measured = measure(&case, &args, &bandwidth)?;
        if let Some(upstream) = &upstream {
            runtime.block_on(beside_clickhouse(upstream, &case, &args, &mut measured)).map_err(CliError::failed)?;
        }
        if args.format == OutputFormat::Text {
            measured.iter().for_each(print_line);
        }
        lines.extend(measured);
    }
    let wrong = lines.iter().any(|line| !line.equal);
    if args.format == OutputFormat::Json {
        let report = serde_json::to_string_pretty(&Report { cases: lines }).map_err(CliError::failed)?;
        println!("{report}");
    }
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_line(line: &Line) {
    let theirs = line.vs_clickhouse.zip(line.vs_clickhouse_cpu);
    let theirs = theirs.map(|(ratio, cpu)| format!("{ratio:6.2} ({cpu:.2} cpu) x ClickHouse")).unwrap_or_default();
    let equal = if line.equal { "" } else { "  WRONG ANSWER" };
    println!(
        "{:62} {:10} {:2} threads {:8.1} ms ({:8.1} cpu, floor {:5.1}) {:5.2} x serial {theirs}{equal}",
        line.name, line.strategy, line.threads, line.ms, line.cpu_ms, line.floor_ms, line.vs_serial
    );
}

/// Memory bandwidth by number of threads, in bytes per millisecond, counted as a merge counts: bytes read and bytes
/// written.
struct Bandwidth(Vec<(usize, f64)>);

impl Bandwidth {
    /// Copies a buffer far larger than any cache, in as many pieces as threads.
    fn measure(threads: &[usize]) -> Self {
        const BYTES: usize = 256 << 20;
        let source = vec![1u8; BYTES];
        let mut target = vec![0u8; BYTES];
        let mut copy = |threads: usize| {
            let piece = BYTES.div_ceil(threads.max(1));
            let start = Instant::now();
            std::thread::scope(|scope| {
                for (from, to) in source.chunks(piece).zip(target.chunks_mut(piece)) {
                    scope.spawn(|| to.copy_from_slice(from));
                }
            });
            2.0 * BYTES as f64 / (start.elapsed().as_secs_f64() * 1e3)
        };
        let best = |threads| (0..3).map(|_| copy(threads)).fold(0.0, f64::max);
        Self([1].iter().chain(threads).copied().zip([1].iter().chain(threads).copied().map(best)).collect())
    }

    fn bytes_per_ms(&self, threads: usize) -> f64 {
        self.0.iter().find(|(measured, _)| *measured == threads).map_or(f64::INFINITY, |(_, bytes)| *bytes)
    }
}

fn measure(case: &Case, args: &Args, bandwidth: &Bandwidth) -> Result<Vec<Line>, CliError> {
    let (serial, expected) = time(case, Strategy::Serial, 1, 1)?;
    let input_bytes: usize = case.inputs.iter().map(Block::byte_size).sum();
    let bytes = input_bytes + input_bytes / case.cells().max(1) * expected.0;
    let line = |strategy: &str, threads, time: Time, digest: Digest| Line {
        name: case.name.clone(),
        strategy: strategy.into(),
        threads,
        cells: case.cells(),
        ms: time.ms,
        cpu_ms: time.cpu_ms,
        floor_ms: bytes as f64 / bandwidth.bytes_per_ms(threads),
        vs_serial: serial.ms / time.ms,
        vs_clickhouse: None,
        vs_clickhouse_cpu: None,
        equal: digest == expected,
        digest,
    };
    let mut lines = vec![line("serial", 1, serial, expected.clone())];
    if let Some(time) = inlined(case, args.repeat) {
        lines.push(line("inlined", 1, time, expected.clone()));
    }
    let wanted = |name: &str| args.strategy.is_empty() || args.strategy.iter().any(|wanted| wanted == name);
    for (name, strategy) in STRATEGIES.into_iter().filter(|(name, _)| wanted(name)) {
        // The workers of `sharded` race for the last value.
        let racing = |threads: usize| case.ordered && strategy == Strategy::Sharded && threads > 1;
        for threads in args.threads.iter().filter(|threads| !racing(**threads)) {
            let (time, digest) = time(case, strategy, *threads, args.repeat)?;
            lines.push(line(name, *threads, time, digest));
        }
    }
    Ok(lines)
}

/// The shortest times of some runs.
#[derive(Debug, Clone, Copy)]
struct Time {
    ms: f64,
    cpu_ms: f64,
}

impl Time {
    const WORST: Self = Self { ms: f64::INFINITY, cpu_ms: f64::INFINITY };

    /// Runs `work` and takes its times, if they are shorter.
    fn or<T>(&mut self, work: impl FnOnce() -> T) -> T {
        fn cpu_ms() -> f64 {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
        }
        let (start, cpu_start) = (Instant::now(), cpu_ms());
        let result = work();
        let ms = start.elapsed().as_secs_f64() * 1e3;
        *self = self.shorter(Self { ms, cpu_ms: cpu_ms() - cpu_start });
        result
    }

    /// By the clock and on processors, each on its own: on a busy machine they are not of the same run.
    fn shorter(self, other: Self) -> Self {
        Self { ms: self.ms.min(other.ms), cpu_ms: self.cpu_ms.min(other.cpu_ms) }
    }
}

/// The best that one thread can do cell by cell for two sums by a 64-bit key: one growing table of whole cells, written
/// out by hand for just these types. Printed beside `serial`, which goes through the same tables as the strategies.
fn inlined(case: &Case, repeat: usize) -> Option<Time> {
    type Cell = [u64; 4];
    fn place(cells: &[Cell], key: u64) -> usize {
        let mut at = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - cells.len().trailing_zeros());
        while cells[at][3] != 0 && cells[at][0] != key {
            at = (at + 1) & (cells.len() - 1);
        }
        at
    }
    fn all(case: &Case) -> Option<Vec<Cell>> {
        let mut cells: Vec<Cell> = vec![[0; 4]; 16];
        let mut groups = 0;
        for block in &case.inputs {
            let data: Vec<&Data> = block.columns.iter().map(|column| &column.data).collect();
            let [Data::W8(keys), Data::W8(sums), Data::W8(counts)] = data.as_slice() else { return None };
            for ((key, sum), count) in keys.iter().zip(sums).zip(counts) {
                if (groups + 1) * 2 > cells.len() {
                    let old = std::mem::take(&mut cells);
                    cells = vec![[0; 4]; old.len() * 2];
                    for cell in old.into_iter().filter(|cell| cell[3] != 0) {
                        let at = place(&cells, cell[0]);
                        cells[at] = cell;
                    }
                }
                let at = place(&cells, *key);
                let cell = &mut cells[at];
                groups += usize::from(cell[3] == 0);
                *cell = [*key, cell[1].wrapping_add(*sum), cell[2].wrapping_add(*count), 1];
            }
        }
        Some(cells)
    }
    let mut best = Time::WORST;
    for _ in 0..repeat.max(1) {
        std::hint::black_box(best.or(|| all(case))?);
    }
    Some(best)
}

/// Best time, and the digest of the answer.
fn time(case: &Case, strategy: Strategy, threads: usize, repeat: usize) -> Result<(Time, Digest), CliError> {
    let mut best = Time::WORST;
    let mut answer = Digest::default();
    for _ in 0..repeat.max(1) {
        let inputs = case.inputs.clone();
        let merged =
            best.or(|| merge(inputs, &case.layout, &Options { threads, strategy })).map_err(CliError::failed)?;
        answer = digest(&merged, case.layout.key_count);
    }
    Ok((best, answer))
}

pub fn digest(blocks: &[Block], key_count: usize) -> Digest {
    let state = foldhash::fast::FixedState::with_seed(1);
    let mut sums = Vec::new();
    for block in blocks {
        let (keys, states) = block.columns.split_at(key_count);
        sums.resize(states.len(), 0u64);
        for row in 0..block.rows {
            let mut key = state.build_hasher();
            keys.iter().for_each(|column| hash_value(&column.data, row, &mut key));
            let key = key.finish();
            for (sum, column) in sums.iter_mut().zip(states) {
                let mut hasher = state.build_hasher();
                hasher.write_u64(key);
                hash_value(&column.data, row, &mut hasher);
                *sum = sum.wrapping_add(hasher.finish());
            }
        }
    }
    (blocks.iter().map(|block| block.rows).sum(), sums)
}

fn hash_value(data: &Data, row: usize, hasher: &mut impl Hasher) {
    match data {
        Data::W1(values) => hasher.write_u8(values[row]),
        Data::W2(values) => hasher.write_u16(values[row]),
        Data::W4(values) => hasher.write_u32(values[row]),
        Data::W8(values) => hasher.write_u64(values[row]),
        Data::Bytes(values) => hasher.write(values.get(row)),
        Data::Nullable { nulls, values } => {
            hasher.write_u8(nulls[row]);
            if nulls[row] == 0 {
                hash_value(values, row, hasher);
            }
        }
        Data::LowCardinality { keys, dictionary } => hash_value(dictionary, keys[row] as usize, hasher),
        other => unreachable!("no case has a column of {other:?}"),
    }
}

/// What the server has spent on processors since its start; queries of others count as well.
async fn cpu_ms(upstream: &Upstream) -> Result<f64, UpstreamError> {
    let sql = "SELECT sum(value) / 1000 FROM system.events \
               WHERE event IN ('UserTimeMicroseconds', 'SystemTimeMicroseconds')";
    let answer = upstream.bytes(sql, "TabSeparated").await?;
    let text = String::from_utf8_lossy(&answer);
    text.trim().parse().map_err(|_| upstream.undecoded(sql, &format!("`{text}` is no number")))
}

/// Measures ClickHouse over the same cells in the same order in a Memory table, once its answer is that of `serial`.
async fn beside_clickhouse(
    upstream: &Upstream,
    case: &Case,
    args: &Args,
    lines: &mut Vec<Line>,
) -> Result<(), UpstreamError> {
    let table = "tributary_bench_merge";
    let columns: Vec<String> = case.inputs[0].columns.iter().map(|c| format!("{} {}", c.name, c.type_)).collect();
    upstream.execute(&format!("DROP TABLE IF EXISTS {table}")).await?;
    upstream.execute(&format!("CREATE TABLE {table} ({}) ENGINE = Memory", columns.join(", "))).await?;
    for blocks in case.inputs.chunks(16) {
        let mut bytes = Vec::new();
        blocks.iter().for_each(|block| native::encode(block, &mut bytes));
        // With more threads it would write the blocks in any order.
        let sql = format!("INSERT INTO {table} SETTINGS max_insert_threads = 1 FORMAT Native");
        upstream.insert(&sql, [Bytes::from(bytes)]).await?;
    }
    let keys: Vec<&str> = case.inputs[0].columns[..case.layout.key_count].iter().map(|c| c.name.as_str()).collect();
    let keys = keys.join(", ");
    let select =
        |functions: &str, settings: &str| format!("SELECT {keys}, {functions} FROM {table} GROUP BY {keys} {settings}");
    // States instead of results: the same columns as ours. One thread keeps the order of the rows.
    let states = case.clickhouse.join(", ").replace("Merge(", "MergeState(");
    let sql = select(&states, "SETTINGS max_threads = 1");
    let answer = upstream.bytes(&sql, "Native").await?;
    let blocks = native::decode(&answer, state::skip).map_err(|e| upstream.undecoded(&sql, &e.to_string()))?;
    drop(answer);
    let theirs = digest(&blocks, case.layout.key_count);
    drop(blocks);
    let ours = &lines[0].digest;
    for (at, function) in case.clickhouse.iter().enumerate().filter(|(at, _)| ours.1.get(*at) != theirs.1.get(*at)) {
        eprintln!("{}: {function} differs in column {at} of the states; {} rows, ours {}", case.name, theirs.0, ours.0);
    }
    for threads in &args.threads {
        let mut best = Time::WORST;
        // Its own choice, and two levels from the start, as it takes for many groups anyway.
        for settings in ["", ", group_by_two_level_threshold = 1, group_by_two_level_threshold_bytes = 1"] {
            let sql =
                select(&case.clickhouse.join(", "), &format!("FORMAT Null SETTINGS max_threads = {threads}{settings}"));
            for _ in 0..args.repeat.max(1) {
                let (start, cpu_start) = (Instant::now(), cpu_ms(upstream).await?);
                upstream.execute(&sql).await?;
                let ms = start.elapsed().as_secs_f64() * 1e3;
                best = best.shorter(Time { ms, cpu_ms: cpu_ms(upstream).await? - cpu_start });
            }
        }
        for line in lines.iter_mut().filter(|line| line.threads == *threads) {
            line.vs_clickhouse = Some(best.ms / line.ms);
            line.vs_clickhouse_cpu = Some(best.cpu_ms / line.cpu_ms);
        }
        let serial = &lines[0];
        lines.push(Line {
            strategy: "clickhouse".into(),
            threads: *threads,
            ms: best.ms,
            cpu_ms: best.cpu_ms,
            vs_serial: serial.ms / best.ms,
            vs_clickhouse: Some(1.0),
            vs_clickhouse_cpu: Some(1.0),
            equal: theirs == serial.digest,
            ..serial.clone()
        });
    }
    upstream.execute(&format!("DROP TABLE {table}")).await
}
