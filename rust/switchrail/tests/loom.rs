//! Checks the commit protocol in all possible interleavings of two threads, and in those of three threads with at
//! most three preemptions: `RUSTFLAGS="--cfg loom" cargo test -p switchrail --test loom --target-dir
//! target/loom`.
//!
//! The cell that holds the current snapshot is replaced by a model. The real cell, arc-swap, is tested by
//! `stress`, and under Miri by the registry's tests: `MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4
//! cargo +nightly miri test -p switchrail --test registry`. On 2026-11-21, 19 of these tests passed with
//! nightly 1.97.0 of 2026-05-19 and arc-swap 1.9.3.
#![cfg(loom)]

mod common;

use std::sync::Arc;

use common::{plugin, spec};
use loom::thread;
use switchrail::{
    BackendId, CommitError, Config, Entry, Op, Origin, RegisterError, Registrar, Runtime, Snapshot,
    Transaction,
};

const OP: Op = Op::GatedDelta;

fn add(registrar: &Registrar, name: &str) -> Result<BackendId, RegisterError> {
    registrar.add(spec(OP, name), Entry::Foreign, false)
}

fn staged(runtime: &Arc<Runtime>, distribution: &str, names: &[&str]) -> Transaction {
    let transaction = runtime.begin(plugin(distribution));
    for name in names {
        add(transaction.registrar(), name).unwrap();
    }
    transaction
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot
        .of_op(OP)
        .map(|backend| backend.spec.name.as_str())
        .collect()
}

/// Each commit makes exactly one complete version, and versions never decrease for a reader.
#[test]
fn commits_are_serial_and_readers_see_them_whole() {
    // Three threads: explores all interleavings with at most three preemptions.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let runtime = Runtime::new();
        let write = |distribution: &'static str, names: [&'static str; 2]| {
            let runtime = Arc::clone(&runtime);
            thread::spawn(move || staged(&runtime, distribution, &names).commit().unwrap().version)
        };
        let writers = [write("one", ["a", "b"]), write("two", ["c", "d"])];
        let seen = [runtime.snapshot(), runtime.snapshot()];
        assert!(seen[0].version() <= seen[1].version());
        for snapshot in &seen {
            let expected: &[&[&str]] = match snapshot.version() {
                0 => &[&[]],
                1 => &[&["a", "b"], &["c", "d"]],
                _ => &[&["a", "b", "c", "d"]],
            };
            assert!(expected.contains(&&names(snapshot)[..]), "{snapshot:?}");
        }
        let mut versions = writers.map(|writer| writer.join().unwrap());
        versions.sort_unstable();
        assert_eq!(versions, [1, 2]);
        let end = runtime.snapshot();
        assert_eq!(names(&end), ["a", "b", "c", "d"]);
        let mut ids: Vec<_> = end.backends().iter().map(|backend| backend.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4, "an id is given once");
    });
}

/// If two transactions use the same name, one of them wins and nothing of the other is published.
#[test]
fn a_conflict_leaves_nothing_and_names_the_owner() {
    loom::model(|| {
        let runtime = Runtime::new();
        let write = |distribution: &'static str, own: &'static str| {
            let runtime = Arc::clone(&runtime);
            thread::spawn(move || {
                let transaction = runtime.begin(plugin(distribution));
                let added =
                    add(transaction.registrar(), own).and_then(|_| add(transaction.registrar(), "contested"));
                match added {
                    Ok(_) => transaction.commit().map(drop),
                    Err(RegisterError::Taken(conflict)) => Err(CommitError::Conflict(conflict)),
                    Err(other) => panic!("{other}"),
                }
            })
        };
        let writers = [write("one", "a"), write("two", "b")];
        let results = writers.map(|writer| writer.join().unwrap());
        let end = runtime.snapshot();
        assert_eq!(end.version(), 1);
        let (winner, own, loser) = match &results {
            [Ok(()), Err(error)] => ("one", "a", error),
            [Err(error), Ok(())] => ("two", "b", error),
            _ => panic!("{results:?}"),
        };
        assert_eq!(names(&end), [own, "contested"]);
        let CommitError::Conflict(conflict) = loser else {
            panic!("{loser}")
        };
        assert_eq!(conflict.owner, plugin(winner));
    });
}

/// A transaction that another thread closes is either committed as a whole or not at all.
#[test]
fn closing_and_committing_exclude_each_other() {
    loom::model(|| {
        let runtime = Runtime::new();
        let transaction = staged(&runtime, "one", &["a", "b"]);
        let handle = transaction.registrar().clone();
        let closer = thread::spawn(move || handle.close());
        let result = transaction.commit();
        closer.join().unwrap();
        let end = runtime.snapshot();
        match result {
            Ok(_) => assert_eq!(names(&end), ["a", "b"]),
            Err(error) => {
                assert_eq!(error, CommitError::Closed);
                assert_eq!(*end, Snapshot::default());
            }
        }
    });
}

/// A registration that a thread adds while the transaction ends is refused, or committed or dropped with the
/// transaction.
#[test]
fn a_late_write_is_committed_or_refused() {
    for commits in [true, false] {
        loom::model(move || {
            let runtime = Runtime::new();
            let transaction = staged(&runtime, "one", &["a"]);
            let handle = transaction.registrar().clone();
            let late = thread::spawn(move || add(&handle, "late"));
            if commits {
                transaction.commit().unwrap();
            } else {
                drop(transaction);
            }
            let added = late.join().unwrap();
            let end = runtime.snapshot();
            match added {
                Ok(id) => assert!(!commits || end.get(id).is_some(), "{end:?}"),
                Err(error) => {
                    assert_eq!(error, RegisterError::Closed);
                    assert_eq!(names(&end), if commits { vec!["a"] } else { vec![] });
                }
            }
        });
    }
}

/// If one thread withdraws a backend while another configures it, the backend ends withdrawn. The
/// configuration fails, or is committed before the withdrawal.
#[test]
fn withdrawn_backends_are_not_configured() {
    loom::model(|| {
        let runtime = Runtime::new();
        let transaction = runtime.begin(Origin::User);
        let id = add(transaction.registrar(), "a").unwrap();
        transaction.commit().unwrap();
        let other = Arc::clone(&runtime);
        let withdrawer = thread::spawn(move || {
            let transaction = other.begin(Origin::User);
            transaction.registrar().withdraw(id).unwrap();
            transaction.commit().unwrap();
        });
        let transaction = runtime.begin(Origin::User);
        let mut config = Config::new();
        config.insert("n".to_owned(), 1.into());
        let configured = transaction.registrar().configure(OP, "a", config);
        let committed = configured.is_ok().then(|| transaction.commit());
        withdrawer.join().unwrap();
        let end = runtime.snapshot();
        assert_eq!(names(&end), [""; 0]);
        match committed {
            None => assert_eq!(end.version(), 2),
            Some(Ok(commit)) => assert_eq!((commit.version, end.version()), (2, 3)),
            Some(Err(error)) => assert!(matches!(error, CommitError::Gone { .. }), "{error}"),
        }
    });
}
