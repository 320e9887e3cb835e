//! The mark that tells who writes a volume now.
//!
//! Whoever is sent to write the volume of a member notes its token in a file `write_fence` beside the data directory, and
//! looks at it again before it puts anything in place of what is there. One that was overtaken, because its node was
//! cut off and another was sent, finds the token of the other and leaves everything as it is. A token is
//! `<epoch>/<incident>/<attempt>/<writer>`: one of an earlier attempt at the same incident does not even begin.

use std::io;
use std::path::{Path, PathBuf};

use crate::durable;

/// The name of the file.
const NAME: &str = "write_fence";

/// A token is a few words; whatever is longer is none.
const LIMIT: u64 = 4096;

/// The right to write one volume, as long as nobody else has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    file: PathBuf,
    token: String,
}

/// Why a volume must not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The mark cannot be read, so that nobody knows who writes.
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
    /// Somebody else was sent since.
    #[error("{} says that {found:?} writes this volume now, not {token:?}", file.display())]
    Overtaken {
        /// The file.
        file: PathBuf,
        /// Who was sent first.
        token: String,
        /// Who was sent since.
        found: String,
    },
}

impl Fence {
    /// Takes the volume of `data_dir`: from here on nobody who came earlier writes it. Whoever comes too late does not.
    pub fn enter(data_dir: &Path, token: &str) -> Result<Self, FenceError> {
        let fence = Self {
            file: durable::folder_of(data_dir).join(NAME),
            token: token.to_owned(),
        };
        let found = fence.found()?;
        if is_later(&found, token) {
            return Err(fence.overtaken(found));
        }
        match durable::replace(&fence.file, token.as_bytes()) {
            Ok(()) => Ok(fence),
            Err(source) => Err(FenceError::Write {
                file: fence.file,
                source,
            }),
        }
    }

    /// Whether nobody else has come.
    pub fn check(&self) -> Result<(), FenceError> {
        let found = self.found()?;
        if found == self.token {
            return Ok(());
        }
        Err(self.overtaken(found))
    }

    fn found(&self) -> Result<String, FenceError> {
        match durable::read_small(&self.file, LIMIT) {
            Ok(found) => Ok(String::from_utf8_lossy(&found.unwrap_or_default()).into_owned()),
            Err(source) => Err(FenceError::Read {
                file: self.file.clone(),
                source,
            }),
        }
    }

    fn overtaken(&self, found: String) -> FenceError {
        FenceError::Overtaken {
            file: self.file.clone(),
            token: self.token.clone(),
            found,
        }
    }
}

/// Whether a token is of a later attempt at the same incident. Tokens of two incidents have no order: epochs begin anew with
/// a new document.
fn is_later(token: &str, than: &str) -> bool {
    match (attempt(token), attempt(than)) {
        (Some((one, later)), Some((other, earlier))) => one == other && later > earlier,
        _ => false,
    }
}

/// The incident and the attempt of a token.
fn attempt(token: &str) -> Option<(&str, u32)> {
    let mut parts = token.split('/').skip(1);
    Some((parts.next()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_overtaken_is_told_so() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let first = Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        first.check().unwrap();
        let second = Fence::enter(&data_dir, "6/a1b2/2").unwrap();
        second.check().unwrap();
        let error = first.check().unwrap_err();
        assert!(
            matches!(&error, FenceError::Overtaken { found, .. } if found == "6/a1b2/2"),
            "{error}"
        );
    }

    #[test]
    fn the_same_one_may_come_again() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let first = Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        first.check().unwrap();
    }

    #[test]
    fn whoever_comes_too_late_does_not_begin() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let second = Fence::enter(&data_dir, "6/a1b2/2/pod-b").unwrap();
        let error = Fence::enter(&data_dir, "5/a1b2/1/pod-a").unwrap_err();
        assert!(matches!(error, FenceError::Overtaken { .. }), "{error}");
        second.check().unwrap();
        Fence::enter(&data_dir, "1/c3d4/1/pod-c").expect("another incident, in a new document");
    }

    #[test]
    fn a_mark_that_is_gone_is_nobodys() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let fence = Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        std::fs::remove_file(volume.path().join(NAME)).unwrap();
        assert!(fence.check().is_err());
    }
}
