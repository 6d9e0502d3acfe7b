//! Measured times of calls on this machine.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{Load, Query, load::log2};
use crate::{Dtype, HeadSize, Op, Phase};

/// The numbers of query heads and of value heads of an op. In JSON `[q, v]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadCount(
    /// Number of query heads.
    pub u32,
    /// Number of value heads; for attention, the number of key/value heads.
    pub u32,
);

impl HeadCount {
    /// The absolute difference of the logarithms, summed over both counts.
    fn distance(self, other: Self) -> i64 {
        let each = |a: u32, b: u32| (log2(a.into()) - log2(b.into())).abs();
        each(self.0, other.0) + each(self.1, other.1)
    }
}

/// The times of calls with one load.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sample {
    /// The load.
    #[serde(flatten)]
    pub load: Load,
    /// Nanoseconds per call, by backend. Backends that could not be timed are missing.
    pub nanoseconds: BTreeMap<String, u64>,
}

/// The measured times of an op's backends on the device of the queries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The op.
    pub op: Op,
    /// The phase.
    pub phase: Phase,
    /// Dtype of the activations.
    pub dtype: Dtype,
    /// Head sizes; `None` for an op without heads.
    #[serde(default)]
    pub head_size: Option<HeadSize>,
    /// Number of heads; `None` for an op without heads.
    #[serde(default)]
    pub heads: Option<HeadCount>,
    /// Whether all gates were 0 (no decay).
    #[serde(default)]
    pub no_decay: bool,
    /// The times, one sample per load.
    pub samples: Vec<Sample>,
}

impl Measurement {
    /// The samples of the measurement that fits a query best; empty if none fits.
    ///
    /// Op, phase, dtype and head sizes must be equal. If several measurements fit, those with the query's
    /// `no_decay` are preferred, then the one with the nearest numbers of heads, then the first.
    #[must_use]
    pub fn of(query: &Query, measurements: &[Self]) -> Vec<Sample> {
        let same = |known: &&Self| {
            (known.op, known.phase, known.dtype, known.head_size)
                == (query.op, query.phase, query.dtype, query.head_size)
        };
        let distance = |known: &&Self| {
            let heads = known.heads.zip(query.heads);
            (
                known.no_decay != query.no_decay,
                heads.map_or(0, |(known, asked)| known.distance(asked)),
            )
        };
        measurements
            .iter()
            .filter(same)
            .min_by_key(distance)
            .map(|known| known.samples.clone())
            .unwrap_or_default()
    }
}

/// Formats nanoseconds as `12.3 us`.
pub(super) struct Microseconds(pub u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(50) / 100;
        write!(f, "{}.{} us", tenths / 10, tenths % 10)
    }
}
