//! Errors of writing, reading and applying a lock.

use std::path::PathBuf;

use super::LockDifference;
use crate::CoreError;

/// Why a lock could not be written, read or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock file cannot be read.
    #[error("the lock {} cannot be read: {problem}", .path.display())]
    Read {
        /// The lock file.
        path: PathBuf,
        /// The operating system's error.
        problem: String,
    },
    /// The file is not a lock.
    #[error("{} is no lock: {problem}; valid: what `switchrail lock` writes", .path.display())]
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
    #[error("{difference}; install what was locked, or write a new lock with `switchrail lock`")]
    Host {
        /// The difference.
        difference: LockDifference,
    },
}

impl CoreError for LockError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "lock_read",
            Self::Document { .. } => "lock_document",
            Self::File { .. } => "lock_file",
            Self::Host { .. } => "lock_host",
        }
    }

    fn fields(&self) -> serde_json::Value {
        match self {
            Self::Read { path, problem } | Self::Document { path, problem } => {
                serde_json::json!({"path": path.to_string_lossy(), "problem": problem})
            }
            Self::File {
                distribution,
                path,
                problem,
            } => {
                serde_json::json!({"distribution": distribution, "path": path.to_string_lossy(), "problem": problem})
            }
            Self::Host { difference } => serde_json::json!({"difference": difference}),
        }
    }
}
