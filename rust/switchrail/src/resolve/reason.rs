//! Reasons why a backend was not chosen.

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
    /// All reasons, at least one.
    pub reasons: Vec<Reason>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend.name, joined(&self.reasons))
    }
}

/// A reason why a backend was not chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It does not serve the phase.
    Phase {
        /// The requested phase.
        asked: Phase,
        /// The supported phases.
        valid: BTreeSet<Phase>,
    },
    /// It does not run on the device family.
    Device {
        /// The requested family.
        asked: DeviceKind,
        /// The supported devices.
        valid: Vec<DeviceSupport>,
    },
    /// It supports the family, but not the device's compute capability.
    Capability {
        /// The capability of the device.
        asked: ComputeCapability,
        /// The supported ranges.
        valid: Vec<DeviceSupport>,
    },
    /// It only supports some capabilities of the family, and the device's is unknown.
    CapabilityUnknown {
        /// The supported ranges.
        valid: Vec<DeviceSupport>,
    },
    /// It does not support the dtype.
    Dtype {
        /// The requested dtype.
        asked: Dtype,
        /// The supported dtypes.
        valid: BTreeSet<Dtype>,
    },
    /// It does not support the dtype of the recurrent state.
    StateDtype {
        /// The requested dtype.
        asked: Dtype,
        /// The supported dtypes.
        valid: BTreeSet<Dtype>,
    },
    /// It does not support the head size.
    HeadSize {
        /// The requested head size.
        asked: HeadSize,
        /// The supported head sizes.
        valid: BTreeSet<HeadSize>,
    },
    /// It does not support the page size.
    PageSize {
        /// The requested page size.
        asked: u32,
        /// The supported page sizes.
        valid: BTreeSet<u32>,
    },
    /// It does not support the axis order of the recurrent state.
    StateLayout {
        /// The requested axis order.
        asked: String,
        /// The supported axis orders.
        valid: BTreeSet<String>,
    },
    /// It lacks required features.
    Features {
        /// The missing features.
        missing: BTreeSet<String>,
        /// The features that it has.
        valid: BTreeSet<String>,
    },
    /// A distribution that it requires is not installed.
    PackageMissing {
        /// The requirement.
        needed: PackageRequirement,
    },
    /// A distribution that it requires is installed in a wrong version.
    PackageVersion {
        /// The requirement.
        needed: PackageRequirement,
        /// The installed version.
        installed: String,
    },
    /// A later registration with the same name overrides it.
    Overridden {
        /// The active registration.
        by: BackendId,
        /// The origin of the active registration.
        origin: Origin,
    },
    /// It fits, but the user chose another backend.
    NotPreferred {
        /// The preference that applies.
        key: PreferenceKey,
        /// The chosen backend.
        chosen: String,
    },
    /// A preference denies it.
    Denied {
        /// The preference that applies.
        key: PreferenceKey,
    },
    /// It fits, but the user's order prefers the chosen backend.
    LaterInPreference {
        /// The preference that applies.
        key: PreferenceKey,
        /// The chosen backend.
        chosen: String,
    },
    /// It fits, but at every load another backend is faster, or equally fast and before it in rank.
    Slower {
        /// Nanoseconds of a call.
        nanoseconds: u64,
        /// Nanoseconds of a call of the chosen backend.
        chosen: u64,
    },
    /// It fits, but was not measured, unlike the chosen backend.
    NotMeasured {
        /// Nanoseconds of a call of the chosen backend.
        chosen: u64,
    },
    /// It fits, but the chosen backend has a higher priority.
    LowerPriority {
        /// Its priority.
        priority: i32,
        /// The chosen backend's priority.
        chosen: i32,
    },
    /// It fits and has the same priority, but comes after the chosen backend by [`Origin`] and name.
    LaterInOrder {
        /// The priority of both.
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
            Self::Denied { key } => write!(f, "denied for {key}"),
            Self::LaterInPreference { key, chosen } => {
                write!(f, "fits, but {chosen} comes first in the order for {key}")
            }
            Self::Slower { nanoseconds, chosen } => {
                let (own, chosen) = (Microseconds(*nanoseconds), Microseconds(*chosen));
                write!(
                    f,
                    "fits, but takes {own} as measured here; the chosen one takes {chosen}"
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

/// The rejections, each on its own line.
pub(super) fn lines(rejected: &[Rejection]) -> String {
    rejected.iter().fold(String::new(), |text, rejection| {
        text + "\n  " + &rejection.to_string()
    })
}
