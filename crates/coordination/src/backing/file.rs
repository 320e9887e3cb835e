//! A document in a file, for use without Kubernetes. A lock file beside it makes compare-and-replace atomic
//! across the processes of one machine.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::{Backing, BackingError, DEADLINE, Document, Edits};

/// Poll interval for the file lock, which is held for a few milliseconds at most.
const FILE_LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A document in a file. The lock file `<file>.lock` is never removed. The file system must support `flock`.
#[derive(Clone, Debug)]
pub struct FileBacking {
    path: PathBuf,
}

impl FileBacking {
    /// The file may not exist yet; its directory must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn lock_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        path.into()
    }

    /// Runs a step on the blocking pool.
    async fn run_blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Path) -> Result<T, BackingError> + Send + 'static,
    ) -> Result<T, BackingError> {
        let path = self.path.clone();
        spawn_blocking(move || step(&path))
            .await
            .unwrap_or_else(|_| {
                Err(BackingError::ShuttingDown {
                    path: self.path.clone(),
                })
            })
    }

    /// Excludes other writers until the returned file is dropped. The kernel releases the lock if the process
    /// dies.
    async fn acquire_file_lock(&self) -> Result<File, BackingError> {
        let path = self.lock_path();
        let file = self.run_blocking(move |_| open_lock_file(&path)).await?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(FILE_LOCK_POLL_INTERVAL).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(BackingError::FileLocked {
                        path: self.lock_path(),
                    });
                }
                Err(TryLockError::Error(source)) => {
                    let path = self.lock_path();
                    return Err(BackingError::File {
                        step: "lock",
                        path,
                        source,
                    });
                }
            }
        }
    }
}

#[async_trait]
impl Backing for FileBacking {
    async fn read(&self) -> Result<Document, BackingError> {
        // Writers replace the file atomically, so reading needs no lock.
        self.run_blocking(|path| read_text(path).and_then(|text| build_document(path, text)))
            .await
    }

    async fn write(&self, expected: &Document, edits: &Edits) -> Result<(), BackingError> {
        let lock = self.acquire_file_lock().await?;
        let (version, edits, place) = (expected.version.clone(), edits.clone(), self.location());
        self.run_blocking(move |path| {
            let found = read_text(path)?;
            // Checked under the lock: the comparison and the replacement are one step for all processes.
            if found != version {
                return Err(BackingError::Conflict { place });
            }
            let text = apply_edits(path, found.as_deref(), &edits)?;
            let written = replace_file(path, &text);
            drop(lock);
            written
        })
        .await
    }

    fn location(&self) -> String {
        format!("file {}", self.path.display())
    }
}

fn open_lock_file(path: &Path) -> Result<File, BackingError> {
    let opened = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    opened.map_err(|source| file_error("open", path, source))
}

/// Reads the text of the file, which also serves as its version.
fn read_text(path: &Path) -> Result<Option<String>, BackingError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error("read", path, source)),
    }
}

fn parse_entries(path: &Path, text: Option<&str>) -> Result<BTreeMap<String, Value>, BackingError> {
    let Some(text) = text else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text).map_err(|source| BackingError::InvalidDocument {
        path: path.to_owned(),
        source,
    })
}

fn build_document(path: &Path, text: Option<String>) -> Result<Document, BackingError> {
    let entries = parse_entries(path, text.as_deref())?
        .into_iter()
        .map(|(name, value)| (name, value.to_string()))
        .collect();
    Ok(Document {
        entries,
        version: text,
    })
}

/// Applies the edits and returns the new text. Entries are nested JSON, not JSON in strings, for
/// readability.
fn apply_edits(path: &Path, found: Option<&str>, edits: &Edits) -> Result<String, BackingError> {
    let invalid = |source| BackingError::InvalidDocument {
        path: path.to_owned(),
        source,
    };
    let mut entries = parse_entries(path, found)?;
    for (name, text) in edits {
        match text {
            Some(text) => {
                entries.insert(name.clone(), serde_json::from_str(text).map_err(invalid)?);
            }
            None => {
                entries.remove(name);
            }
        }
    }
    serde_json::to_string_pretty(&entries).map_err(invalid)
}

/// Replaces the file atomically: after a crash it holds either the old or the new text.
fn replace_file(path: &Path, text: &str) -> Result<(), BackingError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(directory)
        .map_err(|source| file_error("create temporary file for", path, source))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.as_file().sync_all())
        .map_err(|source| file_error("write temporary file for", path, source))?;
    file.persist(path)
        .map_err(|error| file_error("replace", path, error.error))?;
    // Without this sync the rename may be lost in a power failure.
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| file_error("sync parent directory of", path, source))
}

fn file_error(step: &'static str, path: &Path, source: io::Error) -> BackingError {
    BackingError::File {
        step,
        path: path.to_owned(),
        source,
    }
}
