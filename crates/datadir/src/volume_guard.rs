//! The mark that tells whose volume a data directory is on.
//!
//! A file `safe_guard` beside the data directory holds the namespace of the pod that used the volume first. A volume
//! that was mounted into another namespace by mistake is noticed before anything is restored onto it.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable;

/// The name of the file.
const FILE_NAME: &str = "safe_guard";

/// A namespace has at most 63 characters; whatever is longer is none.
const MAX_GUARD_BYTES: u64 = 4096;

/// Whose volume it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardStatus {
    /// It belongs to the namespace asked for.
    Match,
    /// Nobody has used it yet.
    Absent,
    /// It belongs to another.
    Mismatch {
        /// The namespace found.
        found: String,
    },
}

/// Why the mark cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// It cannot be read, so that it is not known whose volume it is.
    #[error("read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another namespace has marked the volume. Its mark is not overwritten.
    #[error("{} marks the volume as that of namespace {found:?}", file.display())]
    OtherNamespace {
        /// The file.
        file: PathBuf,
        /// The namespace found.
        found: String,
    },
}

/// Compares the mark beside `data_dir` with `namespace`.
pub fn check_volume_guard(data_dir: &Path, namespace: &str) -> Result<GuardStatus, GuardError> {
    let file = guard_path(data_dir);
    match durable::read_small_file(&file, MAX_GUARD_BYTES) {
        Ok(None) => Ok(GuardStatus::Absent),
        Ok(Some(bytes)) => {
            let text = String::from_utf8_lossy(&bytes);
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

/// Marks the volume of `data_dir` as that of `namespace`. One that is marked so already is left alone.
pub fn write_volume_guard(data_dir: &Path, namespace: &str) -> Result<(), GuardError> {
    let file = guard_path(data_dir);
    match check_volume_guard(data_dir, namespace)? {
        GuardStatus::Match => Ok(()),
        GuardStatus::Mismatch { found } => Err(GuardError::OtherNamespace { file, found }),
        GuardStatus::Absent => durable::replace_file(&file, namespace.as_bytes())
            .map_err(|source| GuardError::Write { file, source }),
    }
}

fn guard_path(data_dir: &Path) -> PathBuf {
    durable::parent_dir(data_dir).join(FILE_NAME)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_volume_belongs_to_whoever_marked_it_first() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        assert_eq!(check_volume_guard(&data_dir, "shoot--a").unwrap(), GuardStatus::Absent);
        write_volume_guard(&data_dir, "shoot--a").unwrap();
        write_volume_guard(&data_dir, "shoot--a").unwrap();
        assert_eq!(check_volume_guard(&data_dir, "shoot--a").unwrap(), GuardStatus::Match);
        let found = "shoot--a".to_owned();
        let mismatch = GuardStatus::Mismatch { found };
        assert_eq!(check_volume_guard(&data_dir, "shoot--b").unwrap(), mismatch);
        let error = write_volume_guard(&data_dir, "shoot--b").unwrap_err();
        assert!(matches!(error, GuardError::OtherNamespace { .. }), "{error}");
        assert_eq!(check_volume_guard(&data_dir, "shoot--a").unwrap(), GuardStatus::Match);
    }

    #[test]
    fn the_mark_is_the_peers_a_file_of_the_owner_in_the_parent_folder() {
        let volume = tempfile::tempdir().unwrap();
        write_volume_guard(&volume.path().join("new.etcd/"), "garden").unwrap();
        let file = volume.path().join("safe_guard");
        assert_eq!(fs::read(&file).unwrap(), b"garden");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_not_taken_for_absent() {
        let volume = tempfile::tempdir().unwrap();
        fs::create_dir(volume.path().join("safe_guard")).unwrap();
        let checked = check_volume_guard(&volume.path().join("data"), "a");
        assert!(
            matches!(checked, Err(GuardError::Read { .. })),
            "{checked:?}"
        );
    }

    #[test]
    fn a_mark_with_a_line_end_is_the_same_namespace_and_an_empty_one_is_another() {
        let volume = tempfile::tempdir().unwrap();
        let (file, data_dir) = (volume.path().join("safe_guard"), volume.path().join("data"));
        fs::write(&file, "garden\n").unwrap();
        assert_eq!(check_volume_guard(&data_dir, "garden").unwrap(), GuardStatus::Match);
        fs::write(&file, "").unwrap();
        let found = String::new();
        assert_eq!(
            check_volume_guard(&data_dir, "garden").unwrap(),
            GuardStatus::Mismatch { found }
        );
    }
}
