//! Python binding of the `switchrail` core.
use pyo3::prelude::*;

#[pymodule]
mod _core {}
