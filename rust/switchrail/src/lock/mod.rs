//! Records the contents of installed distributions, and detects later changes.

mod difference;
mod digest;
mod error;
mod files;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::schema::read_document;
use crate::shown::shown;
use crate::{Discovery, Distribution, PluginGroup, PluginOrigin, PluginRecord, PluginState, Schema};
pub use difference::{LockChange, LockDifference};
pub use error::LockError;
use files::{Owners, Unreadable};

/// Name of the distribution that contains this crate.
const HOST: &str = "switchrail";

/// The distributions that may be loaded, with a digest of each of their files. These are all distributions
/// that have plugins, and Switchrail itself.
///
/// The document is the same wherever the same files are installed. Files that differ between installations
/// are left out: `__pycache__` folders, scripts, and the installer's own records.
///
/// ```
/// use switchrail::{Lock, discover};
///
/// let installed = discover(&["/nowhere"]);
/// let lock = Lock::of(&installed)?;
/// assert!(lock.differences(&installed).is_empty());
/// # Ok::<(), switchrail::LockError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Version of this document format.
    pub schema: Schema,
    /// The distributions, by name.
    pub distributions: Vec<LockedDistribution>,
}

/// One distribution in a [`Lock`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct LockedDistribution {
    /// Its name, normalised as in PEP 503.
    pub name: String,
    /// Its version, if its metadata has one.
    pub version: Option<String>,
    /// Its entry points in Switchrail's groups, sorted.
    pub entry_points: Vec<LockedEntryPoint>,
    /// SHA-256 of `files`, in hexadecimal.
    pub digest: String,
    /// SHA-256 of each file's contents, by the file's path relative to its entry of the search path.
    pub files: BTreeMap<String, String>,
}

/// The form that is read, before the digest is compared with the files.
#[derive(Deserialize)]
struct Unchecked {
    name: String,
    version: Option<String>,
    entry_points: Vec<LockedEntryPoint>,
    digest: String,
    files: BTreeMap<String, String>,
}

impl TryFrom<Unchecked> for LockedDistribution {
    type Error = String;

    fn try_from(read: Unchecked) -> Result<Self, String> {
        let Unchecked {
            name,
            version,
            entry_points,
            digest,
            files,
        } = read;
        if digest != digest::of_files(&files) {
            return Err(format!("the digest of {name} is not that of its files"));
        }
        Ok(Self {
            name,
            version,
            entry_points,
            digest,
            files,
        })
    }
}

/// One entry point in a [`Lock`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockedEntryPoint {
    /// Its group.
    pub group: PluginGroup,
    /// Its name.
    pub name: String,
    /// Its target, `module:attribute`.
    pub target: String,
    /// The extras of the distribution that it requires.
    pub extras: Vec<String>,
}

impl Lock {
    /// Creates a lock of the current installation.
    ///
    /// # Errors
    /// [`LockError::File`] if the files of a distribution cannot be listed or read.
    pub fn of(discovery: &Discovery) -> Result<Self, LockError> {
        let distributions = locked(discovery)
            .into_iter()
            .map(|(found, locked)| {
                locked.map_err(|Unreadable { path, problem }| LockError::File {
                    distribution: found.name.clone(),
                    path,
                    problem,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            schema: Schema,
            distributions,
        })
    }

    /// Reads a lock file.
    ///
    /// # Errors
    /// [`LockError::Read`] if the file cannot be read, and [`LockError::Document`] if it is not a lock.
    pub fn read(path: &Path) -> Result<Self, LockError> {
        let bytes = read_document(path).map_err(|error| LockError::Read {
            path: path.to_owned(),
            problem: error.to_string(),
        })?;
        Self::parse(&bytes).map_err(|error| LockError::Document {
            path: path.to_owned(),
            problem: shown(&error.to_string()).into_owned(),
        })
    }

    /// Parses the contents of a lock file.
    ///
    /// # Errors
    /// If the contents are not JSON, or not a lock.
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// The differences between the current installation and the lock, sorted by distribution.
    #[must_use]
    pub fn differences(&self, discovery: &Discovery) -> Vec<LockDifference> {
        let installed = locked(discovery);
        let present: HashSet<&str> = installed.iter().map(|(found, _)| found.name.as_str()).collect();
        let locked = self.by_name();
        let missing = self
            .distributions
            .iter()
            .filter(|known| !present.contains(known.name.as_str()))
            .map(|known| LockDifference::Missing {
                distribution: known.name.clone(),
                version: known.version.clone(),
            });
        let differing = installed.iter().filter_map(|(found, now)| {
            let Some(known) = locked.get(found.name.as_str()) else {
                return Some(LockDifference::Added {
                    distribution: found.name.clone(),
                    version: found.version.clone(),
                });
            };
            match now {
                Ok(now) => LockDifference::between(known, now),
                Err(Unreadable { path, problem }) => Some(LockDifference::Unreadable {
                    distribution: found.name.clone(),
                    problem: format!("{}: {problem}", path.display()),
                }),
            }
        });
        let mut differences: Vec<_> = missing.chain(differing).collect();
        differences.sort_by(|a, b| a.distribution().cmp(b.distribution()));
        differences
    }

    /// Blocks each discovered plugin whose distribution differs from the lock. The reason is the difference.
    ///
    /// Plugins in the lock whose distribution is not installed are added to the list as failed.
    ///
    /// # Errors
    /// [`LockError::Host`] if Switchrail itself differs from the lock; it is already running, so it can't be
    /// blocked.
    pub fn apply(&self, discovery: &Discovery, plugins: &mut Vec<PluginRecord>) -> Result<(), LockError> {
        let differences = self.differences(discovery);
        if let Some(difference) = differences.iter().find(|found| found.distribution() == HOST) {
            let difference = difference.clone();
            return Err(LockError::Host { difference });
        }
        let paths = discovery.distributions.iter();
        let paths: HashMap<&str, &Path> = paths
            .map(|found| (found.name.as_str(), found.path.as_path()))
            .collect();
        let reasons: HashMap<&Path, String> = differences
            .iter()
            .filter_map(|each| Some((*paths.get(each.distribution())?, each.to_string())))
            .collect();
        for plugin in &mut *plugins {
            if let Some(reason) = reasons.get(plugin.origin.path.as_path())
                && plugin.state == PluginState::Discovered
            {
                plugin.state = PluginState::Blocked {
                    reason: reason.clone(),
                };
            }
        }
        let locked = self.by_name();
        let known: HashSet<(PluginGroup, String)> = plugins.iter().map(identity).collect();
        for difference in &differences {
            if let LockDifference::Missing { distribution, .. } = difference {
                let reason = difference.to_string();
                let absent = locked[distribution.as_str()].absent(&reason);
                plugins.extend(absent.filter(|absent| !known.contains(&identity(absent))));
            }
        }
        Ok(())
    }

    /// The first distribution with each name.
    fn by_name(&self) -> HashMap<&str, &LockedDistribution> {
        let named = self.distributions.iter().rev();
        named.map(|known| (known.name.as_str(), known)).collect()
    }
}

/// The contents of a lock file: JSON with one file per line, so that version control shows readable
/// differences.
impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string_pretty(self).map_err(|_| fmt::Error)?;
        writeln!(f, "{text}")
    }
}

