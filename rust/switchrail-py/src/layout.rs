//! Mirror of the core's `layout`.

use std::path::PathBuf;

use pyo3::{
    prelude::*,
    types::{PyDict, PyInt},
};

use crate::{
    errors::raise,
    exception::{exception, let_pass_interrupts},
    json,
    mirror::mirror,
    op::parse,
    text::{Text, Texts, described},
};

mirror! {
    /// The kind and the ops of each layer of one model.
    Layout(switchrail::Layout) {
        /// Reads a transformers config: a mapping, or the path of a `config.json` or of its folder.
        #[staticmethod]
        fn from_config(config: &Bound<'_, PyAny>) -> PyResult<Self> {
            let layout = match config.extract::<PathBuf>() {
                Ok(path) => switchrail::Layout::from_path(path),
                Err(error) => {
                    let_pass_interrupts(config.py(), error)?;
                    switchrail::Layout::from_config(&json::from_py(config)?)
                }
            };
            layout.map(Self).map_err(raise)
        }

        /// A layout for a model without a config, given the kind of each layer.
        #[staticmethod]
        fn from_kinds(model: Text, kinds: Texts) -> PyResult<Self> {
            let kinds = kinds.0.iter().map(|kind| parse(kind)).collect::<PyResult<Vec<_>>>()?;
            Ok(Self(switchrail::Layout::from_kinds(model.0, kinds)))
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

        /// The layout of each step of the model's own draft head; empty if the config has no head.
        #[getter]
        fn drafts(&self) -> Vec<Self> {
            self.0.drafts().iter().cloned().map(Self).collect()
        }

        fn __len__(&self) -> usize {
            self.0.layers().len()
        }

        /// The layer with this id.
        fn layer(&self, id: &Bound<'_, PyAny>) -> PyResult<Layer> {
            self.0.layer(read_id(&self.0, id)?).cloned().map(Layer).map_err(raise)
        }

        /// The shape of an op in layers of a kind, as a dict with the values that the config gives.
        fn shape<'py>(&self, py: Python<'py>, kind: Text, op: Text) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.shape(parse(&kind.0)?, parse(&op.0)?))
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
            self.0.kind.name()
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

/// Checks and converts a layer id. Only a Python int is accepted.
pub fn read_id(layout: &switchrail::Layout, id: &Bound<'_, PyAny>) -> PyResult<usize> {
    if !id.is_exact_instance_of::<PyInt>() {
        let problem = format!(
            "the layer id is {} ({}), not an int",
            described(id)?,
            id.get_type().name()?
        );
        return Err(refuse_id(layout, "LayerTypeError", &problem, id));
    }
    let Ok(number) = id.extract() else {
        let problem = format!("{} has no layer {}", layout.model(), described(id)?);
        return Err(refuse_id(layout, "UnknownLayerError", &problem, id));
    };
    Ok(number)
}

/// The error for an invalid layer id, which names the model and the valid range.
pub fn refuse_id(layout: &switchrail::Layout, class: &str, problem: &str, found: &Bound<'_, PyAny>) -> PyErr {
    let (py, model, layers) = (found.py(), layout.model(), layout.layers().len());
    let message = match layers {
        0 => format!("{problem}; {model} has no layers"),
        layers => format!("{problem}; valid for {model}: 0 to {}", layers - 1),
    };
    let fields = PyDict::new(py);
    let fill = || -> PyResult<()> {
        fields.set_item("model", model)?;
        fields.set_item("layers", layers)?;
        fields.set_item("found", found)
    };
    fill().map_or_else(|error| error, |()| exception(py, class, message, Some(&fields)))
}
