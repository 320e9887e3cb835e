//! What keeps a verification from looking. Damage is not among it: that is a fault of the report.

use std::io;
use std::path::{Path, PathBuf};

use crate::lock::LockError;

/// Why a data directory could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A folder cannot be listed.
    #[error("list {}", dir.display())]
    List {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be looked up or opened.
    #[error("open {}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The disk refused a read.
    #[error("read {}, {place}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Where in it.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// Whether the database is in use cannot be told.
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

/// Whether a failed read says something about the file, which became shorter, and nothing about the disk.
pub(super) fn is_truncated_read(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}
