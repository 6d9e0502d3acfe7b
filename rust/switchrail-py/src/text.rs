//! String arguments of public methods. Arguments of other types raise an `ArgumentError`.

use pyo3::{Borrowed, prelude::*, types::PyString};

use crate::exception::{argument_error, let_pass_interrupts};

/// A string.
pub struct Text(pub String);

/// A list or other iterable of strings, but not a single string.
pub struct Texts(pub Vec<String>);

impl FromPyObject<'_, '_> for Text {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>().ok();
        text.and_then(|text| text.to_str().map(str::to_owned).ok())
            .map(Self)
            .ok_or_else(|| refuse(object, "a string"))
    }
}

impl FromPyObject<'_, '_> for Texts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(refuse(object, "a list of strings"));
        }
        let items = match object.try_iter() {
            Ok(items) => items,
            Err(error) => {
                let_pass_interrupts(object.py(), error)?;
                return Err(refuse(object, "a list of strings"));
            }
        };
        items
            .map(|item| item?.extract::<Text>().map(|Text(text)| text))
            .collect::<PyResult<_>>()
            .map(Self)
    }
}

fn refuse(found: Borrowed<'_, '_, PyAny>, valid: &str) -> PyErr {
    match described(&found) {
        Ok(shown) => argument_error(None, &found, format!("got {shown}, expected {valid}")),
        Err(error) => error,
    }
}

/// The object's `repr`, shortened; its type if `repr` fails.
///
/// Python checks for signals before it calls `repr`, so an interrupt can be returned as the error.
pub fn described(object: &Bound<'_, PyAny>) -> PyResult<String> {
    match object.repr() {
        Ok(text) => Ok(switchrail::shown(&text.to_string_lossy()).into_owned()),
        Err(error) => {
            let_pass_interrupts(object.py(), error)?;
            Ok(format!("a {}", object.get_type().name()?))
        }
    }
}
