//! What can be wrong with a config, or with a layer id.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::LayerKind;
use crate::{CoreError, UnknownName, quoted};

/// Why a layout could not be read, or a layer not be found in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The config file is missing or cannot be read.
    #[error("cannot read the model config {path}: {source}; valid: a config.json, or the folder that has one", path = path.display())]
    Read {
        /// The file that was tried.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The config file is no JSON.
    #[error("the model config {path} is not JSON: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where it stops being JSON.
        source: serde_json::Error,
    },
    /// The config names no model type.
    #[error(
        "the model config has no model_type, it is {found}; valid: an object in which model_type is one of {}",
        quoted(valid)
    )]
    NoModelType {
        /// The config, cut when it is long.
        found: String,
        /// The model types that are known.
        valid: Vec<&'static str>,
    },
    /// The config names a model type that no family here has.
    #[error("{0}")]
    UnknownModelType(UnknownName),
    /// The config says nothing about its layers in any way that its family knows.
    #[error("the {model_type} config names no layers; valid: one of the keys {keys}", keys = quoted(valid))]
    MissingKey {
        /// The config's model type.
        model_type: String,
        /// The keys of which one is needed.
        valid: Vec<String>,
    },
    /// A key has a value of the wrong kind.
    #[error("{key} is {found} in the {model_type} config; valid: {valid}")]
    BadValue {
        /// The config's model type.
        model_type: String,
        /// The key, with dots where it is nested.
        key: String,
        /// Its value, cut when it is long.
        found: String,
        /// What it should be.
        valid: String,
    },
    /// A layer is called something that its family does not have.
    #[error("{key}[{layer}] in the {model_type} config: {name}")]
    UnknownKind {
        /// The config's model type.
        model_type: String,
        /// The key.
        key: String,
        /// The layer's index in it.
        layer: usize,
        /// What was found and what is valid.
        name: Box<UnknownName>,
    },
    /// A list of layers is longer or shorter than the model.
    #[error(
        "{key} names {found} layers in the {model_type} config, but num_hidden_layers is {valid}; valid: the same number in both"
    )]
    Length {
        /// The config's model type.
        model_type: String,
        /// The key of the list.
        key: String,
        /// How many it names.
        found: usize,
        /// How many the model has.
        valid: usize,
    },
    /// A list of layer ids names one that the model does not have.
    #[error("{key} names layer {found} in the {model_type} config; valid: {first} to {last}")]
    IdOutOfRange {
        /// The config's model type.
        model_type: String,
        /// The key of the list.
        key: String,
        /// The id, as the config counts.
        found: u64,
        /// The first valid id, as the config counts.
        first: usize,
        /// The last valid id, as the config counts.
        last: usize,
    },
    /// Two keys say different things of one layer.
    #[error(
        "layer {layer} is {first_kind} by {first} but {second_kind} by {second} in the {model_type} config; valid: the same in both, or only one of the keys"
    )]
    Contradiction {
        /// The config's model type.
        model_type: String,
        /// The layer, counted from 0.
        layer: usize,
        /// One key.
        first: String,
        /// What the layer is by that key.
        first_kind: LayerKind,
        /// The other key.
        second: String,
        /// What the layer is by the other key.
        second_kind: LayerKind,
    },
    /// Keys that share out the layers among them leave one out.
    #[error("layer {layer} is in none of {lists} in the {model_type} config; valid: each layer in exactly one", lists = quoted(keys))]
    Unassigned {
        /// The config's model type.
        model_type: String,
        /// The layer, as the config counts.
        layer: usize,
        /// The keys.
        keys: Vec<String>,
    },
    /// The id is outside the layout.
    #[error("{model} has no layer {found}; valid: {}", range(*layers))]
    UnknownLayer {
        /// The model's name.
        model: String,
        /// The id as it was given.
        found: usize,
        /// How many layers the model has.
        layers: usize,
    },
    /// A serialised layout does not hold together.
    #[error("not a layout document: {reason}")]
    Document {
        /// What is wrong with it.
        reason: String,
    },
}

/// The valid layer ids of a model, as messages show them.
pub(crate) fn range(layers: usize) -> String {
    match layers.checked_sub(1) {
        Some(last) => format!("0 to {last}"),
        None => "none, it has no layers".to_owned(),
    }
}

impl CoreError for LayoutError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "layout_read",
            Self::Json { .. } => "layout_json",
            Self::NoModelType { .. } => "layout_no_model_type",
            Self::UnknownModelType(_) => "unknown_model_type",
            Self::MissingKey { .. } => "layout_missing_key",
            Self::BadValue { .. } => "layout_bad_value",
            Self::UnknownKind { .. } => "layout_unknown_kind",
            Self::Length { .. } => "layout_length",
            Self::IdOutOfRange { .. } => "layout_id_out_of_range",
            Self::Contradiction { .. } => "layout_contradiction",
            Self::Unassigned { .. } => "layout_unassigned",
            Self::UnknownLayer { .. } => "unknown_layer",
            Self::Document { .. } => "layout_document",
        }
    }

    fn fields(&self) -> Value {
        match self {
            Self::Read { path, source } => {
                json!({"path": path.to_string_lossy(), "reason": source.to_string()})
            }
            Self::Json { path, source } => {
                json!({"path": path.to_string_lossy(), "reason": source.to_string(), "line": source.line(), "column": source.column()})
            }
            Self::NoModelType { found, valid } => json!({"found": found, "valid": valid}),
            Self::UnknownModelType(name) => name.fields(),
            Self::MissingKey { model_type, valid } => json!({"model_type": model_type, "valid": valid}),
            Self::BadValue {
                model_type,
                key,
                found,
                valid,
            } => {
                json!({"model_type": model_type, "key": key, "found": found, "valid": [valid]})
            }
            Self::UnknownKind {
                model_type,
                key,
                layer,
                name,
            } => {
                let mut fields = name.fields();
                fields["model_type"] = json!(model_type);
                fields["key"] = json!(key);
                fields["layer"] = json!(layer);
                fields
            }
            Self::Length {
                model_type,
                key,
                found,
                valid,
            } => {
                json!({"model_type": model_type, "key": key, "found": found, "valid": [valid]})
            }
            Self::IdOutOfRange {
                model_type,
                key,
                found,
                first,
                last,
            } => {
                json!({"model_type": model_type, "key": key, "found": found, "first": first, "last": last})
            }
            Self::Contradiction {
                model_type,
                layer,
                first,
                first_kind,
                second,
                second_kind,
            } => json!({
                "model_type": model_type,
                "layer": layer,
                "keys": [first, second],
                "found": [first_kind, second_kind],
            }),
            Self::Unassigned {
                model_type,
                layer,
                keys,
            } => {
                json!({"model_type": model_type, "layer": layer, "keys": keys})
            }
            Self::UnknownLayer { model, found, layers } => {
                json!({"model": model, "found": found, "first": 0, "layers": layers})
            }
            Self::Document { reason } => json!({"reason": reason}),
        }
    }
}
