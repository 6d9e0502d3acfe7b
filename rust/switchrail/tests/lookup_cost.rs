//! A route lookup takes at most four times as long as a plain read of a table, even while other threads register.
//!
//! The reference is a plain read of an array of arrays, alternating with lookups in the same run. A lock, a
//! map or a string would make lookups tens of times slower. `cargo bench --bench lookup` prints nanoseconds.
//! Measure optimised code only: `cargo test --release --test lookup_cost`.

mod common;

use std::{hint::black_box, time::Duration};

use common::load::{calls, look_up, thread_cpu_time, thread_cpu_time_since, while_eight_register};
use common::{qwen3_next, request, runtime_with_torch};
use switchrail::{BackendId, Op, Phase, RoutePlan};

const LOOKUPS: u64 = 200_000;
const ROUNDS: usize = 101;

/// A lookup may take this many times as long as the plain read. Loading a snapshot atomically would alone take
/// fifteen times as long as the plain read.
const MOST: f64 = 4.0;

/// The table of the plain read.
type Plain = Vec<[[Option<BackendId>; Phase::ALL.len()]; Op::ALL.len()]>;

fn plain(plan: &RoutePlan) -> Plain {
    let mut table = vec![[[None; Phase::ALL.len()]; Op::ALL.len()]; plan.layout().layers().len()];
    for (layer, op, phase, id) in plan.entries() {
        table[layer][op as usize][phase as usize] = Some(id);
    }
    table
}

fn read_plain(table: &Plain, calls: &[(usize, Op, Phase)], count: u64) {
    let table = black_box(table);
    for (layer, op, phase) in calls.iter().cycle().take(usize::try_from(count).unwrap()) {
        let row = table.get(black_box(*layer)).expect("the layer is there");
        let id = row[black_box(*op) as usize][black_box(*phase) as usize];
        black_box(id.expect("the table has it"));
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = thread_cpu_time();
    work();
    thread_cpu_time_since(start)
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures optimised code: run with --release")]
fn a_lookup_takes_a_few_times_as_long_as_a_plain_read_also_while_eight_threads_register() {
    let runtime = runtime_with_torch();
    for layers in [48, 320] {
        let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(layers), request()).unwrap();
        let (calls, table) = (calls(&plan), plain(&plan));
        // The two alternate, so that external load slows both. The minimum of many runs excludes interruptions.
        let ratio = || {
            let rounds = (0..ROUNDS).map(|_| {
                let read = timed(|| read_plain(&table, &calls, LOOKUPS));
                (read, timed(|| look_up(&plan, &calls, LOOKUPS)))
            });
            let (reads, lookups): (Vec<Duration>, Vec<Duration>) = rounds.unzip();
            let least =
                |times: Vec<Duration>| times.into_iter().min().expect("there are rounds").as_secs_f64();
            least(lookups) / least(reads)
        };
        let alone = ratio();
        let mut busy = f64::NAN;
        let commits = while_eight_register(&runtime, || busy = ratio());
        println!(
            "{layers} layers: a lookup takes as long as {alone:.2} plain reads, and as {busy:.2} during {commits} commits of 8 threads"
        );
        assert!(alone <= MOST && busy <= MOST, "{layers}: {alone}, {busy}");
        assert!(commits > 0 && plan.is_stale(&runtime), "the threads committed");
    }
}
