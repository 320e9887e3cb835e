//! The mark inside a new directory: whose it is, and whether it is complete.
//!
//! An empty mark is a directory being built. `complete <name>` is one that was synced as a whole, with the name
//! the old directory is to be kept under. The maker holds a lock on the file, which ends with its process.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Its name. etcd warns of files it does not know in its data directory and goes on.
pub(super) const FILE_NAME: &str = ".mainstay-restoring";

const COMPLETE_PREFIX: &[u8] = b"complete ";

/// Longest content that is read: the word and a file name.
const MAX_BYTES: usize = 1024;

/// A mark whose lock we have.
#[derive(Debug)]
pub(super) struct StagingMarker {
    file: File,
}

/// What was found in a directory.
#[derive(Debug)]
pub(super) enum MarkerLock {
    /// No mark.
    Absent,
    /// A mark whose maker lives.
    Held,
    /// A mark nobody held; now we do.
    Acquired(StagingMarker),
}

impl StagingMarker {
    /// Marks an empty directory as being built. `None` when another process saw it before it was locked.
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

    /// Takes over the mark of a directory, if its maker is gone.
    pub(super) fn try_lock(dir: &Path) -> io::Result<MarkerLock> {
        let path = dir.join(FILE_NAME);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Self::lock_file(file, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(MarkerLock::Absent),
            Err(error) => Err(error),
        }
    }

    /// Locks `file`, then makes sure that it still is the one at `path`.
    fn lock_file(file: File, path: &Path) -> io::Result<MarkerLock> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(MarkerLock::Held),
            Err(errno) => return Err(errno.into()),
        }
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

    /// Says, durably, that the directory is complete and that the old one is to be called `before`.
    pub(super) fn mark_complete(&self, before: &OsStr) -> io::Result<()> {
        let content = [COMPLETE_PREFIX, before.as_bytes(), b"\n"].concat();
        self.file.set_len(0)?;
        self.file.write_all_at(&content, 0)?;
        self.file.sync_all()
    }

    /// The name for the old directory; `None` while the directory is not complete.
    pub(super) fn read_previous_name(&self) -> io::Result<Option<OsString>> {
        let mut content = [0; MAX_BYTES];
        let length = self.file.read_at(&mut content, 0)?;
        let content = content.get(..length).unwrap_or_default();
        let name = content
            .strip_prefix(COMPLETE_PREFIX)
            .and_then(|rest| rest.strip_suffix(b"\n"));
        Ok(name.map(|name| OsString::from_vec(name.to_vec())))
    }

    /// Removes the directory. The mark is emptied first and goes last, so that a crash halfway leaves a
    /// directory that nobody takes for complete and everybody for ours.
    pub(super) fn remove_dir(&self, dir: &Path) -> io::Result<()> {
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
