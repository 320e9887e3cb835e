//! The target directory, its state, and the names beside it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

use super::marker;
use crate::durable_fs;
use crate::lock::{self, DatabaseLock, LockError};
use crate::swap::SwapError;

/// State of the target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    Missing,
    Directory,
}

/// A target with its canonical path.
#[derive(Clone, Debug)]
pub(super) struct SwapTarget {
    pub(super) path: PathBuf,
    parent: PathBuf,
    name: OsString,
}

impl SwapTarget {
    /// Creates the missing parents of `target`.
    pub(super) fn create_parent(target: &Path) -> Result<(), SwapError> {
        let parent = parent_dir(target)?;
        durable_fs::create_private_dirs(&parent).map_err(|source| SwapError::create(parent, source))
    }

    /// Resolves symbolic links, so that the directory is replaced and not a link to it.
    pub(super) fn resolve(target: &Path) -> Result<Self, SwapError> {
        let inspect_error = |path: &Path, source| SwapError::Inspect {
            path: path.to_owned(),
            source,
        };
        let real = match fs::symlink_metadata(target) {
            Ok(_) => fs::canonicalize(target).map_err(|source| inspect_error(target, source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = parent_dir(target)?;
                let name = target.file_name().ok_or_else(|| invalid_target(target))?;
                fs::canonicalize(&parent)
                    .map_err(|source| inspect_error(&parent, source))?
                    .join(name)
            }
            Err(source) => return Err(inspect_error(target, source)),
        };
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(invalid_target(target));
        };
        Ok(Self {
            parent: parent.to_owned(),
            name: name.to_owned(),
            path: real.clone(),
        })
    }

