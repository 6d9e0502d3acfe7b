//! A backend's registration: its id, origin, capabilities, configuration and implementation.

use std::{any::Any, collections::BTreeSet, fmt, num::NonZeroU64, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::shown::{cut, shown};
use crate::{ComputeCapability, DeviceKind, Dtype, Op, PackageRequirement, Phase, PluginRecord};

/// In preferences, the name that stands for the automatic choice. No backend may have this name.
pub const AUTO: &str = "auto";

/// A backend's configuration: values by name.
pub type Config = serde_json::Map<String, serde_json::Value>;

/// Identifies one registration in one [`Runtime`](crate::Runtime). Ids are never reused, even after a
/// registration is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendId(NonZeroU64);

impl BackendId {
    pub(crate) const fn new(id: NonZeroU64) -> Self {
        Self(id)
    }

    /// The id with this number, or `None` for zero, which is never an id.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The id as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The origin of a registration or hook.
///
/// The derived order is the precedence between backends of equal priority: the user's first, then plugins' by
/// distribution name, then Switchrail's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The program that owns the runtime.
    User,
    /// A plugin of an installed distribution.
    Plugin {
        /// Name of the distribution.
        distribution: String,
        /// The distribution's version, if its metadata has one.
        version: Option<String>,
        /// Name of the entry point.
        plugin: String,
    },
    /// Switchrail itself.
    Builtin,
}

impl Origin {
    /// Whether this origin may remove or configure registrations of `owner`. A plugin may change only its own
    /// registrations.
    #[must_use]
    pub fn may_change(&self, owner: &Self) -> bool {
        !matches!(self, Self::Plugin { .. }) || self == owner
    }
}

impl From<&PluginRecord> for Origin {
    fn from(record: &PluginRecord) -> Self {
        Self::Plugin {
            distribution: record.origin.distribution.clone(),
            version: record.origin.version.clone(),
            plugin: record.name.clone(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("the user"),
            Self::Plugin {
                distribution,
                version,
                plugin,
            } => {
                write!(f, "plugin {:?} of {}", cut(plugin), shown(distribution))?;
                version
                    .as_ref()
                    .map_or(Ok(()), |version| write!(f, " {}", shown(version)))
            }
            Self::Builtin => f.write_str("switchrail"),
        }
    }
}

/// A backend's registration data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendSpec {
    /// The backend's name in preferences. Only an override may have the name of another backend of its op.
    pub name: String,
    /// The op that it computes.
    pub op: Op,
    /// The phases that it serves, at least one.
    pub phases: BTreeSet<Phase>,
    /// Where the implementation is: `module:Qualified.name` for a Python object, a readable description
    /// for a [native](Entry::Native) one. The core does not import it.
    pub path: String,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Among the backends that fit, the one with the highest priority serves, unless preferences or measured
    /// times decide.
    #[serde(default)]
    pub priority: i32,
    /// Default values of its configuration.
    #[serde(default)]
    pub config: Config,
}

/// The capabilities of a backend.
///
/// `devices` is required. An empty `features` means no features, and an empty `packages` means no
/// requirements. **Any other empty list means no restriction.**
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// The devices that it runs on, at least one.
    pub devices: Vec<DeviceSupport>,
    /// Supported dtypes of activations and of key/value caches.
    pub dtypes: BTreeSet<Dtype>,
    /// Supported dtypes of the recurrent state.
    pub state_dtypes: BTreeSet<Dtype>,
    /// Supported head sizes.
    pub head_sizes: BTreeSet<HeadSize>,
    /// Supported page sizes, in tokens.
    pub page_sizes: BTreeSet<u32>,
    /// Supported axis orders of the recurrent state, such as `VK` ([`STATE_LAYOUTS`](crate::STATE_LAYOUTS)).
    pub state_layouts: BTreeSet<String>,
    /// Optional features of its op that it supports, such as `window` ([`Op::features`]).
    pub features: BTreeSet<String>,
    /// Distributions that it requires.
    pub packages: Vec<PackageRequirement>,
}

/// A device family that a backend runs on, and the range of its compute capabilities.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSupport {
    /// The family.
    pub kind: DeviceKind,
    /// The lowest supported capability; `None` means any.
    #[serde(default)]
    pub min_capability: Option<ComputeCapability>,
    /// The highest supported capability (inclusive); `None` means any.
    #[serde(default)]
    pub max_capability: Option<ComputeCapability>,
}

