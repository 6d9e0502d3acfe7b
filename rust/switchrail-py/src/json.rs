//! Converts JSON values to Python objects and back. Data is always copied.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::{
    IntoPyObjectExt,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value};

use crate::{
    exception::{exception, let_pass_interrupts},
    text::described,
};

/// Converts a JSON value to a dict, tuple, str, int, float, bool or None.
pub fn to_py<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(value) => value.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => value.into_bound_py_any(py),
            (None, Some(value)) => value.into_bound_py_any(py),
            (None, None) => number.as_f64().into_bound_py_any(py),
        },
        Value::String(value) => value.into_bound_py_any(py),
        Value::Array(values) => {
            let values = values
                .iter()
                .map(|value| to_py(py, value))
                .collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, values)?.into_any())
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, to_py(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// Converts a value of the core to Python.
pub fn dump<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    to_py(
        py,
        &serde_json::to_value(value).expect("the core's values serialise"),
    )
}

/// Serialises a value of the core.
pub fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the core's values serialise")
}

/// A hash of a value's JSON document. Equal values have equal hashes.
pub fn hash(value: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    text(value).hash(&mut hasher);
    hasher.finish()
}

/// Parses a JSON string. Raises `SchemaError` if it is invalid.
pub fn parse<T: DeserializeOwned>(what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| {
        Python::attach(|py| {
            exception(
                py,
                "SchemaError",
                format!(
                    "this is not a {what} document: {}",
                    switchrail::shown(&error.to_string())
                ),
                None,
            )
        })
    })
}

/// Converts a Python object that `from_py` accepts to a value of the core.
pub fn load<T: DeserializeOwned>(what: &str, object: &Bound<'_, PyAny>) -> PyResult<T> {
    parse(what, &text(&from_py(object)?))
}

/// Converts a mapping to a JSON object.
pub fn fields(object: &Bound<'_, PyAny>) -> PyResult<Map<String, Value>> {
    match from_py(object)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(refuse(
            object.py(),
            format!("{} is not a mapping", described(object)?),
        )),
    }
}

/// Maximum depth of nested values. More deeply nested values are refused, since they are probably cyclic.
const MAX_DEPTH: usize = 100;

/// Converts mappings, lists, tuples, strings, numbers, booleans and None to JSON.
///
/// Like Python's `json`, it converts integer keys to strings. NaN and infinities become strings.
pub fn from_py(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    read(object, 0)
}

fn read(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(refuse(
            object.py(),
            format!("values are nested more than {MAX_DEPTH} deep"),
        ));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(value.is_true().into());
    }
    if object.is_instance_of::<PyInt>() {
        return match (object.extract::<i64>(), object.extract::<u64>()) {
            (Ok(value), _) => Ok(value.into()),
            (_, Ok(value)) => Ok(value.into()),
            _ => Err(refuse(
                object.py(),
                "an integer does not fit into 64 bits".to_owned(),
            )),
        };
    }
    if object.is_instance_of::<PyFloat>() {
        let value: f64 = object.extract()?;
        return Ok(Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number));
    }
    if let Ok(text) = object.cast::<PyString>() {
        let text = text.to_str();
        return match text {
            Ok(text) => Ok(text.into()),
            Err(_) => Err(refuse(object.py(), "a string has a lone surrogate".to_owned())),
        };
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter()?.map(|value| read(&value?, depth + 1)).collect();
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut fields = Map::new();
        for item in mapping.items()? {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            if !name.is_instance_of::<PyString>() && !name.is_exact_instance_of::<PyInt>() {
                let problem = format!(
                    "{} is not a name in a JSON object; valid: strings and integers",
                    described(&name)?
                );
                return Err(refuse(object.py(), problem));
            }
            let text = match name.str().and_then(|name| name.to_str().map(str::to_owned)) {
                Ok(text) => text,
                Err(error) => {
                    let_pass_interrupts(object.py(), error)?;
                    let problem = "a name is an integer too large to write, or has a lone surrogate";
                    return Err(refuse(object.py(), problem.to_owned()));
                }
            };
            fields.insert(text, read(&value, depth + 1)?);
        }
        return Ok(Value::Object(fields));
    }
    Err(refuse(
        object.py(),
        format!(
            "{} is not a JSON value; valid: mappings, lists, tuples, strings, numbers, booleans and None",
            described(object)?
        ),
    ))
}

fn refuse(py: Python<'_>, problem: String) -> PyErr {
    exception(py, "SchemaError", switchrail::shown(&problem).into_owned(), None)
}
