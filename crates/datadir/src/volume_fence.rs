//! The mark that tells who writes a volume now.
//!
//! Whoever is sent to write the volume of a member notes its token in a file `write_fence` beside the data directory, and
//! looks at it again before it puts anything in place of what is there. One that was overtaken, because its node was
//! cut off and another was sent, finds the token of the other and leaves everything as it is.

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
    /// Takes the volume of `data_dir`: from here on nobody who came earlier writes it.
    pub fn enter(data_dir: &Path, token: &str) -> Result<Self, FenceError> {
        let fence = Self {
            file: durable::folder_of(data_dir).join(NAME),
            token: token.to_owned(),
        };
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
        let file = self.file.clone();
        let found = match durable::read_small(&file, LIMIT) {
            Ok(found) => found.unwrap_or_default(),
            Err(source) => return Err(FenceError::Read { file, source }),
        };
        let found = String::from_utf8_lossy(&found).into_owned();
        if found == self.token {
            return Ok(());
        }
        Err(FenceError::Overtaken {
            file,
            token: self.token.clone(),
            found,
        })
    }
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
    fn a_mark_that_is_gone_is_nobodys() {
        let volume = tempfile::tempdir().unwrap();
        let data_dir = volume.path().join("new.etcd");
        let fence = Fence::enter(&data_dir, "5/a1b2/1").unwrap();
        std::fs::remove_file(volume.path().join(NAME)).unwrap();
        assert!(fence.check().is_err());
    }
}
