//! What calls took on the machine at hand.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::Query;
use crate::{Dtype, HeadSize, Op, Phase};

/// How long calls of backends took on the device that queries are for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// What was computed.
    pub op: Op,
    /// When.
    pub phase: Phase,
    /// Format of the activations.
    pub dtype: Dtype,
    /// Head sizes; none for an op without heads.
    #[serde(default)]
    pub head_size: Option<HeadSize>,
    /// Nanoseconds of a call, by backend.
    pub nanoseconds: BTreeMap<String, u64>,
}

impl Measurement {
    /// The times of the first measurement that is of what a query asks for; empty where there is none.
    #[must_use]
    pub fn of(query: &Query, measurements: &[Self]) -> BTreeMap<String, u64> {
        let same = |known: &&Self| {
            (known.op, known.phase, known.dtype, known.head_size)
                == (query.op, query.phase, query.dtype, query.head_size)
        };
        measurements
            .iter()
            .find(same)
            .map(|known| known.nanoseconds.clone())
            .unwrap_or_default()
    }
}

/// `12.3 us`, of nanoseconds.
pub(super) struct Microseconds(pub u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 + 50) / 100;
        write!(f, "{}.{} us", tenths / 10, tenths % 10)
    }
}
