//! Tests of transactions, overrides, configuration and replay.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use common::{
    clear, configure, plugin, preferences, query, qwen3_next, register, request, runtime_with_torch, spec,
};
use proptest::prelude::*;
use serde_json::json;
use switchrail::{
    BackendId, BackendSpec, Change, CommitError, ComputeCapability, Config, CoreError, DeviceSupport, Entry,
    FingerprintInputs, NativeBackend, Op, Origin, Packages, Phase, Preferences, Query, RegisterError,
    ReplayError, RoutePlan, Runtime, Snapshot, Transaction,
};

const OP: Op = Op::GatedDelta;

/// Stages a backend of this name.
fn stage(transaction: &Transaction, name: &str) -> BackendId {
    transaction
        .registrar()
        .add(spec(OP, name), Entry::Foreign, false)
        .unwrap()
}

#[test]
fn a_transaction_is_seen_whole_or_not_at_all() {
    let runtime = Runtime::new();
    let before = runtime.snapshot();
    let transaction = runtime.begin(plugin("acme"));
    stage(&transaction, "a");
    stage(&transaction, "b");
    assert_eq!(*runtime.snapshot(), *before);
    let commit = transaction.commit().unwrap();
    assert_eq!(
        (commit.version, commit.changes.len(), &commit.origin),
        (1, 2, &plugin("acme"))
    );
    assert_eq!(runtime.snapshot().version(), 1);
    assert_eq!(
        runtime
            .snapshot()
            .of_op(OP)
            .map(|b| b.spec.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(before.backends(), [], "a snapshot never changes");
}

#[test]
fn dropping_aborts_and_closes_every_handle() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(plugin("acme"));
    let handle = transaction.registrar().clone();
    handle.add(spec(OP, "a"), Entry::Foreign, false).unwrap();
    drop(transaction);
    assert_eq!(runtime.snapshot().version(), 0);
    let late = [
        handle.add(spec(OP, "b"), Entry::Foreign, false).unwrap_err(),
        handle.clear(OP, "a", None).unwrap_err(),
        handle.configure(OP, "a", Config::new()).unwrap_err(),
    ];
    for error in late {
        assert_eq!(
            (&error, error.code()),
            (&RegisterError::Closed, "transaction_closed")
        );
    }
}

#[test]
fn an_origin_can_withdraw_all_of_its_registrations() {
    let runtime = runtime_with_torch();
    let built_in = runtime.snapshot().backends().len();
    for (owner, name) in [("acme", "a"), ("acme", "b"), ("other", "c")] {
        register(&runtime, plugin(owner), spec(OP, name), false);
    }
    let transaction = runtime.begin(plugin("acme"));
    let handle = transaction.registrar().clone();
    handle.withdraw_own().unwrap();
    transaction.commit().unwrap();
    let snapshot = runtime.snapshot();
    assert_eq!(snapshot.backends().len(), built_in + 1);
    assert!(snapshot.find(OP, "a").is_none() && snapshot.find(OP, "c").is_some());
    assert_eq!(handle.withdraw_own(), Err(RegisterError::Closed));
}

#[test]
fn a_committed_transaction_refuses_late_writes() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(plugin("acme"));
    let handle = transaction.registrar().clone();
    transaction.commit().unwrap();
    assert_eq!(
        handle.add(spec(OP, "a"), Entry::Foreign, false),
        Err(RegisterError::Closed)
    );
    assert_eq!(
        runtime.snapshot().version(),
        0,
        "nothing changed, so nothing was published"
    );
}

#[test]
fn a_handle_can_close_the_transaction_under_its_owner() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(plugin("acme"));
    let handle = transaction.registrar().clone();
    handle.add(spec(OP, "a"), Entry::Foreign, false).unwrap();
    std::thread::spawn(move || handle.close()).join().unwrap();
    assert_eq!(transaction.commit(), Err(CommitError::Closed));
    assert_eq!(runtime.snapshot().version(), 0);
}

#[test]
fn a_taken_name_is_refused_at_once_with_its_owner() {
    let runtime = Runtime::new();
    register(&runtime, plugin("acme"), spec(OP, "fast"), false);
    let transaction = runtime.begin(plugin("zeta"));
    let error = transaction
        .registrar()
        .add(spec(OP, "fast"), Entry::Foreign, false)
        .unwrap_err();
    assert_eq!(error.code(), "backend_taken");
    assert_eq!(error.fields()["owner"]["distribution"], "acme");
    assert!(
        error.to_string().contains("plugin \"acme\" of acme 1.0"),
        "{error}"
    );
    transaction
        .registrar()
        .add(spec(Op::Kda, "fast"), Entry::Foreign, false)
        .expect("names are per op");
    let twice = transaction
        .registrar()
        .add(spec(Op::Kda, "fast"), Entry::Foreign, false)
        .unwrap_err();
    assert_eq!(
        twice.fields()["owner"]["distribution"],
        "zeta",
        "staged names are taken too"
    );
}

