//! Mirror of the core's `plugin` and `selection`.

use std::iter;

use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use switchrail::{PluginRecord, PluginState, Selection};

use crate::{errors::raise, mirror::mirror};

/// The core's record of a plugin, and the traceback of its failure.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    #[serde(flatten)]
    pub record: PluginRecord,
    #[serde(default)]
    traceback: Option<String>,
}

impl From<PluginRecord> for Traced {
    fn from(record: PluginRecord) -> Self {
        Self {
            record,
            traceback: None,
        }
    }
}

impl Traced {
    /// A copy in another state.
    fn in_state(&self, state: PluginState, traceback: Option<String>) -> Self {
        Self {
            record: PluginRecord {
                state,
                ..self.record.clone()
            },
            traceback,
        }
    }
}

mirror! {
    /// One entry point of an installed distribution, and its state.
    Plugin(Traced) {
        #[getter]
        fn name(&self) -> &str {
            &self.0.record.name
        }

        #[getter]
        fn group(&self) -> &'static str {
            self.0.record.group.as_str()
        }

        #[getter]
        fn target(&self) -> &str {
            &self.0.record.target
        }

        #[getter]
        fn distribution(&self) -> &str {
            &self.0.record.origin.distribution
        }

        #[getter]
        fn version(&self) -> Option<&str> {
            self.0.record.origin.version.as_deref()
        }

        #[getter]
        fn path(&self) -> String {
            self.0.record.origin.path.to_string_lossy().into_owned()
        }

        /// `distribution:name`.
        #[getter]
        fn qualified_name(&self) -> String {
            self.0.record.qualified_name()
        }

        #[getter]
        fn state(&self) -> &'static str {
            match self.0.record.state {
                PluginState::Discovered => "discovered",
                PluginState::Blocked { .. } => "blocked",
                PluginState::Loaded => "loaded",
                PluginState::Failed { .. } => "failed",
                PluginState::Hung { .. } => "hung",
            }
        }

        /// Why the plugin is blocked, failed or hung.
        #[getter]
        fn reason(&self) -> Option<&str> {
            match &self.0.record.state {
                PluginState::Blocked { reason }
                | PluginState::Failed { reason }
                | PluginState::Hung { reason } => Some(reason),
                PluginState::Discovered | PluginState::Loaded => None,
            }
        }

        /// The traceback of the plugin's failure; for a plugin that hangs, the stack of its thread.
        #[getter]
        fn traceback(&self) -> Option<&str> {
            self.0.traceback.as_deref()
        }

        /// Whether the entry (`name` or `distribution:name`) names this plugin.
        fn is_named(&self, entry: &str) -> bool {
            self.0.record.is_named(entry)
        }

        /// Whether the plugin belongs to the distribution, whose name may have any equivalent spelling.
        fn is_of(&self, distribution: &str) -> bool {
            self.0.record.is_of(distribution)
        }

        /// A copy in the state loaded.
        fn loaded(&self) -> Self {
            Self(self.0.in_state(PluginState::Loaded, None))
        }

        /// A copy in the state failed.
        fn failed(&self, reason: String, traceback: String) -> Self {
            Self(self.0.in_state(PluginState::Failed { reason }, Some(traceback)))
        }

        /// A copy in the state hung.
        fn hung(&self, reason: String, traceback: String) -> Self {
            Self(self.0.in_state(PluginState::Hung { reason }, Some(traceback)))
        }

        /// A copy in the state blocked.
        fn blocked(&self, reason: String) -> Self {
            Self(self.0.in_state(PluginState::Blocked { reason }, None))
        }
    }
}

/// Applies a selection: blocks the plugins that it excludes. Returns all plugins.
#[pyfunction]
#[pyo3(signature = (plugins, allow=None, platform=None))]
pub fn select(
    plugins: Vec<Bound<'_, Plugin>>,
    allow: Option<Vec<String>>,
    platform: Option<String>,
) -> PyResult<Vec<Plugin>> {
    let selection = Selection { allow, platform };
    changed(&plugins, |records| selection.apply(records).map_err(raise))
}

/// The platform in the name of a platform or device, such as `cuda` in `cuda:0`; None if it is unknown.
#[pyfunction]
pub fn platform_of(named: &str, plugins: Vec<Bound<'_, Plugin>>) -> Option<String> {
    Selection::platform_of(named, &records(&plugins)).map(str::to_owned)
}

/// Copies of the plugins' records.
pub fn records(plugins: &[Bound<'_, Plugin>]) -> Vec<PluginRecord> {
    let records = plugins.iter().map(|plugin| &plugin.get().0.record);
    records.cloned().collect()
}

/// Applies a change to the plugins' records. The change may append records. Tracebacks are kept.
pub fn changed(
    plugins: &[Bound<'_, Plugin>],
    change: impl FnOnce(&mut Vec<PluginRecord>) -> PyResult<()>,
) -> PyResult<Vec<Plugin>> {
    let traced = plugins.iter().map(|plugin| plugin.get().0.clone());
    let (mut records, tracebacks): (Vec<PluginRecord>, Vec<_>) =
        traced.map(|plugin| (plugin.record, plugin.traceback)).unzip();
    change(&mut records)?;
    let tracebacks = tracebacks.into_iter().chain(iter::repeat(None));
    let traced = records.into_iter().zip(tracebacks);
    Ok(traced
        .map(|(record, traceback)| Plugin(Traced { record, traceback }))
        .collect())
}

/// Parses an allow list in the form of `SWITCHRAIL_PLUGINS`.
#[pyfunction]
pub fn parse_allow(text: &str) -> Vec<String> {
    Selection::parse_allow(text)
}
