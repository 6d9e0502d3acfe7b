//! Finds the distributions on a search path and the plugins in them, as Python's `importlib.metadata` would.

pub(crate) mod entry_points;
pub(crate) mod headers;
mod source;
pub(crate) mod text;

use std::collections::{BTreeMap, HashMap, btree_map::Entry};
use std::ffi::{OsStr, OsString};
use std::mem;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::schema::lossy_path;
use crate::shown::{cut, shown};
use crate::{Packages, PluginGroup, PluginOrigin, PluginRecord, PluginState, Schema, normalized_name};
use ProblemCode::{Broken, LeftOver, SameName};
use entry_points::EntryPoint;
use source::Source;
pub(crate) use source::is_absent;

/// The largest `entry_points.txt` to read, in bytes.
const MAX_ENTRY_POINTS: u64 = 1 << 20;

/// An installed distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Its name, normalised as in PEP 503.
    pub name: String,
    /// Its version, if known. For a distribution without plugins, [`discover`] reads the metadata only if the
    /// name of the metadata folder has no version.
    pub version: Option<String>,
    /// Its metadata folder or file.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
}

/// The kind of a problem that discovery found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProblemCode {
    /// The distribution or file cannot be read, or a part of it is missing or invalid.
    Broken,
    /// The folder has another distribution of the same name, which takes precedence.
    SameName,
    /// The metadata was left over from an interrupted installation or removal.
    LeftOver,
}

impl ProblemCode {
    /// The code's name in documents, such as `left_over`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::SameName => "same_name",
            Self::LeftOver => "left_over",
        }
    }
}

/// A problem with a file or folder that discovery looked at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DiscoveryProblem {
    /// The file or folder.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
    /// The kind of problem.
    pub code: ProblemCode,
    /// Readable description of the problem.
    pub message: String,
}

/// The distributions and plugins installed on a search path.
///
/// All lists are sorted, so two machines with the same distributions at the same paths get the same document
/// regardless of the order in which their file systems list folders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// Version of this document format.
    pub schema: Schema,
    /// All distributions that are not shadowed, sorted by name.
    pub distributions: Vec<Distribution>,
    /// All plugins, sorted by group, distribution and name. A plugin with an invalid declaration is already
    /// marked as failed.
    pub plugins: Vec<PluginRecord>,
    /// The problems, sorted by path.
    pub problems: Vec<DiscoveryProblem>,
}

impl Discovery {
    /// The distributions that have a version, for [`PlanRequest::packages`](crate::PlanRequest::packages).
    #[must_use]
    pub fn packages(&self) -> Packages {
        let versions = self.distributions.iter();
        versions
            .filter_map(|found| Some((&found.name, found.version.as_deref()?)))
            .collect()
    }
}

/// Finds the distributions on a search path such as `sys.path`, and the plugins in them. Nothing is imported.
///
/// As in Python, a distribution shadows those of the same normalised name in later folders of the path. If
/// one folder has several of the same name, the one whose metadata folder sorts first is used, and the others
/// are listed as problems. A metadata folder whose metadata has neither name nor version gives way
/// to a later one that has.
///
/// As in Python, folders that do not exist are ignored. Other paths that cannot be read are listed as problems.
/// Archives on the path are read like folders. `docs/discovery.md` lists the differences from
/// `importlib.metadata`.
///
/// ```
/// let found = switchrail::discover(&["/nowhere"]);
/// assert!(found.distributions.is_empty() && found.problems.is_empty());
/// ```
pub fn discover<P: AsRef<Path>>(paths: &[P]) -> Discovery {
    Found::default().look(paths)
}

/// Like [`discover`], but also reads the metadata of all distributions without plugins, and lists problems in
/// it. Takes about twice as long.
pub fn discover_thoroughly<P: AsRef<Path>>(paths: &[P]) -> Discovery {
    let found = Found {
        thorough: true,
        ..Found::default()
    };
    found.look(paths)
}

#[derive(Default)]
struct Found {
    /// Whether to read the metadata of all distributions.
    thorough: bool,
    /// Version and path of each distribution, by name.
    distributions: BTreeMap<String, (Option<String>, PathBuf)>,
    plugins: Vec<(String, PluginRecord)>,
    problems: Vec<DiscoveryProblem>,
    /// Metadata folders without name and version in their metadata, each with the folder of the same name that
    /// was found later and replaced it.
    replaced: HashMap<PathBuf, PathBuf>,
}

impl Found {
    fn look<P: AsRef<Path>>(mut self, paths: &[P]) -> Discovery {
        for path in paths {
            self.add_folder(path.as_ref());
        }
        self.finish()
    }

