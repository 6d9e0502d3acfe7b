//! Installed distributions by name and version, and backends' requirements on them.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{error::core_error, name::string_form};

/// Normalises a distribution's name as in PEP 503: lower case, with each run of `-`, `_` and `.` replaced by
/// one `-`.
pub(crate) fn normalized_name(name: &str) -> String {
    let mut normalized = String::with_capacity(name.len());
    for letter in name.to_lowercase().chars() {
        if !matches!(letter, '-' | '_' | '.') {
            normalized.push(letter);
        } else if !normalized.ends_with('-') {
            normalized.push('-');
        }
    }
    normalized
}

/// A distribution that a backend requires: a name, and optionally a PEP 440 version specifier.
///
/// ```
/// use switchrail::PackageRequirement;
///
/// let requirement: PackageRequirement = "FlashInfer_Python >=0.6, <0.7".parse().unwrap();
/// assert_eq!(requirement.name(), "flashinfer-python");
/// assert!(requirement.accepts("0.6.13"));
/// assert!(!requirement.accepts("0.7.0"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageRequirement {
    name: String,
    specifiers: pep440_rs::VersionSpecifiers,
}

/// An invalid package requirement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequirementError {
    /// The string does not start with a valid distribution name.
    #[error("{found:?} does not start with the name of a distribution; write NAME or NAME>=VERSION")]
    Name {
        /// The given string.
        found: String,
    },
    /// The part after the name is not a version specifier.
    #[error("{found:?} is not a package requirement: {reason}; write NAME or NAME>=VERSION,<VERSION")]
    Specifier {
        /// The given string.
        found: String,
        /// The problem.
        reason: String,
    },
}

core_error! { RequirementError {
    Self::Name { found } => "bad_requirement_name", json!({"found": found});
    Self::Specifier { found, reason } => "bad_requirement_specifier", json!({"found": found, "reason": reason});
} }

impl PackageRequirement {
    /// The distribution's normalised name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a version satisfies the requirement. A version that PEP 440 does not allow satisfies only a
    /// requirement without specifiers.
    #[must_use]
    pub fn accepts(&self, version: &str) -> bool {
        self.specifiers.is_empty()
            || pep440_rs::Version::from_str(version).is_ok_and(|version| self.specifiers.contains(&version))
    }
}

impl FromStr for PackageRequirement {
    type Err = RequirementError;

    fn from_str(found: &str) -> Result<Self, RequirementError> {
        let text = found.trim();
        let end = text
            .find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
            .unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !name.ends_with(|c: char| c.is_ascii_alphanumeric())
        {
            return Err(RequirementError::Name {
                found: found.to_owned(),
            });
        }
        let specifiers = rest
            .trim()
            .parse()
            .map_err(
                |error: pep440_rs::VersionSpecifiersParseError| RequirementError::Specifier {
                    found: found.to_owned(),
                    reason: error.to_string(),
                },
            )?;
        Ok(Self {
            name: normalized_name(name),
            specifiers,
        })
    }
}

string_form!(PackageRequirement);

impl fmt::Display for PackageRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.specifiers)
    }
}

/// Installed distributions by normalised name, for [`Capabilities::packages`](crate::Capabilities::packages).
/// Cheap to clone.
///
/// The default is empty: backends that require a package are then rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Packages(Arc<BTreeMap<String, String>>);

impl Packages {
    /// The installed version of a distribution. The name may be spelled in any equivalent way.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&str> {
        self.0.get(&normalized_name(name)).map(String::as_str)
    }

    /// Normalised names and versions, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, version)| (name.as_str(), version.as_str()))
    }
}

/// Collects names and versions. If two names have the same normalised form, the first is kept.
impl<N: AsRef<str>, V: Into<String>> FromIterator<(N, V)> for Packages {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(packages: I) -> Self {
        let mut map = BTreeMap::new();
        for (name, version) in packages {
            map.entry(normalized_name(name.as_ref()))
                .or_insert_with(|| version.into());
        }
        Self(Arc::new(map))
    }
}
