//! Errors that prevent a verification. Damage is not an error but a fault in the report.

use std::io;
use std::path::{Path, PathBuf};

use crate::lock::LockError;

/// The data directory cannot be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A directory cannot be listed.
    #[error("list directory {}", dir.display())]
    List {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file cannot be inspected or opened.
    #[error("open {}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A read failed with an I/O error.
    #[error("read {}, {place}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Position in the file.
        place: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The database lock cannot be checked.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl VerifyError {
    pub(super) fn open(file: &Path, source: io::Error) -> Self {
        Self::Open {
            file: file.to_owned(),
            source,
        }
    }

    pub(super) fn list(dir: &Path, source: io::Error) -> Self {
        Self::List {
            dir: dir.to_owned(),
            source,
        }
    }
}

/// Whether a read failed because the file is too short, which is damage and not an I/O error.
pub(super) fn is_truncated_read(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}
