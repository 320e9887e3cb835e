//! The volume fence: records which process may write a volume.
//!
//! A process that restores the volume of a member writes its token to the file `write_fence` beside the data
//! directory, and checks it again before it replaces anything. A superseded process, for example a Job pod on
//! a partitioned node whose replacement already runs, finds another token and changes nothing.
//!
//! A token is `<epoch>/<incident>/<attempt>/<writer>`. The epoch is that of the lock under which the writer was
//! started, and only grows: a writer with a lower epoch, or with a lower attempt for the same incident, does
//! not start. Two incidents with the same epoch have no order. A fence file without a valid token is ignored.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable_fs;

/// Name of the fence file.
const FILE_NAME: &str = "write_fence";

/// Maximum size of the fence file; longer content is not a token.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Upper limit of epochs; a token with a higher one is ignored, so that a corrupt file cannot block writers.
const EPOCH_LIMIT: u64 = 1 << 52;

/// Epoch of a token found on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FenceEpoch(pub u64);

/// The right to write one volume, until another writer supersedes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFence {
    file: PathBuf,
    token: String,
}

/// The volume must not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeFenceError {
    /// The fence file cannot be read, so the current writer is unknown.
    #[error("read fence file {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The fence file cannot be written.
    #[error("write fence file {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A newer writer took over the volume.
    #[error("writer {token:?} is superseded by {found:?} (fence file {})", file.display())]
    Superseded {
        /// The file.
        file: PathBuf,
        /// Token of the superseded writer.
        token: String,
        /// Content of the fence file.
        found: String,
        /// Epoch of the token found; `None` if it is not a valid token.
        epoch: Option<FenceEpoch>,
    },
}

impl VolumeFence {
    /// Takes over the volume of `data_dir` and supersedes earlier writers. Fails if a newer writer has it.
    pub fn acquire(data_dir: &Path, token: &str) -> Result<Self, VolumeFenceError> {
        let fence = Self {
            file: durable_fs::parent_dir(data_dir).join(FILE_NAME),
            token: token.to_owned(),
        };
        let found = fence.read_token()?;
        // A Job pod that starts late must not supersede its successor.
        if is_newer(&found, token) {
            return Err(fence.superseded_error(found));
        }
        match durable_fs::replace_file(&fence.file, token.as_bytes()) {
            Ok(()) => Ok(fence),
            Err(source) => Err(VolumeFenceError::Write {
                file: fence.file,
                source,
            }),
        }
    }

    /// Fails if another writer took over the volume.
    pub fn check(&self) -> Result<(), VolumeFenceError> {
        let found = self.read_token()?;
        // A missing file also fails: the current writer is then unknown.
        if found == self.token {
            return Ok(());
        }
        Err(self.superseded_error(found))
    }

    fn read_token(&self) -> Result<String, VolumeFenceError> {
        match durable_fs::read_small_file(&self.file, MAX_TOKEN_BYTES) {
            Ok(found) => Ok(String::from_utf8_lossy(&found.unwrap_or_default()).into_owned()),
            Err(source) => Err(VolumeFenceError::Read {
                file: self.file.clone(),
                source,
            }),
        }
    }

    fn superseded_error(&self, found: String) -> VolumeFenceError {
        VolumeFenceError::Superseded {
            file: self.file.clone(),
            token: self.token.clone(),
            epoch: FenceToken::parse_from_volume(&found).map(|token| token.epoch),
            found,
        }
    }
}

/// The parts of a token that order writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FenceToken<'a> {
    epoch: FenceEpoch,
    incident: &'a str,
    attempt: u32,
}

impl<'a> FenceToken<'a> {
    /// Parses a token. The writer is ignored: pods of one attempt have no order.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(4, '/');
        let (epoch, incident, attempt) = (parts.next()?, parts.next()?, parts.next()?);
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        // `parse` accepts a leading `+`, which no writer produces.
        if incident.is_empty() || !is_number(epoch) || !is_number(attempt) {
            return None;
        }
        Some(Self {
            epoch: FenceEpoch(epoch.parse().ok()?),
            incident,
            attempt: attempt.parse().ok()?,
        })
    }

    /// Parses the content of a fence file, which may be arbitrary.
    fn parse_from_volume(text: &'a str) -> Option<Self> {
        Self::parse(text).filter(|token| token.epoch < FenceEpoch(EPOCH_LIMIT))
    }
}

