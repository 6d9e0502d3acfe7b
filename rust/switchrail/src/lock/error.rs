//! Errors of writing, reading and applying a lock.

use std::path::PathBuf;

use serde_json::json;

use super::LockDifference;
use crate::error::core_error;

/// Why a lock could not be written, read or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock file cannot be read.
    #[error("the lock {} cannot be read: {problem}", .path.display())]
    Read {
        /// The lock file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The file is not a lock.
    #[error("{} is not a lock: {problem}; valid: a file that `switchrail lock` wrote", .path.display())]
    Document {
        /// The lock file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A distribution's files cannot be listed or read.
    #[error("the files of {distribution} cannot be digested: {}: {problem}", .path.display())]
    File {
        /// The distribution.
        distribution: String,
        /// The unreadable file, or the metadata that should list the files.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The installed Switchrail differs from the lock.
    #[error("{difference}; install the locked version, or write a new lock with `switchrail lock`")]
    Host {
        /// The difference.
        difference: LockDifference,
    },
}

core_error! { LockError {
    Self::Read { path, problem } => "lock_read", json!({"path": path.to_string_lossy(), "problem": problem});
    Self::Document { path, problem } => "lock_document", json!({"path": path.to_string_lossy(), "problem": problem});
    Self::File { distribution, path, problem } => "lock_file",
        json!({"distribution": distribution, "path": path.to_string_lossy(), "problem": problem});
    Self::Host { difference } => "lock_host", json!({"difference": difference});
} }
