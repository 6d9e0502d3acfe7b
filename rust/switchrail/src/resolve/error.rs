//! Why a query has no answer.

use super::{
    Query, Rejection,
    reason::{joined, lines},
};
use crate::{CoreError, Op, PreferenceKey, UnknownName};

/// Why a query has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Nothing was chosen, and nothing fits.
    #[error("no backend for {query}{}{}", if .rejected.is_empty() { ": none is registered for the op" } else { ":" }, lines(.rejected))]
    NoBackend {
        /// What was asked.
        query: Box<Query>,
        /// Version of the snapshot that was asked.
        version: u64,
        /// Every registration of the op with its reasons.
        rejected: Vec<Rejection>,
    },
    /// The backend that the user chose can't do it. No other one is taken instead.
    #[error("{:?}, chosen for {key}, can't serve {query}: {}{}", .chosen.backend.name, joined(&.chosen.reasons), lines(.rejected))]
    UnfitChoice {
        /// What was asked.
        query: Box<Query>,
        /// Version of the snapshot that was asked.
        version: u64,
        /// The preference.
        key: PreferenceKey,
        /// The backend chosen, with the reasons why it does not fit.
        chosen: Box<Rejection>,
        /// Every other registration of the op with its reasons.
        rejected: Vec<Rejection>,
    },
    /// No backend of the op has the name that the user chose.
    #[error("{key}: {name} (for op {op})")]
    UnknownChoice {
        /// The op.
        op: Op,
        /// The preference.
        key: PreferenceKey,
        /// The name, and the valid ones.
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
