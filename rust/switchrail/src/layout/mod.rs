//! The kind and the ops of each layer of a model.

mod config;
mod drafts;
mod error;
mod families;
mod json;
mod kind;
mod naming;
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use error::LayoutError;
pub(crate) use error::range;
pub use kind::LayerKind;
use shape::KindShapes;
pub use shape::Shape;

use crate::schema::read_document;
use crate::shown::shown;
use crate::{Op, Schema, UnknownName};
use config::Config;
use families::{FAMILIES, Family};
use json::quote_numbers;

/// One layer of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The layer's index in the model, from 0.
    pub id: usize,
    /// The layer's kind.
    pub kind: LayerKind,
    /// The layer's ops; empty for `moe` and `mlp`.
    pub ops: Vec<Op>,
    /// The part of the layer's computation that no [`Op`] covers, such as the selective scan of `mamba1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncovered: Option<String>,
}

/// The kind of each layer of one model, and the shapes of the layers' ops as far as the config gives them.
///
/// A separate draft model has its own layout, and so has each step of a model's draft head
/// ([`Layout::drafts`]).
///
/// ```
/// use switchrail::{Layout, LayerKind};
///
/// let config = serde_json::json!({
///     "model_type": "qwen3_next",
///     "num_hidden_layers": 8,
///     "full_attention_interval": 4,
/// });
/// let layout = Layout::from_config(&config)?;
/// assert_eq!(layout.layer(2)?.kind, LayerKind::GatedDelta);
/// assert_eq!(layout.layer(3)?.kind, LayerKind::FullAttention);
/// assert!(layout.layer(8).is_err());
/// # Ok::<(), switchrail::LayoutError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document")]
pub struct Layout {
    schema: Schema,
    model: String,
    model_type: String,
    layers: Vec<Layer>,
    shapes: BTreeMap<LayerKind, BTreeMap<Op, Shape>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drafts: Vec<Layout>,
}

impl Layout {
    /// Reads a transformers config.
    ///
    /// The kinds are those of the mixers that transformers would create. If the config nests its language
    /// model under `text_config`, that part is read. The model's name is the config's `_name_or_path`, or
    /// else the model type.
    ///
    /// # Errors
    /// [`LayoutError`] if the model type is unknown, or if the config does not name its layers, has an invalid
    /// value or contradicts itself.
    pub fn from_config(config: &Value) -> Result<Self, LayoutError> {
        let (family, config_values, model_type) = find_family(config)?;
        let model = ["_name_or_path", "model_type"]
            .into_iter()
            .filter_map(|key| config.get(key)?.as_str())
            .find(|name| !name.is_empty())
            .unwrap_or(model_type);
        read(
            model,
            family,
            &Config {
                model_type,
                values: config_values,
            },
        )
    }

    /// Reads the `config.json` at a path or in a folder. The model is named after the folder.
    ///
    /// Accepts `Infinity` and `NaN`, which Python writes.
    ///
    /// # Errors
    /// Those of [`Layout::from_config`], and [`LayoutError`] if the file cannot be read or is not JSON.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, LayoutError> {
        let path = path.as_ref();
        let file = if path.is_dir() {
            path.join("config.json")
        } else {
            path.to_owned()
        };
        let bytes = read_document(&file).map_err(|source| LayoutError::Read {
            path: file.clone(),
            source,
        })?;
        let config: Value =
            serde_json::from_slice(&quote_numbers(&bytes)).map_err(|source| LayoutError::Json {
                path: file.clone(),
                source,
            })?;
        let mut layout = Self::from_config(&config)?;
        let folder = file
            .canonicalize()
            .ok()
            .and_then(|file| Some(file.parent()?.file_name()?.to_owned()));
        if let Some(name) = folder {
            layout.rename(&name.to_string_lossy());
        }
        Ok(layout)
    }

    /// A layout for an engine without a config, given the kind of each layer. No shape is known.
    pub fn from_kinds(model: impl Into<String>, kinds: impl IntoIterator<Item = LayerKind>) -> Self {
        let layer = |(id, kind): (usize, LayerKind)| Layer {
            id,
            kind,
            ops: kind.ops().to_vec(),
            uncovered: kind.uncovered().map(str::to_owned),
        };
        Self {
            schema: Schema,
            model: shown(&model.into()).into_owned(),
            model_type: "custom".to_owned(),
            layers: kinds.into_iter().enumerate().map(layer).collect(),
            shapes: BTreeMap::new(),
            drafts: Vec::new(),
        }
    }

    /// Sets the model's name, and names the steps of its draft head after it.
    fn rename(&mut self, model: &str) {
        self.model = shown(model).into_owned();
        for (step, draft) in self.drafts.iter_mut().enumerate() {
            draft.model = format!("{} draft {step}", self.model);
        }
    }

    /// The model types that [`Layout::from_config`] supports, sorted.
    #[must_use]
    pub fn model_types() -> Vec<&'static str> {
        let mut types: Vec<_> = FAMILIES
            .iter()
            .flat_map(|family| family.model_types)
            .copied()
            .collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// The model's name, for messages.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The config's `model_type`; `custom` for a layout made by [`Layout::from_kinds`].
    #[must_use]
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// All layers; the layer with id `i` is at index `i`.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The layouts of the model's draft head (multi-token prediction), one per step.
    ///
    /// Each step drafts one token, and the next step drafts the token after it. The layer ids of each step begin
    /// at 0, and its layers may be of any kind. Empty if the config has no head.
    #[must_use]
    pub fn drafts(&self) -> &[Self] {
        &self.drafts
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

    /// The shape of an op in layers of this kind. Sizes that the config does not give are `None`.
    #[must_use]
    pub fn shape(&self, kind: LayerKind, op: Op) -> Shape {
        self.shapes
            .get(&kind)
            .and_then(|ops| ops.get(&op))
            .copied()
            .unwrap_or_default()
    }
}

