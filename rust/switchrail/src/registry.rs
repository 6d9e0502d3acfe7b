//! What is registered: immutable snapshots, and the transactions that make the next one.

use std::{
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::{
    AUTO, BackendId, BackendSpec, Config, CoreError, Entry, Op, Origin, Phase, Registration, Schema,
    UnknownName, quoted,
};

/// Owns what is registered.
///
/// Reading takes the current [`Snapshot`] and never waits. Writing goes through a [`Transaction`]; commits wait for
/// each other, and each makes the next version.
///
/// ```
/// use switchrail::{BackendSpec, Capabilities, DeviceKind, DeviceSupport, Entry, Op, Origin, Phase, Runtime};
///
/// let runtime = Runtime::new();
/// let transaction = runtime.begin(Origin::User);
/// let spec = BackendSpec {
///     name: "acme".into(),
///     op: Op::GatedDelta,
///     phases: [Phase::Prefill, Phase::Decode].into(),
///     path: "acme_gdn:AcmeGDN".into(),
///     capabilities: Capabilities { devices: vec![DeviceSupport::any(DeviceKind::Cpu)], ..Capabilities::default() },
///     priority: 0,
///     config: serde_json::Map::new(),
/// };
/// let id = transaction.registrar().add(spec, Entry::Foreign, false)?;
/// assert!(runtime.snapshot().find(Op::GatedDelta, "acme").is_none(), "nothing is seen before the commit");
/// transaction.commit()?;
/// assert_eq!(runtime.snapshot().find(Op::GatedDelta, "acme").unwrap().id, id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Runtime {
    snapshot: ArcSwap<Snapshot>,
    commit: Mutex<()>,
    next_id: AtomicU64,
}

impl Runtime {
    /// A runtime with nothing registered, at version 0.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            snapshot: ArcSwap::from_pointee(Snapshot::default()),
            commit: Mutex::new(()),
            next_id: AtomicU64::new(1),
        })
    }

    /// The current state. Takes no lock.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Opens a transaction in the name of `origin`. Any number may be open at once.
    #[must_use]
    pub fn begin(self: &Arc<Self>, origin: Origin) -> Transaction {
        let staged = Mutex::new(Some(Vec::new()));
        Transaction {
            registrar: Registrar {
                runtime: Arc::clone(self),
                origin,
                staged: Arc::new(staged),
            },
        }
    }

    fn fresh_id(&self) -> BackendId {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        BackendId::new(
            NonZeroU64::new(id).expect("a counter of 64 bits that starts at 1 does not come round"),
        )
    }

    fn publish(&self, origin: Origin, requests: &[Request]) -> Result<Arc<Commit>, CommitError> {
        // These may be the last owners of native backends, whose drops are foreign code: declared before the guard, so
        // dropped after it.
        let (current, mut next);
        let mut changes = Vec::new();
        let _guard = lock(&self.commit);
        current = self.snapshot.load_full();
        next = Snapshot::clone(&current);
        for request in requests {
            next.carry_out(request, &mut changes)?;
        }
        if !changes.is_empty() {
            next.version += 1;
            self.snapshot.store(Arc::new(next.clone()));
        }
        Ok(Arc::new(Commit {
            schema: Schema,
            version: next.version,
            origin,
            changes,
        }))
    }
}

/// One immutable state of a [`Runtime`].
///
/// Several registrations of one op and name form a stack: the last one is active, the others are overridden.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    schema: Schema,
    version: u64,
    /// Sorted by op and name; within a stack in order of registration.
    backends: Vec<Arc<Registration>>,
}

/// Nothing registered, version 0: what every runtime begins with.
impl Default for Snapshot {
    fn default() -> Self {
        Self {
            schema: Schema,
            version: 0,
            backends: Vec::new(),
        }
    }
}

impl Snapshot {
    /// How many commits led here.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Every registration, overridden ones too: by op, then name, then order of registration.
    #[must_use]
    pub fn backends(&self) -> &[Arc<Registration>] {
        &self.backends
    }

    /// The active backends of an op, by name.
    pub fn of_op(&self, op: Op) -> impl Iterator<Item = &Arc<Registration>> {
        self.stacks_of(op).filter_map(<[_]>::last)
    }

    /// The stacks of an op, by name, each in order of registration and never empty.
    pub(crate) fn stacks_of(&self, op: Op) -> impl Iterator<Item = &[Arc<Registration>]> {
        let start = self.backends.partition_point(|backend| backend.spec.op < op);
        let end = self.backends.partition_point(|backend| backend.spec.op <= op);
        self.backends[start..end].chunk_by(|a, b| a.spec.name == b.spec.name)
    }

