//! Costs that must grow linearly with the number of backends, plugins or measured times, not quadratically.

mod common;

use std::time::Duration;

use common::{
    load::{thread_cpu_time, thread_cpu_time_since},
    scale,
};

const REPEATS: usize = 5;

/// Four times the items take four times as long if the cost is linear, and sixteen times if it is quadratic.
const MOST: f64 = 9.0;

/// The lowest CPU time of several runs.
fn least<T>(mut prepare: impl FnMut() -> T, mut work: impl FnMut(T)) -> Duration {
    let run = |_| {
        let prepared = prepare();
        let start = thread_cpu_time();
        work(prepared);
        thread_cpu_time_since(start)
    };
    (0..REPEATS).map(run).min().expect("there are repeats")
}

fn assert_near_linear<T>(what: &str, count: usize, prepare: fn(usize) -> T, work: fn(T)) {
    let few = least(|| prepare(count), work);
    let many = least(|| prepare(4 * count), work);
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    assert!(
        ratio < MOST,
        "{what}: {few:?} for {count}, {many:?} for four times as many, {ratio:.1} times as long"
    );
}

#[test]
fn staging_is_near_linear() {
    let work = |count| drop(scale::register_all(count));
    assert_near_linear("staging", 1_000, |count| count, work);
}

#[test]
fn withdrawing_is_near_linear() {
    assert_near_linear("withdrawing", 1_000, scale::register_all, |found| {
        scale::withdraw_all(&found);
    });
}

#[test]
fn selection_is_near_linear() {
    assert_near_linear("selection", 1_000, scale::installed, |mut plugins| {
        scale::select(&mut plugins);
    });
}

#[test]
fn order_is_near_linear() {
    assert_near_linear("order", 2_000, |count| count, scale::put_in_order);
}

#[test]
fn deciding_by_times_is_near_linear() {
    let prepare = |count| scale::measured(count, 1 << 16);
    assert_near_linear("deciding by times", 100, prepare, |found| {
        drop(scale::resolve(&found));
    });
}
