//! Exceptions of `switchrail.errors`, and those that pass untouched.

use pyo3::{
    exceptions::PyException,
    prelude::*,
    types::{PyDict, PyType},
};

/// The error again, for whoever makes another of it; `Err` where it has to reach the caller as it is, as
/// `KeyboardInterrupt` and `SystemExit` do.
pub fn let_pass_interrupts(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// An exception of `switchrail.errors` by the name of its class.
pub fn exception(py: Python<'_>, class: &str, message: String, fields: Option<&Bound<'_, PyDict>>) -> PyErr {
    let build = || -> PyResult<PyErr> {
        let class = py
            .import("switchrail.errors")?
            .getattr(class)?
            .cast_into::<PyType>()?;
        Ok(PyErr::from_value(class.call((message,), fields)?))
    };
    build().unwrap_or_else(|error| error)
}