    /// The registrations of an op and name: the active one last, below it what it overrides.
    #[must_use]
    pub fn stack(&self, op: Op, name: &str) -> &[Arc<Registration>] {
        let key =
            |backend: &Arc<Registration>| (backend.spec.op, backend.spec.name.as_str()).cmp(&(op, name));
        let start = self.backends.partition_point(|backend| key(backend).is_lt());
        let end = self.backends.partition_point(|backend| key(backend).is_le());
        &self.backends[start..end]
    }

    /// The active backend of an op and name.
    #[must_use]
    pub fn find(&self, op: Op, name: &str) -> Option<&Arc<Registration>> {
        self.stack(op, name).last()
    }

    /// The registration with an id, active or not.
    #[must_use]
    pub fn get(&self, id: BackendId) -> Option<&Arc<Registration>> {
        self.backends.iter().find(|backend| backend.id == id)
    }

    /// The state after a commit. From [`Snapshot::default`] on, the commits of a runtime in order give its states.
    ///
    /// # Errors
    /// [`ReplayError`] where the commit does not follow on this state.
    pub fn apply(&self, commit: &Commit) -> Result<Self, ReplayError> {
        if commit.version != self.version + u64::from(!commit.changes.is_empty()) {
            return Err(ReplayError::Order {
                version: self.version,
                found: commit.version,
            });
        }
        let mut next = self.clone();
        for change in &commit.changes {
            next.change(change).map_err(|id| ReplayError::Unknown {
                id,
                version: commit.version,
            })?;
        }
        next.version = commit.version;
        Ok(next)
    }

    fn index(&self, id: BackendId) -> Option<usize> {
        self.backends.iter().position(|backend| backend.id == id)
    }

    fn change(&mut self, change: &Change) -> Result<(), BackendId> {
        match change {
            Change::Add { registration } => {
                let key = (registration.spec.op, registration.spec.name.as_str());
                let end = self
                    .backends
                    .partition_point(|backend| (backend.spec.op, backend.spec.name.as_str()) <= key);
                self.backends.insert(end, Arc::clone(registration));
            }
            Change::Remove { id } => {
                self.backends.remove(self.index(*id).ok_or(*id)?);
            }
            Change::Configure { id, configuration } => {
                let index = self.index(*id).ok_or(*id)?;
                let mut registration = Registration::clone(&self.backends[index]);
                registration.configuration.clone_from(configuration);
                self.backends[index] = Arc::new(registration);
            }
        }
        Ok(())
    }

    /// Turns a request into changes, and makes them.
    fn carry_out(&mut self, request: &Request, changes: &mut Vec<Change>) -> Result<(), CommitError> {
        let new = match request {
            Request::Add {
                registration,
                overrides,
            } => {
                let BackendSpec { op, name, .. } = &registration.spec;
                if let Some(taken) = self.find(*op, name).filter(|_| !*overrides) {
                    return Err(CommitError::Conflict(Conflict {
                        op: *op,
                        name: name.clone(),
                        owner: taken.origin.clone(),
                        id: taken.id,
                    }));
                }
                vec![Change::Add {
                    registration: Arc::clone(registration),
                }]
            }
            Request::Clear { op, name } => {
                let custom = self
                    .stack(*op, name)
                    .iter()
                    .filter(|backend| backend.origin != Origin::Builtin);
                custom.map(|backend| Change::Remove { id: backend.id }).collect()
            }
            Request::Withdraw { id } => self
                .index(*id)
                .map(|_| Change::Remove { id: *id })
                .into_iter()
                .collect(),
            Request::WithdrawAll { origin } => {
                let owned = self.backends.iter().filter(|backend| backend.origin == *origin);
                owned.map(|backend| Change::Remove { id: backend.id }).collect()
            }
            Request::Configure {
                id,
                op,
                name,
                configuration,
            } => match self.get(*id) {
                None => {
                    return Err(CommitError::Gone {
                        op: *op,
                        name: name.clone(),
                        id: *id,
                    });
                }
                Some(backend) if backend.configuration == *configuration => vec![],
                Some(_) => vec![Change::Configure {
                    id: *id,
                    configuration: configuration.clone(),
                }],
            },
        };
        for change in new {
            self.change(&change)
                .expect("a change made from this state applies to it");
            changes.push(change);
        }
        Ok(())
    }
}

