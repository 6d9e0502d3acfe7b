//! What each layer id of one model is.

mod error;
mod families;
mod kind;
mod shape;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use error::LayoutError;
pub use kind::LayerKind;
pub use shape::Shape;

use crate::{Op, SCHEMA_VERSION};

/// One layer of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its index in the model, from 0.
    pub id: usize,
    /// What it is.
    pub kind: LayerKind,
    /// The ops that it runs, in the order of its forward. Empty for `moe` and `mlp`.
    pub ops: Vec<Op>,
    /// What it computes besides and no [`Op`] covers, such as the selective scan of `mamba1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncovered: Option<String>,
}

/// What each layer id of one model is, and the shapes of its ops where its config gives them.
///
/// A draft model has a layout of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    schema: u32,
    model: String,
    model_type: String,
    layers: Vec<Layer>,
    shapes: BTreeMap<LayerKind, BTreeMap<Op, Shape>>,
}

impl Layout {
    /// The model's name, as errors show it.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The `model_type` of its config; `custom` for a layout made by [`Layout::from_kinds`].
    #[must_use]
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// All layers; the layer with id `i` is at index `i`.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The layer with this id.
    ///
    /// # Errors
    /// [`LayoutError::UnknownLayer`] names the model and the valid range.
    pub fn layer(&self, id: usize) -> Result<&Layer, LayoutError> {
        self.layers.get(id).ok_or_else(|| LayoutError::UnknownLayer {
            model: self.model.clone(),
            found: id,
            layers: self.layers.len(),
        })
    }

    /// The shape of an op in layers of this kind; every field is `None` where the config says nothing.
    #[must_use]
    pub fn shape(&self, kind: LayerKind, op: Op) -> Shape {
        self.shapes.get(&kind).and_then(|ops| ops.get(&op)).copied().unwrap_or_default()
    }
}
