//! Transactions: changes that are staged, validated and committed together.

use std::{mem, sync::Arc};

use super::{
    Commit, CommitError, RegisterError, Runtime, Snapshot,
    snapshot::Request,
    sync::{Mutex, MutexGuard, lock},
};
use crate::{
    AUTO, BackendId, BackendSpec, Config, DeviceKind, Entry, Op, Origin, Phase, Registration, STATE_LAYOUTS,
    UnknownName, op::unknown_claim, quoted,
};

/// Changes that are committed together or not at all. Dropping a transaction aborts it.
#[derive(Debug)]
#[must_use = "dropping a transaction aborts it"]
pub struct Transaction {
    registrar: Registrar,
}

impl Transaction {
    pub(super) fn new(runtime: Arc<Runtime>, origin: Origin) -> Self {
        let staged = Arc::new(Mutex::new(Some(Staged::default())));
        Self {
            registrar: Registrar {
                runtime,
                origin,
                staged,
            },
        }
    }

    /// The handle for staging changes.
    #[must_use]
    pub const fn registrar(&self) -> &Registrar {
        &self.registrar
    }

    /// Validates the staged changes against the current state and publishes them as the next version.
    ///
    /// If nothing changes, for example because the transaction is empty, no version is published.
    ///
    /// # Errors
    /// [`CommitError::Conflict`] if another transaction has taken a name in the meantime,
    /// [`CommitError::Gone`] if a registration that it configures was removed, or [`CommitError::Closed`].
    /// In these cases nothing is published.
    pub fn commit(self) -> Result<Arc<Commit>, CommitError> {
        let staged = self.registrar.staged().take().ok_or(CommitError::Closed)?;
        self.registrar
            .runtime
            .publish(self.registrar.origin.clone(), &staged.requests)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.registrar.close();
    }
}

/// Stages changes in a [`Transaction`]. Clones share the transaction.
///
/// Each change is validated immediately, against the current state with the earlier staged changes. When the
/// transaction ends, by commit, drop or [`Registrar::close`], all clones are closed and return
/// [`RegisterError::Closed`].
#[derive(Debug, Clone)]
pub struct Registrar {
    runtime: Arc<Runtime>,
    origin: Origin,
    /// `None` when closed.
    staged: Arc<Mutex<Option<Staged>>>,
}

/// The staged requests, and the state after applying them.
#[derive(Debug, Default)]
struct Staged {
    requests: Vec<Request>,
    /// The state after applying the requests to a base state. It is cached, because applying all requests
    /// again for each new one would make the cost of staging quadratic.
    preview: Preview,
}

#[derive(Debug, Default)]
struct Preview {
    base: Arc<Snapshot>,
    state: Snapshot,
}

impl Staged {
    /// Updates the preview to another base state. Returns the old preview, which the caller drops after
    /// unlocking.
    fn catch_up(&mut self, base: Arc<Snapshot>) -> Option<Preview> {
        if Arc::ptr_eq(&self.preview.base, &base) {
            return None;
        }
        let mut state = Snapshot::clone(&base);
        for request in &self.requests {
            // Requests that can no longer be applied are reported by the commit.
            let _ = state.carry_out(request, &mut Vec::new());
        }
        Some(mem::replace(&mut self.preview, Preview { base, state }))
    }
}

impl Registrar {
    /// The origin for which changes are staged.
    #[must_use]
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Ends the transaction without publishing anything; a commit then fails. Idempotent.
    pub fn close(&self) {
        let staged = self.staged().take();
        drop(staged);
    }

    /// Stages a backend and returns its id.
    ///
    /// With `overrides`, the backend is put on top of the existing registrations of its op and name, if there
    /// are any. Without `overrides`, the name must be unused.
    ///
    /// # Errors
    /// [`RegisterError::Taken`] with the owner, a variant that describes the invalid spec, or
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

    /// Stages the removal of all registrations of an op and name except built-in ones. For a plugin, only
    /// its own registrations are removed. If a phase is given, only registrations for that phase alone are
    /// removed. If none is removed, that is an error only in the case of [`RegisterError::NotOwn`].
    ///
    /// # Errors
    /// [`RegisterError::NotOwn`] if a plugin would clear only registrations of other origins, or
    /// [`RegisterError::Closed`].
    pub fn clear(&self, op: Op, name: &str, phase: Option<Phase>) -> Result<(), RegisterError> {
        self.preview(|state| {
            let stack = state.stack(op, name);
            if !stack.iter().any(|backend| backend.origin == self.origin)
                && let Some(other) = stack.iter().rfind(|backend| backend.origin != Origin::Builtin)
            {
                self.check_own(other)?;
            }
            Ok(())
        })?;
        self.stage(Request::Clear {
            op,
            name: name.to_owned(),
            phase,
            by: self.origin.clone(),
        })
    }