impl LockedDistribution {
    /// The plugins of the distribution, marked as failed because it is not installed.
    fn absent(&self, reason: &str) -> impl Iterator<Item = PluginRecord> {
        self.entry_points.iter().map(move |entry| PluginRecord {
            name: entry.name.clone(),
            group: entry.group,
            target: entry.target.clone(),
            extras: entry.extras.clone(),
            origin: PluginOrigin {
                distribution: self.name.clone(),
                version: self.version.clone(),
                path: PathBuf::new(),
            },
            state: PluginState::Failed {
                reason: reason.to_owned(),
            },
        })
    }
}

fn identity(plugin: &PluginRecord) -> (PluginGroup, String) {
    (plugin.group, plugin.qualified_name())
}

/// The current lock entry of each distribution that a lock covers.
fn locked(discovery: &Discovery) -> Vec<(&Distribution, Result<LockedDistribution, Unreadable>)> {
    let mut plugins: BTreeMap<&Path, Vec<&PluginRecord>> = BTreeMap::new();
    for plugin in &discovery.plugins {
        plugins.entry(&plugin.origin.path).or_default().push(plugin);
    }
    let concerned: Vec<_> = discovery
        .distributions
        .iter()
        .map(|found| (found, plugins.remove(found.path.as_path()).unwrap_or_default()))
        .filter(|(found, plugins)| found.name == HOST || !plugins.is_empty())
        .collect();
    let mut owners = Owners::default();
    let files = concerned.iter().map(|(found, plugins)| {
        let sound = plugins
            .iter()
            .filter(|plugin| plugin.state == PluginState::Discovered);
        let modules = sound.map(|plugin| top_module(&plugin.target));
        let own = (found.name == HOST).then_some(HOST);
        files::of(&found.path, &modules.chain(own).collect(), &mut owners)
    });
    let digests = digest::of_all(&files.collect::<Vec<_>>());
    let distributions = concerned.into_iter().zip(digests);
    distributions
        .map(|((found, plugins), files)| {
            let locked = files.map(|files| locked_distribution(found, &plugins, files));
            (found, locked)
        })
        .collect()
}

fn locked_distribution(
    found: &Distribution,
    plugins: &[&PluginRecord],
    files: BTreeMap<String, String>,
) -> LockedDistribution {
    let mut entry_points: Vec<_> = plugins
        .iter()
        .map(|plugin| LockedEntryPoint {
            group: plugin.group,
            name: plugin.name.clone(),
            target: plugin.target.clone(),
            extras: plugin.extras.clone(),
        })
        .collect();
    entry_points.sort();
    LockedDistribution {
        name: found.name.clone(),
        version: found.version.clone(),
        entry_points,
        digest: digest::of_files(&files),
        files,
    }
}

/// The first part of the module in `package.module:attribute`.
fn top_module(target: &str) -> &str {
    target.split(['.', ':']).next().unwrap_or_default()
}
