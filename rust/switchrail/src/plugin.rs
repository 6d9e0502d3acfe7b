//! What is known of one plugin: where it comes from, and how far it got.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{normalized_name, schema::lossy_path};

/// The two entry-point groups that Switchrail reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PluginGroup {
    /// General plugins: they register backends and hooks.
    #[serde(rename = "switchrail.plugins")]
    Plugins,
    /// Platforms: device families, of which one is active.
    #[serde(rename = "switchrail.platforms")]
    Platforms,
}

impl PluginGroup {
    /// Both groups.
    pub const ALL: [Self; 2] = [Self::Plugins, Self::Platforms];

    /// The group's name in `entry_points.txt`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plugins => "switchrail.plugins",
            Self::Platforms => "switchrail.platforms",
        }
    }
}

impl fmt::Display for PluginGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The installed distribution that a plugin comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PluginOrigin {
    /// Name of the distribution, as its metadata spells it.
    pub distribution: String,
    /// Its version, where its metadata has one.
    pub version: Option<String>,
    /// Its metadata folder or file.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
}

/// How far a plugin got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PluginState {
    /// Found, not imported.
    Discovered,
    /// Left out by the selection.
    Blocked {
        /// Which rule left it out.
        reason: String,
    },
    /// Imported, and its transaction committed.
    Loaded,
    /// Its import, its registration or its commit failed; nothing of it is registered.
    Failed {
        /// What went wrong.
        reason: String,
    },
    /// It took longer than it may; its thread goes on, its transaction is closed, and nothing of it is registered.
    Hung {
        /// What it was doing, and for how long.
        reason: String,
    },
}

/// One entry point of an installed distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRecord {
    /// Name of the entry point, as written.
    pub name: String,
    /// Its group.
    pub group: PluginGroup,
    /// What it points to, `module:attribute`, extras left out.
    pub target: String,
    /// Extras of the distribution that it asks for.
    pub extras: Vec<String>,
    /// Where it comes from.
    pub origin: PluginOrigin,
    /// How far it got.
    #[serde(flatten)]
    pub state: PluginState,
}

impl PluginRecord {
    /// `distribution:name`, which stays unique when two distributions use one entry-point name.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}:{}", self.origin.distribution, self.name)
    }

    /// Whether an entry means this plugin: its name, or `distribution:name` with any spelling of the distribution.
    #[must_use]
    pub fn is_named(&self, entry: &str) -> bool {
        let is_qualified = |(distribution, name)| name == self.name && self.is_of(distribution);
        entry == self.name || entry.split_once(':').is_some_and(is_qualified)
    }

    /// Whether it comes from a distribution, by any spelling of its name.
    #[must_use]
    pub fn is_of(&self, distribution: &str) -> bool {
        normalized_name(&self.origin.distribution) == normalized_name(distribution)
    }
}
