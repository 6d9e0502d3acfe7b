//! Mirror of the core's `registry`: the runtime, its transactions, and the registrations' objects.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::{PyTraverseError, PyVisit, prelude::*};
use switchrail::{BackendId, Change, CommitError, Entry, Origin, RegisterError, Registrar};

use crate::{
    backend::{Registration, Spec},
    errors::{arguments, raise},
    json,
    mirror::mirror,
    objects::Objects,
    op::parse,
    plugin::Plugin,
    resolve::{Decision, Query},
    text::Text,
};

/// The core's `Runtime`, and the Python object of each registration.
#[pyclass(frozen, module = "switchrail._core")]
pub struct Runtime {
    pub core: Arc<switchrail::Runtime>,
    /// Holds an object from before its registration becomes visible until after the registration's removal.
    pub objects: Objects,
}

#[pymethods]
impl Runtime {
    #[new]
    fn new() -> Self {
        Self {
            core: switchrail::Runtime::new(),
            objects: Objects::default(),
        }
    }

    /// The current snapshot of the registry.
    fn snapshot(&self) -> Snapshot {
        Snapshot(switchrail::Snapshot::clone(&self.core.snapshot()))
    }

    /// The version of the current snapshot: the number of commits so far that changed something.
    #[getter]
    fn version(&self) -> u64 {
        self.core.snapshot().version()
    }

    /// The active backends of one op or of all ops, sorted by op and name.
    #[pyo3(signature = (op=None))]
    fn backends(&self, op: Option<Text>) -> PyResult<Vec<Registration>> {
        let ops = match op {
            Some(op) => vec![parse(&op.0)?],
            None => switchrail::Op::ALL.to_vec(),
        };
        let snapshot = self.core.snapshot();
        Ok(ops
            .into_iter()
            .flat_map(|op| snapshot.of_op(op).cloned())
            .map(Registration)
            .collect())
    }

    /// The active backend of an op and name in a phase, or None if no registration of that name serves the
    /// phase.
    fn active(&self, op: Text, name: Text, phase: Text) -> PyResult<Option<Registration>> {
        let snapshot = self.core.snapshot();
        let found = snapshot.active(parse(&op.0)?, &name.0, parse(&phase.0)?);
        Ok(found.cloned().map(Registration))
    }

    /// Whether a registration of an op and name is overridden, in the given phase or in any.
    #[pyo3(signature = (op, name, phase=None))]
    fn is_overridden(&self, op: Text, name: Text, phase: Option<Text>) -> PyResult<bool> {
        let snapshot = self.core.snapshot();
        let phase = phase.map(|phase| parse(&phase.0)).transpose()?;
        Ok(snapshot.is_overridden(parse(&op.0)?, &name.0, phase))
    }

    /// The registrations of an op and name, in order.
    fn stack(&self, op: Text, name: Text) -> PyResult<Vec<Registration>> {
        let snapshot = self.core.snapshot();
        Ok(snapshot
            .stack(parse(&op.0)?, &name.0)
            .iter()
            .cloned()
            .map(Registration)
            .collect())
    }

    /// Decides which backend serves a query.
    fn resolve(&self, query: &Bound<'_, PyAny>) -> PyResult<Decision> {
        arguments::<Query>(query)?.resolve(&self.core.snapshot())
    }

    /// The object of the current registration with this id; None if there is none.
    fn object(&self, py: Python<'_>, id: u64) -> Option<Py<PyAny>> {
        let snapshot = self.core.snapshot();
        let registration = snapshot.get(BackendId::of(id)?)?;
        self.objects.get(py, registration.id)
    }

