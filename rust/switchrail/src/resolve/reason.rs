//! Why a backend was not chosen.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

use super::{BackendRef, measured::Microseconds};
use crate::{
    BackendId, ComputeCapability, DeviceKind, DeviceSupport, Dtype, HeadSize, Origin, PackageRequirement,
    Phase, PreferenceKey,
};

/// A backend that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// The backend.
    pub backend: BackendRef,
    /// Every reason, at least one.
    pub reasons: Vec<Reason>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend.name, joined(&self.reasons))
    }
}

/// Why a backend was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It does not serve the phase.
    Phase {
        /// The phase asked for.
        asked: Phase,
        /// Those that it serves.
        valid: BTreeSet<Phase>,
    },
    /// It does not run on the device family.
    Device {
        /// The family asked for.
        asked: DeviceKind,
        /// Where it runs.
        valid: Vec<DeviceSupport>,
    },
    /// It runs on the family, but not on this generation.
    Capability {
        /// The capability of the device.
        asked: ComputeCapability,
        /// The ranges that it runs on.
        valid: Vec<DeviceSupport>,
    },
    /// It runs on some generations of the family, and the device's is not known.
    CapabilityUnknown {
        /// The ranges that it runs on.
        valid: Vec<DeviceSupport>,
    },
    /// It does not take the dtype.
    Dtype {
        /// The dtype asked for.
        asked: Dtype,
        /// Those that it takes.
        valid: BTreeSet<Dtype>,
    },
    /// It does not take a recurrent state of the dtype.
    StateDtype {
        /// The dtype asked for.
        asked: Dtype,
        /// Those that it takes.
        valid: BTreeSet<Dtype>,
    },
    /// It does not take the head size.
    HeadSize {
        /// The head size asked for.
        asked: HeadSize,
        /// Those that it takes.
        valid: BTreeSet<HeadSize>,
    },
    /// It does not take the page size.
    PageSize {
        /// The page size asked for.
        asked: u32,
        /// Those that it takes.
        valid: BTreeSet<u32>,
    },
    /// It does not take the axis order of the recurrent state.
    StateLayout {
        /// The axis order asked for.
        asked: String,
        /// Those that it takes.
        valid: BTreeSet<String>,
    },
    /// It can't do something that is needed.
    Features {
        /// What it can't do.
        missing: BTreeSet<String>,
        /// What it can.
        valid: BTreeSet<String>,
    },
    /// A distribution that it needs is not installed.
    PackageMissing {
        /// What it needs.
        needed: PackageRequirement,
    },
    /// A distribution that it needs is installed in another version.
    PackageVersion {
        /// What it needs.
        needed: PackageRequirement,
        /// The version that is installed.
        installed: String,
    },
    /// Another registration of its name lies over it.
    Overridden {
        /// The active one.
        by: BackendId,
        /// Who registered that.
        origin: Origin,
    },
    /// It fits, but another was chosen by the user.
    NotPreferred {
        /// The preference that says so.
        key: PreferenceKey,
        /// The backend chosen.
        chosen: String,
    },
    /// It fits, but the chosen one is faster.
    Slower {
        /// What a call of it takes.
        nanoseconds: u64,
        /// What a call of the chosen one takes.
        chosen: u64,
    },
    /// It fits and was not measured, as the chosen one was.
    NotMeasured {
        /// What a call of the chosen one takes, in nanoseconds.
        chosen: u64,
    },
    /// It fits, but the chosen one has a higher priority.
    LowerPriority {
        /// Its own.
        priority: i32,
        /// That of the chosen one.
        chosen: i32,
    },
    /// It fits and has the same priority, but the chosen one comes before it: by [`Origin`], then by name.
    LaterInOrder {
        /// Their priority.
        priority: i32,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Phase { asked, valid } => write!(f, "does not serve {asked}, only {}", list(valid)),
            Self::Device { asked, valid } => write!(f, "does not run on {asked}, only on {}", list(valid)),
            Self::Capability { asked, valid } => {
                write!(f, "does not run on capability {asked}, only on {}", list(valid))
            }
            Self::CapabilityUnknown { valid } => {
                write!(
                    f,
                    "runs only on {}, and the device's capability is not known",
                    list(valid)
                )
            }
            Self::Dtype { asked, valid } => write!(f, "does not take {asked}, only {}", list(valid)),
            Self::StateDtype { asked, valid } => {
                write!(f, "does not take a state in {asked}, only {}", list(valid))
            }
            Self::HeadSize { asked, valid } => {
                write!(f, "does not take head size {asked}, only {}", list(valid))
            }
            Self::PageSize { asked, valid } => {
                write!(f, "does not take page size {asked}, only {}", list(valid))
            }
            Self::StateLayout { asked, valid } => {
                write!(f, "does not take state layout {asked}, only {}", list(valid))
            }
            Self::Features { missing, valid } if valid.is_empty() => write!(f, "lacks {}", list(missing)),
            Self::Features { missing, valid } => write!(f, "lacks {}; it has {}", list(missing), list(valid)),
            Self::PackageMissing { needed } => write!(f, "needs {needed}, which is not installed"),
            Self::PackageVersion { needed, installed } => {
                write!(f, "needs {needed}, and version {installed} is installed")
            }
            Self::Overridden { origin, .. } => write!(f, "overridden by {origin}"),
            Self::NotPreferred { key, chosen } => write!(f, "fits, but {chosen} was chosen for {key}"),
            Self::Slower { nanoseconds, chosen } => {
                let (own, chosen) = (Microseconds(*nanoseconds), Microseconds(*chosen));
                write!(
                    f,
                    "fits, but takes {own} as measured here, the chosen one {chosen}"
                )
            }
            Self::NotMeasured { chosen } => {
                let chosen = Microseconds(*chosen);
                write!(
                    f,
                    "fits, but was not measured here; the chosen one takes {chosen}"
                )
            }
            Self::LowerPriority { priority, chosen } => {
                write!(f, "fits, but its priority {priority} is below {chosen}")
            }
            Self::LaterInOrder { priority } => {
                write!(
                    f,
                    "fits with the same priority {priority}, but comes later by origin and name"
                )
            }
        }
    }
}

pub(super) fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items
        .into_iter()
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn joined(reasons: &[Reason]) -> String {
    reasons
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Each on a line of its own.
pub(super) fn lines(rejected: &[Rejection]) -> String {
    rejected.iter().fold(String::new(), |text, rejection| {
        text + "\n  " + &rejection.to_string()
    })
}
