//! Decides which of the discovered plugins may be loaded.

use serde::{Deserialize, Serialize};

use crate::{CoreError, PluginGroup, PluginRecord, PluginState, UnknownName, normalized_name, quoted};

/// Why a selection cannot be applied.
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

impl CoreError for SelectionError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownPlugin(_) => "unknown_plugin",
            Self::UnknownPlatform(_) => "unknown_platform",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::UnknownPlugin(name) | Self::UnknownPlatform(name) => name.fields(),
        }
    }
}

/// Which plugins may be loaded.
///
/// The default lets all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Selection {
    /// The general plugins that are allowed: `name`, or `distribution:name` where two distributions use one name.
    /// `None` allows all; an empty list, none. Platforms are never hidden by it, so that naming one changes nothing.
    pub allow: Option<Vec<String>>,
    /// The platform in use, once it is chosen: then general plugins of distributions that provide only other platforms
    /// are left out.
    pub platform: Option<String>,
    /// The platforms that the host brings itself.
    pub builtin_platforms: Vec<String>,
}

impl Selection {
    /// Reads an allow list as `SWITCHRAIL_PLUGINS` has it: names separated by commas. An empty text allows none.
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

    /// Sets the state of each plugin to discovered or blocked. Plugins that are loaded or have failed stay as they are.
    ///
    /// # Errors
    /// [`SelectionError`] where a name in the allow list, or the platform, is that of no plugin; nothing is changed then.
    pub fn apply(&self, plugins: &mut [PluginRecord]) -> Result<(), SelectionError> {
        for entry in self.allow.iter().flatten() {
            if !plugins.iter().any(|plugin| is_named(plugin, entry)) {
                let unknown = UnknownName::new("plugin", entry, names(&*plugins));
                return Err(SelectionError::UnknownPlugin(unknown));
            }
        }
        self.check_platform(plugins)?;
        let reasons: Vec<Option<String>> = plugins
            .iter()
            .map(|plugin| self.reason(plugin, plugins))
            .collect();
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

    fn check_platform(&self, plugins: &[PluginRecord]) -> Result<(), SelectionError> {
        let Some(platform) = &self.platform else {
            return Ok(());
        };
        let installed: Vec<&PluginRecord> = plugins
            .iter()
            .filter(|plugin| plugin.group == PluginGroup::Platforms)
            .collect();
        if self.builtin_platforms.contains(platform)
            || installed.iter().any(|plugin| is_named(plugin, platform))
        {
            return Ok(());
        }
        let valid = self.builtin_platforms.iter().cloned().chain(names(installed));
        Err(SelectionError::UnknownPlatform(UnknownName::new(
            "platform", platform, valid,
        )))
    }

    /// Why a plugin is left out, if it is.
    fn reason(&self, plugin: &PluginRecord, plugins: &[PluginRecord]) -> Option<String> {
        if plugin.group == PluginGroup::Platforms {
            return None;
        }
        if let Some(allow) = &self.allow
            && !allow.iter().any(|entry| is_named(plugin, entry))
        {
            return Some(match quoted(allow) {
                list if list.is_empty() => "the allow list is empty".to_owned(),
                list => format!("the allow list has only {list}"),
            });
        }
        let platform = self.platform.as_ref()?;
        let provided: Vec<&PluginRecord> = plugins
            .iter()
            .filter(|other| other.group == PluginGroup::Platforms && other.origin.path == plugin.origin.path)
            .collect();
        let is_other = !provided.is_empty() && !provided.iter().any(|other| is_named(other, platform));
        is_other.then(|| {
            let names: Vec<&str> = provided.iter().map(|other| other.name.as_str()).collect();
            format!(
                "{} provides the platform {}, and {platform:?} is in use",
                plugin.origin.distribution,
                quoted(&names)
            )
        })
    }
}

/// Whether an entry is the plugin's name, or its distribution's and its own with a colon between.
fn is_named(plugin: &PluginRecord, entry: &str) -> bool {
    plugin.name == entry
        || entry.split_once(':').is_some_and(|(distribution, name)| {
            plugin.name == name
                && normalized_name(distribution) == normalized_name(&plugin.origin.distribution)
        })
}

fn names<'a>(plugins: impl IntoIterator<Item = &'a PluginRecord>) -> Vec<String> {
    plugins
        .into_iter()
        .flat_map(|plugin| [plugin.name.clone(), plugin.qualified_name()])
        .collect()
}
