//! Downloads a delta or a small full snapshot and reads its last event.

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_backup::{ReadObjectError, read_object};
use mainstay_history::{BackupEvent, EvidenceError};
use mainstay_store::{SnapStore, is_store_failure};

/// Download buffer in bytes.
const BUDGET_BYTES: u64 = 4 << 20;
/// Largest full snapshot read into memory to find its last event.
const MAX_DATABASE_BYTES: u64 = 16 << 20;

/// Why the last event cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum LastEventError {
    #[error(transparent)]
    Unread(#[from] ReadObjectError),
    #[error(transparent)]
    Object(EvidenceError),
}

impl LastEventError {
    /// Whether the object itself is damaged, as opposed to a failed download.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Object(error) => !is_store_failure(error),
            Self::Unread(_) => false,
        }
    }
}

/// Returns the last event of a delta; `None` if it has none. Dropping the future stops the download.
pub(super) async fn read_last_event(
    store: &SnapStore,
    delta: &SnapshotObject,
) -> Result<Option<BackupEvent>, LastEventError> {
    read_object(store, delta, BUDGET_BYTES, |delta, stored| {
        mainstay_history::read_last_event(delta, stored).map_err(LastEventError::Object)
    })
    .await?
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
    read_object(store, full, BUDGET_BYTES, |full, stored| {
        mainstay_history::read_newest_row(full, stored, MAX_DATABASE_BYTES)
            .map_err(LastEventError::Object)
    })
    .await?
}

#[cfg(test)]
mod tests;
