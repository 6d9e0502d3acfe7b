//! Finds the files that belong to an installed distribution.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::discovery::{is_absent, is_info};

/// The paths of files, by their names in a lock, which are relative to an entry of the search path.
pub(super) type Files = BTreeMap<String, PathBuf>;

/// Files in the metadata folder that the installer writes for itself.
const NOTES: [&str; 6] = [
    "INSTALLER",
    "RECORD",
    "REQUESTED",
    "direct_url.json",
    "uv_build.json",
    "uv_cache.json",
];

/// Extensions of files that Python can import.
const IMPORTED: [&str; 4] = ["py", "pyc", "pyd", "so"];

/// A path that could not be read, and the problem.
#[derive(Debug, Clone)]
pub(super) struct Unreadable {
    pub path: PathBuf,
    pub problem: String,
}

impl Unreadable {
    pub fn new(path: &Path, problem: &impl ToString) -> Self {
        Self {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// The files of the distribution whose metadata folder is `info`.
///
/// - A wheel: the files in its `RECORD`, and all other files that Python could import from its packages or
///   instead of its modules.
/// - An editable install: the packages and modules of its sources, and the metadata. Apart from metadata, its
///   `RECORD` lists only `.pth` files and modules that lead to the sources.
/// - A distribution without a list of its files, such as a project with an `egg-info`: its metadata, and its
///   top-level packages and modules.
/// - A distribution in an archive: the archive.
///
/// `modules` are the top-level modules that the entry points name. It is an error if one of these modules is
/// not found, because it could be imported without being locked. `owners` tells which files of a shared
/// namespace package belong to other distributions.
pub(super) fn of(info: &Path, modules: &BTreeSet<&str>, owners: &mut Owners) -> Result<Files, Unreadable> {
    if let Some(archive) = info.ancestors().skip(1).find(|path| path.is_file()) {
        return Ok(Files::from([(file_name(archive), archive.to_owned())]));
    }
    let site = info.parent().unwrap_or(Path::new(""));
    let top_level = read(&info.join("top_level.txt"))?;
    let declared = top_level.as_deref().unwrap_or_default().split_whitespace();
    let mut search = Search {
        info: file_name(info),
        site,
        modules: modules
            .iter()
            .copied()
            .chain(declared)
            .map(str::to_owned)
            .collect(),
        every_module: top_level.is_none(),
        files: Files::new(),
        above: Vec::new(),
    };
    let recorded = recorded(site, &search.info)?;
    match &recorded {
        Some(paths) => search.add_recorded(paths, owners)?,
        None => search.add_metadata()?,
    }
    search.add_unrecorded()?;
    // A recorded file that does not exist is not an error here: it is a difference from the lock.
    let found = search.top_modules();
    let recorded: HashSet<&str> = recorded
        .iter()
        .flatten()
        .filter_map(|path| top_module(path))
        .collect();
    match modules
        .iter()
        .find(|module| !found.contains(**module) && !recorded.contains(**module))
    {
        Some(module) => Err(Unreadable::new(
            info,
            &format!("none of its files leads to the module {module:?}, which its entry point names"),
        )),
        None => Ok(search.files),
    }
}

/// The paths that the installer of a distribution recorded, relative to the folder `site`. `None` if there is no
/// record.
fn recorded(site: &Path, info: &str) -> Result<Option<Vec<String>>, Unreadable> {
    let folder = site.join(info);
    if let Some(record) = read(&folder.join("RECORD"))? {
        let paths = record.lines().map(recorded_path);
        return Ok(Some(paths.map(|path| normal(&path)).collect()));
    }
    let installed = read(&folder.join("installed-files.txt"))?;
    let within = |line: &str| normal(&format!("{info}/{line}"));
    Ok(installed.map(|text| text.lines().map(within).collect()))
}

/// The distributions that recorded each file of a site folder. Read when first needed.
#[derive(Default)]
pub(super) struct Owners(HashMap<PathBuf, HashMap<String, Vec<String>>>);

impl Owners {
    /// Whether a distribution with a metadata folder other than `info` recorded the file.
    fn has_another(&mut self, site: &Path, info: &str, file: &str) -> Result<bool, Unreadable> {
        if !self.0.contains_key(site) {
            self.0.insert(site.to_owned(), Self::of(site)?);
        }
        let owners = self.0[site].get(file);
        Ok(owners.is_some_and(|owners| owners.iter().any(|owner| owner != info)))
    }

    fn of(site: &Path) -> Result<HashMap<String, Vec<String>>, Unreadable> {
        let mut owners: HashMap<String, Vec<String>> = HashMap::new();
        for path in list(site)?
            .iter()
            .filter(|path| path.file_name().is_some_and(is_info))
        {
            let info = file_name(path);
            // Metadata that cannot be read does not own files.
            for file in recorded(site, &info).ok().flatten().unwrap_or_default() {
                owners.entry(file).or_default().push(info.clone());
            }
        }
        Ok(owners)
    }
}

struct Search<'a> {
    /// Name of the metadata folder.
    info: String,
    /// The folder that contains the metadata folder.
    site: &'a Path,
    /// Top-level modules known to belong to the distribution.
    modules: BTreeSet<String>,
    /// Whether all modules that a `.pth` file leads to belong to the distribution.
    every_module: bool,
    files: Files,
    /// The folders that are being walked, from the outermost to the innermost, with links resolved.
    above: Vec<PathBuf>,
}

impl Search<'_> {
    fn is_editable(&self, paths: &[String]) -> bool {
        let noted = || {
            let text = read(&self.site.join(&self.info).join("direct_url.json")).ok()??;
            let url: serde_json::Value = serde_json::from_str(&text).ok()?;
            url["dir_info"]["editable"].as_bool()
        };
        let leads = |path: &String| {
            path.starts_with("__editable__")
                || is_top_level(path, "pth")
                    && folders_of(&self.site.join(path)).is_ok_and(|to| !to.is_empty())
        };
        noted().unwrap_or(false) || paths.iter().any(leads)
    }

    fn add_recorded(&mut self, paths: &[String], owners: &mut Owners) -> Result<(), Unreadable> {
        let editable = self.is_editable(paths);
        let mut leading: BTreeMap<&String, Vec<PathBuf>> = BTreeMap::new();
        for path in paths.iter().filter(|path| editable && !self.is_left_out(path)) {
            let full = self.site.join(path);
            if is_top_level(path, "pth") {
                leading.insert(path, folders_of(&full)?);
            } else if is_top_level(path, "py") {
                let mapped = self.mapped(&full)?;
                if !mapped.is_empty() {
                    leading.insert(path, mapped);
                }
            }
        }
        let own = || paths.iter().filter(|path| !leading.contains_key(path));
        self.add_rivals(own())?;
        for path in own()
            .filter(|path| !path.is_empty() && !self.is_left_out(path))
            .cloned()
            .collect::<Vec<_>>()
        {
            let full = self.site.join(&path);
            self.add_file(path, full)?;
        }
        for (path, led_to) in leading {
            if is_top_level(path, "pth") {
                for folder in led_to {
                    self.add_modules(&folder, self.every_module)?;
                }
            } else {
                self.add_mapped(led_to)?;
            }
        }
        self.add_namespaces(paths, owners)?;
        self.add_packages()
    }

    /// Adds the files that Python could import from the namespace packages of the distribution's recorded
    /// modules, except files that another distribution recorded.
    fn add_namespaces(&mut self, paths: &[String], owners: &mut Owners) -> Result<(), Unreadable> {
        let modules = paths.iter().filter(|path| self.is_module(path));
        let folders = modules.filter_map(|path| Some(path.split_once('/')?.0));
        let is_namespace = |folder: &&str| {
            let package = format!("{folder}/__init__.");
            let mut initial = self.files.range(package.clone()..);
            initial.next().is_none_or(|(name, _)| !name.starts_with(&package))
        };
        for namespace in folders.filter(is_namespace).collect::<BTreeSet<_>>() {
            let folder = self.site.join(namespace);
            if !folder.is_dir() {
                continue;
            }
            let mut found = Search {
                files: Files::new(),
                modules: BTreeSet::new(),
                above: Vec::new(),
                info: self.info.clone(),
                ..*self
            };
            found.walk(&folder, namespace, is_imported)?;
            for (name, path) in found.files {
                if !self.files.contains_key(&name) && !owners.has_another(self.site, &self.info, &name)? {
                    self.files.insert(name, path);
                }
            }
        }
        Ok(())
    }

    /// Whether a recorded path is a module in the site folder.
    fn is_module(&self, path: &str) -> bool {
        is_imported(Path::new(path)) && !path.starts_with("../") && !self.is_left_out(path)
    }

    /// Adds the files that Python could import from the distribution's known packages in the site folder.
    fn add_packages(&mut self) -> Result<(), Unreadable> {
        let known = self.files.iter().filter_map(|(name, path)| {
            let (package, module) = name.rsplit_once('/')?;
            let is_its_own = stem(module) == "__init__" && is_imported(path) && *path == self.site.join(name);
            is_its_own.then(|| package.to_owned())
        });
        let packages: BTreeSet<String> = known.collect();
        let is_inner = |package: &str| {
            let mut outer = package.rmatch_indices('/').map(|(at, _)| &package[..at]);
            outer.any(|outer| packages.contains(outer))
        };
        for package in packages.iter().filter(|package| !is_inner(package)) {
            self.walk(&self.site.join(package), package, is_imported)?;
        }
        Ok(())
    }

    /// Adds the files that Python could import instead of a recorded module or of the sources: a package of
    /// the same name in the same folder, or a file with another extension.
    fn add_rivals<'p>(&mut self, paths: impl Iterator<Item = &'p String>) -> Result<(), Unreadable> {
        let mut modules = BTreeMap::from([("", self.modules.clone())]);
        for path in paths.filter(|path| self.is_module(path)) {
            for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
                let (folder, name) = path[..at].rsplit_once('/').unwrap_or(("", &path[..at]));
                let names = modules.entry(folder).or_default();
                names.insert(stem(name).to_owned());
            }
        }
        for (folder, names) in modules {
            let within = self.site.join(folder);
            for path in within
                .is_dir()
                .then(|| list(&within))
                .transpose()?
                .unwrap_or_default()
            {
                let name = file_name(&path);
                if !names.contains(stem(&name)) {
                    continue;
                }
                let candidates = if path.is_dir() {
                    list(&path)?
                } else {
                    vec![path.clone()]
                };
                let is_rival = |file: &&PathBuf| {
                    is_imported(file) && (**file == path || stem(&file_name(file)) == "__init__")
                };
                for file in candidates.iter().filter(is_rival) {
                    let key = file.strip_prefix(self.site).unwrap_or(file);
                    self.add_file(normal(&key.to_string_lossy()), file.clone())?;
                }
            }
        }
        Ok(())
    }

    fn add_metadata(&mut self) -> Result<(), Unreadable> {
        for name in ["METADATA", "PKG-INFO", "entry_points.txt"] {
            let path = format!("{}/{name}", self.info);
            self.add_file(path.clone(), self.site.join(path))?;
        }
        Ok(())
    }

    /// Adds those of the distribution's top-level modules beside the metadata that have no known file yet.
    fn add_unrecorded(&mut self) -> Result<(), Unreadable> {
        let known: HashSet<String> = self.top_modules().into_iter().map(str::to_owned).collect();
        self.modules.retain(|module| !known.contains(module));
        self.add_modules(self.site, false)
    }

    /// Whether to leave a file out, because it may differ between installations of the same distribution.
    fn is_left_out(&self, path: &str) -> bool {
        let mut parts = path.rsplit('/').skip(1);
        let is_script = path.starts_with("../") && matches!(parts.next(), Some("bin" | "Scripts"));
        let note = path
            .strip_prefix(&self.info)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| NOTES.contains(&rest));
        is_script || note || path.split('/').any(|part| part == "__pycache__")
    }

    /// Adds the packages and modules in a folder: every one, or only the distribution's own.
    fn add_modules(&mut self, folder: &Path, every: bool) -> Result<(), Unreadable> {
        for path in list(folder)? {
            let name = file_name(&path);
            let module = stem(&name);
            let own = self.modules.contains(module);
            if path.is_dir() {
                if name == module && (own || every && path.join("__init__.py").is_file()) {
                    self.walk(&path, &name, |_| true)?;
                }
            } else if is_imported(&path) && !module.is_empty() && (own || every) {
                self.add_file(name, path)?;
            }
        }
        Ok(())
    }

    /// The existing packages and modules whose absolute paths are string literals in a finder module.
    fn mapped(&self, finder: &Path) -> Result<Vec<PathBuf>, Unreadable> {
        let text = read(finder)?.unwrap_or_default();
        let mapped = text
            .lines()
            .flat_map(string_literals)
            .map(PathBuf::from)
            .filter_map(|path| {
                let package = path.parent().filter(|_| path.ends_with("__init__.py"));
                let path = package.map_or(path.clone(), Path::to_owned);
                let is_package =
                    self.modules.contains(&file_name(&path)) || path.join("__init__.py").is_file();
                let counts = path.is_absolute()
                    && (path.is_dir() && is_package || path.is_file() && is_imported(&path));
                counts.then_some(path)
            });
        let mapped: BTreeSet<PathBuf> = mapped.collect();
        let is_inner = |path: &PathBuf| path.ancestors().skip(1).any(|outer| mapped.contains(outer));
        Ok(mapped.iter().filter(|path| !is_inner(path)).cloned().collect())
    }

    fn add_mapped(&mut self, mapped: Vec<PathBuf>) -> Result<(), Unreadable> {
        for path in mapped {
            if path.is_dir() {
                self.walk(&path, &file_name(&path), |_| true)?;
            } else {
                self.add_file(file_name(&path), path)?;
            }
        }
        Ok(())
    }

    /// Adds the files in a folder and its subfolders. Links to an enclosing folder are not followed.
    fn walk(&mut self, folder: &Path, name: &str, wanted: fn(&Path) -> bool) -> Result<(), Unreadable> {
        let resolved = fs::canonicalize(folder).map_err(|error| Unreadable::new(folder, &error))?;
        if self.above.contains(&resolved) {
            return Ok(());
        }
        self.above.push(resolved);
        for path in list(folder)? {
            let part = file_name(&path);
            if part.starts_with('.') || part == "__pycache__" {
                continue;
            }
            let name = format!("{name}/{part}");
            if path.is_dir() {
                self.walk(&path, &name, wanted)?;
            } else if wanted(&path) {
                self.add_file(name, path)?;
            }
        }
        self.above.pop();
        Ok(())
    }

    /// Adds a file if it exists. Of two files with the same name, the first is kept, as Python would import
    /// it.
    fn add_file(&mut self, name: String, path: PathBuf) -> Result<(), Unreadable> {
        // Only regular files: opening a named pipe would block until a writer opens it.
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                self.files.entry(name).or_insert(path);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(Unreadable::new(&path, &error)),
        }
    }

    fn top_modules(&self) -> HashSet<&str> {
        self.files.keys().filter_map(|name| top_module(name)).collect()
    }
}

