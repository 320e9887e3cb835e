//! Opens objects for blocking readers.

use std::io::{self, Read};

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_store::{SnapStore, StoreError};
use tokio::task::JoinError;

use crate::ProofError;

/// Opens the objects of a chain as stored, that is, compressed.
pub trait ObjectSource: Sync {
    /// Opens an object at its first byte.
    ///
    /// # Errors
    /// The object cannot be read.
    fn open(&self, object: &SnapshotObject) -> io::Result<Box<dyn Read + Send>>;
}

/// The object could not be read; it is not known to be damaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadObjectError {
    /// The download did not start.
    #[error("open {key}")]
    Open {
        /// Object key.
        key: String,
        /// Error of the store.
        source: StoreError,
    },
    /// The download failed in the middle.
    #[error("read {key}")]
    Read {
        /// Object key.
        key: String,
        /// What the reader reported.
        source: ProofError,
    },
    /// The reader ended without a result.
    #[error("task reading {key} failed")]
    Task {
        /// Object key.
        key: String,
        /// Why it ended.
        source: JoinError,
    },
}

/// Calls `read` with the stored bytes of an object, on a thread that may block, and downloads up to `budget_bytes` ahead
/// of it. Dropping the future stops the download.
///
/// # Errors
/// The download did not start, or `read` panicked.
pub async fn read_object<T: Send + 'static>(
    store: &SnapStore,
    object: &SnapshotObject,
    budget_bytes: u64,
    read: impl FnOnce(&SnapshotObject, Box<dyn Read + Send>) -> T + Send + 'static,
) -> Result<T, ReadObjectError> {
    let key = || object.key.clone();
    let download = store
        .download_with_budget(&object.key, Some(object.size), budget_bytes)
        .await
        .map_err(|source| ReadObjectError::Open { key: key(), source })?;
    let (stored, _stop_when_dropped) = download.into_cancellable_reader();
    let object = object.clone();
    let reading = tokio::task::spawn_blocking(move || read(&object, Box::new(stored)));
    reading
        .await
        .map_err(|source| ReadObjectError::Task { key: key(), source })
}
