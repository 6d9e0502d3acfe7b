//! Mirror of the core's `layout`.

use std::path::PathBuf;

use pyo3::{prelude::*, types::PyDict};
use switchrail::{LayerKind, UnknownName};

use crate::{
    errors::{exception, raise},
    json,
    mirror::mirror,
};

mirror! {
    /// What each layer id of one model is.
    Layout(switchrail::Layout) {
        /// The layout of a transformers config: a mapping, or the path of a `config.json` or of its folder.
        #[staticmethod]
        fn from_config(config: &Bound<'_, PyAny>) -> PyResult<Self> {
            let layout = match config.extract::<PathBuf>() {
                Ok(path) => switchrail::Layout::from_path(path),
                Err(_) => switchrail::Layout::from_config(&json::from_py(config)?),
            };
            layout.map(Self).map_err(raise)
        }

        /// The layout of a model without config: the kind of each layer.
        #[staticmethod]
        fn from_kinds(py: Python<'_>, model: &str, kinds: Vec<String>) -> PyResult<Self> {
            let kinds = kinds.iter().map(|kind| kind.parse()).collect::<Result<Vec<LayerKind>, UnknownName>>();
            let kinds = kinds.or_else(|error| {
                let fields = json::to_py(py, &error.fields())?;
                Err(exception(py, "LayoutError", error.to_string(), fields.cast::<PyDict>().ok()))
            })?;
            Ok(Self(switchrail::Layout::from_kinds(model, kinds)))
        }

        #[getter]
        fn model(&self) -> &str {
            self.0.model()
        }

        #[getter]
        fn model_type(&self) -> &str {
            self.0.model_type()
        }

        #[getter]
        fn layers(&self) -> Vec<Layer> {
            self.0.layers().iter().cloned().map(Layer).collect()
        }

        fn __len__(&self) -> usize {
            self.0.layers().len()
        }

        /// The layer with an id.
        fn layer(&self, id: usize) -> PyResult<Layer> {
            self.0.layer(id).cloned().map(Layer).map_err(raise)
        }

        /// What the config says of an op's shape in layers of a kind; None where it says nothing.
        fn shape<'py>(&self, py: Python<'py>, kind: &str, op: &str) -> PyResult<Bound<'py, PyAny>> {
            let kind: LayerKind = json::parse("layer kind", &json::text(&kind))?;
            json::dump(py, &self.0.shape(kind, crate::op::parse(op)?))
        }
    }
}

mirror! {
    /// One layer of a model.
    Layer(switchrail::Layer) {
        #[getter]
        fn id(&self) -> usize {
            self.0.id
        }

        #[getter]
        fn kind(&self) -> &'static str {
            self.0.kind.as_str()
        }

        #[getter]
        fn ops(&self) -> Vec<&'static str> {
            self.0.ops.iter().map(|op| op.name()).collect()
        }

        #[getter]
        fn uncovered(&self) -> Option<&str> {
            self.0.uncovered.as_deref()
        }
    }
}
