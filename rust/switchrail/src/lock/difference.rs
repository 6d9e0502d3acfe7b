//! Differences between an installation and a lock.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LockedDistribution, LockedEntryPoint};
use crate::shown::shown;

/// A message lists at most this many names per kind of change. The data has all of them.
const NAMED: usize = 3;

/// How one distribution differs from the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LockDifference {
    /// The distribution is installed but not in the lock.
    Added {
        /// The distribution.
        distribution: String,
        /// The installed version.
        version: Option<String>,
    },
    /// The distribution is in the lock but not installed.
    Missing {
        /// The distribution.
        distribution: String,
        /// The version in the lock.
        version: Option<String>,
    },
    /// The distribution has another version, other entry points or other files.
    Changed {
        /// The distribution.
        distribution: String,
        /// The differences.
        changes: Vec<LockChange>,
    },
    /// The distribution's files cannot be listed or read.
    Unreadable {
        /// The distribution.
        distribution: String,
        /// The unreadable path and the reason.
        problem: String,
    },
}

/// One change of a distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LockChange {
    /// Another version is installed.
    Version {
        /// The version in the lock.
        locked: Option<String>,
        /// The installed version.
        found: Option<String>,
    },
    /// The distribution declares an entry point that is not in the lock.
    EntryPointAdded(LockedEntryPoint),
    /// The distribution lacks an entry point of the lock.
    EntryPointMissing(LockedEntryPoint),
    /// A file's contents differ.
    FileChanged {
        /// The file.
        path: String,
    },
    /// A file is not in the lock.
    FileAdded {
        /// The file.
        path: String,
    },
    /// A file of the lock does not exist.
    FileMissing {
        /// The file.
        path: String,
    },
}

impl LockDifference {
    /// The distribution that differs.
    #[must_use]
    pub fn distribution(&self) -> &str {
        match self {
            Self::Added { distribution, .. }
            | Self::Missing { distribution, .. }
            | Self::Changed { distribution, .. }
            | Self::Unreadable { distribution, .. } => distribution,
        }
    }

    pub(super) fn between(locked: &LockedDistribution, found: &LockedDistribution) -> Option<Self> {
        let mut changes = Vec::new();
        if locked.version != found.version {
            changes.push(LockChange::Version {
                locked: locked.version.clone(),
                found: found.version.clone(),
            });
        }
        let only = |these: &LockedDistribution, others: &LockedDistribution| {
            let mut only = these.entry_points.clone();
            only.retain(|entry| !others.entry_points.contains(entry));
            only
        };
        changes.extend(only(found, locked).into_iter().map(LockChange::EntryPointAdded));
        changes.extend(only(locked, found).into_iter().map(LockChange::EntryPointMissing));
        changes.extend(file_changes(&locked.files, &found.files));
        (!changes.is_empty()).then(|| Self::Changed {
            distribution: found.name.clone(),
            changes,
        })
    }
}

fn file_changes<'a>(
    locked: &'a BTreeMap<String, String>,
    found: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = LockChange> + 'a {
    let known = locked.iter().filter_map(|(path, digest)| match found.get(path) {
        Some(now) if now == digest => None,
        Some(_) => Some(LockChange::FileChanged { path: path.clone() }),
        None => Some(LockChange::FileMissing { path: path.clone() }),
    });
    let new = found.keys().filter(|path| !locked.contains_key(*path));
    known.chain(new.map(|path| LockChange::FileAdded { path: path.clone() }))
}

impl fmt::Display for LockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added {
                distribution,
                version,
            } => {
                write!(
                    f,
                    "{} is not in the lock",
                    with_version(distribution, version.as_ref())
                )
            }
            Self::Missing {
                distribution,
                version,
            } => {
                write!(
                    f,
                    "the lock has {}, which is not installed",
                    with_version(distribution, version.as_ref())
                )
            }
            Self::Changed {
                distribution,
                changes,
            } => {
                write!(f, "{} differs from the lock: ", shown(distribution))?;
                f.write_str(&summary(changes))
            }
            Self::Unreadable {
                distribution,
                problem,
            } => {
                write!(
                    f,
                    "{} cannot be compared with the lock: {}",
                    shown(distribution),
                    shown(problem)
                )
            }
        }
    }
}

fn with_version(distribution: &str, version: Option<&String>) -> String {
    let distribution = shown(distribution);
    match version {
        Some(version) => format!("{distribution} {}", shown(version)),
        None => distribution.into_owned(),
    }
}

/// The changes grouped by kind, with the first few names of each.
fn summary(changes: &[LockChange]) -> String {
    let mut kinds: Vec<(&str, Vec<String>)> = Vec::new();
    for change in changes {
        let (kind, name) = change.told();
        let name = shown(&name).into_owned();
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, names)) => names.push(name),
            None => kinds.push((kind, vec![name])),
        }
    }
    let parts = kinds.into_iter().map(|(kind, names)| {
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{kind} {}{more}", names[..names.len().min(NAMED)].join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}

impl LockChange {
    /// The kind of change, and a name for the changed item.
    fn told(&self) -> (&'static str, String) {
        let entry_point = |entry: &LockedEntryPoint| format!("\"{} = {}\"", entry.name, entry.target);
        let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
        match self {
            Self::Version { locked, found } => (
                "version",
                format!("{} instead of {}", version(found), version(locked)),
            ),
            Self::EntryPointAdded(entry) => ("entry points added:", entry_point(entry)),
            Self::EntryPointMissing(entry) => ("entry points missing:", entry_point(entry)),
            Self::FileChanged { path } => ("files changed:", path.clone()),
            Self::FileAdded { path } => ("files added:", path.clone()),
            Self::FileMissing { path } => ("files missing:", path.clone()),
        }
    }
}
