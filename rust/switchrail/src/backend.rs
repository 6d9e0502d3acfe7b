//! What a backend is: its identity, where it came from, and what it can do, as data.

use std::{any::Any, collections::BTreeSet, fmt, num::NonZeroU64, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::shown::{cut, shown};
use crate::{ComputeCapability, DeviceKind, Dtype, Op, PackageRequirement, Phase, PluginRecord};

/// What a user says in the place of a backend's name to mean: decide by capabilities and priority. No backend has it.
pub const AUTO: &str = "auto";

/// A backend's configuration: values by name.
pub type Config = serde_json::Map<String, serde_json::Value>;

/// Names one registration in one [`Runtime`](crate::Runtime). Never reused, also not after the registration is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackendId(NonZeroU64);

impl BackendId {
    pub(crate) const fn new(id: NonZeroU64) -> Self {
        Self(id)
    }

    /// The id with a number; none for zero, which no registration has.
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

/// Who registered something.
///
/// The order is that of precedence between backends of equal priority: what the user registered, then plugins by
/// distribution name, then what came with Switchrail.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The program that owns the runtime.
    User,
    /// A plugin of an installed distribution.
    Plugin {
        /// Name of the distribution.
        distribution: String,
        /// Its version, where its metadata has one.
        version: Option<String>,
        /// Name of the entry point.
        plugin: String,
    },
    /// Switchrail itself.
    Builtin,
}

impl Origin {
    /// Whether it may take out or configure what `owner` registered: a plugin, only what is its own.
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

/// A backend as it is registered: data alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendSpec {
    /// The name that preferences use; unique for its op.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// The phases that it serves, at least one.
    pub phases: BTreeSet<Phase>,
    /// Where its implementation is: `module:Qualified.name` for a host's object, anything that helps a reader for a
    /// [native](Entry::Native) one. The core never opens it.
    pub path: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Where nothing was chosen, the highest priority that fits wins.
    #[serde(default)]
    pub priority: i32,
    /// Defaults of its configuration.
    #[serde(default)]
    pub config: Config,
}

/// What a backend can do.
///
/// `devices` and `phases` must be named. Of the other lists **an empty one restricts nothing**; in `features` it
/// offers nothing, in `packages` it needs nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// Where it runs, at least one.
    pub devices: Vec<DeviceSupport>,
    /// Formats of activations (and caches of keys and values) that it takes.
    pub dtypes: BTreeSet<Dtype>,
    /// Formats of the recurrent state that it takes.
    pub state_dtypes: BTreeSet<Dtype>,
    /// Head sizes that it takes.
    pub head_sizes: BTreeSet<HeadSize>,
    /// Tokens a page that it takes.
    pub page_sizes: BTreeSet<u32>,
    /// Axis orders of the recurrent state that it takes, such as `VK` ([`STATE_LAYOUTS`](crate::STATE_LAYOUTS)).
    pub state_layouts: BTreeSet<String>,
    /// What it can do that not every backend of its op can, such as `window` ([`Op::features`]).
    pub features: BTreeSet<String>,
    /// Distributions that must be installed for it.
    pub packages: Vec<PackageRequirement>,
}

/// A device family that a backend runs on, and which of its generations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSupport {
    /// The family.
    pub kind: DeviceKind,
    /// The oldest capability that will do; none means any.
    #[serde(default)]
    pub min_capability: Option<ComputeCapability>,
    /// The newest capability that will do, itself included; none means any.
    #[serde(default)]
    pub max_capability: Option<ComputeCapability>,
}

impl DeviceSupport {
    /// Every generation of a family.
    #[must_use]
    pub const fn any(kind: DeviceKind) -> Self {
        Self {
            kind,
            min_capability: None,
            max_capability: None,
        }
    }

    /// Whether the capability lies in the range; an unknown one does only where there is no range.
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

/// The head sizes of an op: of queries and keys, and of values. In JSON a number where both are equal, else `[k, v]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "HeadSizeForm", into = "HeadSizeForm")]
pub struct HeadSize {
    /// Of queries and keys.
    pub k: u32,
    /// Of values.
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
/// The core stores it, hands it out with the route plans that pin it, and asks nothing of it but whether a
/// configuration will do. What it computes is between it and its service, which gets its own type back with
/// [`Entry::native`].
pub trait NativeBackend: Any + fmt::Debug + Send + Sync {
    /// Checks the configuration, defaults and the user's values together, at registration and when it changes.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    fn check_config(&self, config: &Config) -> Result<(), String>;
}

/// What stands behind a registration.
#[derive(Debug, Clone, Default)]
pub enum Entry {
    /// A Rust value.
    Native(Arc<dyn NativeBackend>),
    /// An object that the host keeps, by the registration's id.
    #[default]
    Foreign,
}

impl Entry {
    /// The native backend, if there is one and it is a `T`.
    #[must_use]
    pub fn native<T: NativeBackend>(&self) -> Option<&T> {
        match self {
            Self::Native(backend) => (backend.as_ref() as &dyn Any).downcast_ref(),
            Self::Foreign => None,
        }
    }
}

/// Native entries are equal when they are the same value.
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Native(this), Self::Native(other)) => Arc::ptr_eq(this, other),
            (Self::Foreign, Self::Foreign) => true,
            _ => false,
        }
    }
}

/// A backend as a snapshot holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Names this registration.
    pub id: BackendId,
    /// Who registered it.
    pub origin: Origin,
    /// What was registered.
    pub spec: BackendSpec,
    /// The user's values, which count over the defaults in [`BackendSpec::config`].
    ///
    /// They belong to this registration: an override starts with its own defaults, and clearing it brings the
    /// built-in back with the values that it had.
    pub configuration: Config,
    /// What stands behind it. Not part of the JSON form: it belongs to its process, and is [`Entry::Foreign`] in what
    /// was read from a document.
    #[serde(skip)]
    pub entry: Entry,
}

impl Registration {
    /// The configuration in effect: the defaults with the user's values over them.
    #[must_use]
    pub fn effective_config(&self) -> Config {
        let mut config = self.spec.config.clone();
        config.extend(self.configuration.clone());
        config
    }
}