#[test]
fn two_transactions_for_one_name_conflict_and_the_loser_leaves_nothing() {
    let runtime = Runtime::new();
    let (first, second) = (runtime.begin(plugin("acme")), runtime.begin(plugin("zeta")));
    stage(&first, "fast");
    stage(&second, "other");
    stage(&second, "fast");
    first.commit().unwrap();
    let after = runtime.snapshot();
    let error = second.commit().unwrap_err();
    assert_eq!(error.code(), "commit_conflict");
    assert_eq!(error.fields()["owner"]["distribution"], "acme");
    assert_eq!(error.fields()["found"], "fast");
    assert_eq!(*runtime.snapshot(), *after);
}

#[test]
fn ids_are_never_reused() {
    let runtime = Runtime::new();
    let first = register(&runtime, Origin::User, spec(OP, "a"), false);
    let aborted = runtime
        .begin(Origin::User)
        .registrar()
        .add(spec(OP, "b"), Entry::Foreign, false)
        .unwrap();
    clear(&runtime, OP, "a");
    let second = register(&runtime, Origin::User, spec(OP, "a"), false);
    assert!(first < aborted && aborted < second);
}

/// The registrations of the op's `torch`, in order.
fn stacked(snapshot: &Snapshot) -> Vec<BackendId> {
    snapshot.stack(OP, "torch").iter().map(|b| b.id).collect()
}

#[test]
fn overrides_stack_and_clear_restores_the_builtin_whatever_the_order() {
    let runtime = Runtime::new();
    let builtin = register(&runtime, Origin::Builtin, spec(OP, "torch"), false);
    let first = register(&runtime, plugin("acme"), spec(OP, "torch"), true);
    let second = register(&runtime, plugin("zeta"), spec(OP, "torch"), true);
    let snapshot = runtime.snapshot();
    assert_eq!(stacked(&snapshot), [builtin, first, second]);
    assert_eq!(snapshot.find(OP, "torch").unwrap().id, second);

    let transaction = runtime.begin(Origin::User);
    transaction.registrar().withdraw(first).unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        runtime.snapshot().find(OP, "torch").unwrap().id,
        second,
        "the registration that was overridden is withdrawn; the active one stays"
    );

    clear(&runtime, OP, "torch");
    let snapshot = runtime.snapshot();
    assert_eq!(stacked(&snapshot), [builtin]);
    clear(&runtime, OP, "torch");
    assert_eq!(
        *runtime.snapshot(),
        *snapshot,
        "idempotent: not even a new version"
    );
}

#[test]
fn clear_removes_a_custom_name_and_does_nothing_for_unknown_names() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "mine"), false);
    clear(&runtime, OP, "mine");
    assert!(runtime.snapshot().find(OP, "mine").is_none());
    clear(&runtime, OP, "mine");
    clear(&runtime, OP, "never");
    assert_eq!(runtime.snapshot().version(), 2);
}

#[test]
fn two_names_with_one_path_stay_distinct() {
    let runtime = Runtime::new();
    let mut other = spec(OP, "b");
    other.path = spec(OP, "a").path;
    register(&runtime, Origin::User, spec(OP, "a"), false);
    register(&runtime, Origin::User, other, false);
    configure(&runtime, OP, "a", &json!({"scale": 2}));
    let snapshot = runtime.snapshot();
    assert_eq!(snapshot.find(OP, "a").unwrap().effective_config()["scale"], 2);
    assert!(snapshot.find(OP, "b").unwrap().effective_config().is_empty());
}