/// What one commit changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    schema: Schema,
    /// The version that it made; where it changed nothing, the version that it found.
    pub version: u64,
    /// In whose name.
    pub origin: Origin,
    /// The changes, in order. None at all means that no new version was published.
    pub changes: Vec<Change>,
}

/// One change of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// A registration was put on top of its stack.
    Add {
        /// The registration.
        registration: Arc<Registration>,
    },
    /// A registration was taken out of its stack.
    Remove {
        /// Which.
        id: BackendId,
    },
    /// A registration's user values were replaced.
    Configure {
        /// Which.
        id: BackendId,
        /// The new values.
        configuration: Config,
    },
}

/// What was staged; what it changes is decided at commit.
#[derive(Debug, Clone)]
enum Request {
    Add {
        registration: Arc<Registration>,
        overrides: bool,
    },
    Clear {
        op: Op,
        name: String,
    },
    Withdraw {
        id: BackendId,
    },
    WithdrawAll {
        origin: Origin,
    },
    Configure {
        id: BackendId,
        op: Op,
        name: String,
        configuration: Config,
    },
}

/// Changes that are committed together or not at all. Dropping it aborts.
#[derive(Debug)]
pub struct Transaction {
    registrar: Registrar,
}

impl Transaction {
    /// The handle that changes are staged with.
    #[must_use]
    pub const fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// Validates what was staged again, against the state as it now is, and publishes it as the next version.
    ///
    /// Nothing is published where nothing changes: a transaction that is empty, or clears what is clear.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] where another transaction has taken a name in the meantime, [`CommitError::Gone`]
    /// where it removed what was to be configured, [`CommitError::Closed`]. Nothing is published then.
    pub fn commit(self) -> Result<Arc<Commit>, CommitError> {
        let requests = self.registrar.staged().take().ok_or(CommitError::Closed)?;
        self.registrar
            .runtime
            .publish(self.registrar.origin.clone(), &requests)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.registrar.close();
    }
}

/// Stages changes in a [`Transaction`]. Clones stage in the same one.
///
/// Each change is validated at once, against the current state with what was staged before. When the transaction ends,
/// by commit, drop or [`Registrar::close`], all clones are closed and refuse with [`RegisterError::Closed`].
#[derive(Debug, Clone)]
pub struct Registrar {
    runtime: Arc<Runtime>,
    origin: Origin,
    /// None when closed.
    staged: Arc<Mutex<Option<Vec<Request>>>>,
}

