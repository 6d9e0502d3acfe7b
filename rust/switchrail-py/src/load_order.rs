//! Mirror of the core's `load_order`.

use std::iter::zip;

use pyo3::prelude::*;
use switchrail::PluginPlace;

use crate::{errors::raise, plugin::Plugin};

/// A `PluginPlace` in the form in which `switchrail.plugins` passes it: priority, before, after.
type Place = (i32, Vec<String>, Vec<String>);

/// Orders plugins by their declared places. Returns their indices, first to last.
#[pyfunction]
pub fn order_plugins(plugins: Vec<(Bound<'_, Plugin>, Place)>) -> PyResult<Vec<usize>> {
    let (plugins, places): (Vec<_>, Vec<_>) = plugins.into_iter().unzip();
    let place = |(priority, before, after)| PluginPlace {
        priority,
        before,
        after,
    };
    let places: Vec<PluginPlace> = places.into_iter().map(place).collect();
    let records = plugins.iter().map(|plugin| &plugin.get().0.record);
    switchrail::order_plugins(zip(records, &places)).map_err(raise)
}
