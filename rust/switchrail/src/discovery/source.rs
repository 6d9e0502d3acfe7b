//! What an entry of the path may be: a folder, or an archive that Python imports from.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use zip::{ZipArchive, result::ZipError};

/// A folder or an archive with metadata folders in it.
pub(super) enum Source<'a> {
    Folder(&'a Path),
    Archive(RefCell<ZipArchive<BufReader<File>>>),
}

impl<'a> Source<'a> {
    /// Opens an entry of the path, and lists what is in it; `None` where there is no such entry.
    pub fn open(path: &'a Path) -> io::Result<Option<(Self, Vec<io::Result<OsString>>)>> {
        match fs::read_dir(path) {
            Ok(entries) => {
                let names = entries.map(|entry| Ok(entry?.file_name()));
                Ok(Some((Self::Folder(path), names.collect())))
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
                Ok(Some((Self::Archive(RefCell::new(archive)), names)))
            }
            Err(error) => Err(error),
        }
    }

    /// The first `limit` bytes of a file of a metadata folder, or of the metadata itself where `name` is empty; `None`
    /// where there is no such file.
    pub fn read(&self, info: &OsStr, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Folder(folder) => {
                let info = folder.join(info);
                read_file(&if name.is_empty() { info } else { info.join(name) }, limit)
            }
            Self::Archive(archive) => {
                let name = format!("{}/{name}", info.to_string_lossy());
                match archive.borrow_mut().by_name(name.trim_end_matches('/')) {
                    Ok(file) => read_all(file, limit).map(Some),
                    Err(ZipError::FileNotFound) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }
}

fn read_file(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    // Asked first, because opening a named pipe would wait for a writer; most distributions have no such file anyway.
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => read_all(File::open(path)?, limit).map(Some),
        Ok(_) => Err(io::Error::other("it is not a file")),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_all(file: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