#[test]
fn a_configuration_overrides_defaults_and_belongs_to_its_registration() {
    let runtime = Runtime::new();
    let with = |defaults: serde_json::Value| BackendSpec {
        config: defaults.as_object().unwrap().clone(),
        ..spec(OP, "torch")
    };
    register(
        &runtime,
        Origin::Builtin,
        with(json!({"chunk": 64, "exact": true})),
        false,
    );
    configure(&runtime, OP, "torch", &json!({"chunk": 16}));
    let effective = |runtime: &Runtime| runtime.snapshot().find(OP, "torch").unwrap().effective_config();
    assert_eq!(json!(effective(&runtime)), json!({"chunk": 16, "exact": true}));
    let version = runtime.snapshot().version();
    configure(&runtime, OP, "torch", &json!({"chunk": 16}));
    assert_eq!(
        runtime.snapshot().version(),
        version,
        "the same values again change nothing"
    );

    register(&runtime, plugin("acme"), with(json!({"stages": 3})), true);
    assert_eq!(json!(effective(&runtime)), json!({"stages": 3}));
    configure(&runtime, OP, "torch", &json!({"stages": 4}));
    clear(&runtime, OP, "torch");
    assert_eq!(json!(effective(&runtime)), json!({"chunk": 16, "exact": true}));
    configure(&runtime, OP, "torch", &json!({}));
    assert_eq!(json!(effective(&runtime)), json!({"chunk": 64, "exact": true}));
}

#[test]
fn configuring_an_unknown_backend_names_the_nearest() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "triton"), false);
    let transaction = runtime.begin(Origin::User);
    let error = transaction
        .registrar()
        .configure(OP, "tritn", Config::new())
        .unwrap_err();
    assert_eq!(
        (error.code(), &error.fields()["nearest"]),
        ("unknown_registered_backend", &json!(["triton"]))
    );
}

#[test]
fn configuring_a_backend_that_is_removed_in_the_meantime_fails_at_commit() {
    let runtime = Runtime::new();
    register(&runtime, Origin::User, spec(OP, "mine"), false);
    let transaction = runtime.begin(Origin::User);
    transaction
        .registrar()
        .configure(OP, "mine", json!({"a": 1}).as_object().unwrap().clone())
        .unwrap();
    clear(&runtime, OP, "mine");
    assert_eq!(transaction.commit().unwrap_err().code(), "commit_gone");
}

/// Accepts only configs in which `scale` is a number. Its `drop` commits a backend if the runtime still exists,
/// and records that it ran.
#[derive(Debug)]
struct Scaled {
    runtime: std::sync::Weak<Runtime>,
    dropped: Arc<AtomicBool>,
}

impl NativeBackend for Scaled {
    fn check_config(&self, config: &Config) -> Result<(), String> {
        match config.get("scale") {
            Some(scale) if scale.is_number() => Ok(()),
            other => Err(format!("scale must be a number, not {other:?}")),
        }
    }
}

impl Drop for Scaled {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.upgrade() {
            register(&runtime, Origin::User, spec(Op::Kda, "from-a-drop"), false);
        }
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_native_backend_checks_its_configuration_and_is_dropped_outside_the_locks() {
    let runtime = Runtime::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let backend = || Scaled {
        runtime: Arc::downgrade(&runtime),
        dropped: Arc::clone(&dropped),
    };
    let native = BackendSpec {
        path: "a Rust value".into(),
        ..spec(OP, "scaled")
    };
    let transaction = runtime.begin(Origin::User);
    let quiet = Scaled {
        runtime: std::sync::Weak::new(),
        dropped: Arc::default(),
    };
    let error = transaction
        .registrar()
        .add(native.clone(), Entry::Native(Arc::new(quiet)), false)
        .unwrap_err();
    assert_eq!(error.code(), "bad_backend_config");
    let native = BackendSpec {
        config: json!({"scale": 1}).as_object().unwrap().clone(),
        ..native
    };
    transaction
        .registrar()
        .add(native, Entry::Native(Arc::new(backend())), false)
        .unwrap();
    drop(transaction.commit().unwrap());

    let transaction = runtime.begin(Origin::User);
    let bad = json!({"scale": "big"}).as_object().unwrap().clone();
    assert_eq!(
        transaction
            .registrar()
            .configure(OP, "scaled", bad)
            .unwrap_err()
            .code(),
        "bad_backend_config"
    );
    drop(transaction);

    let held = runtime.snapshot();
    assert!(
        held.find(OP, "scaled")
            .unwrap()
            .entry
            .native::<Scaled>()
            .is_some()
    );
    drop(held);
    let transaction = runtime.begin(Origin::User);
    transaction.registrar().clear(OP, "scaled", None).unwrap();
    assert!(!dropped.load(Ordering::SeqCst));
    drop(transaction.commit().unwrap());
    assert!(
        dropped.load(Ordering::SeqCst),
        "the commit dropped the last reference to the backend"
    );
    assert!(
        runtime.snapshot().find(Op::Kda, "from-a-drop").is_some(),
        "the backend's `drop` could commit"
    );
}

#[test]
fn invalid_specs_are_refused() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(Origin::User);
    let mut refused = 0;
    let mut refuse = |field: &str, change: &dyn Fn(&mut BackendSpec)| {
        let mut bad = spec(OP, "good");
        change(&mut bad);
        let error = transaction
            .registrar()
            .add(bad, Entry::Foreign, false)
            .unwrap_err();
        assert_eq!(
            (error.code(), error.fields()["field"].as_str()),
            ("bad_backend_spec", Some(field)),
            "{error}"
        );
        refused += 1;
    };
    for name in ["", "auto", "two words", "a=b", "-x", "é"] {
        refuse("name", &|spec| spec.name = name.into());
    }
    for path in ["", "module", "module:", ":Class", "a b:C", "a..b:C", "a:b:C"] {
        refuse("path", &|spec| spec.path = path.into());
    }
    refuse("phases", &|spec| spec.phases.clear());
    refuse("devices", &|spec| spec.capabilities.devices.clear());
    refuse("devices", &|spec| {
        let kind = "cuda".parse().unwrap();
        let (min_capability, max_capability) =
            (Some(ComputeCapability(10, 0)), Some(ComputeCapability(9, 0)));
        spec.capabilities.devices.push(DeviceSupport {
            kind,
            min_capability,
            max_capability,
        });
    });
    refuse("head_sizes", &|spec| {
        spec.capabilities.head_sizes = [0.into()].into();
    });
    refuse("page_sizes", &|spec| spec.capabilities.page_sizes = [0].into());
    assert_eq!(refused, 18);
    let mut local = spec(OP, "good");
    local.path = "tests.test_ops:test_register.<locals>.Backend".into();
    transaction.registrar().add(local, Entry::Foreign, false).unwrap();
}

