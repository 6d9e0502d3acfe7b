//! Errors of resolving a query.

use super::{
    Query, Rejection,
    reason::{joined, lines},
};
use crate::{CoreError, Op, PreferenceKey, UnknownName};

/// Why no backend serves a query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No backend was chosen, and none fits.
    #[error("no backend for {query}{}{}", if .rejected.is_empty() { ": none is registered for the op" } else { ":" }, lines(.rejected))]
    NoBackend {
        /// The query.
        query: Box<Query>,
        /// Version of the snapshot.
        version: u64,
        /// All registrations of the op, with their reasons.
        rejected: Vec<Rejection>,
    },
    /// The backend that the user chose can't serve the query. No other is used instead.
    #[error("{:?}, chosen for {key}, can't serve {query}: {}{}", .chosen.backend.name, joined(&.chosen.reasons), lines(.rejected))]
    UnfitChoice {
        /// The query.
        query: Box<Query>,
        /// Version of the snapshot.
        version: u64,
        /// The preference.
        key: PreferenceKey,
        /// The chosen backend, with the reasons why it does not fit.
        chosen: Box<Rejection>,
        /// All other registrations of the op, with their reasons.
        rejected: Vec<Rejection>,
    },
    /// No backend of the op has the chosen name.
    #[error("{key}: {name} (for op {op})")]
    UnknownChoice {
        /// The op.
        op: Op,
        /// The preference.
        key: PreferenceKey,
        /// The unknown name and the valid ones.
        name: UnknownName,
    },
}

impl CoreError for ResolveError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoBackend { .. } => "no_backend",
            Self::UnfitChoice { .. } => "unfit_backend",
            Self::UnknownChoice { .. } => "unknown_backend",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::NoBackend {
                query,
                version,
                rejected,
            } => {
                serde_json::json!({"query": query, "version": version, "rejected": rejected})
            }
            Self::UnfitChoice {
                query,
                version,
                key,
                chosen,
                rejected,
            } => serde_json::json!({
                "query": query, "version": version, "key": key, "found": chosen.backend.name,
                "chosen": chosen, "rejected": rejected,
            }),
            Self::UnknownChoice { op, key, name } => {
                let mut fields = name.fields();
                fields["op"] = op.name().into();
                fields["key"] = key.to_string().into();
                fields
            }
        }
    }
}
