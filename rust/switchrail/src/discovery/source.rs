//! An entry of the search path: a folder, or an archive that Python can import from.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use zip::{ZipArchive, result::ZipError};

/// Initial size of the buffer for a file, in bytes. Most files are smaller.
const COMMON: usize = 4096;

/// A folder or an archive that contains metadata folders.
pub(super) enum Source<'a> {
    Folder,
    Archive(&'a Path, RefCell<ZipArchive<BufReader<File>>>),
}

impl<'a> Source<'a> {
    /// Opens an entry of the search path and lists its contents. `None` if it does not exist.
    pub fn open(path: &'a Path) -> io::Result<Option<(Self, Vec<io::Result<OsString>>)>> {
        match fs::read_dir(path) {
            Ok(entries) => {
                let names = entries.map(|entry| Ok(entry?.file_name()));
                Ok(Some((Self::Folder, names.collect())))
            }
            Err(error) if is_absent(&error) && !path.is_file() => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let archive = ZipArchive::new(BufReader::new(File::open(path)?))?;
                let names = archive.file_names().map(|name| {
                    let name = name?;
                    Ok(OsString::from(name.split('/').next().unwrap_or_default()))
                });
                let names: io::Result<BTreeSet<OsString>> = names.collect();
                let names = names?.into_iter().map(Ok).collect();
                Ok(Some((Self::Archive(path, RefCell::new(archive)), names)))
            }
            Err(error) => Err(error),
        }
    }

    /// The first `limit` bytes of a file in the folder or archive; `None` if the file does not exist.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Self::Archive(root, archive) = self else {
            return read_file(path, limit);
        };
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
        match archive.borrow_mut().by_name(&name) {
            Ok(file) => read_all(file, limit).map(Some),
            Err(ZipError::FileNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The first `limit` bytes of a file; `None` if the file does not exist.
pub(super) fn read_file(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    options.read(true);
    // Opening a named pipe would block until a writer opens it. Checking the file type first would cost a
    // system call per file.
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK);
    match options.open(path) {
        Ok(file) => read_all(file, limit).map(Some),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_all(file: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(COMMON);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether an error means that a file or folder does not exist.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
