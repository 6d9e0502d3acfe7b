//! Methods that all mirrored values have: JSON, pickling by value, comparison and `repr`.

/// Declares a frozen class around a value of the core, with the given methods.
///
/// The value must be serialisable. The class gets `to_json`, `from_json`, `to_dict`, `__reduce__`, `__eq__`,
/// `__hash__` and `__repr__`.
macro_rules! mirror {
    ($(#[$attribute:meta])* $name:ident($core:ty) { $($method:tt)* }) => {
        $(#[$attribute])*
        #[pyclass(frozen, module = "switchrail._core")]
        pub struct $name(pub $core);

        #[pymethods]
        impl $name {
            /// The value as a JSON document.
            fn to_json(&self) -> String {
                crate::json::text(&self.0)
            }

            /// The value in a document that `to_json` wrote.
            #[staticmethod]
            fn from_json(text: crate::text::Text) -> PyResult<Self> {
                crate::json::parse(stringify!($name), &text.0).map(Self)
            }

            /// The document as a dict. JSON's arrays become tuples.
            fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                crate::json::dump(py, &self.0)
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
                Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
            }

            fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
                other.cast::<Self>().is_ok_and(|other| other.get().0 == self.0)
            }

            fn __hash__(&self) -> u64 {
                crate::json::hash(&self.0)
            }

            fn __repr__(&self) -> String {
                format!("{}({})", stringify!($name), self.to_json())
            }

            $($method)*
        }
    };
}
pub(crate) use mirror;