/// The top-level module or package of a file.
fn top_module(path: &str) -> Option<&str> {
    match path.split_once('/') {
        Some((package, _)) => Some(package),
        None => is_imported(Path::new(path)).then(|| stem(path)),
    }
}

/// The first field of a line of `RECORD`, which is CSV.
fn recorded_path(line: &str) -> String {
    let Some(quoted) = line.strip_prefix('"') else {
        return line.split(',').next().unwrap_or_default().to_owned();
    };
    let mut path = String::new();
    let mut letters = quoted.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '"' && letters.next_if_eq(&'"').is_none() {
            break;
        }
        path.push(letter);
    }
    path
}

/// The path with `/` as the separator, and with `..` only at its start.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The folders that a `.pth` file adds to `sys.path`.
fn folders_of(pth: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let text = read(pth)?.unwrap_or_default();
    let site = pth.parent().unwrap_or(Path::new(""));
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let folders = lines.map(|line| site.join(line)).filter(|path| path.is_dir());
    Ok(folders.collect())
}

/// The string literals in a line of Python code. Handles only escaped quotes and backslashes.
fn string_literals(line: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut letters = line.chars();
    while let Some(quote) = letters.find(|letter| matches!(letter, '\'' | '"')) {
        let mut literal = String::new();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => literal.extend(letters.next()),
                letter if letter == quote => {
                    literals.push(literal);
                    break;
                }
                letter => literal.push(letter),
            }
        }
    }
    literals
}

/// Whether the path is a file directly in the site folder, with this extension.
fn is_top_level(path: &str, extension: &str) -> bool {
    !path.contains('/') && Path::new(path).extension() == Some(OsStr::new(extension))
}

fn is_imported(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| IMPORTED.contains(&extension))
}

/// The module name of a file or folder.
fn stem(name: &str) -> &str {
    name.split('.').next().unwrap_or_default()
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The paths in a folder, sorted, because file systems list folders in an arbitrary order.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    let paths = || {
        fs::read_dir(folder)?
            .map(|entry| Ok(entry?.path()))
            .collect::<io::Result<Vec<_>>>()
    };
    let mut paths = paths().map_err(|error| Unreadable::new(folder, &error))?;
    paths.sort_unstable();
    Ok(paths)
}

/// The text of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>, Unreadable> {
    // Opening a named pipe would block until a writer opens it.
    let bytes = fs::metadata(path).and_then(|metadata| {
        if metadata.is_file() {
            fs::read(path)
        } else {
            Err(io::Error::other("is not a regular file"))
        }
    });
    match bytes {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(Unreadable::new(path, &error)),
    }
}
