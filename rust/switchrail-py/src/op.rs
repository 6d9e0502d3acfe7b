//! Mirror of the core's `op`: lists of names, and their parsing.

use std::{collections::BTreeSet, str::FromStr};

use pyo3::{
    prelude::*,
    types::{PyString, PyTuple},
};
use switchrail::{ComputeCapability, CoreError, Device, DeviceKind, Dtype, Op, Phase};

use crate::{errors::raise, text::Text};

/// Parses a name.
pub fn parse<T: FromStr<Err: CoreError>>(text: &str) -> PyResult<T> {
    text.parse().map_err(raise)
}

/// Checks the name of an op and returns it.
#[pyfunction]
pub fn parse_op(name: Text) -> PyResult<&'static str> {
    parse(&name.0).map(Op::name)
}

/// Parses several names.
pub fn parse_all<T: FromStr<Err: CoreError> + Ord>(texts: &[String]) -> PyResult<BTreeSet<T>> {
    texts.iter().map(|text| parse(text)).collect()
}

/// A compute capability in the form that Python uses.
pub type Capability = Option<(u32, u32)>;

/// Converts a compute capability to the core's form.
pub fn capability(found: Capability) -> Option<ComputeCapability> {
    found.map(|(major, minor)| ComputeCapability(major, minor))
}

/// A device in the form that Python uses: kind and compute capability.
#[derive(FromPyObject)]
pub struct DeviceForm(String, Capability);

impl DeviceForm {
    /// Converts to the core's form.
    pub fn into_core(self) -> PyResult<Device> {
        Ok(Device {
            kind: parse(&self.0)?,
            capability: capability(self.1),
        })
    }
}

/// Adds the lists of names to the Python module.
pub fn add_names(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add(
        "OPS",
        PyTuple::new(py, Op::ALL.map(|op| PyString::intern(py, op.name())))?,
    )?;
    let linear = Op::ALL.into_iter().filter(|op| op.is_linear());
    module.add(
        "LINEAR_OPS",
        PyTuple::new(py, linear.map(Op::name).collect::<Vec<_>>())?,
    )?;
    let paged = Op::ALL.into_iter().filter(|op| op.is_paged());
    module.add(
        "PAGED_OPS",
        PyTuple::new(py, paged.map(Op::name).collect::<Vec<_>>())?,
    )?;
    module.add(
        "PHASES",
        PyTuple::new(py, Phase::ALL.map(|phase| PyString::intern(py, phase.name())))?,
    )?;
    module.add("DTYPES", PyTuple::new(py, Dtype::ALL.map(Dtype::name))?)?;
    module.add(
        "DEVICES",
        PyTuple::new(py, DeviceKind::KNOWN.map(|kind| kind.to_string()))?,
    )
}
