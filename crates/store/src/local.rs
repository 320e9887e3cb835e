//! Provider `Local`: objects are files below a directory.
//!
//! **Invariants**: directories have mode 0700 and files 0600, regardless of the umask. A file appears
//! under its name complete and synced, or not at all: it is written under a hidden name that listings
//! skip, synced, then linked or renamed, and the directory is synced. The file system enforces
//! create-only atomically.
//!
//! **After a crash**: a hidden temporary file may remain. An upload into the same directory removes it
//! once it is a day old.
//!
//! All functions block; [`crate::backend`] runs them on the blocking pool.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tempfile::NamedTempFile;

use crate::backend::WriteMode;
use crate::error::AttemptError;
use crate::store::ObjectInfo;

/// Name prefix of unfinished files.
const UNFINISHED_PREFIX: &str = ".mainstay-upload-";
/// Age after which an unfinished file belongs to a terminated process.
const ABANDONED_AFTER: Duration = Duration::from_hours(24);
/// Maximum folder depth of a listing; backups are never nested deeper.
const MAX_DEPTH: usize = 32;

/// The directory that serves as the container.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    root: PathBuf,
}

/// A file being written, hidden until it is published.
#[derive(Debug)]
pub(crate) struct UnfinishedFile {
    file: NamedTempFile,
    target: PathBuf,
}

impl Directory {
    /// The directory `container` below `home`; `None` if the name leaves `home`.
    pub(crate) fn new_below(home: &Path, container: &str) -> Option<Self> {
        let relative = Path::new(container);
        let stays = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        (stays && !container.is_empty()).then(|| Self {
            root: home.join(relative),
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Lists all objects below `folder`, sorted by key. A missing folder is empty.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<ObjectInfo>, AttemptError> {
        let mut found = Vec::new();
        let start = if folder.is_empty() {
            self.root.clone()
        } else {
            self.path(folder)
        };
        self.collect_objects(&start, 0, &mut found)?;
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn collect_objects(
        &self,
        directory: &Path,
        depth: usize,
        found: &mut Vec<ObjectInfo>,
    ) -> Result<(), AttemptError> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            // A concurrent delete may remove a folder during the walk.
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) => return Err(AttemptError::file(directory, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| AttemptError::file(directory, error))?;
            let path = entry.path();
            let is_unfinished = entry
                .file_name()
                .to_string_lossy()
                .starts_with(UNFINISHED_PREFIX);
            let kind = entry
                .file_type()
                .map_err(|error| AttemptError::file(&path, error))?;
            if kind.is_dir() {
                if depth < MAX_DEPTH {
                    self.collect_objects(&path, depth + 1, found)?;
                }
            } else if !is_unfinished {
                found.extend(self.read_object_info(&path)?);
            }
        }
        Ok(())
    }

    /// The object at `path`; `None` if it does not exist, is not a file, or its name is not UTF-8.
    fn read_object_info(&self, path: &Path) -> Result<Option<ObjectInfo>, AttemptError> {
        let Some(key) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else {
            return Ok(None);
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(object_info(key, &metadata))),
            Ok(_) => Ok(None),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(AttemptError::file(path, error)),
        }
    }

    /// Size and version of one object.
    pub(crate) fn head(&self, key: &str) -> Result<ObjectInfo, AttemptError> {
        let path = self.path(key);
        match self.read_object_info(&path)? {
            Some(object) => Ok(object),
            None => Err(AttemptError::file(
                path,
                io::Error::from(io::ErrorKind::NotFound),
            )),
        }
    }

    /// Reads `range` of an object and returns the version it belongs to.
    pub(crate) fn read(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<(ObjectInfo, Bytes), AttemptError> {
        let path = self.path(key);
        let fault = |error| AttemptError::file(&path, error);
        let file = File::open(&path).map_err(map_not_found).map_err(fault)?;
        let metadata = file.metadata().map_err(fault)?;
        if !metadata.is_file() {
            return Err(fault(io::Error::from(io::ErrorKind::NotFound)));
        }
        let object = object_info(key, &metadata);
        let end = range.end.min(object.size);
        let length = usize::try_from(end.saturating_sub(range.start))
            .map_err(|_| fault(io::Error::from(io::ErrorKind::FileTooLarge)))?;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, range.start).map_err(fault)?;
        Ok((object, bytes.into()))
    }

    /// Creates an unfinished file in the target directory: a rename is atomic only within a file system.
    pub(crate) fn create_unfinished(&self, key: &str) -> Result<UnfinishedFile, AttemptError> {
        let target = self.path(key);
        let parent = target.parent().unwrap_or(&self.root);
        Self::create_directories(parent)?;
        remove_abandoned_files(parent);
        let file = tempfile::Builder::new()
            .prefix(UNFINISHED_PREFIX)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(parent)
            .map_err(|error| AttemptError::file(parent, error))?;
        Ok(UnfinishedFile { file, target })
    }

    /// Creates missing directories with mode 0700 and syncs their parents.
    fn create_directories(directory: &Path) -> Result<(), AttemptError> {
        let missing: Vec<&Path> = directory
            .ancestors()
            .take_while(|ancestor| !ancestor.exists())
            .collect();
        let fault = |error| AttemptError::file(directory, error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(fault)?;
        // A new directory survives a power failure only after its parent is synced.
        for created in missing {
            if let Some(parent) = created.parent() {
                sync_directory(parent)?;
            }
        }
        Ok(())
    }

    /// Deletes an object; succeeds if it does not exist.
    pub(crate) fn delete(&self, key: &str) -> Result<(), AttemptError> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Ok(()) => sync_directory(path.parent().unwrap_or(&self.root)),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(AttemptError::file(path, error)),
        }
    }
}

