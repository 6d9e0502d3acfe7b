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

/// The set of values with these names.
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

/// Adds the lists of names to the Python module, as tuples of interned strings.
pub fn add_names(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let add = |list: &str, names: &[&str]| {
        let names = names.iter().map(|name| PyString::intern(py, name));
        module.add(list, PyTuple::new(py, names)?)
    };
    let ops_with = |has: fn(Op) -> bool| -> Vec<&str> {
        let ops = Op::ALL.into_iter().filter(|op| has(*op));
        ops.map(Op::name).collect()
    };
    add("OPS", &Op::ALL.map(Op::name))?;
    add("LINEAR_OPS", &ops_with(Op::is_linear))?;
    add("PAGED_OPS", &ops_with(Op::is_paged))?;
    add("PHASES", &Phase::ALL.map(Phase::name))?;
    add("DTYPES", &Dtype::ALL.map(Dtype::name))?;
    let devices = DeviceKind::KNOWN.map(|kind| kind.to_string());
    add("DEVICES", &devices.each_ref().map(String::as_str))
}