#[test]
fn a_plugin_can_change_only_its_own_registrations() {
    let runtime = Runtime::new();
    register(&runtime, Origin::Builtin, spec(OP, "torch"), false);
    let mine = register(&runtime, Origin::User, spec(OP, "mine"), false);
    let transaction = runtime.begin(plugin("acme"));
    let registrar = transaction.registrar();
    let owner = Origin::User;
    let refusal = RegisterError::NotOwn {
        op: OP,
        name: "mine".into(),
        owner,
    };
    assert_eq!(registrar.clear(OP, "mine", None), Err(refusal.clone()));
    assert_eq!(registrar.withdraw(mine), Err(refusal.clone()));
    assert_eq!(registrar.configure(OP, "mine", Config::new()), Err(refusal));
    registrar.clear(OP, "torch", None).unwrap();
    registrar.clear(OP, "nothing", None).unwrap();
    registrar.add(spec(OP, "mine"), Entry::Foreign, true).unwrap();
    registrar.clear(OP, "mine", None).unwrap();
    registrar.add(spec(OP, "own"), Entry::Foreign, false).unwrap();
    let late = registrar.add(spec(OP, "late"), Entry::Foreign, false).unwrap();
    registrar.withdraw(late).unwrap();
    transaction.commit().unwrap();
    let snapshot = runtime.snapshot();
    let names: Vec<_> = snapshot.of_op(OP).map(|b| b.spec.name.as_str()).collect();
    assert_eq!(names, ["mine", "own", "torch"]);
    assert_eq!(snapshot.find(OP, "mine").unwrap().id, mine);
}

#[test]
fn a_commit_that_does_not_follow_is_refused() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(Origin::User);
    let id = stage(&transaction, "a");
    let first = transaction.commit().unwrap();
    let transaction = runtime.begin(Origin::User);
    transaction.registrar().withdraw(id).unwrap();
    let second = transaction.commit().unwrap();
    let empty = Snapshot::default();
    assert_eq!(
        empty.apply(&second),
        Err(ReplayError::Order { version: 0, found: 2 })
    );
    let mut forged = (*second).clone();
    forged.version = 1;
    assert_eq!(empty.apply(&forged), Err(ReplayError::Unknown { id, version: 1 }));
    assert_eq!(
        empty.apply(&first).unwrap().apply(&second).unwrap(),
        *runtime.snapshot()
    );
}

/// A registration in the simple model with which `random_histories_match_a_simple_model_and_replay` compares.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    id: BackendId,
    name: u8,
    builtin: bool,
    value: Option<u8>,
}

