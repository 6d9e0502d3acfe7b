//! The ways in which configs name their layers.

use serde_json::Value;

use super::config::Config;
use super::{LayerKind, LayoutError};
use crate::UnknownName;

/// A family's words for layer kinds.
pub(super) type Words = &'static [(&'static str, LayerKind)];

/// One way of naming layers.
pub(super) enum Naming {
    /// A word per layer: `layer_types`.
    List { key: &'static str },
    /// A letter per layer: Nemotron-H's `hybrid_override_pattern`.
    Letters { key: &'static str, letters: Words },
    /// Words repeated over all layers: `RecurrentGemma`'s `block_types`.
    Repeated { key: &'static str, words: Words },
    /// The ids of the layers of kind `inside`. All other layers are of kind `outside`.
    Ids {
        key: &'static str,
        inside: LayerKind,
        outside: LayerKind,
    },
    /// Two lists of layer ids, counted from 1, that together have all layers: Kimi's `linear_attn_config`.
    SharedOut {
        key: &'static str,
        lists: [(&'static str, LayerKind); 2],
    },
    /// The last layer of each group is of kind `last`, all others of kind `others`. The key gives the group's
    /// size.
    LastOfEach {
        key: &'static str,
        last: LayerKind,
        others: LayerKind,
    },
    /// Like `LastOfEach`, with groups of `period` layers.
    LastOf {
        period: usize,
        last: LayerKind,
        others: LayerKind,
    },
    /// Layer `i` is of kind `hit` if `i >= start` and `(i - start) % period == offset`, or if it is the layer
    /// `also`. All others are of kind `miss`. The config gives period and offset.
    Periodic {
        start: usize,
        also: Option<usize>,
        hit: LayerKind,
        miss: LayerKind,
    },
    /// All layers are of one kind.
    All(LayerKind),
}

const PERIOD: &str = "attn_layer_period";
const OFFSET: &str = "attn_layer_offset";
const COUNT: &str = "num_hidden_layers";

impl Naming {
    /// The keys that name the layers in this way.
    pub fn keys(&self) -> Vec<String> {
        match self {
            Self::List { key }
            | Self::Letters { key, .. }
            | Self::Repeated { key, .. }
            | Self::Ids { key, .. }
            | Self::LastOfEach { key, .. } => vec![(*key).to_owned()],
            Self::SharedOut { key, lists } => lists.iter().map(|(list, _)| format!("{key}.{list}")).collect(),
            Self::Periodic { .. } => vec![PERIOD.to_owned(), OFFSET.to_owned()],
            Self::All(_) | Self::LastOf { .. } => vec![COUNT.to_owned()],
        }
    }

    /// Whether this way names each layer. transformers applies ways that are not explicit only if the config
    /// uses no explicit way.
    pub const fn is_explicit(&self) -> bool {
        matches!(
            self,
            Self::List { .. }
                | Self::Letters { .. }
                | Self::Ids { .. }
                | Self::SharedOut { .. }
                | Self::Repeated { .. }
        )
    }

    /// The kind of each layer; `None` if the config does not use this way of naming.
    pub fn read(&self, config: &Config, words: Words) -> Result<Option<Vec<LayerKind>>, LayoutError> {
        match self {
            Self::List { key } | Self::Letters { key, .. } => self
                .words(config, words)?
                .map(|kinds| checked_length(config, key, kinds))
                .transpose(),
            Self::Repeated { key, words } => {
                let Some(value) = config.get(key) else {
                    return Ok(None);
                };
                let kinds = words_to_kinds(config, key, config.list(key, value)?, words)?;
                if kinds.is_empty() {
                    return Err(config.bad(key, value, "a list with at least one entry"));
                }
                let count = required_count(config)?;
                Ok(Some(kinds.into_iter().cycle().take(count).collect()))
            }
            Self::Ids { key, inside, outside } => {
                let Some(value) = config.get(key) else {
                    return Ok(None);
                };
                let mut kinds = vec![*outside; required_count(config)?];
                for id in ids(config, key, value, 0, kinds.len())? {
                    kinds[id] = *inside;
                }
                Ok(Some(kinds))
            }
            Self::SharedOut { key, lists } => shared_out(config, key, lists),
            Self::LastOfEach { key, last, others } => {
                let Some(period) = config.divisor(key)? else {
                    return Ok(None);
                };
                last_of_each(config, period, *last, *others).map(Some)
            }
            Self::LastOf { period, last, others } => last_of_each(config, *period, *last, *others).map(Some),
            Self::Periodic {
                start,
                also,
                hit,
                miss,
            } => {
                let (Some(period), Some(value)) = (config.divisor(PERIOD)?, config.get(OFFSET)) else {
                    return Ok(None);
                };
                let offset = config.to_size(OFFSET, value)? as usize;
                if offset >= period {
                    return Err(config.bad(OFFSET, value, &format!("below {PERIOD}, which is {period}")));
                }
                let is_hit = |id: usize| {
                    id.checked_sub(*start)
                        .map_or(*also == Some(id), |from| from % period == offset)
                };
                let kind = |id: usize| if is_hit(id) { *hit } else { *miss };
                Ok(Some((0..required_count(config)?).map(kind).collect()))
            }
            Self::All(kind) => Ok(Some(vec![*kind; required_count(config)?])),
        }
    }

    /// The kinds in a list of words or in a string of letters, whatever its length. `None` for other
    /// ways, or if the config does not have the key.
    pub fn words(&self, config: &Config, words: Words) -> Result<Option<Vec<LayerKind>>, LayoutError> {
        match self {
            Self::List { key } => config
                .get(key)
                .map(|value| words_to_kinds(config, key, config.list(key, value)?, words))
                .transpose(),
            Self::Letters { key, letters } => {
                let Some(value) = config.get(key) else {
                    return Ok(None);
                };
                let text = value
                    .as_str()
                    .ok_or_else(|| config.bad(key, value, "a string with one letter per layer"))?;
                let found: Vec<Value> = text.chars().map(|letter| letter.to_string().into()).collect();
                words_to_kinds(config, key, &found, letters).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn last_of_each(
    config: &Config,
    period: usize,
    last: LayerKind,
    others: LayerKind,
) -> Result<Vec<LayerKind>, LayoutError> {
    let kind = |id: usize| {
        if (id + 1).is_multiple_of(period) {
            last
        } else {
            others
        }
    };
    Ok((0..required_count(config)?).map(kind).collect())
}

fn required_count(config: &Config) -> Result<usize, LayoutError> {
    config.divisor(COUNT)?.ok_or_else(|| LayoutError::MissingKey {
        model_type: config.model_type.to_owned(),
        valid: vec![COUNT.to_owned()],
    })
}

fn checked_length(config: &Config, key: &str, kinds: Vec<LayerKind>) -> Result<Vec<LayerKind>, LayoutError> {
    match config.divisor(COUNT)? {
        Some(count) if count != kinds.len() => Err(LayoutError::Length {
            model_type: config.model_type.to_owned(),
            key: key.to_owned(),
            found: kinds.len(),
            valid: count,
        }),
        _ => Ok(kinds),
    }
}

pub(super) fn words_to_kinds(
    config: &Config,
    key: &str,
    entries: &[Value],
    words: Words,
) -> Result<Vec<LayerKind>, LayoutError> {
    let to_kind = |(layer, entry): (usize, &Value)| {
        let word = entry
            .as_str()
            .ok_or_else(|| config.bad(&format!("{key}[{layer}]"), entry, "a string that names a kind"))?;
        words
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, kind)| *kind)
            .ok_or_else(|| LayoutError::UnknownKind {
                model_type: config.model_type.to_owned(),
                key: key.to_owned(),
                layer,
                name: Box::new(UnknownName::new(
                    "layer kind",
                    word,
                    words.iter().map(|(name, _)| *name),
                )),
            })
    };
    entries.iter().enumerate().map(to_kind).collect()
}

/// The layer ids in a list that counts from `first`, converted to count from 0.
fn ids(
    config: &Config,
    key: &str,
    value: &Value,
    first: usize,
    layers: usize,
) -> Result<Vec<usize>, LayoutError> {
    let to_id = |(index, entry): (usize, &Value)| {
        let found = entry
            .as_u64()
            .ok_or_else(|| config.bad(&format!("{key}[{index}]"), entry, "a layer id"))?;
        usize::try_from(found)
            .ok()
            .and_then(|id| id.checked_sub(first))
            .filter(|id| *id < layers)
            .ok_or_else(|| LayoutError::IdOutOfRange {
                model_type: config.model_type.to_owned(),
                key: key.to_owned(),
                found,
                first,
                last: layers - 1 + first,
            })
    };
    config.list(key, value)?.iter().enumerate().map(to_id).collect()
}

fn shared_out(
    config: &Config,
    key: &str,
    lists: &[(&'static str, LayerKind); 2],
) -> Result<Option<Vec<LayerKind>>, LayoutError> {
    let Some(section) = config.get(key) else {
        return Ok(None);
    };
    let section = section
        .as_object()
        .ok_or_else(|| config.bad(key, section, "an object"))?;
    let found = lists.map(|(list, kind)| (format!("{key}.{list}"), section.get(list), kind));
    if found.iter().any(|(_, value, _)| value.is_none_or(Value::is_null)) {
        return Ok(None);
    }
    let mut kinds: Vec<Option<(LayerKind, &str)>> = vec![None; required_count(config)?];
    for (name, value, kind) in &found {
        for id in ids(config, name, value.unwrap_or(&Value::Null), 1, kinds.len())? {
            if let Some((first_kind, first)) = kinds[id]
                && first_kind != *kind
            {
                return Err(LayoutError::Contradiction {
                    model_type: config.model_type.to_owned(),
                    layer: id,
                    first: first.to_owned(),
                    first_kind,
                    second: name.clone(),
                    second_kind: *kind,
                });
            }
            kinds[id] = Some((*kind, name));
        }
    }
    let assigned = |(id, kind): (usize, Option<(LayerKind, &str)>)| {
        kind.map(|(kind, _)| kind).ok_or_else(|| LayoutError::Unassigned {
            model_type: config.model_type.to_owned(),
            layer: id + 1,
            keys: found.iter().map(|(name, ..)| name.clone()).collect(),
        })
    };
    kinds
        .into_iter()
        .enumerate()
        .map(assigned)
        .collect::<Result<Vec<_>, _>>()
        .map(Some)
}
