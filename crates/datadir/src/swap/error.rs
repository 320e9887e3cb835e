//! Errors of replacing a data directory.

use std::io;
use std::path::PathBuf;

use crate::lock::LockError;

/// Replacing a directory, or the cleanup after it, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The target has no parent directory or no file name.
    #[error("replace {}: path must name a directory inside another one", target.display())]
    InvalidTarget {
        /// The data directory to replace.
        target: PathBuf,
    },
    /// The target or its parent cannot be inspected.
    #[error("inspect {}", path.display())]
    Inspect {
        /// The inspected path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The target exists but is not a directory.
    #[error("replace {}: not a directory", target.display())]
    NotADirectory {
        /// The data directory to replace.
        target: PathBuf,
    },
    /// The target is a mount point, which cannot be renamed.
    #[error("replace {}: mount points cannot be renamed; use a directory inside it", target.display())]
    MountPoint {
        /// The data directory to replace.
        target: PathBuf,
    },
    /// The parent of the target is not writable.
    #[error("create staging directory: {} is not writable", parent.display())]
    ParentNotWritable {
        /// The parent directory.
        parent: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A directory cannot be created.
    #[error("create directory {}", dir.display())]
    Create {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// All names for a staging directory are in use.
    #[error("create staging directory for {}: all names are in use; remove unneeded .restoring-* directories", target.display())]
    NoFreeName {
        /// The data directory to replace.
        target: PathBuf,
    },
    /// Another process is building or replacing the same target.
    #[error("another restore is running in {}", dir.display())]
    Busy {
        /// Its directory.
        dir: PathBuf,
    },
    /// Another process has the target's database open.
    #[error("database {} is in use; stop etcd first", db.display())]
    DatabaseInUse {
        /// The database file.
        db: PathBuf,
    },
    /// The lock of the target's database cannot be checked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A new file or directory cannot be synced.
    #[error("sync {}", path.display())]
    Sync {
        /// The path that failed.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The marker file of a directory cannot be read or written.
    #[error("access marker file in {}", dir.display())]
    Marker {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A directory cannot be renamed.
    #[error("rename {} to {}", from.display(), to.display())]
    Rename {
        /// The current path.
        from: PathBuf,
        /// The new path.
        to: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A leftover staging directory cannot be removed.
    #[error("remove leftover directory {}", dir.display())]
    RemoveLeftovers {
        /// The staging directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The target is missing and several complete new directories exist. A user must choose one.
    #[error("recover {}: missing, and several complete directories could replace it: {}", target.display(), list(candidates))]
    Ambiguous {
        /// The data directory to replace.
        target: PathBuf,
        /// The complete new directories.
        candidates: Vec<PathBuf>,
    },
    /// The target is replaced, but the cleanup failed.
    #[error("data directory is replaced, but the cleanup of the previous one failed")]
    AfterSwap {
        /// The failed cleanup operation.
        source: Box<Self>,
    },
}

impl SwapError {
    /// Whether the target was replaced despite the error.
    pub fn is_in_place(&self) -> bool {
        matches!(self, Self::AfterSwap { .. })
    }

    pub(super) fn into_after_swap(self) -> Self {
        Self::AfterSwap {
            source: Box::new(self),
        }
    }

    /// The error for a directory that cannot be created; an unwritable parent has its own variant.
    pub(super) fn create(dir: PathBuf, source: io::Error) -> Self {
        match (source.kind(), dir.parent()) {
            (io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem, Some(parent)) => {
                Self::ParentNotWritable {
                    parent: parent.to_owned(),
                    source,
                }
            }
            _ => Self::Create { dir, source },
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