/// One action in a random history.
#[derive(Debug, Clone)]
enum Step {
    Add {
        name: u8,
        builtin: bool,
        overrides: bool,
    },
    Clear {
        name: u8,
    },
    Withdraw {
        nth: usize,
    },
    Configure {
        name: u8,
        value: u8,
    },
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let name = 0..3u8;
    let step = prop_oneof![
        4 => (name.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(name, builtin, overrides)| Step::Add { name, builtin, overrides }),
        1 => name.clone().prop_map(|name| Step::Clear { name }),
        1 => (0..8usize).prop_map(|nth| Step::Withdraw { nth }),
        2 => (name, 0..3u8).prop_map(|(name, value)| Step::Configure { name, value }),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..4), 1..12)
}

proptest! {
    /// Compares the runtime with a simple model: a list in which the last registration of each name is active.
    #[test]
    fn random_histories_match_a_simple_model_and_replay(history in steps()) {
        let runtime = Runtime::new();
        let mut model: Vec<Model> = Vec::new();
        let mut replayed = Snapshot::default();
        for transaction_steps in history {
            let builtin_of = |step: &Step| matches!(step, Step::Add { builtin: true, .. });
            let origin = if builtin_of(&transaction_steps[0]) { Origin::Builtin } else { Origin::User };
            let is_builtin = origin == Origin::Builtin;
            let transaction = runtime.begin(origin);
            let registrar = transaction.registrar();
            for step in transaction_steps {
                let named = |name: u8| ["a", "b", "c"][usize::from(name)];
                match step {
                    Step::Add { name, overrides, .. } => {
                        let added = registrar.add(spec(OP, named(name)), Entry::Foreign, overrides);
                        let free = !model.iter().any(|entry| entry.name == name);
                        prop_assert_eq!(added.is_ok(), free || overrides);
                        if let Ok(id) = added {
                            model.push(Model { id, name, builtin: is_builtin, value: None });
                        }
                    }
                    Step::Clear { name } => {
                        registrar.clear(OP, named(name), None).unwrap();
                        model.retain(|entry| entry.name != name || entry.builtin);
                    }
                    Step::Withdraw { nth } if nth < model.len() => {
                        registrar.withdraw(model.remove(nth).id).unwrap();
                    }
                    Step::Withdraw { .. } => {}
                    Step::Configure { name, value } => {
                        let values = json!({"value": value}).as_object().unwrap().clone();
                        let configured = registrar.configure(OP, named(name), values);
                        let at = model.iter().rposition(|entry| entry.name == name);
                        prop_assert_eq!(configured.is_ok(), at.is_some());
                        if let Some(at) = at {
                            model[at].value = Some(value);
                        }
                    }
                }
            }
            let commit = transaction.commit().unwrap();
            replayed = replayed.apply(&commit).unwrap();
            let snapshot = runtime.snapshot();
            prop_assert_eq!(&replayed, &*snapshot);
            let mut expected = model.clone();
            expected.sort_by_key(|entry| entry.name);
            let found: Vec<_> = snapshot.backends().iter().map(|backend| Model {
                id: backend.id,
                name: backend.spec.name.as_bytes()[0] - b'a',
                builtin: backend.origin == Origin::Builtin,
                value: backend.configuration.get("value").map(|v| u8::try_from(v.as_u64().unwrap()).unwrap()),
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn changes_within_a_commit_are_in_the_order_in_which_they_were_staged() {
    let runtime = Runtime::new();
    let transaction = runtime.begin(Origin::User);
    let id = stage(&transaction, "a");
    transaction
        .registrar()
        .configure(OP, "a", json!({"x": 1}).as_object().unwrap().clone())
        .unwrap();
    transaction.registrar().clear(OP, "a", None).unwrap();
    let last = stage(&transaction, "a");
    let commit = transaction.commit().unwrap();
    let kinds: Vec<_> = commit
        .changes
        .iter()
        .map(|change| match change {
            Change::Add { registration } => ("add", registration.id),
            Change::Remove { id } => ("remove", *id),
            Change::Configure { id, .. } => ("configure", *id),
        })
        .collect();
    assert_eq!(
        kinds,
        [("add", id), ("configure", id), ("remove", id), ("add", last)]
    );
    let decision = runtime
        .snapshot()
        .resolve(&query(OP), &preferences([]), &Packages::default())
        .unwrap();
    assert_eq!(decision.chosen.id, last);
}

/// A backend of MLA for these phases, with the name `torch`.
fn phased(phases: &[Phase]) -> BackendSpec {
    BackendSpec {
        phases: phases.iter().copied().collect(),
        ..spec(Op::Mla, "torch")
    }
}

#[test]
fn an_override_of_one_phase_leaves_the_others_alone() {
    let runtime = Runtime::new();
    let (both, prefill) = ([Phase::Prefill, Phase::Decode], [Phase::Prefill]);
    let builtin = register(&runtime, Origin::Builtin, phased(&both), false);
    let mine = register(&runtime, plugin("acme"), phased(&prefill), true);
    let active = |phase| {
        runtime
            .snapshot()
            .active(Op::Mla, "torch", phase)
            .map(|found| found.id)
    };
    let decide = |phase| {
        let query = Query {
            phase,
            ..query(Op::Mla)
        };
        let found = runtime
            .snapshot()
            .resolve(&query, &Preferences::default(), &Packages::default());
        found.unwrap()
    };
    let snapshot = runtime.snapshot();
    assert_eq!(
        [
            active(Phase::Prefill),
            active(Phase::Decode),
            active(Phase::Verify)
        ],
        [Some(mine), Some(builtin), None]
    );
    assert_eq!(
        snapshot.of_op(Op::Mla).map(|found| found.id).collect::<Vec<_>>(),
        [builtin, mine]
    );
    assert_eq!(snapshot.names_of(Op::Mla).collect::<Vec<_>>(), ["torch"]);
    let overridden = |phase| runtime.snapshot().is_overridden(Op::Mla, "torch", phase);
    assert_eq!(
        [None, Some(Phase::Prefill), Some(Phase::Decode)].map(overridden),
        [true, true, false]
    );
    assert_eq!(
        [decide(Phase::Prefill).chosen.id, decide(Phase::Decode).chosen.id],
        [mine, builtin]
    );
    let told = |phase| {
        decide(phase)
            .rejected
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told(Phase::Prefill),
        ["torch: overridden by plugin \"acme\" of acme 1.0"]
    );
    assert_eq!(
        told(Phase::Decode),
        ["torch: does not serve decode, only prefill"]
    );

    // A registration that is overridden in all of its phases is active in none.
    let other = register(&runtime, Origin::User, phased(&[Phase::Decode]), true);
    let of_op = || {
        runtime
            .snapshot()
            .of_op(Op::Mla)
            .map(|found| found.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(of_op(), [mine, other]);

    let clear = |phase| {
        let transaction = runtime.begin(Origin::User);
        transaction.registrar().clear(Op::Mla, "torch", phase).unwrap();
        transaction.commit().unwrap();
    };
    clear(Some(Phase::Verify));
    assert_eq!(of_op(), [mine, other]);
    clear(Some(Phase::Prefill));
    assert_eq!(of_op(), [builtin, other]);
    assert_eq!(
        [Some(Phase::Prefill), Some(Phase::Decode)].map(overridden),
        [false, true]
    );
    clear(None);
    assert_eq!((of_op(), overridden(None)), (vec![builtin], false));
    assert!(!runtime.snapshot().is_overridden(Op::Mla, "nothing", None));
}

#[test]
fn a_plan_uses_the_registration_that_is_active_in_each_phase() {
    let runtime = runtime_with_torch();
    let of = |phases: &[Phase]| BackendSpec {
        phases: phases.iter().copied().collect(),
        ..spec(OP, "torch")
    };
    let torch = runtime.snapshot().find(OP, "torch").unwrap().id;
    let mine = register(&runtime, Origin::User, of(&[Phase::Prefill]), true);
    let mut asked = request();
    asked.preferences = preferences([("gated_delta", "torch")]);
    let plan = RoutePlan::new(&runtime.snapshot(), qwen3_next(4), asked).unwrap();
    assert_eq!(
        (
            plan.lookup(0, OP, Phase::Prefill),
            plan.lookup(0, OP, Phase::Decode)
        ),
        (Ok(mine), Ok(torch))
    );
    let digest = || {
        let inputs = FingerprintInputs {
            plugins: &[],
            hooks: &[],
            snapshot: &runtime.snapshot(),
            plans: &[],
        };
        switchrail::Fingerprint::new(inputs).digest
    };
    let overridden = digest();
    clear(&runtime, OP, "torch");
    assert_ne!(digest(), overridden);
    register(&runtime, Origin::User, of(&[Phase::Prefill]), true);
    assert_eq!(digest(), overridden);
}
