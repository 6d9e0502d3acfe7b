//! Decides which of the discovered plugins may be loaded.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    DeviceKind, PluginGroup, PluginRecord, PluginState, UnknownName, error::core_error, normalized_name,
    quoted,
};

/// If a plugin is blocked because the allow list lacks it, the reason shows at most this many of the list's
/// names.
const NAMED: usize = 10;

/// Why a selection could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// The allow list names a plugin that is not installed.
    #[error(transparent)]
    UnknownPlugin(UnknownName),
    /// The platform is neither built in nor installed.
    #[error(transparent)]
    UnknownPlatform(UnknownName),
}

core_error! { SelectionError {
    Self::UnknownPlugin(name) => "unknown_plugin", name.fields();
    Self::UnknownPlatform(name) => "unknown_platform", name.fields();
} }

/// The rules for which plugins may be loaded.
///
/// The default allows all plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Selection {
    /// The allowed general plugins: `name`, or `distribution:name` if two distributions use the same name.
    /// `None` allows all plugins, an empty list allows none. Platforms are never blocked by this list, so
    /// naming a platform has no effect.
    pub allow: Option<Vec<String>>,
    /// The platform in use, if one is chosen. If a distribution provides platforms, but not this one, its
    /// general plugins are blocked.
    pub platform: Option<String>,
}

impl Selection {
    /// Parses an allow list in the form of `SWITCHRAIL_PLUGINS`: names separated by commas. An empty string
    /// allows none.
    ///
    /// ```
    /// use switchrail::Selection;
    ///
    /// assert_eq!(Selection::parse_allow("acme, vendor:gdn,"), ["acme", "vendor:gdn"]);
    /// ```
    #[must_use]
    pub fn parse_allow(text: &str) -> Vec<String> {
        text.split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Blocks the plugins that the rules exclude, and sets the others to discovered. Plugins that are loaded,
    /// failed or hung keep their state.
    ///
    /// # Errors
    /// [`SelectionError`] if the platform or an entry of the allow list is unknown; nothing is changed then.
    pub fn apply(&self, plugins: &mut [PluginRecord]) -> Result<(), SelectionError> {
        if let Some(allow) = &self.allow {
            let known: HashSet<Key<'_>> = plugins.iter().flat_map(plugin_keys).collect();
            let is_known = |entry: &&String| entry_keys(entry).any(|key| known.contains(&key));
            if let Some(entry) = allow.iter().find(|entry| !is_known(entry)) {
                let unknown = UnknownName::new("plugin", entry, names(&*plugins));
                return Err(SelectionError::UnknownPlugin(unknown));
            }
        }
        self.check_platform(plugins)?;
        let reasons = self.reasons(plugins);
        for (plugin, reason) in plugins.iter_mut().zip(reasons) {
            if matches!(
                plugin.state,
                PluginState::Discovered | PluginState::Blocked { .. }
            ) {
                plugin.state =
                    reason.map_or(PluginState::Discovered, |reason| PluginState::Blocked { reason });
            }
        }
        Ok(())
    }

    /// The platform that `named` means: `named` itself, or else the part before its last colon (`cuda` in
    /// `cuda:0`). `None` if neither is a known [`DeviceKind`] or an installed platform.
    #[must_use]
    pub fn platform_of<'a>(named: &'a str, plugins: &[PluginRecord]) -> Option<&'a str> {
        let family = named.rsplit_once(':').map(|(family, _)| family);
        [Some(named), family]
            .into_iter()
            .flatten()
            .find(|name| is_platform(name, plugins))
    }

    fn check_platform(&self, plugins: &[PluginRecord]) -> Result<(), SelectionError> {
        let Some(platform) = &self.platform else {
            return Ok(());
        };
        if is_platform(platform, plugins) {
            return Ok(());
        }
        let valid = builtin().chain(names(platforms(plugins)));
        Err(SelectionError::UnknownPlatform(UnknownName::new(
            "platform", platform, valid,
        )))
    }

    /// For each plugin, the reason why it is blocked; `None` if it is not blocked.
    fn reasons(&self, plugins: &[PluginRecord]) -> Vec<Option<String>> {
        let allowed: Option<HashSet<Key<'_>>> = self
            .allow
            .as_ref()
            .map(|allow| allow.iter().flat_map(|entry| entry_keys(entry)).collect());
        // Compares each plugin only with the platforms of its own distribution; a comparison with all would
        // be quadratic.
        let mut by_origin: BTreeMap<&Path, Vec<&PluginRecord>> = BTreeMap::new();
        for plugin in platforms(plugins) {
            by_origin.entry(&plugin.origin.path).or_default().push(plugin);
        }
        let reason = |plugin: &PluginRecord| {
            if plugin.group == PluginGroup::Platforms {
                return None;
            }
            if let (Some(allow), Some(allowed)) = (&self.allow, &allowed)
                && !plugin_keys(plugin).iter().any(|key| allowed.contains(key))
            {
                return Some(not_allowed(allow));
            }
            let platform = self.platform.as_ref()?;
            let provided = by_origin.get(plugin.origin.path.as_path())?;
            let is_other = !provided.iter().any(|other| other.is_named(platform));
            is_other.then(|| {
                let names: Vec<&str> = provided.iter().map(|other| other.name.as_str()).collect();
                format!(
                    "{} provides the platform {}, but {platform:?} is in use",
                    plugin.origin.distribution,
                    quoted(&names)
                )
            })
        };
        plugins.iter().map(reason).collect()
    }
}

/// The reason for blocking a plugin that is not in the allow list.
fn not_allowed(allow: &[String]) -> String {
    match allow.len().checked_sub(NAMED) {
        _ if allow.is_empty() => "the allow list is empty".to_owned(),
        Some(more @ 1..) => format!(
            "the allow list has only {} and {more} more",
            quoted(&allow[..NAMED])
        ),
        _ => format!("the allow list has only {}", quoted(allow)),
    }
}

/// A plugin's name, optionally with its distribution's normalised name.
type Key<'a> = (Option<String>, &'a str);

/// The names of a plugin, without and with its distribution.
fn plugin_keys(plugin: &PluginRecord) -> [Key<'_>; 2] {
    let distribution = normalized_name(&plugin.origin.distribution);
    [(None, &plugin.name), (Some(distribution), &plugin.name)]
}

/// The possible meanings of an entry: a `name` or a `distribution:name`.
fn entry_keys(entry: &str) -> impl Iterator<Item = Key<'_>> {
    let qualified = entry.split_once(':');
    let qualified = qualified.map(|(distribution, name)| (Some(normalized_name(distribution)), name));
    [(None, entry)].into_iter().chain(qualified)
}

/// The platforms that exist without a plugin.
fn builtin() -> impl Iterator<Item = String> {
    DeviceKind::KNOWN.into_iter().map(|kind| kind.to_string())
}

fn platforms(plugins: &[PluginRecord]) -> impl Iterator<Item = &PluginRecord> {
    plugins
        .iter()
        .filter(|plugin| plugin.group == PluginGroup::Platforms)
}

/// Whether a platform of this name is built in or installed.
fn is_platform(name: &str, plugins: &[PluginRecord]) -> bool {
    builtin().any(|kind| kind == name) || platforms(plugins).any(|plugin| plugin.is_named(name))
}

fn names<'a>(plugins: impl IntoIterator<Item = &'a PluginRecord>) -> Vec<String> {
    plugins
        .into_iter()
        .flat_map(|plugin| [plugin.name.clone(), plugin.qualified_name()])
        .collect()
}
