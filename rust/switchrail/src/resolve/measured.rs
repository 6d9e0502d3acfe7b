//! What calls took on the machine at hand.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{Load, Query, load::log2};
use crate::{Dtype, HeadSize, Op, Phase};

/// How many heads an op has: of queries, and of values; in JSON `[q, v]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadCount(
    /// Of queries.
    pub u32,
    /// Of values (of attention: of keys and values).
    pub u32,
);

impl HeadCount {
    /// How many doublings of either it takes from one to the other.
    fn distance(self, other: Self) -> i64 {
        let each = |a: u32, b: u32| (log2(a.into()) - log2(b.into())).abs();
        each(self.0, other.0) + each(self.1, other.1)
    }
}

/// How long calls of one load took.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sample {
    /// The load.
    #[serde(flatten)]
    pub load: Load,
    /// Nanoseconds of a call, by backend; one that could not be timed is not there.
    pub nanoseconds: BTreeMap<String, u64>,
}

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
    /// How many heads; none for an op without.
    #[serde(default)]
    pub heads: Option<HeadCount>,
    /// Whether no gate decayed.
    #[serde(default)]
    pub no_decay: bool,
    /// The times, one sample a load.
    pub samples: Vec<Sample>,
}

impl Measurement {
    /// The samples of the measurement that fits a query; empty where none does.
    ///
    /// Op, phase, dtype and head size must be the query's. Of several, those with gates like the query's come first,
    /// then the one with the nearest number of heads, then the first.
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

/// `12.3 us`, of nanoseconds.
pub(super) struct Microseconds(pub u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(50) / 100;
        write!(f, "{}.{} us", tenths / 10, tenths % 10)
    }
}
