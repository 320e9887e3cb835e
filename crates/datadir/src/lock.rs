//! Database locks: bbolt holds `flock(2)` on its file while the database is open.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The database could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The file cannot be opened.
    #[error("open {} for locking", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process holds the lock.
    #[error("lock {}: held by another process", file.display())]
    Held {
        /// The file.
        file: PathBuf,
    },
    /// `flock` failed, for example because the file system does not support it.
    #[error("lock {}", file.display())]
    Lock {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Exclusive lock on a database: etcd cannot open it until this is dropped.
#[derive(Debug)]
pub struct DatabaseLock {
    _file: File,
}

/// Acquires the exclusive lock on `db` without waiting.
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

/// Whether a running etcd has `db` open. `false` if the database does not exist or others only read it.
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
    // A shared lock conflicts only with the exclusive lock of a writer.
    try_flock(&file, FlockOperation::NonBlockingLockShared, db).map(|free| !free)
}

/// Whether the lock was acquired.
pub(crate) fn try_flock(
    file: &File,
    operation: FlockOperation,
    path: &Path,
) -> Result<bool, LockError> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        // Held by another open file.
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
    fn database_is_in_use_while_exclusively_locked() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        assert!(!is_in_use(&db).unwrap(), "missing database");
        std::fs::write(&db, b"").unwrap();
        assert!(!is_in_use(&db).unwrap());

        // flock belongs to the open file, so a second open in this process behaves like another process.
        let held = lock_database(&db).unwrap();
        assert!(is_in_use(&db).unwrap());
        assert!(matches!(lock_database(&db), Err(LockError::Held { .. })));
        drop(held);
        assert!(!is_in_use(&db).unwrap());
    }

    #[test]
    fn shared_lock_is_not_in_use_but_prevents_an_exclusive_lock() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        std::fs::write(&db, b"").unwrap();
        let reader = File::open(&db).unwrap();
        assert!(try_flock(&reader, FlockOperation::NonBlockingLockShared, &db).unwrap());
        assert!(!is_in_use(&db).unwrap());
        assert!(matches!(lock_database(&db), Err(LockError::Held { .. })));
    }
}
