//! The user's choices of backends.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    AUTO, Op, Phase, Snapshot, UnknownName,
    error::{core_error, extended},
    name::string_form,
};

const LINEAR: &str = "linear";

const DENY: char = '!';

/// The scope of a preference: `OP`, `OP.PHASE`, `linear` or `linear.PHASE`.
///
/// `linear` stands for the ops with a recurrent state ([`Op::is_linear`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PreferenceKey {
    /// The op; `None` means all linear ops.
    pub op: Option<Op>,
    /// The phase; `None` means all phases.
    pub phase: Option<Phase>,
}

impl PreferenceKey {
    /// All valid keys.
    pub fn all() -> impl Iterator<Item = Self> {
        let ops = Op::ALL.into_iter().map(Some).chain([None]);
        ops.flat_map(|op| {
            let phases = [None].into_iter().chain(Phase::ALL.into_iter().map(Some));
            phases.map(move |phase| Self { op, phase })
        })
    }

    /// The ops that the key covers.
    fn ops(self) -> impl Iterator<Item = Op> {
        Op::ALL
            .into_iter()
            .filter(move |op| self.op.map_or(op.is_linear(), |own| own == *op))
    }
}

impl fmt::Display for PreferenceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.map_or(LINEAR, Op::name))?;
        self.phase.map_or(Ok(()), |phase| write!(f, ".{phase}"))
    }
}

impl FromStr for PreferenceKey {
    type Err = PreferenceError;

    fn from_str(found: &str) -> Result<Self, PreferenceError> {
        Self::all().find(|key| key.to_string() == found).ok_or_else(|| {
            PreferenceError::UnknownKey(UnknownName::new(
                "preference key",
                found,
                Self::all().map(|key| key.to_string()),
            ))
        })
    }
}

string_form!(PreferenceKey);

/// The names in a preference's value.
fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim)
}

/// The name that a part of a value denies; `None` if the part does not deny one.
fn denied(name: &str) -> Option<&str> {
    name.strip_prefix(DENY).map(str::trim)
}

/// An order of backends, from a preference with several names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferenceOrder<'a> {
    /// The key that applies.
    pub key: PreferenceKey,
    /// The names, the most preferred first.
    pub names: Vec<&'a str>,
}

impl PreferenceOrder<'_> {
    /// The position of a backend in the order; `None` if the order does not have it.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|own| *own == name)
    }
}

/// An invalid preference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreferenceError {
    /// The key has an unknown op or phase.
    #[error(transparent)]
    UnknownKey(UnknownName),
    /// No backend of the key's ops has the name.
    #[error("preference {key}: {name}")]
    UnknownBackend {
        /// The key.
        key: PreferenceKey,
        /// The unknown name and the valid ones.
        name: UnknownName,
    },
    /// [`AUTO`] is denied, or comes before other names.
    #[error(
        "preference {key}: got {found:?}; auto stands for all other backends, so it must be the last name and have no !"
    )]
    MisplacedAuto {
        /// The key.
        key: PreferenceKey,
        /// The value.
        found: String,
    },
}

core_error! { PreferenceError {
    Self::UnknownKey(name) => "unknown_preference_key", name.fields();
    Self::UnknownBackend { key, name } => "unknown_preferred_backend", extended(name.fields(), json!({"key": key}));
    Self::MisplacedAuto { key, found } => "misplaced_auto", json!({"key": key, "found": found});
} }

/// The user's choices: backend names by key.
///
/// The most specific key with a name applies: `OP.PHASE`, then `OP`, then, for linear ops, `linear.PHASE`, then
/// `linear`. [`AUTO`] can be chosen like a backend: `kda=auto` exempts KDA from `linear=acme`.
///
/// Several names, separated by commas, are an order ([`Preferences::order`]): the first backend that fits
/// serves; if none fits, the automatic choice serves. [`AUTO`] can end an order: `acme, auto` is an order
/// with a single name.
///
/// `!` before a name denies the backend. The denials of all keys apply, even of keys that are less specific
/// than the key with the choice ([`Preferences::denial`]).
///
/// ```
/// use switchrail::{Op, Phase, Preferences};
///
/// let preferences = Preferences::parse([("linear", "acme"), ("linear.decode", "torch"), ("kda", "auto")]).unwrap();
/// assert_eq!(preferences.choice(Op::GatedDelta, Phase::Prefill).unwrap().1, "acme");
/// assert_eq!(preferences.choice(Op::GatedDelta, Phase::Decode).unwrap().1, "torch");
/// assert_eq!(preferences.choice(Op::Kda, Phase::Decode), None);
/// assert_eq!(preferences.choice(Op::Attention, Phase::Decode), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Preferences(BTreeMap<PreferenceKey, String>);

