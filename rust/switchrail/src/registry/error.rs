//! Errors of registering, committing and replaying.

use crate::{BackendId, CoreError, Op, Origin, UnknownName};

/// A name that another registration already has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{op} backend {name:?} is already registered by {owner}; choose another name, or override it explicitly"
)]
pub struct Conflict {
    /// The op.
    pub op: Op,
    /// The name that both registrations use.
    pub name: String,
    /// The origin of the existing registration.
    pub owner: Origin,
    /// The existing registration.
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
    /// The name is taken, and no override was requested.
    #[error(transparent)]
    Taken(Conflict),
    /// A plugin tries to remove or configure another origin's registration.
    #[error(
        "{op} backend {name:?} is registered by {owner}; a plugin can take out and configure only what it registered \
         itself, and put its own in the place of others' by overriding them"
    )]
    NotOwn {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The origin of the registration.
        owner: Origin,
    },
    /// A field of the spec is invalid.
    #[error("{op} backend {name:?}, {field}: {problem}")]
    Invalid {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The field.
        field: &'static str,
        /// The problem, and the valid values.
        problem: String,
    },
    /// The spec claims an unknown feature or state layout.
    #[error("{op} backend {name:?}, {field}: {claim}")]
    UnknownClaim {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The field.
        field: &'static str,
        /// The unknown name and the valid ones.
        claim: Box<UnknownName>,
    },
    /// A native backend rejects its configuration.
    #[error("configuration of {op} backend {name:?}: {problem}")]
    Config {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The backend's own message.
        problem: String,
    },
    /// No backend of the op has this name.
    #[error("op {op}: {name}")]
    Unknown {
        /// The op.
        op: Op,
        /// The unknown name and the valid ones.
        name: UnknownName,
    },
}

impl CoreError for RegisterError {
    fn code(&self) -> &'static str {
        match self {
            Self::Closed => "transaction_closed",
            Self::Taken(_) => "backend_taken",
            Self::NotOwn { .. } => "backend_not_own",
            Self::Invalid { .. } => "bad_backend_spec",
            Self::UnknownClaim { .. } => "unknown_backend_claim",
            Self::Config { .. } => "bad_backend_config",
            Self::Unknown { .. } => "unknown_registered_backend",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Closed => serde_json::json!({}),
            Self::Taken(conflict) => conflict.fields(),
            Self::NotOwn { op, name, owner } => {
                serde_json::json!({"op": op, "found": name, "owner": owner})
            }
            Self::Invalid {
                op,
                name,
                field,
                problem,
            } => {
                serde_json::json!({"op": op, "name": name, "field": field, "problem": problem})
            }
            Self::UnknownClaim {
                op,
                name,
                field,
                claim,
            } => {
                let mut fields = claim.fields();
                fields["op"] = op.name().into();
                fields["name"] = name.as_str().into();
                fields["field"] = (*field).into();
                fields["problem"] = claim.to_string().into();
                fields
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

/// Why a transaction could not be committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A [`Registrar`](crate::Registrar) already closed the transaction.
    #[error("the transaction is closed; nothing was committed")]
    Closed,
    /// Another transaction has taken a name since this one staged it.
    #[error("nothing was committed: {0}")]
    Conflict(Conflict),
    /// A registration to be configured has been removed since this was staged.
    #[error(
        "nothing was committed: {op} backend {name:?}, which was to be configured, was removed in the meantime"
    )]
    Gone {
        /// The op.
        op: Op,
        /// The backend's name.
        name: String,
        /// The removed registration.
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

/// A commit that cannot follow a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The commit is not the next one.
    #[error("commit {found} does not follow on version {version}")]
    Order {
        /// The version of the state.
        version: u64,
        /// The version of the commit.
        found: u64,
    },
    /// The commit changes a registration that the state does not have.
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