/// The serialised form before it is validated.
#[derive(Deserialize)]
struct Document {
    schema: Schema,
    model: String,
    model_type: String,
    layers: Vec<Layer>,
    shapes: BTreeMap<LayerKind, BTreeMap<Op, Shape>>,
    #[serde(default)]
    drafts: Vec<Layout>,
}

impl TryFrom<Document> for Layout {
    type Error = LayoutError;

    fn try_from(document: Document) -> Result<Self, LayoutError> {
        let Document {
            schema,
            model,
            model_type,
            layers,
            shapes,
            drafts,
        } = document;
        if let Some((index, layer)) = layers
            .iter()
            .enumerate()
            .find(|(index, layer)| *index != layer.id)
        {
            return Err(LayoutError::Document {
                reason: format!("layers[{index}] has id {}; valid: {index}", layer.id),
            });
        }
        Ok(Self {
            schema,
            model: shown(&model).into_owned(),
            model_type: shown(&model_type).into_owned(),
            layers,
            shapes,
            drafts,
        })
    }
}

/// The family of a config or of its `text_config`, with that part's values and model type.
fn find_family(config: &Value) -> Result<(&'static Family, &Map<String, Value>, &str), LayoutError> {
    let known = |part: &Value| {
        let found = part.get("model_type")?.as_str()?;
        let has = |name: &&str| {
            [part, config].iter().any(|config| {
                let listed = config.get("architectures").and_then(Value::as_array);
                listed.is_some_and(|listed| listed.iter().any(|architecture| architecture == *name))
            })
        };
        FAMILIES.iter().find(|family| {
            family.model_types.contains(&found) && family.architecture.as_ref().is_none_or(has)
        })
    };
    for part in [Some(config), config.get("text_config")].into_iter().flatten() {
        if let (Some(family), Some(values), Some(model_type)) = (
            known(part),
            part.as_object(),
            part.get("model_type").and_then(Value::as_str),
        ) {
            return Ok((family, values, model_type));
        }
    }
    let valid = Layout::model_types();
    Err(match config.get("model_type").and_then(Value::as_str) {
        Some(found) => LayoutError::UnknownModelType(UnknownName::new("model_type", found, valid)),
        None => LayoutError::NoModelType {
            found: config::shown(config),
            valid,
        },
    })
}

fn read(model: &str, family: &Family, config: &Config) -> Result<Layout, LayoutError> {
    let steps = family.drafts.read(config, family.words)?;
    let shapes = (family.shapes)(config)?;
    let mut layout = of_kinds(family, config, read_kinds(family, config)?, &shapes);
    layout.drafts = steps
        .into_iter()
        .map(|kinds| of_kinds(family, config, kinds, &shapes))
        .collect();
    layout.rename(model);
    Ok(layout)
}

/// The layout of layers of these kinds, still without a name.
fn of_kinds(family: &Family, config: &Config, kinds: Vec<LayerKind>, shapes: &KindShapes) -> Layout {
    let mut layout = Layout::from_kinds("", kinds);
    config.model_type.clone_into(&mut layout.model_type);
    let present: BTreeSet<LayerKind> = layout.layers.iter().map(|layer| layer.kind).collect();
    for (kind, op, shape) in shapes.iter().filter(|(kind, ..)| present.contains(kind)) {
        layout.shapes.entry(*kind).or_default().insert(*op, *shape);
    }
    for layer in layout
        .layers
        .iter_mut()
        .filter(|layer| layer.kind == LayerKind::Hybrid)
    {
        layer.ops = family
            .hybrid_half
            .ops()
            .iter()
            .copied()
            .chain([Op::Attention])
            .collect();
        layer.uncovered = family.hybrid_half.uncovered().map(str::to_owned);
    }
    layout
}

/// The layer kinds, according to the first way of naming that the config uses. Other explicit ways that it uses
/// must give the same kinds.
fn read_kinds(family: &Family, config: &Config) -> Result<Vec<LayerKind>, LayoutError> {
    let mut first: Option<(String, Vec<LayerKind>)> = None;
    for naming in family.namings {
        if first.is_some() && !naming.is_explicit() {
            continue;
        }
        let Some(kinds) = naming.read(config, family.words)? else {
            continue;
        };
        let key = naming.keys().join(" and ");
        let Some((first_key, first_kinds)) = &first else {
            first = Some((key, kinds));
            continue;
        };
        let mut pairs = first_kinds.iter().zip(&kinds).enumerate();
        if let Some((layer, (first_kind, second_kind))) = pairs.find(|(_, (a, b))| a != b) {
            return Err(LayoutError::Contradiction {
                model_type: config.model_type.to_owned(),
                layer,
                first: first_key.clone(),
                first_kind: *first_kind,
                second: key,
                second_kind: *second_kind,
            });
        }
    }
    let Some((_, mut kinds)) = first else {
        return Err(LayoutError::MissingKey {
            model_type: config.model_type.to_owned(),
            valid: family.namings.iter().flat_map(naming::Naming::keys).collect(),
        });
    };
    if family.window_key.is_some_and(|key| config.get(key).is_some()) {
        for kind in kinds.iter_mut().filter(|kind| **kind == LayerKind::FullAttention) {
            *kind = LayerKind::SlidingAttention;
        }
    }
    Ok(kinds)
}