/// Whether the token `found` on the volume is newer than the token `than`.
fn is_newer(found: &str, than: &str) -> bool {
    let (Some(found), Some(ours)) = (
        FenceToken::parse_from_volume(found),
        FenceToken::parse(than),
    ) else {
        return false;
    };
    let is_retried = found.incident == ours.incident && found.attempt > ours.attempt;
    found.epoch > ours.epoch || (found.epoch == ours.epoch && is_retried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superseded_job_fails_the_fence_check() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let first = VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
        first.check().unwrap();
        let second = VolumeFence::acquire(&data_dir, "6/a1b2/2").unwrap();
        second.check().unwrap();
        let error = first.check().unwrap_err();
        assert!(
            matches!(&error, VolumeFenceError::Superseded { found, .. } if found == "6/a1b2/2"),
            "{error}"
        );
    }

    #[test]
    fn same_token_acquires_the_fence_again() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let first = VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
        VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
        first.check().unwrap();
    }

    /// Whether the second token acquires the fence after the first; otherwise the epoch found.
    fn acquire_after(first: &str, second: &str) -> Result<(), Option<FenceEpoch>> {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        std::fs::write(volume.path().join(FILE_NAME), first).unwrap();
        let marked = || std::fs::read_to_string(volume.path().join(FILE_NAME)).unwrap();
        match VolumeFence::acquire(&data_dir, second) {
            Ok(fence) => {
                fence.check().unwrap();
                assert_eq!(marked(), second);
                Ok(())
            }
            Err(VolumeFenceError::Superseded { epoch, .. }) => {
                assert_eq!(
                    marked(),
                    first,
                    "a refused writer must not change the fence file"
                );
                Err(epoch)
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn older_epoch_or_attempt_does_not_acquire_the_fence() {
        let late = acquire_after("6/a1b2/2/pod-b", "5/a1b2/1/pod-a");
        assert_eq!(late, Err(Some(FenceEpoch(6))));
        let retried = acquire_after("6/a1b2/2/pod-b", "6/a1b2/1/pod-a");
        assert_eq!(retried, Err(Some(FenceEpoch(6))));
    }

    #[test]
    fn late_job_of_an_earlier_incident_does_not_acquire_the_fence() {
        let late = acquire_after("1800000001/c3d4/1/pod-b", "1800000000/a1b2/9/pod-a");
        assert_eq!(late, Err(Some(FenceEpoch(1_800_000_001))));
    }

    #[test]
    fn newest_epoch_acquires_the_fence_at_any_attempt() {
        for (first, second) in [
            ("5/a1b2/3/pod-a", "6/a1b2/3/pod-b"),
            ("5/a1b2/3/pod-a", "6/a1b2/1/pod-b"),
            ("5/a1b2/3/pod-a", "6/c3d4/1/pod-b"),
            ("5/a1b2/1/pod-a", "5/a1b2/1/pod-b"),
            ("5/a1b2/1/pod-a", "5/a1b2/2/pod-b"),
        ] {
            assert_eq!(acquire_after(first, second), Ok(()), "{first}, {second}");
        }
    }

    #[test]
    fn incidents_with_equal_epochs_have_no_order() {
        assert_eq!(acquire_after("5/a1b2/2/pod-a", "5/c3d4/1/pod-b"), Ok(()));
        assert_eq!(acquire_after("5/c3d4/1/pod-b", "5/a1b2/2/pod-a"), Ok(()));
    }

    #[test]
    fn invalid_token_in_the_fence_file_is_replaced() {
        for mark in [
            "",
            "garbage",
            "9/a1b2",
            "9//1/pod-a",
            "9/a1b2/x/pod-a",
            "9/a1b2//pod-a",
            "/a1b2/1/pod-a",
            "-9/a1b2/1/pod-a",
            "+9/a1b2/1/pod-a",
            " 9/a1b2/1/pod-a",
            "4503599627370496/a1b2/1/pod-a",
            "99999999999999999999999/a1b2/1/pod-a",
        ] {
            assert_eq!(acquire_after(mark, "5/a1b2/1/pod-b"), Ok(()), "{mark:?}");
        }
    }

    #[test]
    fn highest_valid_epoch_can_still_be_superseded() {
        let highest = "4503599627370495/a1b2/1/pod-a";
        let refused = acquire_after(highest, "5/a1b2/1/pod-b");
        assert_eq!(refused, Err(Some(FenceEpoch(EPOCH_LIMIT - 1))));
        assert_eq!(
            acquire_after(highest, "4503599627370496/a1b2/1/pod-b"),
            Ok(())
        );
    }

    #[test]
    fn deleted_fence_file_fails_the_check() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let fence = VolumeFence::acquire(&data_dir, "5/a1b2/1").unwrap();
        std::fs::remove_file(volume.path().join(FILE_NAME)).unwrap();
        assert!(fence.check().is_err());
    }
}
