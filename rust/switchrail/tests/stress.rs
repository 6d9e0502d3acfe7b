//! Sixteen threads share one runtime: eight register, configure and withdraw, while eight resolve and look
//! up.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use common::{plugin, preferences, query, qwen3_next, request, runtime_with_torch, spec};
use serde_json::json;
use switchrail::{
    BackendId, BackendSpec, Commit, CommitError, Decision, Entry, Layout, Op, Packages, Phase, Preferences,
    Query, RegisterError, RoutePlan, Runtime, Snapshot,
};

const THREADS: usize = 8;
const TRANSACTIONS: usize = 5_000;
const RESOLVES: usize = 8_000;
const LOOKUPS_A_RESOLVE: usize = 13;
const RESOLVES_A_PLAN: usize = 250;
const OPS: [Op; 3] = [Op::Attention, Op::GatedDelta, Op::ShortConv];

/// A small random generator with a fixed seed, so that each thread draws the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// The actions of one writer.
struct Written {
    commits: Vec<Arc<Commit>>,
    /// Registrations under this writer's own names that it did not withdraw. No other thread changes them.
    live: BTreeSet<BackendId>,
    aborted: Vec<BackendId>,
    requests: usize,
}

fn write(runtime: &Arc<Runtime>, thread: usize) -> Written {
    let origin = plugin(&format!("vendor-{thread}"));
    let mut random = Random(thread as u64 + 1);
    let mut own: BTreeMap<(Op, String), BackendId> = BTreeMap::new();
    let mut written = Written {
        commits: vec![],
        live: BTreeSet::new(),
        aborted: vec![],
        requests: 0,
    };
    for _ in 0..TRANSACTIONS {
        // With fewer cores than threads, this thread might otherwise finish before a reader runs.
        thread::yield_now();
        let transaction = runtime.begin(origin.clone());
        let registrar = transaction.registrar();
        let mut next = own.clone();
        let key = (OPS[random.below(3)], format!("own-{thread}-{}", random.below(2)));
        if let Some(id) = next.remove(&key) {
            registrar.withdraw(id).unwrap();
            written.requests += 1;
        }
        let priority = i32::try_from(random.below(3)).unwrap();
        let mut fresh = BackendSpec {
            priority,
            ..spec(key.0, &key.1)
        };
        if random.below(4) == 0 {
            fresh.phases = [Phase::Prefill].into();
        }
        let id = registrar
            .add(fresh, Entry::Foreign, false)
            .expect("the name is this thread's own");
        registrar
            .configure(
                key.0,
                &key.1,
                json!({"n": random.below(100)}).as_object().unwrap().clone(),
            )
            .unwrap();
        next.insert(key, id);

        let op = OPS[random.below(3)];
        if random.below(2) == 0 {
            match registrar.clear(op, "contested", None) {
                Ok(()) => (),
                Err(RegisterError::NotOwn { name, .. }) => assert_eq!(name, "contested"),
                Err(other) => panic!("{other}"),
            }
        } else {
            match registrar.add(spec(op, "contested"), Entry::Foreign, random.below(3) == 0) {
                Ok(_) => (),
                Err(RegisterError::Taken(conflict)) => assert_eq!(conflict.name, "contested"),
                Err(other) => panic!("{other}"),
            }
        }
        written.requests += 3;
        if random.below(10) == 0 {
            written.aborted.push(id);
            drop(transaction);
            continue;
        }
        match transaction.commit() {
            Ok(commit) => {
                own = next;
                written.commits.push(commit);
            }
            Err(CommitError::Conflict(conflict)) => {
                assert_eq!(conflict.name, "contested");
                written.aborted.push(id);
            }
            Err(other) => panic!("{other}"),
        }
    }
    written.live = own.into_values().collect();
    written
}

/// The readers' queries.
fn questions() -> Vec<(Query, Preferences)> {
    let automatic = OPS.map(|op| (query(op), Preferences::default()));
    let chosen = OPS.map(|op| {
        (
            query(op),
            preferences([("attention", "torch"), ("linear", "torch")]),
        )
    });
    automatic.into_iter().chain(chosen).collect()
}

fn answer(snapshot: &Snapshot, (query, preferences): &(Query, Preferences)) -> Decision {
    snapshot
        .resolve(query, preferences, &Packages::default())
        .expect("the built-in always fits")
}

/// The answers that one reader got.
struct Read {
    decisions: HashMap<(u64, usize), Decision>,
    plans: Vec<RoutePlan>,
    resolves: usize,
    lookups: usize,
}

