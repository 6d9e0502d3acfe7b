//! Reads values of a transformers config with type checks.

use serde_json::{Map, Value};

use super::LayoutError;

/// A config with more layers is refused, because it is probably damaged.
pub(super) const MAX_LAYERS: u64 = 1 << 16;

/// The maximum length of values in messages, in characters. Longer values are cut.
const SHOWN: usize = 80;

/// The part of a config that describes the language model.
pub(super) struct Config<'a> {
    pub model_type: &'a str,
    pub values: &'a Map<String, Value>,
}

impl Config<'_> {
    /// The value of a key. As in transformers, `null` means that the key is absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// The size at a key, if the config has the key.
    pub fn size(&self, key: &str) -> Result<Option<u32>, LayoutError> {
        self.get(key).map(|value| self.to_size(key, value)).transpose()
    }

    pub fn to_size(&self, key: &str, value: &Value) -> Result<u32, LayoutError> {
        value
            .as_u64()
            .and_then(|size| u32::try_from(size).ok())
            .ok_or_else(|| self.bad(key, value, "a whole number, 0 or more"))
    }

    /// The size at the first of two keys that the config has.
    pub fn either_size(&self, key: &str, other: &str) -> Result<Option<u32>, LayoutError> {
        match self.size(key)? {
            Some(size) => Ok(Some(size)),
            None => self.size(other),
        }
    }

    /// The number at a key, from 1 to [`MAX_LAYERS`], if the config has the key.
    pub fn divisor(&self, key: &str) -> Result<Option<usize>, LayoutError> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|number| (1..=MAX_LAYERS).contains(number))
                    .and_then(|number| usize::try_from(number).ok())
                    .ok_or_else(|| self.bad(key, value, &format!("a whole number from 1 to {MAX_LAYERS}")))
            })
            .transpose()
    }

    pub fn list<'v>(&self, key: &str, value: &'v Value) -> Result<&'v [Value], LayoutError> {
        value
            .as_array()
            .map(Vec::as_slice)
            .ok_or_else(|| self.bad(key, value, "a list with one entry per layer"))
    }

    pub fn bad(&self, key: &str, found: &Value, valid: &str) -> LayoutError {
        LayoutError::BadValue {
            model_type: self.model_type.to_owned(),
            key: key.to_owned(),
            found: shown(found),
            valid: valid.to_owned(),
        }
    }
}

/// A value of the config, in the form for messages.
pub(super) fn shown(found: &Value) -> String {
    let mut text = crate::shown(&found.to_string()).into_owned();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}
