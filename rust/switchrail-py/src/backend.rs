//! Mirror of the core's `backend`: converts specs to the core's form, and exposes registrations.

use std::sync::Arc;

use pyo3::prelude::*;
use switchrail::{BackendSpec, Capabilities, DeviceSupport, HeadSize};

use crate::{
    json,
    mirror::mirror,
    op::{Capability, capability, parse, parse_all},
};

/// A `BackendSpec` in the form in which `switchrail.registration` passes it. The core parses its names.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Spec<'py> {
    name: String,
    op: String,
    phases: Vec<String>,
    path: String,
    devices: Vec<Support>,
    dtypes: Vec<String>,
    state_dtypes: Vec<String>,
    head_sizes: Vec<Heads>,
    page_sizes: Vec<u32>,
    state_layouts: Vec<String>,
    features: Vec<String>,
    packages: Vec<String>,
    priority: i32,
    config: Bound<'py, PyAny>,
}

#[derive(FromPyObject)]
struct Support(String, Capability, Capability);

#[derive(FromPyObject)]
pub enum Heads {
    Both(u32),
    Each(u32, u32),
}

impl From<Heads> for HeadSize {
    fn from(heads: Heads) -> Self {
        match heads {
            Heads::Both(size) => size.into(),
            Heads::Each(k, v) => Self { k, v },
        }
    }
}

impl Spec<'_> {
    /// Converts to the core's spec.
    pub fn into_core(self) -> PyResult<BackendSpec> {
        let support = |Support(kind, min, max)| {
            let kind = parse(&kind)?;
            Ok(DeviceSupport {
                kind,
                min_capability: capability(min),
                max_capability: capability(max),
            })
        };
        Ok(BackendSpec {
            name: self.name,
            op: parse(&self.op)?,
            phases: parse_all(&self.phases)?,
            path: self.path,
            capabilities: Capabilities {
                devices: self.devices.into_iter().map(support).collect::<PyResult<_>>()?,
                dtypes: parse_all(&self.dtypes)?,
                state_dtypes: parse_all(&self.state_dtypes)?,
                head_sizes: self.head_sizes.into_iter().map(Into::into).collect(),
                page_sizes: self.page_sizes.into_iter().collect(),
                state_layouts: self.state_layouts.into_iter().collect(),
                features: self.features.into_iter().collect(),
                packages: self
                    .packages
                    .iter()
                    .map(|text| parse(text))
                    .collect::<PyResult<_>>()?,
            },
            priority: self.priority,
            config: json::fields(&self.config)?,
        })
    }
}

mirror! {
    /// A registered backend.
    Registration(Arc<switchrail::Registration>) {
        #[getter]
        fn id(&self) -> u64 {
            self.0.id.get()
        }

        #[getter]
        fn name(&self) -> &str {
            &self.0.spec.name
        }

        #[getter]
        fn op(&self) -> &'static str {
            self.0.spec.op.name()
        }

        #[getter]
        fn phases(&self) -> Vec<&'static str> {
            self.0.spec.phases.iter().map(|phase| phase.name()).collect()
        }

        #[getter]
        fn path(&self) -> &str {
            &self.0.spec.path
        }

        #[getter]
        fn priority(&self) -> i32 {
            self.0.spec.priority
        }

        /// Description of the registration's origin for a reader.
        #[getter]
        fn origin(&self) -> String {
            self.0.origin.to_string()
        }

        #[getter]
        fn capabilities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.spec.capabilities)
        }

        /// The default values of its configuration.
        #[getter]
        fn default_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.spec.config)
        }

        /// The configured values, without the defaults.
        #[getter]
        fn configuration<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.configuration)
        }

        /// The defaults, overridden by the configured values.
        #[getter]
        fn effective_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.effective_config())
        }
    }
}