    fn add_folder(&mut self, folder: &Path) {
        // An empty entry of sys.path is the current folder.
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let (source, names) = match Source::open(folder) {
            Ok(Some(opened)) => opened,
            Ok(None) => return,
            Err(error) => return self.problem(folder, Broken, &format!("cannot be listed: {error}")),
        };
        let mut infos: Vec<OsString> = Vec::new();
        for name in names {
            match name {
                Ok(name) if is_info(&name) => infos.push(name),
                Ok(_) => {}
                Err(error) => {
                    self.problem(folder, Broken, &format!("cannot be listed completely: {error}"));
                }
            }
        }
        infos.sort_unstable();
        for info in infos {
            if let Some((name, version)) = name_and_version(folder, &info.to_string_lossy()) {
                self.add(&source, folder, folder.join(info), name, version);
            }
        }
    }

    fn add(
        &mut self,
        source: &Source,
        folder: &Path,
        path: PathBuf,
        mut name: String,
        mut version: Option<String>,
    ) {
        let headers = || headers::read(|file| source.read(&beside(&path, file), headers::MAX_HEAD));
        if name.is_empty() {
            let Some(spelled) = headers().name else {
                return self.problem(
                    &path,
                    Broken,
                    "has no name, neither in its file name nor in its metadata",
                );
            };
            name = normalized_name(&spelled);
        }
        if name.starts_with('~') {
            let message = "was left over by an interrupted installation, and is ignored";
            return self.problem(&path, LeftOver, message);
        }
        if let Some((_, earlier)) = self.distributions.get(&name) {
            let earlier = earlier.clone();
            if earlier == path {
                return;
            }
            let is_sound = || {
                let found = headers();
                found.name.is_some() || found.version.is_some()
            };
            if !is_left_over(&earlier) || !is_sound() {
                if earlier.parent() == Some(folder) {
                    let (code, message) = passed_over(&path, &earlier);
                    self.problem(&path, code, &message);
                }
                return;
            }
            self.replaced.insert(earlier, path.clone());
        }
        let entry_points = self.entry_points(source, &path.join("entry_points.txt"));
        if version.is_none() || !entry_points.is_empty() || self.thorough {
            let headers = headers();
            for problem in headers.problems {
                self.problem(&path, Broken, &problem);
            }
            version = headers.version.or(version);
            let origin = PluginOrigin {
                distribution: headers.name.unwrap_or_else(|| name.clone()),
                version: version.clone(),
                path: path.clone(),
            };
            let records = entry_points
                .into_iter()
                .map(|entry| (name.clone(), record(entry, origin.clone())));
            self.plugins.extend(records);
        }
        self.distributions.insert(name, (version, path));
    }

    fn entry_points(&mut self, source: &Source, path: &Path) -> Vec<EntryPoint> {
        let text = match source.read(path, MAX_ENTRY_POINTS + 1) {
            Ok(Some(bytes)) if bytes.len() as u64 > MAX_ENTRY_POINTS => {
                self.problem(
                    path,
                    Broken,
                    &format!("cannot be read: it has more than {MAX_ENTRY_POINTS} bytes"),
                );
                return Vec::new();
            }
            Ok(Some(bytes)) => match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) => {
                    self.problem(path, Broken, &format!("is not UTF-8: {}", error.utf8_error()));
                    String::from_utf8_lossy(error.as_bytes()).into_owned()
                }
            },
            Ok(None) => return Vec::new(),
            Err(error) => {
                self.problem(path, Broken, &format!("cannot be read: {error}"));
                return Vec::new();
            }
        };
        let (entries, problems) = entry_points::parse(&text);
        for problem in problems {
            self.problem(path, Broken, &problem);
        }
        entries
    }

    fn problem(&mut self, path: &Path, code: ProblemCode, message: &str) {
        self.problems.push(DiscoveryProblem {
            path: path.to_owned(),
            code,
            message: shown(message).into_owned(),
        });
    }

    fn finish(mut self) -> Discovery {
        self.plugins
            .retain(|(_, plugin)| !self.replaced.contains_key(&plugin.origin.path));
        self.problems
            .retain(|problem| !self.replaced.contains_key(&problem.path));
        for (path, sound) in mem::take(&mut self.replaced) {
            let (code, message) = passed_over(&path, &sound);
            self.problem(&path, code, &message);
        }
        self.plugins
            .sort_by(|(a_name, a), (b_name, b)| (a.group, a_name, &a.name).cmp(&(b.group, b_name, &b.name)));
        let mut plugins: Vec<PluginRecord> = self.plugins.into_iter().map(|(_, record)| record).collect();
        let mut seen: BTreeMap<(PluginGroup, String), PathBuf> = BTreeMap::new();
        for record in &mut plugins {
            let declared = seen.entry((record.group, record.qualified_name()));
            match declared {
                Entry::Vacant(first) => drop(first.insert(record.origin.path.clone())),
                Entry::Occupied(first) => {
                    let distribution = &record.origin.distribution;
                    let reason = if *first.get() == record.origin.path {
                        format!(
                            "{} declares {:?} more than once",
                            shown(distribution),
                            cut(&record.name)
                        )
                    } else {
                        let first = first.get().to_string_lossy();
                        let (first, distribution) = (shown(&first), shown(distribution));
                        format!(
                            "{first} also declares {:?}, for a distribution that is also named {distribution}",
                            cut(&record.name)
                        )
                    };
                    record.state = PluginState::Failed { reason };
                }
            }
        }
        // A folder that is on the path twice reports its problems twice.
        self.problems.sort();
        self.problems.dedup();
        Discovery {
            schema: Schema,
            distributions: self
                .distributions
                .into_iter()
                .map(|(name, (version, path))| Distribution { name, version, path })
                .collect(),
            plugins,
            problems: self.problems,
        }
    }
}

