//! Reads documents, and checks their schema version.

#[cfg(unix)]
use std::os::unix::fs::OpenOptionsExt;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use serde::{Deserialize, Serialize, Serializer};

use crate::CoreError;

/// Version of the JSON form of all top-level documents: discovery, lock, snapshot, commit, layout, decision,
/// route plan and fingerprint.
///
/// It increases when older readers would misread the new form. A new field alone does not increase it.
pub const SCHEMA_VERSION: u32 = 1;

/// The `schema` field of a document. It is written as [`SCHEMA_VERSION`]. Reading any other version is an
/// error.
///
/// ```
/// use switchrail::Schema;
///
/// let error = serde_json::from_str::<Schema>("7").unwrap_err();
/// assert_eq!(error.to_string(), "unknown schema version 7; this build reads version 1");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Schema;

/// A document of another schema version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown schema version {found}; this build reads version {SCHEMA_VERSION}")]
pub struct SchemaError {
    /// The version that was found.
    pub found: u32,
}

impl CoreError for SchemaError {
    fn code(&self) -> &'static str {
        "unknown_schema"
    }

    fn fields(&self) -> serde_json::Value {
        serde_json::json!({"found": self.found, "valid": [SCHEMA_VERSION]})
    }
}

impl TryFrom<u32> for Schema {
    type Error = SchemaError;

    fn try_from(found: u32) -> Result<Self, SchemaError> {
        if found == SCHEMA_VERSION {
            Ok(Self)
        } else {
            Err(SchemaError { found })
        }
    }
}

impl From<Schema> for u32 {
    fn from(_: Schema) -> Self {
        SCHEMA_VERSION
    }
}

/// Largest accepted document, in bytes.
const LARGEST: u64 = 1 << 28;

/// Reads a document. Refuses files that are not regular (a pipe could block) or too large.
pub(crate) fn read_document(path: &Path) -> io::Result<Vec<u8>> {
    read_file(path, LARGEST)
}

/// Reads a regular file of at most `limit` bytes. Checks the opened file instead of the path, and limits the
/// read itself, because path and size can change in between.
fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    options.custom_flags(libc::O_NONBLOCK); // Without it, opening a pipe would block until a writer opens it.
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let problem = format!("it has more than {limit} bytes, the limit");
        return Err(io::Error::other(problem));
    }
    Ok(bytes)
}

/// Serialises a path. Parts that are not UTF-8, which serde would refuse, become replacement characters.
pub(crate) fn lossy_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_limit() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let bytes = std::fs::read(path).unwrap();
        let size = bytes.len() as u64;
        assert_eq!(read_file(path, size).unwrap(), bytes);
        let problem = read_file(path, size - 1).unwrap_err().to_string();
        assert!(problem.starts_with("it has more than "), "{problem}");
        assert!(read_file(path.parent().unwrap(), size).is_err());
    }

    /// The kernel reports a size of 0 for such files.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_hides_its_size_has_a_limit_too() {
        assert!(read_file(Path::new("/proc/self/maps"), 16).is_err());
    }
}