impl Preferences {
    /// Parses pairs of a key and backend names. If a key occurs twice, the last value is kept.
    ///
    /// # Errors
    /// [`PreferenceError::UnknownKey`]. Names are not checked here but by [`Preferences::check`], against a
    /// snapshot.
    pub fn parse<K: AsRef<str>, N: Into<String>>(
        pairs: impl IntoIterator<Item = (K, N)>,
    ) -> Result<Self, PreferenceError> {
        let pairs = pairs
            .into_iter()
            .map(|(key, name)| Ok((key.as_ref().parse()?, name.into())));
        Ok(Self(pairs.collect::<Result<_, PreferenceError>>()?))
    }

    /// All keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (PreferenceKey, &str)> {
        self.0.iter().map(|(key, name)| (*key, name.as_str()))
    }

    /// The backend that is chosen for an op and a phase, and the key that applies. `None` if no key applies, or
    /// if its value is [`AUTO`] or an order.
    #[must_use]
    pub fn choice(&self, op: Op, phase: Phase) -> Option<(PreferenceKey, &str)> {
        let (key, names) = self.wanted(op, phase)?;
        match names[..] {
            [name] if name != AUTO => Some((key, name)),
            _ => None,
        }
    }

    /// The order of backends for an op and a phase; `None` if no key applies, or if its value is not an order.
    #[must_use]
    pub fn order(&self, op: Op, phase: Phase) -> Option<PreferenceOrder<'_>> {
        let (key, mut names) = self.wanted(op, phase)?;
        (names.len() > 1).then(|| {
            names.retain(|name| *name != AUTO);
            PreferenceOrder { key, names }
        })
    }

    /// The most specific key that denies a backend for an op and a phase; `None` if no key denies it.
    #[must_use]
    pub fn denial(&self, op: Op, phase: Phase, name: &str) -> Option<PreferenceKey> {
        let denies = |value| names(value).filter_map(denied).any(|own| own == name);
        self.applying(op, phase)
            .find_map(|(key, value)| denies(value).then_some(key))
    }

    /// The most specific key with names that are not denied, and these names.
    fn wanted(&self, op: Op, phase: Phase) -> Option<(PreferenceKey, Vec<&str>)> {
        self.applying(op, phase)
            .map(|(key, value)| (key, names(value).filter(|name| denied(name).is_none()).collect()))
            .find(|(_, names): &(_, Vec<&str>)| !names.is_empty())
    }

    /// All values for an op and a phase, those of the most specific keys first.
    fn applying(&self, op: Op, phase: Phase) -> impl Iterator<Item = (PreferenceKey, &str)> {
        let family = op.is_linear().then_some(None);
        let keys = [Some(op)].into_iter().chain(family).flat_map(move |op| {
            [Some(phase), None]
                .into_iter()
                .map(move |phase| PreferenceKey { op, phase })
        });
        keys.filter_map(|key| self.0.get(&key).map(|value| (key, value.as_str())))
    }

    /// Checks that each name belongs to a registered backend of one of its key's ops, and that [`AUTO`] is
    /// neither denied nor followed by other names.
    ///
    /// # Errors
    /// [`PreferenceError::UnknownBackend`], with the valid names and the nearest ones;
    /// [`PreferenceError::MisplacedAuto`].
    pub fn check(&self, snapshot: &Snapshot) -> Result<(), PreferenceError> {
        for (key, value) in self.iter() {
            let mut ended = false;
            for part in names(value) {
                let denial = denied(part);
                let name = denial.unwrap_or(part);
                if name == AUTO && denial.is_some() || denial.is_none() && ended {
                    return Err(PreferenceError::MisplacedAuto {
                        key,
                        found: value.to_owned(),
                    });
                }
                ended |= name == AUTO;
                if name != AUTO && !key.ops().any(|op| snapshot.find(op, name).is_some()) {
                    let names = key.ops().flat_map(|op| snapshot.names_of(op));
                    let valid = names.chain([AUTO]);
                    return Err(PreferenceError::UnknownBackend {
                        key,
                        name: UnknownName::new("backend", name, valid),
                    });
                }
            }
        }
        Ok(())
    }
}
