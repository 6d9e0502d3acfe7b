//! Texts as arguments of methods that people call: anything else is an `ArgumentError`.

use pyo3::{
    Borrowed,
    prelude::*,
    types::{PyDict, PyString},
};

use crate::errors::exception;

/// One text.
pub struct Text(pub String);

/// A list or another iterable of texts, and no text itself.
pub struct Texts(pub Vec<String>);

impl FromPyObject<'_, '_> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>().ok();
        text.and_then(|text| text.to_str().map(str::to_owned).ok())
            .map(Self)
            .ok_or_else(|| refuse(object, "a text"))
    }
}

impl FromPyObject<'_, '_> for Texts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(refuse(object, "a list of texts"));
        }
        let items = object.try_iter().map_err(|_| refuse(object, "a list of texts"))?;
        items
            .map(|item| item?.extract::<Text>().map(|Text(text)| text))
            .collect::<PyResult<_>>()
            .map(Self)
    }
}

fn refuse(found: Borrowed<'_, '_, PyAny>, valid: &str) -> PyErr {
    let py = found.py();
    let build = || {
        let fields = PyDict::new(py);
        fields.set_item("found", found)?;
        let message = format!("got {}, expected {valid}", described(&found));
        Ok(exception(py, "ArgumentError", message, Some(&fields)))
    };
    build().unwrap_or_else(|error: PyErr| error)
}

/// What an object says of itself, in short; its type where it fails to.
pub fn described(object: &Bound<'_, PyAny>) -> String {
    let text = object
        .repr()
        .map(|text| switchrail::shown(&text.to_string_lossy()).into_owned());
    text.or_else(|_| Ok::<_, PyErr>(format!("a {}", object.get_type().name()?)))
        .unwrap_or_else(|_| "an object".to_owned())
}
