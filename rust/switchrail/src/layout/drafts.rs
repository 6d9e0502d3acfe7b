//! How configs name the layers of a head that drafts tokens (multi-token prediction, MTP).

use super::config::{Config, MAX_LAYERS};
use super::naming::{Naming, Words, words_to_kinds};
use super::{LayerKind, LayoutError};
use serde_json::Value;

/// The keys for the number of steps, each of which drafts one token.
const COUNTS: [&str; 3] = [
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
];

/// The steps of a family's draft head.
pub(super) enum Drafts {
    /// The family has none.
    None,
    /// One layer per step. Its kind is in the list under `key`, or is `kind` if the config has no such list.
    Layers {
        key: Option<&'static str>,
        kind: LayerKind,
    },
    /// The same layers in each step, named in the first way that the config uses, or else `default`.
    Blocks {
        namings: &'static [Naming],
        default: &'static [LayerKind],
    },
}

impl Drafts {
    /// The kinds of each step's layers; empty if the config has no head.
    pub fn read(&self, config: &Config, words: Words) -> Result<Vec<Vec<LayerKind>>, LayoutError> {
        if matches!(self, Self::None) {
            return Ok(Vec::new());
        }
        let count = count(config)?;
        if count == Some(0) {
            return Ok(Vec::new());
        }
        match self {
            Self::None => Ok(Vec::new()),
            Self::Layers { key, kind } => {
                let named = key.and_then(|key| Some((key, config.get(key)?)));
                let Some((key, value)) = named else {
                    return Ok(vec![vec![*kind]; count.unwrap_or(0)]);
                };
                let kinds = words_to_kinds(config, key, config.list(key, value)?, words)?;
                if let Some(count) = count
                    && count != kinds.len()
                {
                    return Err(config.bad(key, value, &format!("one entry per step, of {count} steps")));
                }
                Ok(kinds.into_iter().map(|kind| vec![kind]).collect())
            }
            Self::Blocks { namings, default } => {
                let Some(count) = count else {
                    return Ok(Vec::new());
                };
                let mut layers = default.to_vec();
                for naming in *namings {
                    if let Some(named) = naming.words(config, words)? {
                        let key = naming.keys().remove(0);
                        let steps = count as u64;
                        if named.is_empty() || steps.saturating_mul(named.len() as u64) > MAX_LAYERS {
                            let valid = format!(
                                "1 to {} layers for each of {count} steps, not {}",
                                MAX_LAYERS / steps,
                                named.len()
                            );
                            let found = config.get(&key).unwrap_or(&Value::Null);
                            return Err(config.bad(&key, found, &valid));
                        }
                        layers = named;
                        break;
                    }
                }
                Ok(vec![layers; count])
            }
        }
    }
}

/// The number of steps, if the config gives it.
fn count(config: &Config) -> Result<Option<usize>, LayoutError> {
    let mut first: Option<(&str, usize)> = None;
    for key in COUNTS {
        let Some(value) = config.get(key) else {
            continue;
        };
        let found = if value.as_u64() == Some(0) {
            0
        } else {
            config
                .divisor(key)
                .map_err(|_| config.bad(key, value, "a whole number from 0 to 65536"))?
                .unwrap_or(0)
        };
        match first {
            Some((other, valid)) if valid != found => {
                return Err(config.bad(key, value, &format!("the same as {other}, which is {valid}")));
            }
            _ => first = Some((key, found)),
        }
    }
    Ok(first.map(|(_, count)| count))
}