impl Registrar {
    /// In whose name the transaction is.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether changes can still be staged.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.staged().is_some()
    }

    /// Ends the transaction without publishing anything; a commit then fails. Idempotent.
    pub fn close(&self) {
        let staged = self.staged().take();
        drop(staged);
    }

    /// Stages a backend, and gives it its id.
    ///
    /// With `overrides` it goes on top of whatever has its op and name, also where nothing has; without, the name must
    /// be free.
    ///
    /// # Errors
    /// [`RegisterError::Taken`] with the owner, the variants for a spec that can't be meant, or
    /// [`RegisterError::Closed`].
    pub fn add(&self, spec: BackendSpec, entry: Entry, overrides: bool) -> Result<BackendId, RegisterError> {
        validate(&spec, &entry)?;
        let id = self.runtime.fresh_id();
        let origin = self.origin.clone();
        let registration = Arc::new(Registration {
            id,
            origin,
            spec,
            configuration: Config::new(),
            entry,
        });
        check_config(&registration)?;
        self.stage(Request::Add {
            registration,
            overrides,
        })?;
        Ok(id)
    }

    /// Stages the removal of everything but the built-in of an op and name. Idempotent: nothing may be there.
    ///
    /// # Errors
    /// [`RegisterError::Closed`].
    pub fn clear(&self, op: Op, name: &str) -> Result<(), RegisterError> {
        self.stage(Request::Clear {
            op,
            name: name.to_owned(),
        })
    }

    /// Stages the removal of one registration, wherever in its stack it is. Idempotent: it may be gone already.
    ///
    /// # Errors
    /// [`RegisterError::Closed`].
    pub fn withdraw(&self, id: BackendId) -> Result<(), RegisterError> {
        self.stage(Request::Withdraw { id })
    }

    /// Stages the removal of everything that one origin registered, such as a plugin. Idempotent.
    ///
    /// # Errors
    /// [`RegisterError::Closed`].
    pub fn withdraw_all(&self, origin: &Origin) -> Result<(), RegisterError> {
        self.stage(Request::WithdrawAll {
            origin: origin.clone(),
        })
    }

    /// Stages the user's values for the active backend of an op and name. They replace those given before, if any.
    ///
    /// # Errors
    /// [`RegisterError::Unknown`] with the nearest names, [`RegisterError::Config`] where a native backend refuses the
    /// values, or [`RegisterError::Closed`].
    pub fn configure(&self, op: Op, name: &str, configuration: Config) -> Result<(), RegisterError> {
        let find = |state: &Snapshot| {
            state.find(op, name).cloned().ok_or_else(|| {
                let valid = state.of_op(op).map(|backend| backend.spec.name.as_str());
                RegisterError::Unknown {
                    op,
                    name: UnknownName::new("backend", name, valid),
                }
            })
        };
        let base = self.runtime.snapshot();
        let state = preview(&base, self.staged().as_deref().ok_or(RegisterError::Closed)?);
        let active = find(&state)?;
        let mut registration = Registration::clone(&active);
        registration.configuration.clone_from(&configuration);
        check_config(&registration)?;
        self.stage(Request::Configure {
            id: active.id,
            op,
            name: name.to_owned(),
            configuration,
        })
    }

    fn staged(&self) -> MutexGuard<'_, Option<Vec<Request>>> {
        lock(&self.staged)
    }

    fn stage(&self, request: Request) -> Result<(), RegisterError> {
        // Declared before the guard, for the reason given in `Runtime::publish`.
        let base = self.runtime.snapshot();
        let mut state;
        let mut staged = self.staged();
        let requests = staged.as_mut().ok_or(RegisterError::Closed)?;
        state = preview(&base, requests);
        // What is gone since it was looked up is for the commit to report.
        if let Err(CommitError::Conflict(conflict)) = state.carry_out(&request, &mut Vec::new()) {
            return Err(RegisterError::Taken(conflict));
        }
        requests.push(request);
        Ok(())
    }
}

/// A state with what was staged so far. What can't be carried out any more is for the commit to report.
fn preview(base: &Snapshot, staged: &[Request]) -> Snapshot {
    let mut state = base.clone();
    for request in staged {
        let _ = state.carry_out(request, &mut Vec::new());
    }
    state
}

fn validate(spec: &BackendSpec, entry: &Entry) -> Result<(), RegisterError> {
    let invalid = |field: &'static str, problem: String| {
        Err(RegisterError::Invalid {
            op: spec.op,
            name: spec.name.clone(),
            field,
            problem,
        })
    };
    let word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !spec.name.chars().all(word) || !spec.name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return invalid(
            "name",
            "write letters, digits, \"_\", \"-\" and \".\", a letter or digit first".to_owned(),
        );
    }
    if spec.name == AUTO {
        return invalid("name", format!("{AUTO:?} means that the router decides"));
    }
    if spec.phases.is_empty() {
        return invalid(
            "phases",
            format!("name at least one of {}", quoted(&Phase::ALL.map(Phase::name))),
        );
    }
    if matches!(entry, Entry::Foreign) && !is_class_path(&spec.path) {
        return invalid(
            "path",
            format!("{:?} is not \"module:Qualified.name\"", spec.path),
        );
    }
    let capabilities = &spec.capabilities;
    if capabilities.devices.is_empty() {
        return invalid("devices", "name at least one".to_owned());
    }
    if let Some(support) = capabilities.devices.iter().find(|support| {
        support
            .min_capability
            .zip(support.max_capability)
            .is_some_and(|(min, max)| min > max)
    }) {
        return invalid("devices", format!("no capability lies in {support}"));
    }
    if capabilities.page_sizes.contains(&0) {
        return invalid("page_sizes", "a page holds at least one token".to_owned());
    }
    if capabilities
        .head_sizes
        .iter()
        .any(|size| size.k == 0 || size.v == 0)
    {
        return invalid("head_sizes", "a head has at least one channel".to_owned());
    }
    Ok(())
}

/// Whether it reads `module:Qualified.name`, as a class's module and qualified name do, `f.<locals>.C` too.
fn is_class_path(path: &str) -> bool {
    let named = |part: &str| !part.is_empty() && !part.contains([' ', '\t', '\n', ':']);
    path.split_once(':')
        .is_some_and(|(module, class)| module.split('.').all(named) && class.split('.').all(named))
}

