//! Errors of resolving a query.

use serde_json::json;

use super::{
    Query, Rejection,
    reason::{joined, lines},
};
use crate::{
    Op, PreferenceKey, UnknownName,
    error::{core_error, extended},
};

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
    /// The backend that the user chose can't serve the query. No other backend is used instead.
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

core_error! { ResolveError {
    Self::NoBackend { query, version, rejected } => "no_backend",
        json!({"query": query, "version": version, "rejected": rejected});
    Self::UnfitChoice { query, version, key, chosen, rejected } => "unfit_backend", json!({
        "query": query, "version": version, "key": key, "found": chosen.backend.name,
        "chosen": chosen, "rejected": rejected,
    });
    Self::UnknownChoice { op, key, name } => "unknown_backend", extended(name.fields(), json!({"op": op, "key": key}));
} }
