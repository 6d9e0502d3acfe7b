//! Tools for measuring lookups: this thread's CPU time, and threads that register in the meantime.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use switchrail::{Entry, Op, Phase, RoutePlan, Runtime};

use super::{plugin, spec};

/// CPU time of the calling thread so far. Time in which it does not run is excluded.
pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime)
        .try_into()
        .expect("CPU time is positive")
}

/// CPU time of the calling thread since `start`, which the same thread must have read.
pub fn thread_cpu_time_since(start: Duration) -> Duration {
    thread_cpu_time().saturating_sub(start)
}

/// All routes of a plan, in the order of a forward pass.
pub fn calls(plan: &RoutePlan) -> Vec<(usize, Op, Phase)> {
    plan.entries()
        .map(|(layer, op, phase, _)| (layer, op, phase))
        .collect()
}

/// Performs `count` lookups, cycling through the routes.
pub fn look_up(plan: &RoutePlan, calls: &[(usize, Op, Phase)], count: u64) {
    let plan = black_box(plan);
    for (layer, op, phase) in calls.iter().cycle().take(usize::try_from(count).unwrap()) {
        let id = plan.lookup(black_box(*layer), black_box(*op), black_box(*phase));
        black_box(id.expect("the plan has it"));
    }
}

/// Runs `work` while eight threads register and withdraw; returns the number of their commits.
pub fn while_eight_register(runtime: &Arc<Runtime>, work: impl FnOnce()) -> u64 {
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..8 {
            let (runtime, stop, commits) = (&*runtime, &stop, &commits);
            scope.spawn(move || {
                let (origin, name) = (plugin("load"), format!("load-{number}"));
                while !stop.load(Ordering::Relaxed) {
                    let transaction = runtime.begin(origin.clone());
                    transaction
                        .registrar()
                        .clear(Op::GatedDelta, &name, None)
                        .unwrap();
                    transaction
                        .registrar()
                        .add(spec(Op::GatedDelta, &name), Entry::Foreign, false)
                        .unwrap();
                    transaction.commit().unwrap();
                    commits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        work();
        stop.store(true, Ordering::Relaxed);
    });
    commits.into_inner()
}