fn check_config(registration: &Registration) -> Result<(), RegisterError> {
    let Entry::Native(backend) = &registration.entry else {
        return Ok(());
    };
    backend
        .check_config(&registration.effective_config())
        .map_err(|problem| RegisterError::Config {
            op: registration.spec.op,
            name: registration.spec.name.clone(),
            problem,
        })
}

/// A name that another registration has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op} backend {name:?} is already registered by {owner}; choose another name, or override it explicitly"
)]
pub struct Conflict {
    /// The op.
    pub op: Op,
    /// The name that both want.
    pub name: String,
    /// Who has it.
    pub owner: Origin,
    /// The owner's registration.
    pub id: BackendId,
}

impl Conflict {
    fn fields(&self) -> serde_json::Value {
        serde_json::json!({"op": self.op, "found": self.name, "owner": self.owner, "id": self.id})
    }
}

/// Why a change was not staged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The transaction was committed, aborted or closed.
    #[error("the transaction is closed; what is registered after it has ended would be lost")]
    Closed,
    /// The name has an owner, and nothing was said of overriding it.
    #[error(transparent)]
    Taken(Conflict),
    /// A field of the spec can't be meant.
    #[error("{op} backend {name:?}, {field}: {problem}")]
    Invalid {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it, and what would be valid.
        problem: String,
    },
    /// A native backend refuses its configuration.
    #[error("configuration of {op} backend {name:?}: {problem}")]
    Config {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// What it says.
        problem: String,
    },
    /// No backend of the op has that name.
    #[error("op {op}: {name}")]
    Unknown {
        /// The op.
        op: Op,
        /// The name, and the valid ones.
        name: UnknownName,
    },
}

impl CoreError for RegisterError {
    fn code(&self) -> &'static str {
        match self {
            Self::Closed => "transaction_closed",
            Self::Taken(_) => "backend_taken",
            Self::Invalid { .. } => "bad_backend_spec",
            Self::Config { .. } => "bad_backend_config",
            Self::Unknown { .. } => "unknown_registered_backend",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Closed => serde_json::json!({}),
            Self::Taken(conflict) => conflict.fields(),
            Self::Invalid {
                op,
                name,
                field,
                problem,
            } => {
                serde_json::json!({"op": op, "name": name, "field": field, "problem": problem})
            }
            Self::Config { op, name, problem } => {
                serde_json::json!({"op": op, "name": name, "problem": problem})
            }
            Self::Unknown { op, name } => {
                let mut fields = name.fields();
                fields["op"] = op.name().into();
                fields
            }
        }
    }
}

/// Why a transaction was not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// It was closed before, by a [`Registrar`].
    #[error("the transaction is closed; nothing was committed")]
    Closed,
    /// Another transaction has taken a name since it was staged.
    #[error("nothing was committed: {0}")]
    Conflict(Conflict),
    /// What was to be configured was removed since it was staged.
    #[error(
        "nothing was committed: {op} backend {name:?}, which was to be configured, was removed in the meantime"
    )]
    Gone {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The registration that is gone.
        id: BackendId,
    },
}

impl CoreError for CommitError {
    fn code(&self) -> &'static str {
        match self {
            Self::Closed => "commit_closed",
            Self::Conflict(_) => "commit_conflict",
            Self::Gone { .. } => "commit_gone",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Closed => serde_json::json!({}),
            Self::Conflict(conflict) => conflict.fields(),
            Self::Gone { op, name, id } => serde_json::json!({"op": op, "found": name, "id": id}),
        }
    }
}

/// A commit that does not follow on a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// It is not the next one.
    #[error("commit {found} does not follow on version {version}")]
    Order {
        /// The state's version.
        version: u64,
        /// The commit's.
        found: u64,
    },
    /// It changes a registration that the state does not have.
    #[error("commit {version} changes registration {id}, which the state before it does not have")]
    Unknown {
        /// The registration.
        id: BackendId,
        /// The commit's version.
        version: u64,
    },
}

impl CoreError for ReplayError {
    fn code(&self) -> &'static str {
        match self {
            Self::Order { .. } => "replay_order",
            Self::Unknown { .. } => "replay_unknown",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Order { version, found } => serde_json::json!({"version": version, "found": found}),
            Self::Unknown { id, version } => serde_json::json!({"id": id, "version": version}),
        }
    }
}

/// Nothing that a panicking thread could leave half-done is behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
