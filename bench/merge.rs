//! Time to merge tables of partial states, by strategy and threads; every answer is compared with `serial` first.
//!
//! `cargo bench --bench merge`. The full sizes, and ClickHouse beside them: `tributary bench merge --upstream URL`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tributary::cli::bench_merge::{cases, digest};
use tributary::merge::{Options, Strategy, merge};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A tenth of the sizes that `tributary bench merge` takes.
const SCALE: f64 = 0.1;
const STRATEGIES: [Strategy; 4] = [Strategy::Sharded, Strategy::Radix, Strategy::Tree, Strategy::Fixed];

fn merges(criterion: &mut Criterion) {
    for case in cases(SCALE, "") {
        let answer = |strategy, threads| {
            let merged = merge(case.inputs.clone(), &case.layout, &Options { threads, strategy }).unwrap();
            digest(&merged, case.layout.key_count)
        };
        let expected = answer(Strategy::Serial, 1);
        let mut group = criterion.benchmark_group(&case.name);
        group.throughput(Throughput::Elements(case.cells() as u64)).sample_size(10);
        for strategy in STRATEGIES {
            for threads in [1, 2] {
                if case.ordered && strategy == Strategy::Sharded && threads > 1 {
                    continue;
                }
                assert_eq!(answer(strategy, threads), expected, "{}: {strategy:?}", case.name);
                group.bench_function(BenchmarkId::new(format!("{strategy:?}"), threads), |bencher| {
                    bencher.iter_batched(
                        || case.inputs.clone(),
                        |inputs| merge(inputs, &case.layout, &Options { threads, strategy }).unwrap(),
                        BatchSize::PerIteration,
                    );
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, merges);
criterion_main!(benches);
