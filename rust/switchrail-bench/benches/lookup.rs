//! Measures the route lookup in thread CPU time, alone and while eight threads register, for 48 and 320 layers.

#[path = "../../switchrail/tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::load::{calls, look_up, thread_cpu_time, thread_cpu_time_since, while_eight_register};
use common::{qwen3_next, request, runtime_with_torch};
use criterion::{
    Criterion, Throughput, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use switchrail::RoutePlan;

/// Measures the calling thread's CPU time, which excludes the time of other threads.
struct ThreadCpuTime;

impl Measurement for ThreadCpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        thread_cpu_time()
    }

    fn end(&self, start: Duration) -> Duration {
        thread_cpu_time_since(start)
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn lookup(criterion: &mut Criterion<ThreadCpuTime>) {
    let runtime = runtime_with_torch();
    for layers in [48, 320] {
        let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(layers), request()).unwrap();
        let calls = calls(&plan);
        let mut group = criterion.benchmark_group(format!("lookup, {layers} layers"));
        group.throughput(Throughput::Elements(1));
        let mut measure = |name: &str| {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|count| {
                    let start = thread_cpu_time();
                    look_up(&plan, &calls, count);
                    thread_cpu_time_since(start)
                });
            });
        };
        measure("alone");
        let commits = while_eight_register(&runtime, || measure("while 8 threads register"));
        println!("{commits} commits meanwhile");
        group.finish();
    }
}

fn criterion() -> Criterion<ThreadCpuTime> {
    Criterion::default().with_measurement(ThreadCpuTime)
}

criterion_group! { name = benches; config = criterion(); targets = lookup }
criterion_main!(benches);
