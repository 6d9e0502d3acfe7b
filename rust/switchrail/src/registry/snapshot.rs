//! Immutable states of a runtime, and the changes between them.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{CommitError, Conflict, ReplayError};
use crate::{BackendId, BackendSpec, Config, Op, Origin, Phase, Registration, Schema};

/// One immutable state of a [`Runtime`](crate::Runtime).
///
/// Registrations of the same op and name form a stack. In each phase, the last registration that serves the
/// phase is active and overrides the earlier ones. An override that serves only some phases leaves the other
/// phases unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Document")]
pub struct Snapshot {
    schema: Schema,
    pub(super) version: u64,
    /// Sorted by op and name; in order of registration within a stack.
    backends: Vec<Arc<Registration>>,
    /// The same registrations, sorted by id.
    #[serde(skip)]
    by_id: Vec<Arc<Registration>>,
}

/// The serialised form. The lists are sorted after reading, because lookups use binary search.
#[derive(Deserialize)]
struct Document {
    schema: Schema,
    version: u64,
    backends: Vec<Arc<Registration>>,
}

impl From<Document> for Snapshot {
    fn from(document: Document) -> Self {
        let Document {
            schema,
            version,
            mut backends,
        } = document;
        backends.sort_by(|a, b| (a.spec.op, &a.spec.name).cmp(&(b.spec.op, &b.spec.name)));
        let mut by_id = backends.clone();
        by_id.sort_by_key(|backend| backend.id);
        Self {
            schema,
            version,
            backends,
            by_id,
        }
    }
}

/// The initial state of every runtime: version 0, without registrations.
impl Default for Snapshot {
    fn default() -> Self {
        Self {
            schema: Schema,
            version: 0,
            backends: Vec::new(),
            by_id: Vec::new(),
        }
    }
}

impl Snapshot {
    /// The number of commits so far that changed something.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// All registrations, including overridden ones, sorted by op, name and order of registration.
    #[must_use]
    pub fn backends(&self) -> &[Arc<Registration>] {
        &self.backends
    }

    /// The backends of an op that are active in at least one phase, sorted by name and order of registration.
    pub fn of_op(&self, op: Op) -> impl Iterator<Item = &Arc<Registration>> {
        self.stacks_of(op).flat_map(|stack| {
            let is_active = |index: &usize| {
                let mut phases = stack[*index].spec.phases.iter();
                phases.any(|phase| active(stack, *phase) == Some(*index))
            };
            (0..stack.len()).filter(is_active).map(|index| &stack[index])
        })
    }

    /// The names of an op's backends, sorted.
    pub fn names_of(&self, op: Op) -> impl Iterator<Item = &str> {
        self.stacks_of(op).map(|stack| stack[0].spec.name.as_str())
    }

    /// The stacks of an op, sorted by name. Each is in order of registration and never empty.
    pub(crate) fn stacks_of(&self, op: Op) -> impl Iterator<Item = &[Arc<Registration>]> {
        let start = self.backends.partition_point(|backend| backend.spec.op < op);
        let end = self.backends.partition_point(|backend| backend.spec.op <= op);
        self.backends[start..end].chunk_by(|a, b| a.spec.name == b.spec.name)
    }

    /// The registrations of an op and name, in order. In its phases, each overrides the ones before it.
    #[must_use]
    pub fn stack(&self, op: Op, name: &str) -> &[Arc<Registration>] {
        &self.backends[self.range(op, name)]
    }

    /// The position of the stack of an op and name. If there is no such stack, an empty range where it would
    /// be.
    fn range(&self, op: Op, name: &str) -> Range<usize> {
        let key =
            |backend: &Arc<Registration>| (backend.spec.op, backend.spec.name.as_str()).cmp(&(op, name));
        let start = self.backends.partition_point(|backend| key(backend).is_lt());
        let end = self.backends.partition_point(|backend| key(backend).is_le());
        start..end
    }

    /// The last registered backend of an op and name. It is active in all of its phases.
    #[must_use]
    pub fn find(&self, op: Op, name: &str) -> Option<&Arc<Registration>> {
        self.stack(op, name).last()
    }

    /// The active backend of an op and name in a phase, or `None` if no registration of that name serves the
    /// phase.
    #[must_use]
    pub fn active(&self, op: Op, name: &str, phase: Phase) -> Option<&Arc<Registration>> {
        let stack = self.stack(op, name);
        active(stack, phase).map(|index| &stack[index])
    }