/// Whether a file name is that of a metadata folder or file, ignoring case.
pub(crate) fn is_info(file_name: &OsStr) -> bool {
    let name = file_name.as_encoded_bytes();
    [&b".dist-info"[..], b".egg-info"].into_iter().any(|ending| {
        let start = name.len().checked_sub(ending.len());
        start.is_some_and(|start| name[start..].eq_ignore_ascii_case(ending))
    }) || name.eq_ignore_ascii_case(b"egg-info")
}

/// The problem to report for a metadata folder that is ignored because `other` has the same name.
fn passed_over(info: &Path, other: &Path) -> (ProblemCode, String) {
    let (code, left_over) = if is_left_over(info) {
        (LeftOver, "has no metadata, and ")
    } else {
        (SameName, "")
    };
    let other = other.display();
    (
        code,
        format!("{left_over}is ignored in favour of {other}, which has the same name"),
    )
}

/// Whether the metadata in a folder is missing or has neither name nor version, as after an interrupted removal.
fn is_left_over(info: &Path) -> bool {
    if !info.is_dir() {
        return false;
    }
    let headers = headers::read(|file| source::read_file(&beside(info, file), headers::MAX_HEAD));
    headers.name.is_none() && headers.version.is_none()
}

/// Parses name and version from the name of a metadata folder or file; `None` if `file_name` is neither.
fn name_and_version(folder: &Path, file_name: &str) -> Option<(String, Option<String>)> {
    let is = |extension: &str, expected: &str| extension.eq_ignore_ascii_case(expected);
    let egg: String;
    let stem = match file_name.rsplit_once('.') {
        Some((stem, extension)) if is(extension, "dist-info") || is(extension, "egg-info") => stem,
        // A folder `EGG-INFO` has no name of its own: the enclosing egg is named NAME-VERSION-PYTHON.egg.
        None if is(file_name, "egg-info") => {
            egg = folder.file_name()?.to_string_lossy().into_owned();
            egg.rsplit_once('.')
                .filter(|(_, extension)| is(extension, "egg"))?
                .0
        }
        _ => return None,
    };
    let mut parts = stem.split('-');
    let name = normalized_name(parts.next().unwrap_or_default());
    // A `-` in a version is written as `_` in the folder's name, so a version with `_` is ambiguous.
    let version = parts
        .next()
        .filter(|version| !version.is_empty() && !version.contains('_'));
    Some((name, version.map(str::to_owned)))
}

/// The path of a file in a metadata folder; if the name is empty, `info` itself.
fn beside(info: &Path, name: &str) -> PathBuf {
    if name.is_empty() {
        info.to_owned()
    } else {
        info.join(name)
    }
}

fn record(entry: EntryPoint, origin: PluginOrigin) -> PluginRecord {
    let EntryPoint { name, group, value } = entry;
    let (target, extras, state) = match entry_points::parse_value(&value) {
        _ if name.is_empty() => {
            let reason = format!("its entry point has no name, only the target {:?}", cut(&value));
            (value, Vec::new(), PluginState::Failed { reason })
        }
        Some((target, extras)) => (target, extras, PluginState::Discovered),
        None => {
            let reason = format!("its target is {:?}; valid: module:attribute", cut(&value));
            (value, Vec::new(), PluginState::Failed { reason })
        }
    };
    PluginRecord {
        name,
        group,
        target,
        extras,
        origin,
        state,
    }
}
