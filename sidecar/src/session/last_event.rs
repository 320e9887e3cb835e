//! Downloads a delta or a small full snapshot and reads its last event.

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_history::{BackupEvent, EvidenceError, ObjectStream, is_caused_by};
use mainstay_store::{SnapStore, StoreError};

/// Download buffer in bytes.
const BUDGET_BYTES: u64 = 4 << 20;
/// Largest full snapshot read into memory to find its last event.
const MAX_DATABASE_BYTES: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LastEventError {
    #[error("open {key}")]
    Store { key: String, source: StoreError },
    #[error(transparent)]
    Object(EvidenceError),
    #[error("task reading {key} failed")]
    Task {
        key: String,
        source: tokio::task::JoinError,
    },
}

impl LastEventError {
    /// Whether the object itself is damaged, as opposed to a failed download.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Object(error) => !is_caused_by(error, &|cause| cause.is::<StoreError>()),
            Self::Store { .. } | Self::Task { .. } => false,
        }
    }
}

/// Returns the last event of a delta; `None` if it has none. Dropping the future stops the download.
pub(super) async fn read_last_event(
    store: &SnapStore,
    delta: &SnapshotObject,
) -> Result<Option<BackupEvent>, LastEventError> {
    open_and_read(store, delta, mainstay_history::read_last_event).await
}

/// Returns the last event of a full snapshot; `None` if it has none or is too large. Dropping the future stops the
/// download.
pub(super) async fn read_last_row(
    store: &SnapStore,
    full: &SnapshotObject,
) -> Result<Option<BackupEvent>, LastEventError> {
    if full.size > MAX_DATABASE_BYTES {
        return Ok(None);
    }
    open_and_read(store, full, |full, stored| {
        mainstay_history::read_newest_row(full, stored, MAX_DATABASE_BYTES)
    })
    .await
}

async fn open_and_read(
    store: &SnapStore,
    object: &SnapshotObject,
    read: fn(&SnapshotObject, ObjectStream) -> Result<Option<BackupEvent>, EvidenceError>,
) -> Result<Option<BackupEvent>, LastEventError> {
    let key = || object.key.clone();
    let download = store
        .download_with_budget(&object.key, Some(object.size), BUDGET_BYTES)
        .await
        .map_err(|source| LastEventError::Store { key: key(), source })?;
    let (reader, _stop_when_dropped) = download.into_cancellable_reader();
    let stored: ObjectStream = Box::new(reader);
    let object = object.clone();
    let reading = tokio::task::spawn_blocking(move || read(&object, stored));
    let read = reading
        .await
        .map_err(|source| LastEventError::Task { key: key(), source })?;
    read.map_err(LastEventError::Object)
}

#[cfg(test)]
mod tests;
