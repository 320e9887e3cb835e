//! The marker file inside a new directory: whether its creator is alive and whether it is complete.
//!
//! An empty marker means that the directory is being built. `complete <name>` means that it is fully synced;
//! the previous directory is to be kept as `<name>`. The creator holds a file lock, which ends with its process.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Name of the marker file. etcd logs a warning about unknown files in its data directory and continues.
pub(super) const FILE_NAME: &str = ".mainstay-restoring";

const COMPLETE_PREFIX: &[u8] = b"complete ";

/// Maximum bytes read: the prefix and a file name.
const MAX_BYTES: usize = 1024;

/// A marker file locked by this process.
#[derive(Debug)]
pub(super) struct StagingMarker {
    file: File,
}

/// Result of locking the marker file of a directory.
#[derive(Debug)]
pub(super) enum MarkerLock {
    /// No marker file.
    Absent,
    /// Locked by another live process.
    Held,
    /// Now locked by this process.
    Acquired(StagingMarker),
}

impl StagingMarker {
    /// Creates the marker in an empty directory. `None` if another process removed or locked it first.
    pub(super) fn create(dir: &Path) -> io::Result<Option<Self>> {
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) => Self::lock_file(file, &path).map(|claim| match claim {
                MarkerLock::Acquired(mark) => Some(mark),
                MarkerLock::Absent | MarkerLock::Held => None,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Locks the marker of a directory, if its creator is not alive.
    pub(super) fn try_lock(dir: &Path) -> io::Result<MarkerLock> {
        let path = dir.join(FILE_NAME);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Self::lock_file(file, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(MarkerLock::Absent),
            Err(error) => Err(error),
        }
    }

    /// Locks `file`, then checks that it is still the file at `path`.
    fn lock_file(file: File, path: &Path) -> io::Result<MarkerLock> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(MarkerLock::Held),
            Err(errno) => return Err(errno.into()),
        }
        // Between open and lock, another process may have removed or replaced the file.
        let ours = file.metadata()?;
        match fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(MarkerLock::Acquired(Self { file }))
            }
            Ok(_) => Ok(MarkerLock::Held),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(MarkerLock::Absent),
            Err(error) => Err(error),
        }
    }

    /// Durably marks the directory as complete, with `before` as the name for the previous one.
    pub(super) fn mark_complete(&self, before: &OsStr) -> io::Result<()> {
        let content = [COMPLETE_PREFIX, before.as_bytes(), b"\n"].concat();
        self.file.set_len(0)?;
        self.file.write_all_at(&content, 0)?;
        self.file.sync_all()
    }

    /// The name for the previous directory; `None` if the directory is not complete.
    pub(super) fn read_previous_name(&self) -> io::Result<Option<OsString>> {
        let mut content = [0; MAX_BYTES];
        let length = self.file.read_at(&mut content, 0)?;
        let content = content.get(..length).unwrap_or_default();
        let name = content
            .strip_prefix(COMPLETE_PREFIX)
            .and_then(|rest| rest.strip_suffix(b"\n"));
        Ok(name.map(|name| OsString::from_vec(name.to_vec())))
    }

    /// Removes the directory. Truncates the marker first and removes it last: a crash in between leaves a
    /// directory that is recognized as ours and as incomplete.
    pub(super) fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        // From here on the directory counts as incomplete.
        self.file.set_len(0)?;
        self.file.sync_all()?;
        for item in fs::read_dir(dir)? {
            let item = item?;
            if item.file_name() == FILE_NAME {
                continue;
            }
            if item.file_type()?.is_dir() {
                fs::remove_dir_all(item.path())?;
            } else {
                fs::remove_file(item.path())?;
            }
        }
        fs::remove_file(dir.join(FILE_NAME))?;
        fs::remove_dir(dir)
    }
}
