//! Errors of registering, committing and replaying.

use serde_json::json;

use crate::{
    BackendId, Op, Origin, UnknownName,
    error::{core_error, extended},
};

/// The name of a backend is already taken by another registration.
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
    #[error("the transaction is closed; changes after its end would be lost")]
    Closed,
    /// The name is taken, and no override was requested.
    #[error(transparent)]
    Taken(Conflict),
    /// A plugin tries to remove or configure another origin's registration.
    #[error(
        "{op} backend {name:?} is registered by {owner}; a plugin can remove and configure only its own registrations, \
         and override those of others"
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

core_error! { RegisterError {
    Self::Closed => "transaction_closed", json!({});
    Self::Taken(conflict) => "backend_taken", conflict.fields();
    Self::NotOwn { op, name, owner } => "backend_not_own", json!({"op": op, "found": name, "owner": owner});
    Self::Invalid { op, name, field, problem } => "bad_backend_spec",
        json!({"op": op, "name": name, "field": field, "problem": problem});
    Self::UnknownClaim { op, name, field, claim } => "unknown_backend_claim",
        extended(claim.fields(), json!({"op": op, "name": name, "field": field, "problem": claim.to_string()}));
    Self::Config { op, name, problem } => "bad_backend_config", json!({"op": op, "name": name, "problem": problem});
    Self::Unknown { op, name } => "unknown_registered_backend", extended(name.fields(), json!({"op": op}));
} }

/// Why a transaction could not be committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// A [`Registrar`](crate::Registrar) already closed the transaction.
    #[error("the transaction is closed; nothing was committed")]
    Closed,
    /// Another transaction has taken a name after this one staged it.
    #[error("nothing was committed: {0}")]
    Conflict(Conflict),
    /// A registration that this transaction configures has been removed meanwhile.
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

core_error! { CommitError {
    Self::Closed => "commit_closed", json!({});
    Self::Conflict(conflict) => "commit_conflict", conflict.fields();
    Self::Gone { op, name, id } => "commit_gone", json!({"op": op, "found": name, "id": id});
} }

/// Why a commit cannot be applied to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The commit is not the next one.
    #[error("commit {found} does not follow on version {version}")]
    Order {
        /// The snapshot's version.
        version: u64,
        /// The commit's version.
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

core_error! { ReplayError {
    Self::Order { version, found } => "replay_order", json!({"version": version, "found": found});
    Self::Unknown { id, version } => "replay_unknown", json!({"id": id, "version": version});
} }
