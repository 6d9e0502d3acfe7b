//! Mirror of the core's `lock`.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::{
    discovery::Discovery,
    errors::raise,
    mirror::mirror,
    plugin::{Plugin, changed},
};

mirror! {
    /// The distributions that may be loaded, with a digest of each of their files.
    Lock(switchrail::Lock) {
        /// Creates a lock of the current installation.
        #[staticmethod]
        fn of(py: Python<'_>, discovery: &Discovery) -> PyResult<Self> {
            py.detach(|| switchrail::Lock::of(&discovery.0)).map(Self).map_err(raise)
        }

        /// Reads a lock file.
        #[staticmethod]
        fn read(path: PathBuf) -> PyResult<Self> {
            switchrail::Lock::read(&path).map(Self).map_err(raise)
        }

        /// The names of the distributions.
        #[getter]
        fn distributions(&self) -> Vec<&str> {
            self.0.distributions.iter().map(|locked| locked.name.as_str()).collect()
        }

        /// The differences between the current installation and the lock.
        fn differences(&self, py: Python<'_>, discovery: &Discovery) -> Vec<LockDifference> {
            let found = py.detach(|| self.0.differences(&discovery.0));
            found.into_iter().map(LockDifference).collect()
        }

        /// Applies the lock to the plugins and returns them: plugins of distributions that differ are blocked,
        /// plugins of missing distributions are added as failed.
        fn apply(
            &self,
            py: Python<'_>,
            discovery: &Discovery,
            plugins: Vec<Bound<'_, Plugin>>,
        ) -> PyResult<Vec<Plugin>> {
            changed(&plugins, |records| py.detach(|| self.0.apply(&discovery.0, records)).map_err(raise))
        }

        fn __str__(&self) -> String {
            self.0.to_string()
        }
    }
}

mirror! {
    /// How one distribution differs from the lock.
    LockDifference(switchrail::LockDifference) {
        #[getter]
        fn distribution(&self) -> &str {
            self.0.distribution()
        }

        fn __str__(&self) -> String {
            self.0.to_string()
        }
    }
}
