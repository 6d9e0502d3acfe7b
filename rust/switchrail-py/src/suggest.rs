//! Mirror of the core's `suggest`.

use pyo3::prelude::*;

/// The names most similar to the one found, best first.
#[pyfunction]
pub fn nearest(found: &str, valid: Vec<String>) -> Vec<String> {
    switchrail::nearest(found, valid.iter().map(String::as_str))
}