fn read(runtime: &Arc<Runtime>, layout: &Arc<Layout>, thread: usize, newest: &AtomicU64) -> Read {
    let questions = questions();
    let mut random = Random(thread as u64 + 101);
    let mut read = Read {
        decisions: HashMap::new(),
        plans: vec![],
        resolves: 0,
        lookups: 0,
    };
    let mut table = Vec::new();
    for round in 0..RESOLVES {
        // As in `write`, so that the writers run too.
        thread::yield_now();
        let seen = newest.load(Ordering::Acquire);
        let snapshot = runtime.snapshot();
        assert!(snapshot.version() >= seen, "a published version does not go back");
        newest.fetch_max(snapshot.version(), Ordering::AcqRel);
        if round % RESOLVES_A_PLAN == 0 {
            let plan = RoutePlan::new(&snapshot, Arc::clone(layout), request()).unwrap();
            table = plan.entries().collect();
            read.plans.push(plan);
        }
        let question = random.below(questions.len());
        let decision = answer(&snapshot, &questions[question]);
        assert_eq!(decision.version, snapshot.version());
        let first = read
            .decisions
            .entry((decision.version, question))
            .or_insert_with(|| decision.clone());
        assert_eq!(*first, decision, "the same question at the same version");
        read.resolves += 1;
        let plan = read.plans.last().unwrap();
        for _ in 0..LOOKUPS_A_RESOLVE {
            let (layer, op, phase, id) = table[random.below(table.len())];
            assert_eq!(plan.lookup(layer, op, phase), Ok(id), "a plan does not change");
            read.lookups += 1;
        }
    }
    read
}

/// Runs all sixteen threads.
fn run(runtime: &Arc<Runtime>, layout: &Arc<Layout>) -> (Vec<Written>, Vec<Read>) {
    let (newest, barrier) = (&AtomicU64::new(0), &Barrier::new(2 * THREADS));
    thread::scope(|scope| {
        let writer = |thread| {
            scope.spawn(move || {
                barrier.wait();
                write(runtime, thread)
            })
        };
        let reader = |thread| {
            scope.spawn(move || {
                barrier.wait();
                read(runtime, layout, thread, newest)
            })
        };
        let writers: Vec<_> = (0..THREADS).map(writer).collect();
        let readers: Vec<_> = (0..THREADS).map(reader).collect();
        (
            writers.into_iter().map(|writer| writer.join().unwrap()).collect(),
            readers.into_iter().map(|reader| reader.join().unwrap()).collect(),
        )
    })
}

/// Replays the commits from `start` and repeats the readers' queries at each version; returns the last state.
fn replay(
    start: &Arc<Snapshot>,
    commits: &[&Arc<Commit>],
    layout: &Arc<Layout>,
    reads: &[Read],
) -> Arc<Snapshot> {
    let mut told: BTreeMap<u64, Vec<(usize, &Decision)>> = BTreeMap::new();
    for ((version, question), decision) in reads.iter().flat_map(|read| &read.decisions) {
        told.entry(*version).or_default().push((*question, decision));
    }
    let mut plans: BTreeMap<u64, Vec<&RoutePlan>> = BTreeMap::new();
    for plan in reads.iter().flat_map(|read| &read.plans) {
        plans.entry(plan.version()).or_default().push(plan);
    }
    println!("{} commits, {} versions read", commits.len(), told.len());
    assert!(told.len() > 1_000, "readers saw only {} versions", told.len());

    let questions = questions();
    let mut state = Arc::clone(start);
    for commit in [None].into_iter().chain(commits.iter().map(Some)) {
        if let Some(commit) = commit {
            state = Arc::new(state.apply(commit).unwrap());
        }
        let mut answers = HashMap::new();
        for (question, decision) in told.remove(&state.version()).unwrap_or_default() {
            let expected = answers
                .entry(question)
                .or_insert_with(|| answer(&state, &questions[question]));
            assert_eq!(decision, expected);
        }
        for plan in plans.remove(&state.version()).unwrap_or_default() {
            assert_eq!(
                *plan,
                RoutePlan::new(&state, Arc::clone(layout), request()).unwrap()
            );
        }
    }
    assert!(
        told.is_empty() && plans.is_empty(),
        "each decision and plan belongs to a committed version"
    );
    state
}

#[test]
fn a_million_operations_lose_no_change_and_mix_no_versions() {
    let runtime = runtime_with_torch();
    let layout = qwen3_next(8);
    let start = runtime.snapshot();
    let (written, reads) = run(&runtime, &layout);
    let end = runtime.snapshot();

    let operations = written.iter().map(|written| written.requests).sum::<usize>()
        + reads
            .iter()
            .map(|read| read.resolves + read.lookups)
            .sum::<usize>();
    assert!(operations >= 1_000_000, "{operations}");

    let mut commits: Vec<_> = written.iter().flat_map(|written| &written.commits).collect();
    commits.sort_by_key(|commit| commit.version);
    let versions: Vec<_> = commits.iter().map(|commit| commit.version).collect();
    assert_eq!(
        versions,
        (start.version() + 1..=end.version()).collect::<Vec<_>>(),
        "one commit a version"
    );
    assert_eq!(
        *replay(&start, &commits, &layout, &reads),
        *end,
        "replaying the commits gives the final state"
    );

    let live: BTreeSet<_> = written
        .iter()
        .flat_map(|written| written.live.iter().copied())
        .collect();
    let own = end
        .backends()
        .iter()
        .filter(|backend| backend.spec.name.starts_with("own-"));
    assert_eq!(
        own.map(|backend| backend.id).collect::<BTreeSet<_>>(),
        live,
        "no registration is lost, and no withdrawn one is left"
    );
    let aborted: Vec<_> = written.iter().flat_map(|written| &written.aborted).collect();
    assert!(!aborted.is_empty() && aborted.iter().all(|id| end.get(**id).is_none()));
}
