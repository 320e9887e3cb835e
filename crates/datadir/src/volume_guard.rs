//! The volume guard: records which namespace a volume belongs to.
//!
//! The file `safe_guard` beside the data directory contains the namespace of the first pod that used the
//! volume. It detects a volume that was attached in the wrong namespace before a restore overwrites it. The
//! file is compatible with etcd-backup-restore.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable_fs;

/// Name of the guard file.
const FILE_NAME: &str = "safe_guard";

/// Maximum bytes read of the guard file; a namespace has at most 63 characters.
const MAX_GUARD_BYTES: u64 = 4096;

/// Result of the namespace check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardStatus {
    /// The volume belongs to the expected namespace.
    Match,
    /// The volume has no guard file: it was not used yet.
    Absent,
    /// The volume belongs to another namespace.
    Mismatch {
        /// The namespace in the guard file.
        found: String,
    },
}

/// The guard file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The guard file cannot be read, so the volume's namespace is unknown.
    #[error("read guard file {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The guard file cannot be written.
    #[error("write guard file {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The volume belongs to another namespace. Its guard file is not overwritten.
    #[error("volume belongs to namespace {found:?} (guard file {})", file.display())]
    OtherNamespace {
        /// The file.
        file: PathBuf,
        /// The namespace in the guard file.
        found: String,
    },
}

/// Compares the guard file beside `data_dir` with `namespace`.
pub fn check_volume_guard(data_dir: &Path, namespace: &str) -> Result<GuardStatus, GuardError> {
    let file = guard_path(data_dir);
    match durable_fs::read_small_file(&file, MAX_GUARD_BYTES) {
        Ok(None) => Ok(GuardStatus::Absent),
        Ok(Some(bytes)) => {
            let text = String::from_utf8_lossy(&bytes);
            // A trailing newline from manual edits is not part of the namespace.
            let found = text.trim_end();
            if found == namespace {
                Ok(GuardStatus::Match)
            } else {
                let found = found.to_owned();
                Ok(GuardStatus::Mismatch { found })
            }
        }
        Err(source) => Err(GuardError::Read { file, source }),
    }
}

/// Writes `namespace` to the guard file beside `data_dir`, unless it already contains it.
pub fn write_volume_guard(data_dir: &Path, namespace: &str) -> Result<(), GuardError> {
    let file = guard_path(data_dir);
    match check_volume_guard(data_dir, namespace)? {
        GuardStatus::Match => Ok(()),
        GuardStatus::Mismatch { found } => Err(GuardError::OtherNamespace { file, found }),
        GuardStatus::Absent => durable_fs::replace_file(&file, namespace.as_bytes())
            .map_err(|source| GuardError::Write { file, source }),
    }
}

fn guard_path(data_dir: &Path) -> PathBuf {
    durable_fs::parent_dir(data_dir).join(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn volume_belongs_to_the_namespace_that_marked_it_first() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        assert_eq!(
            check_volume_guard(&data_dir, "shoot--a").unwrap(),
            GuardStatus::Absent
        );
        write_volume_guard(&data_dir, "shoot--a").unwrap();
        write_volume_guard(&data_dir, "shoot--a").unwrap();
        assert_eq!(
            check_volume_guard(&data_dir, "shoot--a").unwrap(),
            GuardStatus::Match
        );
        let found = "shoot--a".to_owned();
        let mismatch = GuardStatus::Mismatch { found };
        assert_eq!(check_volume_guard(&data_dir, "shoot--b").unwrap(), mismatch);
        let error = write_volume_guard(&data_dir, "shoot--b").unwrap_err();
        assert!(
            matches!(error, GuardError::OtherNamespace { .. }),
            "{error}"
        );
        assert_eq!(
            check_volume_guard(&data_dir, "shoot--a").unwrap(),
            GuardStatus::Match
        );
    }

    #[test]
    fn guard_is_the_upstream_safe_guard_file_readable_by_owner_only() {
        let volume = tempfile::tempdir().unwrap();
        write_volume_guard(&volume.path().join("new.etcd/"), "garden").unwrap();
        let file = volume.path().join("safe_guard");
        assert_eq!(fs::read(&file).unwrap(), b"garden");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 1);
    }

    #[test]
    fn unreadable_guard_is_an_error_and_not_absent() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("safe_guard")).unwrap();
        let checked = check_volume_guard(&volume.path().join("data"), "a");
        assert!(
            matches!(checked, Err(GuardError::Read { .. })),
            "{checked:?}"
        );
    }

    #[test]
    fn trailing_newline_in_guard_is_ignored_and_empty_guard_mismatches() {
        let volume = tempfile::tempdir().unwrap();
        let (file, data_dir) = (volume.path().join("safe_guard"), volume.path().join("data"));
        fs::write(&file, "garden\n").unwrap();
        assert_eq!(
            check_volume_guard(&data_dir, "garden").unwrap(),
            GuardStatus::Match
        );
        fs::write(&file, "").unwrap();
        let found = String::new();
        assert_eq!(
            check_volume_guard(&data_dir, "garden").unwrap(),
            GuardStatus::Mismatch { found }
        );
    }
}
