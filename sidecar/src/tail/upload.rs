//! Uploads a sealed delta, one attempt at a time.

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::layout::object_key;
use mainstay_ids::Revision;
use mainstay_store::{ErrorClass, SnapStore, StoreError, UploadOptions};

use super::batch::SealedDelta;
use crate::backup_store::{BackupStore, BackupStoreError};
use crate::election::{LeaderFence, LeaderFenceError};
use crate::state::StoredSnapshot;

/// Why a delta was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DeltaUploadError {
    #[error(transparent)]
    BackupStore(#[from] BackupStoreError),
    /// Leadership was lost or could not be confirmed before the upload was completed.
    #[error("upload of {name} cancelled")]
    Fenced {
        name: String,
        source: LeaderFenceError,
    },
    /// Another sidecar has stored these revisions already.
    #[error("{name} overlaps deltas that another sidecar stored up to revision {reaches}")]
    Superseded {
        name: String,
        /// Last revision of the deltas in the store.
        reaches: Revision,
    },
    /// The upload task panicked or was aborted.
    #[error("delta upload task failed")]
    Aborted { source: tokio::task::JoinError },
    #[error("upload {name}")]
    Store { name: String, source: StoreError },
}

impl DeltaUploadError {
    /// Failure class for metrics.
    pub(crate) fn class(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::Aborted { .. } => "internal",
            Self::BackupStore(_) | Self::Superseded { .. } | Self::Store { .. } => "store",
        }
    }
}

/// A stored delta.
#[derive(Debug)]
pub(crate) struct UploadedDelta {
    pub(crate) stored: StoredSnapshot,
    /// Number of multipart upload parts.
    pub(crate) parts: usize,
}

/// Uploads deltas.
#[derive(Clone)]
pub(crate) struct DeltaUploader {
    pub(crate) store: BackupStore,
    /// Confirms leadership before an object becomes visible.
    pub(crate) fence: LeaderFence,
}

impl DeltaUploader {
    /// Uploads a delta. With `first`, lists the store before: the previous leader may have stored more deltas since this
    /// session listed it. Only deltas count, not a newer full snapshot: without this delta the revisions before that
    /// snapshot could not be restored.
    pub(crate) async fn try_upload(
        &self,
        sealed: &SealedDelta,
        first: bool,
    ) -> Result<UploadedDelta, DeltaUploadError> {
        let store = self.store.open().await?;
        let name = sealed.name.to_string();
        if first {
            let reaches = max_revision(&self.store.list_snapshots().await?.deltas);
            if reaches >= sealed.name.start {
                return Err(DeltaUploadError::Superseded { name, reaches });
            }
        }
        let failed = |source| DeltaUploadError::Store {
            name: name.clone(),
            source,
        };
        let key = object_key(store.prefix(), &sealed.name);
        // Create only: an object of another leader is never overwritten.
        let mut upload = store
            .upload(&key, UploadOptions::create_only())
            .map_err(failed)?;
        upload.write(sealed.bytes.clone()).await.map_err(failed)?;
        // Checked as late as possible: the object becomes visible with `finish`.
        if let Err(source) = self.fence.check().await {
            let _ = upload.abort().await; // parts of an incomplete upload are never visible
            return Err(DeltaUploadError::Fenced { name, source });
        }
        let (size, parts) = (sealed.bytes.len() as u64, upload.part_count());
        match upload.finish().await {
            Ok(_) => {}
            // An earlier attempt may have succeeded although its response was lost.
            Err(error) if error.class() == ErrorClass::Exists => {
                if !is_same_object(&store, &key, sealed).await.map_err(failed)? {
                    let reaches = sealed.name.last;
                    return Err(DeltaUploadError::Superseded { name, reaches });
                }
            }
            Err(error) => return Err(failed(error)),
        }
        let stored = StoredSnapshot {
            name: sealed.name.clone(),
            key,
            size,
        };
        Ok(UploadedDelta { stored, parts })
    }
}

/// Compares the existing object with the delta to be stored.
async fn is_same_object(
    store: &SnapStore,
    key: &str,
    sealed: &SealedDelta,
) -> Result<bool, StoreError> {
    match store.get_bytes(key, sealed.bytes.len() as u64).await {
        Ok(found) => Ok(found == sealed.bytes),
        Err(StoreError::TooLarge { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Last revision of all objects, by their names.
pub(crate) fn newest_revision(catalogue: &Catalogue) -> Revision {
    max_revision(&catalogue.fulls).max(max_revision(&catalogue.deltas))
}

fn max_revision(objects: &[SnapshotObject]) -> Revision {
    let ends = objects.iter().map(|object| object.name.last);
    ends.max().unwrap_or_default()
}
