//! Errors of configs and layer ids.

use std::path::PathBuf;

use serde_json::json;

use super::LayerKind;
use crate::{
    UnknownName,
    error::{core_error, extended},
    quoted,
};

/// Why a layout could not be read, or does not have a layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The config file does not exist or cannot be read.
    #[error("cannot read the model config {path}: {source}; valid: a config.json, or the folder that has one", path = path.display())]
    Read {
        /// The file that was tried.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The config file is not JSON.
    #[error("the model config {path} is not JSON: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error, with its position.
        source: serde_json::Error,
    },
    /// The config names no model type.
    #[error(
        "the model config is {found}, without a model_type; valid: an object in which model_type is one of {}",
        quoted(valid)
    )]
    NoModelType {
        /// The config, cut if it is long.
        found: String,
        /// The known model types.
        valid: Vec<&'static str>,
    },
    /// The config names a model type of no known family.
    #[error("{0}")]
    UnknownModelType(UnknownName),
    /// The config lacks a key that its family needs to name layers.
    #[error("the {model_type} config does not name its layers; keys that can name them: {keys}", keys = quoted(valid))]
    MissingKey {
        /// The config's model type.
        model_type: String,
        /// The keys that can name layers, some of them only together.
        valid: Vec<String>,
    },
    /// A key has a value of the wrong type or range.
    #[error("{key} is {found} in the {model_type} config; valid: {valid}")]
    BadValue {
        /// The config's model type.
        model_type: String,
        /// The key; nested keys are joined by dots.
        key: String,
        /// The value, cut if it is long.
        found: String,
        /// The valid values.
        valid: String,
    },
    /// The config names a layer kind that its family does not have.
    #[error("{key}[{layer}] in the {model_type} config: {name}")]
    UnknownKind {
        /// The config's model type.
        model_type: String,
        /// The key of the list.
        key: String,
        /// The layer's index in the list.
        layer: usize,
        /// The unknown name, the valid ones and the nearest ones.
        name: Box<UnknownName>,
    },
    /// A list names more or fewer layers than the model has.
    #[error(
        "{key} names {found} layers in the {model_type} config, but num_hidden_layers is {valid}; valid: the same number in both"
    )]
    Length {
        /// The config's model type.
        model_type: String,
        /// The key of the list.
        key: String,
        /// Number of layers in the list.
        found: usize,
        /// The config's `num_hidden_layers`.
        valid: usize,
    },
    /// A list of layer ids has an id that the model does not have.
    #[error("{key} names layer {found} in the {model_type} config; valid: {first} to {last}")]
    IdOutOfRange {
        /// The config's model type.
        model_type: String,
        /// The key of the list.
        key: String,
        /// The id, in the config's way of counting.
        found: u64,
        /// The first valid id, in the config's way of counting.
        first: usize,
        /// The last valid id, in the config's way of counting.
        last: usize,
    },
    /// Two keys give one layer different kinds.
    #[error(
        "layer {layer} is {first_kind} by {first} but {second_kind} by {second} in the {model_type} config; valid: the same in both, or only one of the keys"
    )]
    Contradiction {
        /// The config's model type.
        model_type: String,
        /// The layer, counted from 0.
        layer: usize,
        /// The first key.
        first: String,
        /// The layer's kind according to the first key.
        first_kind: LayerKind,
        /// The second key.
        second: String,
        /// The layer's kind according to the second key.
        second_kind: LayerKind,
    },
    /// A layer is in none of the lists that together must have all layers.
    #[error("layer {layer} is in none of {lists} in the {model_type} config; valid: each layer in exactly one", lists = quoted(keys))]
    Unassigned {
        /// The config's model type.
        model_type: String,
        /// The layer, in the config's way of counting.
        layer: usize,
        /// The keys of the lists.
        keys: Vec<String>,
    },
    /// The id is outside the layout.
    #[error("{model} has no layer {found}; valid: {}", range(*layers))]
    UnknownLayer {
        /// The model's name.
        model: String,
        /// The id that was requested.
        found: usize,
        /// Number of layers in the model.
        layers: usize,
    },
    /// A serialised layout is inconsistent.
    #[error("not a layout document: {reason}")]
    Document {
        /// The inconsistency.
        reason: String,
    },
}

/// The valid layer ids of a model, for messages.
pub(crate) fn range(layers: usize) -> String {
    match layers.checked_sub(1) {
        Some(last) => format!("0 to {last}"),
        None => "none, it has no layers".to_owned(),
    }
}

core_error! { LayoutError {
    Self::Read { path, source } => "layout_read",
        json!({"path": path.to_string_lossy(), "reason": source.to_string()});
    Self::Json { path, source } => "layout_json", json!({
        "path": path.to_string_lossy(), "reason": source.to_string(),
        "line": source.line(), "column": source.column(),
    });
    Self::NoModelType { found, valid } => "layout_no_model_type", json!({"found": found, "valid": valid});
    Self::UnknownModelType(name) => "unknown_model_type", name.fields();
    Self::MissingKey { model_type, valid } => "layout_missing_key", json!({"model_type": model_type, "valid": valid});
    Self::BadValue { model_type, key, found, valid } => "layout_bad_value",
        json!({"model_type": model_type, "key": key, "found": found, "valid": [valid]});
    Self::UnknownKind { model_type, key, layer, name } => "layout_unknown_kind",
        extended(name.fields(), json!({"model_type": model_type, "key": key, "layer": layer}));
    Self::Length { model_type, key, found, valid } => "layout_length",
        json!({"model_type": model_type, "key": key, "found": found, "valid": [valid]});
    Self::IdOutOfRange { model_type, key, found, first, last } => "layout_id_out_of_range",
        json!({"model_type": model_type, "key": key, "found": found, "first": first, "last": last});
    Self::Contradiction { model_type, layer, first, first_kind, second, second_kind } => "layout_contradiction",
        json!({
            "model_type": model_type, "layer": layer,
            "keys": [first, second], "found": [first_kind, second_kind],
        });
    Self::Unassigned { model_type, layer, keys } => "layout_unassigned",
        json!({"model_type": model_type, "layer": layer, "keys": keys});
    Self::UnknownLayer { model, found, layers } => "unknown_layer",
        json!({"model": model, "found": found, "first": 0, "layers": layers});
    Self::Document { reason } => "layout_document", json!({"reason": reason});
} }