    /// Checks the target; fails if it cannot be swapped.
    pub(super) fn read_state(&self) -> Result<TargetState, SwapError> {
        let inspect_error = |path: &Path, source| SwapError::Inspect {
            path: path.to_owned(),
            source,
        };
        let there = match fs::symlink_metadata(&self.path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(TargetState::Missing);
            }
            Err(source) => return Err(inspect_error(&self.path, source)),
        };
        if !there.is_dir() {
            return Err(SwapError::NotADirectory {
                target: self.path.clone(),
            });
        }
        let parent =
            fs::metadata(&self.parent).map_err(|source| inspect_error(&self.parent, source))?;
        // rename(2) fails with EBUSY or EXDEV on a mount point; detect it before the new directory is built.
        if parent.dev() != there.dev() || is_mount_root(&self.path) {
            return Err(SwapError::MountPoint {
                target: self.path.clone(),
            });
        }
        Ok(TargetState::Directory)
    }

    fn database_path(&self) -> PathBuf {
        self.path.join("member/snap/db")
    }

    /// Fails while etcd runs on the target.
    pub(super) fn ensure_not_in_use(&self) -> Result<(), SwapError> {
        let db = self.database_path();
        if lock::is_in_use(&db)? {
            Err(SwapError::DatabaseInUse { db })
        } else {
            Ok(())
        }
    }

    /// Locks the target's database against etcd; `None` if it does not exist.
    pub(super) fn lock_database(&self) -> Result<Option<DatabaseLock>, SwapError> {
        match lock::lock_database(&self.database_path()) {
            Ok(held) => Ok(Some(held)),
            Err(LockError::Held { file }) => Err(SwapError::DatabaseInUse { db: file }),
            Err(LockError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The path of a staging directory.
    pub(super) fn staging_path(&self, attempt: u32) -> PathBuf {
        let process = std::process::id();
        let unique = match attempt {
            0 => format!("{process}"),
            _ => format!("{process}-{attempt}"),
        };
        self.parent
            .join(self.sibling_name(&format!("{STAGING_SUFFIX}{unique}")))
    }

    /// Lists directories beside the target with a staging name, sorted.
    pub(super) fn list_staging_dirs(&self) -> Result<Vec<PathBuf>, SwapError> {
        let inspect_error = |source| SwapError::Inspect {
            path: self.parent.clone(),
            source,
        };
        let prefix = self.sibling_name(STAGING_SUFFIX);
        let mut found = Vec::new();
        for item in fs::read_dir(&self.parent).map_err(inspect_error)? {
            let item = item.map_err(inspect_error)?;
            let is_ours = item.file_name().as_bytes().starts_with(prefix.as_bytes());
            if is_ours && item.file_type().map_err(inspect_error)?.is_dir() {
                found.push(item.path());
            }
        }
        found.sort();
        Ok(found)
    }

    /// An unused name for the previous directory.
    pub(super) fn free_previous_name(&self, now: Timestamp) -> OsString {
        let plain = self.sibling_name(&format!(
            "{PREVIOUS_SUFFIX}{}",
            now.strftime(TIMESTAMP_FORMAT)
        ));
        let mut name = plain.clone();
        let mut number = 1_u64;
        while fs::symlink_metadata(self.parent.join(&name)).is_ok() {
            name.clone_from(&plain);
            name.push(format!("-{number}"));
            number += 1;
        }
        name
    }

    /// Whether a name from a marker file has the form of [`free_previous_name`](Self::free_previous_name).
    pub(super) fn is_previous_name(&self, name: &OsStr) -> bool {
        name.as_bytes()
            .starts_with(self.sibling_name(PREVIOUS_SUFFIX).as_bytes())
            && !name.as_bytes().contains(&b'/')
    }

    fn sibling_name(&self, suffix: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(suffix);
        name
    }

    /// Renames the old directory `from` to `before`; removes it if it is empty.
    pub(super) fn rename_to_previous(
        &self,
        from: &Path,
        before: &OsStr,
    ) -> Result<Option<PathBuf>, SwapError> {
        let to = self.parent.join(before);
        let kept = if fs::remove_dir(from).is_ok() {
            None // rmdir succeeds only on an empty directory
        } else {
            fs::rename(from, &to).map_err(|source| SwapError::Rename {
                from: from.to_owned(),
                to: to.clone(),
                source,
            })?;
            Some(to)
        };
        self.sync_parent()?;
        Ok(kept)
    }

    /// Removes the marker file from the target.
    pub(super) fn remove_marker(&self) -> Result<(), SwapError> {
        fs::remove_file(self.path.join(marker::FILE_NAME))
            .and_then(|()| durable_fs::sync_dir(&self.path))
            .map_err(|source| SwapError::Marker {
                dir: self.path.clone(),
                source,
            })
            .map_err(SwapError::into_after_swap)
    }

    pub(super) fn sync_parent(&self) -> Result<(), SwapError> {
        durable_fs::sync_dir(&self.parent).map_err(|source| SwapError::Sync {
            path: self.parent.clone(),
            source,
        })
    }

    /// The error of a failed rename to the target.
    pub(super) fn rename_error(&self, from: &Path, source: io::Error) -> SwapError {
        match source.kind() {
            // rename(2) returns EBUSY for a mount point that `is_mount_root` could not detect.
            io::ErrorKind::ResourceBusy => SwapError::MountPoint {
                target: self.path.clone(),
            },
            _ => SwapError::Rename {
                from: from.to_owned(),
                to: self.path.clone(),
                source,
            },
        }
    }
}

const STAGING_SUFFIX: &str = ".restoring-";
pub(super) const PREVIOUS_SUFFIX: &str = ".before-";
/// Format of the time in a name.
pub(super) const TIMESTAMP_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// The parent of `target`; `.` for a relative name.
fn parent_dir(target: &Path) -> Result<PathBuf, SwapError> {
    match (target.parent(), target.file_name()) {
        (Some(parent), Some(_)) if parent.as_os_str().is_empty() => Ok(PathBuf::from(".")),
        (Some(parent), Some(_)) => Ok(parent.to_owned()),
        _ => Err(invalid_target(target)),
    }
}

fn invalid_target(target: &Path) -> SwapError {
    SwapError::InvalidTarget {
        target: target.to_owned(),
    }
}

/// Whether the path is a mount point. Detects bind mounts, which have the same device as their parent; not
/// supported by kernels before 5.8.
fn is_mount_root(path: &Path) -> bool {
    statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty()).is_ok_and(|stat| {
        stat.stx_attributes_mask
            .contains(StatxAttributes::MOUNT_ROOT)
            && stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}
