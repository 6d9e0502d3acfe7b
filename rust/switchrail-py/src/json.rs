//! JSON values to Python objects and back. Data crosses the border by value.

use pyo3::{
    IntoPyObjectExt,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value};

use crate::errors::exception;

/// The Python form of a value: dict, tuple, str, int, float, bool, None.
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

/// The Python form of a value of the core.
pub fn dump<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    to_py(
        py,
        &serde_json::to_value(value).expect("the core's values serialise"),
    )
}

/// The JSON text of a value of the core.
pub fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the core's values serialise")
}

/// The value of a JSON text; `SchemaError` where it is not one.
pub fn parse<T: DeserializeOwned>(what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| {
        Python::attach(|py| {
            exception(
                py,
                "SchemaError",
                format!("this is no {what} document: {error}"),
                None,
            )
        })
    })
}

/// The value of the core that an object made of dicts, tuples, texts and numbers stands for.
pub fn load<T: DeserializeOwned>(what: &str, object: &Bound<'_, PyAny>) -> PyResult<T> {
    parse(what, &text(&from_py(object)?))
}

/// The object's value as a JSON object.
pub fn fields(object: &Bound<'_, PyAny>) -> PyResult<Map<String, Value>> {
    match from_py(object)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(PyTypeError::new_err(format!(
            "expected a mapping, found {}",
            object.repr()?
        ))),
    }
}

/// The JSON form of a Python object made of mappings with text keys, lists, tuples, texts, numbers, booleans and None.
pub fn from_py(object: &Bound<'_, PyAny>) -> PyResult<Value> {
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
            _ => Err(PyTypeError::new_err(format!(
                "the integer {object} does not fit into 64 bits"
            ))),
        };
    }
    if object.is_instance_of::<PyFloat>() {
        let number = Number::from_f64(object.extract()?);
        return number
            .map(Value::Number)
            .ok_or_else(|| PyTypeError::new_err(format!("JSON has no number {object}")));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(text.to_str()?.into());
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return object.try_iter()?.map(|value| from_py(&value?)).collect();
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let mut fields = Map::new();
        for item in mapping.items()? {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let name = name
                .cast::<PyString>()
                .map_err(|_| PyTypeError::new_err(format!("a JSON object's names are texts, not {name}")))?;
            fields.insert(name.to_str()?.to_owned(), from_py(&value)?);
        }
        return Ok(Value::Object(fields));
    }
    Err(PyTypeError::new_err(format!(
        "{} is no JSON value; valid are mappings, lists, tuples, texts, numbers, booleans and None",
        object.repr()?
    )))
}