impl DeviceSupport {
    /// Support for every capability of a device family.
    #[must_use]
    pub const fn any(kind: DeviceKind) -> Self {
        Self {
            kind,
            min_capability: None,
            max_capability: None,
        }
    }

    /// Whether the capability is in the range. An unknown capability fits only if there is no range.
    pub(crate) fn contains(&self, capability: Option<ComputeCapability>) -> bool {
        let above = |min| capability.is_some_and(|capability| min <= capability);
        let below = |max| capability.is_some_and(|capability| capability <= max);
        self.min_capability.is_none_or(above) && self.max_capability.is_none_or(below)
    }
}

impl fmt::Display for DeviceSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match (self.min_capability, self.max_capability) {
            (None, None) => Ok(()),
            (Some(min), None) => write!(f, " {min} or later"),
            (None, Some(max)) => write!(f, " up to {max}"),
            (Some(min), Some(max)) if min == max => write!(f, " {min}"),
            (Some(min), Some(max)) => write!(f, " {min} to {max}"),
        }
    }
}

/// The head size of queries and keys, and the head size of values. In JSON one number if they are equal, else
/// `[k, v]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "HeadSizeForm", into = "HeadSizeForm")]
pub struct HeadSize {
    /// Head size of queries and keys.
    pub k: u32,
    /// Head size of values.
    pub v: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum HeadSizeForm {
    Both(u32),
    Each(u32, u32),
}

impl From<HeadSizeForm> for HeadSize {
    fn from(form: HeadSizeForm) -> Self {
        match form {
            HeadSizeForm::Both(size) => Self { k: size, v: size },
            HeadSizeForm::Each(k, v) => Self { k, v },
        }
    }
}

impl From<HeadSize> for HeadSizeForm {
    fn from(HeadSize { k, v }: HeadSize) -> Self {
        if k == v { Self::Both(k) } else { Self::Each(k, v) }
    }
}

impl From<u32> for HeadSize {
    fn from(size: u32) -> Self {
        Self { k: size, v: size }
    }
}

impl fmt::Display for HeadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.k == self.v {
            write!(f, "{}", self.k)
        } else {
            write!(f, "{}/{}", self.k, self.v)
        }
    }
}

/// A backend that is a Rust value.
///
/// The core stores the value, and returns it with the route plans that pin it. The core calls only
/// [`NativeBackend::check_config`]. The program gets its own type back with [`Entry::native`] and computes with
/// it.
pub trait NativeBackend: Any + fmt::Debug + Send + Sync {
    /// Checks a configuration (the defaults, overridden by configured values), at registration and at each
    /// change.
    ///
    /// # Errors
    /// A readable description of the problem.
    fn check_config(&self, config: &Config) -> Result<(), String>;
}

/// The implementation behind a registration.
#[derive(Debug, Clone, Default)]
pub enum Entry {
    /// A Rust value.
    Native(Arc<dyn NativeBackend>),
    /// An object that the host language stores under the registration's id.
    #[default]
    Foreign,
}

impl Entry {
    /// The native backend, if there is one and its type is `T`.
    #[must_use]
    pub fn native<T: NativeBackend>(&self) -> Option<&T> {
        match self {
            Self::Native(backend) => (backend.as_ref() as &dyn Any).downcast_ref(),
            Self::Foreign => None,
        }
    }
}

/// Native entries are equal if they are the same object (`Arc::ptr_eq`).
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Native(this), Self::Native(other)) => Arc::ptr_eq(this, other),
            (Self::Foreign, Self::Foreign) => true,
            _ => false,
        }
    }
}

/// A backend in a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Identifies this registration.
    pub id: BackendId,
    /// The origin of the registration.
    pub origin: Origin,
    /// The registered data.
    pub spec: BackendSpec,
    /// The configured values, which override the defaults in [`BackendSpec::config`].
    ///
    /// The values belong to this registration: an override starts with its own defaults. After the override is
    /// removed, the overridden backend serves with its previous values.
    pub configuration: Config,
    /// The implementation, which the JSON form leaves out. A registration that was read from a document has
    /// [`Entry::Foreign`].
    #[serde(skip)]
    pub entry: Entry,
}

impl Registration {
    /// The configuration in effect: the defaults, overridden by the configured values.
    #[must_use]
    pub fn effective_config(&self) -> Config {
        let mut config = self.spec.config.clone();
        config.extend(self.configuration.clone());
        config
    }
}
