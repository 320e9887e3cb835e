//! Whether a database is in use: bbolt holds `flock(2)` on its file for as long as it is open.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The file cannot be opened.
    #[error("open {} to lock it", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} is held by another process", file.display())]
    Held {
        /// The file.
        file: PathBuf,
    },
    /// The file system gave another answer.
    #[error("lock {}", file.display())]
    Lock {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The exclusive lock on a database: no etcd opens it until this is dropped.
#[derive(Debug)]
pub struct DatabaseLock {
    _file: File,
}

/// Takes the exclusive lock on `db` without waiting.
pub fn lock_database(db: &Path) -> Result<DatabaseLock, LockError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(db)
        .map_err(|source| LockError::Open {
            file: db.to_owned(),
            source,
        })?;
    if try_flock(&file, FlockOperation::NonBlockingLockExclusive, db)? {
        Ok(DatabaseLock { _file: file })
    } else {
        Err(LockError::Held {
            file: db.to_owned(),
        })
    }
}

/// Whether a running etcd has `db` open. A database that does not exist is not live, and one that others only
/// read is not either.
pub fn is_in_use(db: &Path) -> Result<bool, LockError> {
    let file = match File::open(db) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => {
            return Err(LockError::Open {
                file: db.to_owned(),
                source,
            });
        }
    };
    try_flock(&file, FlockOperation::NonBlockingLockShared, db).map(|free| !free)
}

/// Whether the lock was had.
pub(crate) fn try_flock(
    file: &File,
    operation: FlockOperation,
    path: &Path,
) -> Result<bool, LockError> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(LockError::Lock {
            file: path.to_owned(),
            source: errno.into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_live_while_someone_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        assert!(!is_in_use(&db).unwrap(), "it does not exist");
        std::fs::write(&db, b"").unwrap();
        assert!(!is_in_use(&db).unwrap());

        // Locks belong to open files, so a second one of this process is as good as another process.
        let held = lock_database(&db).unwrap();
        assert!(is_in_use(&db).unwrap());
        assert!(matches!(lock_database(&db), Err(LockError::Held { .. })));
        drop(held);
        assert!(!is_in_use(&db).unwrap());
    }

    #[test]
    fn a_reader_does_not_make_a_database_live_but_keeps_it_from_being_held() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        std::fs::write(&db, b"").unwrap();
        let reader = File::open(&db).unwrap();
        assert!(try_flock(&reader, FlockOperation::NonBlockingLockShared, &db).unwrap());
        assert!(!is_in_use(&db).unwrap());
        assert!(matches!(lock_database(&db), Err(LockError::Held { .. })));
    }
}
