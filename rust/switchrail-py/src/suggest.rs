//! Mirror of the core's `suggest`.

use pyo3::prelude::*;

/// The valid names most similar to an unknown one, best first.
#[pyfunction]
pub fn nearest(found: &str, valid: Vec<String>) -> Vec<String> {
    switchrail::nearest(found, valid.iter().map(String::as_str))
}
