//! Creates exceptions of `switchrail.errors`, and decides which exceptions must pass unchanged.

use pyo3::{
    exceptions::PyException,
    prelude::*,
    types::{PyDict, PyType},
};

/// Sorts exceptions: `Ok` if the error may be replaced by another one, `Err` if it must reach the caller
/// unchanged, such as `KeyboardInterrupt` or `SystemExit`.
pub fn let_pass_interrupts(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

/// Creates an `ArgumentError` with the fields `found` and, if the argument is known, `argument`.
pub fn argument_error(argument: Option<&str>, found: &Bound<'_, PyAny>, message: String) -> PyErr {
    let fields = PyDict::new(found.py());
    let fill = || -> PyResult<()> {
        if let Some(argument) = argument {
            fields.set_item("argument", argument)?;
        }
        fields.set_item("found", found)
    };
    match fill() {
        Ok(()) => exception(found.py(), "ArgumentError", message, Some(&fields)),
        Err(error) => error,
    }
}

/// Creates an exception of `switchrail.errors`, given the name of its class.
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
