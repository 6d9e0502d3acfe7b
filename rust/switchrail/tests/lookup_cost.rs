//! What a route lookup costs. Only optimised code is worth measuring: `cargo test --release --test lookup_cost`.

mod common;

use common::load::{calls, look_up, thread_cpu_time, thread_cpu_time_since, while_eight_register};
use common::{qwen3_next, request, runtime_with_torch};
use switchrail::RoutePlan;

const LOOKUPS: u64 = 1_000_000;
const BATCHES: usize = 41;
const LIMIT_NS: f64 = 5.0;

#[test]
#[cfg_attr(debug_assertions, ignore = "measures optimised code: run with --release")]
fn a_lookup_takes_at_most_five_nanoseconds_also_while_eight_threads_register() {
    let runtime = runtime_with_torch();
    for layers in [48, 320] {
        let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(layers), request()).unwrap();
        let calls = calls(&plan);
        let median = || {
            let mut batches: Vec<f64> = (0..BATCHES)
                .map(|_| {
                    let start = thread_cpu_time();
                    look_up(&plan, &calls, LOOKUPS);
                    thread_cpu_time_since(start).as_secs_f64() * 1e9
                        / f64::from(u32::try_from(LOOKUPS).unwrap())
                })
                .collect();
            batches.sort_by(f64::total_cmp);
            batches[BATCHES / 2]
        };
        let alone = median();
        let mut busy = f64::NAN;
        let commits = while_eight_register(&runtime, || busy = median());
        println!("{layers} layers: {alone:.2} ns alone, {busy:.2} ns during {commits} commits of 8 threads");
        assert!(
            alone <= LIMIT_NS && busy <= LIMIT_NS && commits > 1_000,
            "{layers}: {alone}, {busy}, {commits}"
        );
        assert!(plan.is_stale(&runtime), "they did commit");
    }
}
