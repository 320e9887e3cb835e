//! A document in a file, for a machine without Kubernetes: a lock file beside it makes the comparison and the
//! replacement one step for all processes of the machine.

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

use super::{Backing, BackingError, DEADLINE, Edits, Page};

/// A lock on the file is held for a few milliseconds at most.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A file, and beside it `<file>.lock`, which stays. The file system must honour `flock`.
#[derive(Clone, Debug)]
pub struct FileBacking {
    path: PathBuf,
}

impl FileBacking {
    /// The file of this path, which need not exist yet; its directory must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn lock_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        path.into()
    }

    /// Runs a step on the blocking pool.
    async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Path) -> Result<T, BackingError> + Send + 'static,
    ) -> Result<T, BackingError> {
        let path = self.path.clone();
        spawn_blocking(move || step(&path))
            .await
            .unwrap_or_else(|_| {
                Err(BackingError::Stopping {
                    path: self.path.clone(),
                })
            })
    }

    /// Locks out the other writers until the file that is returned is dropped. A process that dies lets go.
    async fn lock(&self) -> Result<File, BackingError> {
        let path = self.lock_path();
        let file = self.blocking(move |_| open_lock(&path)).await?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(LOOK_AGAIN).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(BackingError::Busy {
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
    async fn read(&self) -> Result<Page, BackingError> {
        // The file is only ever replaced as a whole, so reading needs no lock.
        self.blocking(|path| read(path).and_then(|text| page(path, text)))
            .await
    }

    async fn write(&self, expected: &Page, edits: &Edits) -> Result<(), BackingError> {
        let lock = self.lock().await?;
        let (version, edits, place) = (expected.version.clone(), edits.clone(), self.place());
        self.blocking(move |path| {
            let found = read(path)?;
            if found != version {
                return Err(BackingError::Conflict { place });
            }
            let text = edited(path, found.as_deref(), &edits)?;
            let written = replace(path, &text);
            drop(lock);
            written
        })
        .await
    }

    fn place(&self) -> String {
        format!("file {}", self.path.display())
    }
}

fn open_lock(path: &Path) -> Result<File, BackingError> {
    let opened = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    opened.map_err(|source| failed("open", path, source))
}

/// The file's text, which is also its version: two documents with the same text are the same.
fn read(path: &Path) -> Result<Option<String>, BackingError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("read", path, source)),
    }
}

fn parse(path: &Path, text: Option<&str>) -> Result<BTreeMap<String, Value>, BackingError> {
    let Some(text) = text else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text).map_err(|source| BackingError::NotADocument {
        path: path.to_owned(),
        source,
    })
}

fn page(path: &Path, text: Option<String>) -> Result<Page, BackingError> {
    let entries = parse(path, text.as_deref())?
        .into_iter()
        .map(|(name, value)| (name, value.to_string()))
        .collect();
    Ok(Page {
        entries,
        version: text,
    })
}

/// The new text. Entries are JSON in the file, not text that holds JSON: people read it.
fn edited(path: &Path, found: Option<&str>, edits: &Edits) -> Result<String, BackingError> {
    let unfit = |source| BackingError::NotADocument {
        path: path.to_owned(),
        source,
    };
    let mut entries = parse(path, found)?;
    for (name, text) in edits {
        match text {
            Some(text) => {
                entries.insert(name.clone(), serde_json::from_str(text).map_err(unfit)?);
            }
            None => {
                entries.remove(name);
            }
        }
    }
    serde_json::to_string_pretty(&entries).map_err(unfit)
}

/// Temporary file, sync, rename, sync of the directory: after a crash there is the old text or the new.
fn replace(path: &Path, text: &str) -> Result<(), BackingError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(directory)
        .map_err(|source| failed("create a file beside", path, source))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.as_file().sync_all())
        .map_err(|source| failed("write a file beside", path, source))?;
    file.persist(path)
        .map_err(|error| failed("replace", path, error.error))?;
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| failed("sync the directory of", path, source))
}

fn failed(step: &'static str, path: &Path, source: io::Error) -> BackingError {
    BackingError::File {
        step,
        path: path.to_owned(),
        source,
    }
}
