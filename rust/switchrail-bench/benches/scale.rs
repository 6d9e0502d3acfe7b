//! Measures staging, withdrawal, selection and ordering of 1,000 and 10,000 items, and resolving among 20 and
//! 200 measured backends. Time should grow about linearly.

#[path = "../../switchrail/tests/common/mod.rs"]
mod common;

use common::scale;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};

fn scaling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scale");
    group.sample_size(10);
    for count in [1_000, 10_000] {
        group.bench_function(BenchmarkId::new("stage and commit", count), |bencher| {
            bencher.iter(|| scale::register_all(count));
        });
        group.bench_function(BenchmarkId::new("withdraw", count), |bencher| {
            bencher.iter_batched(
                || scale::register_all(count),
                |registered| scale::withdraw_all(&registered),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("select", count), |bencher| {
            let mut plugins = scale::installed(count);
            bencher.iter(|| scale::select(&mut plugins));
        });
        group.bench_function(BenchmarkId::new("order", count), |bencher| {
            bencher.iter(|| scale::put_in_order(count));
        });
    }
    for count in [20, 200] {
        group.bench_function(BenchmarkId::new("resolve by extreme times", count), |bencher| {
            let measured = scale::measured(count, u64::MAX);
            bencher.iter(|| scale::resolve(&measured));
        });
    }
    group.finish();
}

criterion_group!(benches, scaling);
criterion_main!(benches);