    /// Opens a transaction for a plugin, or for an origin in the core's JSON form.
    fn begin(slf: &Bound<'_, Self>, origin: &Bound<'_, PyAny>) -> PyResult<Transaction> {
        let origin: Origin = match origin.cast::<Plugin>() {
            Ok(plugin) => (&plugin.get().0.record).into(),
            Err(_) => json::load("Origin", origin)?,
        };
        let transaction = slf.get().core.begin(origin.clone());
        let staged = Staged {
            transaction: Some(transaction),
            ids: Vec::new(),
            committed: false,
        };
        Ok(Transaction {
            runtime: slf.clone().unbind(),
            origin,
            staged: Mutex::new(staged),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.objects.traverse(visit)
    }

    fn __clear__(&self) {
        drop(self.objects.take());
    }
}

/// The core's `Transaction` and `Registrar` as one class.
///
/// Objects of staged registrations are stored in the runtime immediately. Other code does not know their ids
/// until the commit.
#[pyclass(frozen, module = "switchrail._core")]
pub struct Transaction {
    runtime: Py<Runtime>,
    origin: Origin,
    /// Locked only during calls of the core: no Python code runs and no object is dropped under the lock.
    staged: Mutex<Staged>,
}

struct Staged {
    /// `None` after commit or close.
    transaction: Option<switchrail::Transaction>,
    ids: Vec<BackendId>,
    committed: bool,
}

#[pymethods]
impl Transaction {
    /// Whether changes can still be staged.
    #[getter]
    fn is_open(&self) -> bool {
        self.lock().transaction.is_some()
    }

    /// The origin of the staged changes, as a document.
    #[getter]
    fn origin<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::dump(py, &self.origin)
    }

    /// Whether the changes were published. A caller needs this if its commit was interrupted.
    #[getter]
    fn is_committed(&self) -> bool {
        self.lock().committed
    }

    /// Stages a backend with its object. Returns its id.
    fn add(&self, spec: &Bound<'_, PyAny>, object: Py<PyAny>, overrides: bool) -> PyResult<u64> {
        let spec = arguments::<Spec>(spec)?.into_core()?;
        let mut staged = self.lock();
        let added = staged
            .registrar()
            .and_then(|registrar| registrar.add(spec, Entry::Foreign, overrides));
        if let Ok(id) = added {
            staged.ids.push(id);
            self.runtime.get().objects.insert(id, object);
        }
        drop(staged);
        added.map(BackendId::get).map_err(raise)
    }

    /// Stages the removal of all registrations of an op and name except built-in ones. A plugin's transaction
    /// removes only the plugin's own. If a phase is given, only registrations for that phase alone are removed.
    #[pyo3(signature = (op, name, phase=None))]
    fn clear(&self, op: Text, name: Text, phase: Option<Text>) -> PyResult<()> {
        let phase = phase.map(|phase| parse(&phase.0)).transpose()?;
        let op = parse(&op.0)?;
        self.stage(|registrar| registrar.clear(op, &name.0, phase))
    }

    /// Stages the removal of one registration.
    fn withdraw(&self, registration: &Registration) -> PyResult<()> {
        self.stage(|registrar| registrar.withdraw(registration.0.id))
    }

    /// Stages the removal of all registrations of the transaction's origin.
    fn withdraw_own(&self) -> PyResult<()> {
        self.stage(Registrar::withdraw_own)
    }

    /// Stages configured values for the last registered backend of an op and name.
    fn configure(&self, op: Text, name: Text, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let (op, values) = (parse(&op.0)?, json::fields(values)?);
        self.stage(|registrar| registrar.configure(op, &name.0, values))
    }

    /// Publishes all staged changes, or none if one is invalid.
    fn commit(&self) -> PyResult<Commit> {
        let mut staged = self.lock();
        let result = staged
            .transaction
            .take()
            .ok_or(CommitError::Closed)
            .and_then(switchrail::Transaction::commit);
        let ids = std::mem::take(&mut staged.ids);
        staged.committed |= result.is_ok();
        drop(staged);
        let gone = match &result {
            Ok(commit) => commit.changes.iter().filter_map(removed).collect(),
            Err(_) => ids,
        };
        drop(self.runtime.get().objects.remove(gone));
        result.map(Commit).map_err(raise)
    }

    /// Ends the transaction without publishing its changes. Idempotent.
    fn close(&self) {
        let mut staged = self.lock();
        let transaction = staged.transaction.take();
        let ids = std::mem::take(&mut staged.ids);
        drop(staged);
        drop(transaction);
        drop(self.runtime.get().objects.remove(ids));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.runtime)
    }
}

impl Transaction {
    fn stage(&self, stage: impl FnOnce(&Registrar) -> Result<(), RegisterError>) -> PyResult<()> {
        let staged = self.lock();
        let result = staged.registrar().and_then(stage);
        drop(staged);
        result.map_err(raise)
    }

    fn lock(&self) -> MutexGuard<'_, Staged> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.close();
    }
}

impl Staged {
    fn registrar(&self) -> Result<&Registrar, RegisterError> {
        self.transaction
            .as_ref()
            .map(switchrail::Transaction::registrar)
            .ok_or(RegisterError::Closed)
    }
}

fn removed(change: &Change) -> Option<BackendId> {
    match change {
        Change::Remove { id } => Some(*id),
        Change::Add { .. } | Change::Configure { .. } => None,
    }
}

mirror! {
    /// One immutable state of a runtime's registry.
    Snapshot(switchrail::Snapshot) {
        #[new]
        fn new() -> Self {
            Self(switchrail::Snapshot::default())
        }

        #[getter]
        fn version(&self) -> u64 {
            self.0.version()
        }

        /// All registrations, including overridden ones.
        #[getter]
        fn backends(&self) -> Vec<Registration> {
            self.0.backends().iter().cloned().map(Registration).collect()
        }

        /// The snapshot after a commit.
        fn apply(&self, commit: &Commit) -> PyResult<Self> {
            self.0.apply(&commit.0).map(Self).map_err(raise)
        }
    }
}

mirror! {
    /// The changes of one commit.
    Commit(Arc<switchrail::Commit>) {
        #[getter]
        fn version(&self) -> u64 {
            self.0.version
        }
    }
}
