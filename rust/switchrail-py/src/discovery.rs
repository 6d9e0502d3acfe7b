//! Mirror of the core's `discovery`.

use std::{collections::BTreeMap, path::PathBuf};

use pyo3::prelude::*;

use crate::{backend::Registration, mirror::mirror, plugin::Plugin};

mirror! {
    /// The distributions and plugins installed on a search path.
    Discovery(switchrail::Discovery) {
        #[getter]
        fn plugins(&self) -> Vec<Plugin> {
            self.0.plugins.iter().map(|record| Plugin(record.clone().into())).collect()
        }

        /// Versions by distribution; distributions without a version are omitted.
        #[getter]
        fn packages(&self) -> BTreeMap<String, String> {
            self.0.packages().iter().map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
        }

        /// The installed version of each distribution that the backends require; None if it is not
        /// installed or has no version.
        fn required(&self, backends: Vec<Bound<'_, Registration>>) -> BTreeMap<String, Option<String>> {
            let packages = self.0.packages();
            let required = backends.iter().flat_map(|backend| &backend.get().0.spec.capabilities.packages);
            required
                .map(|needed| (needed.name().to_owned(), packages.version(needed.name()).map(str::to_owned)))
                .collect()
        }

        /// Problems as (path, code, message).
        #[getter]
        fn problems(&self) -> Vec<(String, &'static str, &str)> {
            let problems = self.0.problems.iter();
            problems
                .map(|problem| (problem.path.to_string_lossy().into_owned(), problem.code.as_str(), problem.message.as_str()))
                .collect()
        }
    }
}

/// Finds the distributions on a search path, and their plugins. Imports nothing.
#[pyfunction]
#[pyo3(signature = (paths, *, thorough=false))]
pub fn discover(py: Python<'_>, paths: Vec<PathBuf>, thorough: bool) -> Discovery {
    let discover = if thorough {
        switchrail::discover_thoroughly
    } else {
        switchrail::discover
    };
    py.detach(|| Discovery(discover(&paths)))
}