    /// Stages the removal of one registration, anywhere in its stack. Idempotent: it may already be removed.
    ///
    /// # Errors
    /// [`RegisterError::NotOwn`] if a plugin would remove a registration of another origin, or
    /// [`RegisterError::Closed`].
    pub fn withdraw(&self, id: BackendId) -> Result<(), RegisterError> {
        self.preview(|state| {
            state
                .get(id)
                .map_or(Ok(()), |registration| self.check_own(registration))
        })?;
        self.stage(Request::Withdraw { id })
    }

    /// Stages the removal of all registrations of the transaction's origin.
    ///
    /// # Errors
    /// [`RegisterError::Closed`].
    pub fn withdraw_own(&self) -> Result<(), RegisterError> {
        let own = self.preview(|state| {
            let own = state
                .backends()
                .iter()
                .filter(|found| found.origin == self.origin);
            Ok(own.map(|found| found.id).collect::<Vec<_>>())
        })?;
        own.into_iter().try_for_each(|id| self.withdraw(id))
    }

    /// Stages configured values for the last registered backend of an op and name. They replace values that were
    /// configured earlier.
    ///
    /// # Errors
    /// [`RegisterError::Unknown`] with the nearest names, [`RegisterError::Config`] if a native backend
    /// rejects the values, [`RegisterError::NotOwn`] if a plugin would configure a registration of another
    /// origin, or [`RegisterError::Closed`].
    pub fn configure(&self, op: Op, name: &str, configuration: Config) -> Result<(), RegisterError> {
        let find = |state: &Snapshot| {
            state.find(op, name).cloned().ok_or_else(|| {
                let valid = state.names_of(op);
                RegisterError::Unknown {
                    op,
                    name: UnknownName::new("backend", name, valid),
                }
            })
        };
        let active = self.preview(find)?;
        self.check_own(&active)?;
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

    fn check_own(&self, registration: &Registration) -> Result<(), RegisterError> {
        if self.origin.may_change(&registration.origin) {
            return Ok(());
        }
        Err(RegisterError::NotOwn {
            op: registration.spec.op,
            name: registration.spec.name.clone(),
            owner: registration.origin.clone(),
        })
    }

    /// Calls `look` with the state after applying the staged requests.
    fn preview<T>(
        &self,
        look: impl FnOnce(&Snapshot) -> Result<T, RegisterError>,
    ) -> Result<T, RegisterError> {
        self.with_staged(|staged| look(&staged.preview.state))
    }

    fn stage(&self, request: Request) -> Result<(), RegisterError> {
        self.with_staged(|staged| {
            // Other errors are reported by the commit.
            if let Err(CommitError::Conflict(conflict)) =
                staged.preview.state.carry_out(&request, &mut Vec::new())
            {
                return Err(RegisterError::Taken(conflict));
            }
            staged.requests.push(request);
            Ok(())
        })
    }

    fn staged(&self) -> MutexGuard<'_, Option<Staged>> {
        lock(&self.staged)
    }

    fn with_staged<T>(
        &self,
        work: impl FnOnce(&mut Staged) -> Result<T, RegisterError>,
    ) -> Result<T, RegisterError> {
        let base = self.runtime.snapshot();
        // Declared before the guard, for the same reason as in `Runtime::publish`.
        let _replaced;
        let mut guard = self.staged();
        let staged = guard.as_mut().ok_or(RegisterError::Closed)?;
        _replaced = staged.catch_up(base);
        work(staged)
    }
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
        return invalid("name", format!("{AUTO:?} stands for the automatic choice"));
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
    let claims = [
        ("features", "feature", &capabilities.features, spec.op.features()),
        (
            "state_layouts",
            "state layout",
            &capabilities.state_layouts,
            STATE_LAYOUTS.to_vec(),
        ),
    ];
    for (field, what, claimed, known) in claims {
        if let Some(claim) = unknown_claim(what, claimed, &known) {
            return Err(RegisterError::UnknownClaim {
                op: spec.op,
                name: spec.name.clone(),
                field,
                claim: Box::new(claim),
            });
        }
    }
    if capabilities.devices.is_empty() {
        let known = DeviceKind::KNOWN.map(|kind| kind.to_string());
        return invalid(
            "devices",
            format!("name at least one of {}, \"oot:NAME\"", quoted(&known)),
        );
    }
    if let Some(support) = capabilities.devices.iter().find(|support| {
        support
            .min_capability
            .zip(support.max_capability)
            .is_some_and(|(min, max)| min > max)
    }) {
        return invalid("devices", format!("no capability is in {support}"));
    }
    if capabilities.page_sizes.contains(&0) {
        return invalid("page_sizes", "a page has at least one token".to_owned());
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

/// Whether the path has the form `module:Qualified.name`; `f.<locals>.C` is a valid qualified name.
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
