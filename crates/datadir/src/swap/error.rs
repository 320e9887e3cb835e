//! Why a directory was not swapped.

use std::io;
use std::path::PathBuf;

use crate::lock::LockError;

/// Why a directory was not swapped, or not tidied up after.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapError {
    /// The target is not a path that names something in a directory.
    #[error("{} names no directory that could be replaced", target.display())]
    InvalidTarget {
        /// The target.
        target: PathBuf,
    },
    /// The target or the directory above it cannot be looked at.
    #[error("look at {}", path.display())]
    Inspect {
        /// What was looked at.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The target exists and is no directory.
    #[error("{} is not a directory", target.display())]
    NotADirectory {
        /// The target.
        target: PathBuf,
    },
    /// The target is a mount point, which cannot be renamed.
    #[error("{} is a mount point and cannot be replaced: use a directory inside it", target.display())]
    MountPoint {
        /// The target.
        target: PathBuf,
    },
    /// The directory above the target does not let itself be written to.
    #[error("{} is not writable, so nothing can be built beside the data directory", parent.display())]
    ParentNotWritable {
        /// The directory above.
        parent: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory cannot be made.
    #[error("create {}", dir.display())]
    Create {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Every name that could be used is taken.
    #[error("no free name beside {}: remove the .restoring directories that are not needed", target.display())]
    NoFreeName {
        /// The target.
        target: PathBuf,
    },
    /// Another process builds for the same target or is about to finish.
    #[error("another restore is at work in {}", dir.display())]
    Busy {
        /// Its directory.
        dir: PathBuf,
    },
    /// Someone has the target's database open.
    #[error("{} is in use: stop etcd first", db.display())]
    DatabaseInUse {
        /// The database.
        db: PathBuf,
    },
    /// It cannot be said whether someone has the target's database open.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Something that was built did not reach the disk.
    #[error("sync {}", path.display())]
    Sync {
        /// What was synced.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mark of a directory cannot be read or written.
    #[error("mark {}", dir.display())]
    Marker {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory cannot be renamed.
    #[error("rename {} to {}", from.display(), to.display())]
    Rename {
        /// Its name.
        from: PathBuf,
        /// What it was to be called.
        to: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Leftovers of a crashed run cannot be removed.
    #[error("remove {}", dir.display())]
    RemoveLeftovers {
        /// The leftovers.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no target but several complete new directories; which of them is wanted cannot be known.
    #[error("{} is missing and several directories could take its place: {}", target.display(), list(candidates))]
    Ambiguous {
        /// The target.
        target: PathBuf,
        /// The directories.
        candidates: Vec<PathBuf>,
    },
    /// The new directory is in place, but tidying up after the swap failed.
    #[error("the new directory is in place, but the old one could not be put away")]
    AfterSwap {
        /// What failed.
        source: Box<Self>,
    },
}

impl SwapError {
    /// Whether the new directory is in place nevertheless.
    pub fn is_in_place(&self) -> bool {
        matches!(self, Self::AfterSwap { .. })
    }

    pub(super) fn into_after_swap(self) -> Self {
        Self::AfterSwap {
            source: Box::new(self),
        }
    }

    /// For a directory that cannot be made: a parent that refuses is worth its own name.
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
