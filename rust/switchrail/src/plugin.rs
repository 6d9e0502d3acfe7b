//! The record of one plugin: its origin and its state.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{normalized_name, schema::lossy_path};

/// The two entry-point groups that Switchrail reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PluginGroup {
    /// General plugins, which register backends and hooks.
    #[serde(rename = "switchrail.plugins")]
    Plugins,
    /// Platforms, each for a device family. One platform is active.
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
    /// Its version, if the metadata has one.
    pub version: Option<String>,
    /// Its metadata folder or file.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
}

/// The state of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PluginState {
    /// Found but not imported.
    Discovered,
    /// Excluded by the selection or the lock.
    Blocked {
        /// The rule that excludes it.
        reason: String,
    },
    /// Imported, and its transaction is committed.
    Loaded,
    /// Its declaration is invalid, or its import, registration or commit failed; nothing is registered.
    Failed {
        /// The failure.
        reason: String,
    },
    /// The plugin exceeded its time limit. Its thread still runs, its transaction is closed, and nothing is
    /// registered.
    Hung {
        /// The activity that took too long, and its time limit.
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
    /// Its target, `module:attribute`, without extras.
    pub target: String,
    /// The extras of the distribution that it requires.
    pub extras: Vec<String>,
    /// The distribution that it comes from.
    pub origin: PluginOrigin,
    /// Its state.
    #[serde(flatten)]
    pub state: PluginState,
}

impl PluginRecord {
    /// `distribution:name`, which is unique even if two distributions have an entry point of the same name.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}:{}", self.origin.distribution, self.name)
    }

    /// Whether `entry`, such as one of an allow list, is this plugin's name, or `distribution:name` with any
    /// equivalent spelling of the distribution.
    #[must_use]
    pub fn is_named(&self, entry: &str) -> bool {
        let is_qualified = |(distribution, name)| name == self.name && self.is_of(distribution);
        entry == self.name || entry.split_once(':').is_some_and(is_qualified)
    }

    /// Whether it belongs to the distribution, whose name may have any equivalent spelling.
    #[must_use]
    pub fn is_of(&self, distribution: &str) -> bool {
        normalized_name(&self.origin.distribution) == normalized_name(distribution)
    }
}