    /// Whether a registration of an op and name is overridden, in the given phase or in any.
    #[must_use]
    pub fn is_overridden(&self, op: Op, name: &str, phase: Option<Phase>) -> bool {
        let stack = self.stack(op, name);
        let serving = |phase| {
            stack
                .iter()
                .filter(move |backend| backend.spec.phases.contains(phase))
        };
        Phase::ALL
            .iter()
            .filter(|each| phase.is_none_or(|phase| phase == **each))
            .any(|phase| serving(phase).count() > 1)
    }

    /// The registration with this id, active or overridden.
    #[must_use]
    pub fn get(&self, id: BackendId) -> Option<&Arc<Registration>> {
        self.position_by_id(id).map(|position| &self.by_id[position])
    }

    /// The state after a commit. Applied one after another to [`Snapshot::default`], a runtime's commits yield
    /// all of its states.
    ///
    /// # Errors
    /// [`ReplayError`] if the commit cannot follow this state.
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

    /// The position of a registration in the list that is sorted by id.
    fn position_by_id(&self, id: BackendId) -> Option<usize> {
        self.by_id.binary_search_by_key(&id, |backend| backend.id).ok()
    }

    /// The positions of a registration in both lists: by op and name, and by id.
    fn positions(&self, id: BackendId) -> Option<(usize, usize)> {
        let position = self.position_by_id(id)?;
        let BackendSpec { op, name, .. } = &self.by_id[position].spec;
        let mut stack = self.range(*op, name);
        Some((stack.find(|index| self.backends[*index].id == id)?, position))
    }

    fn change(&mut self, change: &Change) -> Result<(), BackendId> {
        match change {
            Change::Add { registration } => {
                let end = self.range(registration.spec.op, &registration.spec.name).end;
                self.backends.insert(end, Arc::clone(registration));
                let position = self
                    .by_id
                    .partition_point(|backend| backend.id <= registration.id);
                self.by_id.insert(position, Arc::clone(registration));
            }
            Change::Remove { id } => {
                let (index, position) = self.positions(*id).ok_or(*id)?;
                self.backends.remove(index);
                self.by_id.remove(position);
            }
            Change::Configure { id, configuration } => {
                let (index, position) = self.positions(*id).ok_or(*id)?;
                let mut registration = Registration::clone(&self.backends[index]);
                registration.configuration.clone_from(configuration);
                let registration = Arc::new(registration);
                self.by_id[position] = Arc::clone(&registration);
                self.backends[index] = registration;
            }
        }
        Ok(())
    }

    /// Converts a request to changes, and applies them.
    pub(super) fn carry_out(
        &mut self,
        request: &Request,
        changes: &mut Vec<Change>,
    ) -> Result<(), CommitError> {
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
            Request::Clear { op, name, phase, by } => {
                let custom = self.stack(*op, name).iter().filter(|backend| {
                    backend.origin != Origin::Builtin
                        && by.may_change(&backend.origin)
                        && phase.is_none_or(|phase| backend.spec.phases.iter().eq([&phase]))
                });
                custom.map(|backend| Change::Remove { id: backend.id }).collect()
            }
            Request::Withdraw { id } => self
                .get(*id)
                .map(|_| Change::Remove { id: *id })
                .into_iter()
                .collect(),
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

/// The index in a stack of the registration that is active in a phase: the last one that serves the phase.
pub(crate) fn active(stack: &[Arc<Registration>], phase: Phase) -> Option<usize> {
    stack
        .iter()
        .rposition(|backend| backend.spec.phases.contains(&phase))
}

/// The changes of one commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    pub(super) schema: Schema,
    /// The version after the commit. A commit without changes keeps the version.
    pub version: u64,
    /// The origin on whose behalf the changes were committed.
    pub origin: Origin,
    /// The changes, in order. If there are none, no new version was published.
    pub changes: Vec<Change>,
}

/// One change of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// A registration was added to the top of its stack.
    Add {
        /// The registration.
        registration: Arc<Registration>,
    },
    /// A registration was removed from its stack.
    Remove {
        /// The registration.
        id: BackendId,
    },
    /// The configured values of a registration were replaced.
    Configure {
        /// The registration.
        id: BackendId,
        /// The new values.
        configuration: Config,
    },
}

/// A staged request. The changes that it makes are determined at the commit.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Add {
        registration: Arc<Registration>,
        overrides: bool,
    },
    Clear {
        op: Op,
        name: String,
        phase: Option<Phase>,
        by: Origin,
    },
    Withdraw {
        id: BackendId,
    },
    Configure {
        id: BackendId,
        op: Op,
        name: String,
        configuration: Config,
    },
}