impl UnfinishedFile {
    /// Writes `bytes` at `offset`; parts may arrive in any order.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), AttemptError> {
        let file = self.file.as_file();
        file.write_all_at(bytes, offset)
            .map_err(|error| AttemptError::file(self.file.path(), error))
    }

    /// Syncs the file and publishes it under its key.
    pub(crate) fn publish(self, mode: WriteMode) -> Result<(), AttemptError> {
        let Self { file, target } = self;
        file.as_file()
            .sync_all()
            .map_err(|error| AttemptError::file(file.path(), error))?;
        // Sync before the rename: otherwise a power failure can leave the final name on an empty file.
        let published = match mode {
            WriteMode::Create => file.persist_noclobber(&target),
            WriteMode::Overwrite => file.persist(&target),
        };
        published.map_err(|error| AttemptError::file(&target, error.error))?;
        target.parent().map_or(Ok(()), sync_directory)
    }
}

fn sync_directory(directory: &Path) -> Result<(), AttemptError> {
    let synced = File::open(directory).and_then(|handle| handle.sync_all());
    synced.map_err(|error| AttemptError::file(directory, error))
}

fn object_info(key: &str, metadata: &fs::Metadata) -> ObjectInfo {
    let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
    let modified = i32::try_from(nanos)
        .ok()
        .and_then(|nanos| Timestamp::new(seconds, nanos).ok());
    ObjectInfo {
        key: key.to_owned(),
        size: metadata.len(),
        last_modified: modified.unwrap_or(Timestamp::UNIX_EPOCH),
        etag: Some(format!(
            "{:x}-{seconds:x}.{nanos:x}-{:x}",
            metadata.ino(),
            metadata.len()
        )),
    }
}

fn is_not_found(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Maps `ENOTDIR` to not found: a file in place of a folder means the object does not exist.
fn map_not_found(error: io::Error) -> io::Error {
    if is_not_found(&error) {
        io::Error::from(io::ErrorKind::NotFound)
    } else {
        error
    }
}

/// Removes unfinished files of crashed uploads. Errors are ignored: they must not fail the upload.
fn remove_abandoned_files(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(UNFINISHED_PREFIX);
        let age = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map(|at| at.elapsed());
        if is_ours && matches!(age, Ok(Ok(age)) if age > ABANDONED_AFTER) {
            // Another process may have removed it already.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
