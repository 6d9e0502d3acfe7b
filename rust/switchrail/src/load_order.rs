//! The order in which plugins' functions run.

use serde::{Deserialize, Serialize};

use crate::{OrderError, OrderItem, PluginRecord, normalized_name, order};

/// A plugin's declared place in the order of plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PluginPlace {
    /// Plugins with a higher priority come first.
    pub priority: i32,
    /// Plugins that come after this one: a name, `distribution:name`, or a distribution for all of its
    /// plugins. Names of plugins that are not installed have no effect.
    pub before: Vec<String>,
    /// Plugins that come before this one, named in the same way.
    pub after: Vec<String>,
}

/// Orders plugins as [`order()`] does, and returns their indices. A plugin's source is the normalised name of its
/// distribution.
///
/// ```
/// # use switchrail::{PluginGroup, PluginOrigin, PluginPlace, PluginRecord, PluginState, order_plugins};
/// # let plugin = |name: &str| PluginRecord {
/// #     name: name.into(),
/// #     group: PluginGroup::Plugins,
/// #     target: "module:register".into(),
/// #     extras: vec![],
/// #     origin: PluginOrigin { distribution: "Acme.Kernels".into(), version: None, path: "/site".into() },
/// #     state: PluginState::Discovered,
/// # };
/// let (first, second) = (plugin("first"), plugin("second"));
/// let place = PluginPlace { after: vec!["acme_kernels:second".into()], ..PluginPlace::default() };
/// assert_eq!(order_plugins([(&first, &place), (&second, &PluginPlace::default())])?, [1, 0]);
/// # Ok::<(), switchrail::OrderError>(())
/// ```
///
/// # Errors
/// [`OrderError::Cycle`] if the declared places contradict each other. The error's members are the plugins'
/// qualified names.
pub fn order_plugins<'a>(
    plugins: impl IntoIterator<Item = (&'a PluginRecord, &'a PluginPlace)>,
) -> Result<Vec<usize>, OrderError> {
    let plugins: Vec<_> = plugins.into_iter().collect();
    let meant = |names: &[String]| -> Vec<String> {
        let is_meant = |plugin: &PluginRecord| {
            names
                .iter()
                .any(|name| plugin.is_named(name) || plugin.is_of(name))
        };
        let others = plugins.iter().filter(|(plugin, _)| is_meant(plugin));
        others.map(|(plugin, _)| plugin.qualified_name()).collect()
    };
    let items: Vec<OrderItem> = plugins
        .iter()
        .map(|(plugin, place)| OrderItem {
            key: plugin.qualified_name(),
            source: normalized_name(&plugin.origin.distribution),
            priority: place.priority,
            before: meant(&place.before),
            after: meant(&place.after),
        })
        .collect();
    order(&items)
}
