//! One attempt to store a sealed delta.

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::layout::object_key;
use mainstay_ids::Revision;
use mainstay_store::{ErrorClass, SnapStore, StoreError, UploadOptions};

use super::batch::SealedDelta;
use crate::bucket::{BackupStore, BackupStoreError};
use crate::election::{LeaderFence, LeaderFenceError};
use crate::state::StoredSnapshot;

/// Why a delta is not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaUploadError {
    /// The store cannot be opened.
    #[error(transparent)]
    BackupStore(#[from] BackupStoreError),
    /// This sidecar leads no more.
    #[error("{name} is not stored")]
    Fenced {
        /// The delta.
        name: String,
        /// Why not.
        source: LeaderFenceError,
    },
    /// Another sidecar has stored these revisions already.
    #[error("the store already reaches revision {reaches}, {name} would overlap")]
    Superseded {
        /// The delta.
        name: String,
        /// How far the store reaches.
        reaches: Revision,
    },
    /// The attempt ended in the middle.
    #[error("the attempt to store a delta broke off")]
    Aborted {
        /// Why.
        source: tokio::task::JoinError,
    },
    /// The store did not take it.
    #[error("store {name}")]
    Store {
        /// The delta.
        name: String,
        /// What the store said.
        source: StoreError,
    },
}

impl DeltaUploadError {
    /// One word for metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::Aborted { .. } => "internal",
            Self::BackupStore(_) | Self::Superseded { .. } | Self::Store { .. } => "store",
        }
    }
}

/// A delta in the store.
#[derive(Debug)]
pub struct UploadedDelta {
    /// The object.
    pub stored: StoredSnapshot,
    /// Parts it was sent in.
    pub parts: usize,
}

/// Stores deltas.
#[derive(Clone)]
pub struct DeltaUploader {
    /// Where to.
    pub store: BackupStore,
    /// What is asked before an object is completed.
    pub fence: LeaderFence,
}

impl DeltaUploader {
    /// Stores a delta. `first` looks at the store before: a leader that has just gone may have stored more deltas than
    /// were there when this one began. A full snapshot that reaches further makes no delta needless: without it the
    /// revisions in between could not be restored.
    pub async fn try_upload(&self, sealed: &SealedDelta, first: bool) -> Result<UploadedDelta, DeltaUploadError> {
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
        let mut upload = store
            .upload(&key, UploadOptions::create_only())
            .map_err(failed)?;
        upload.write(sealed.bytes.clone()).await.map_err(failed)?;
        if let Err(source) = self.fence.check().await {
            let _ = upload.abort().await; // what was sent stays invisible either way
            return Err(DeltaUploadError::Fenced { name, source });
        }
        let (size, parts) = (sealed.bytes.len() as u64, upload.part_count());
        match upload.finish().await {
            Ok(_) => {}
            // An attempt before this one may have succeeded without our hearing of it.
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

/// Compares an object that is in the way with the one that was to be stored.
async fn is_same_object(store: &SnapStore, key: &str, sealed: &SealedDelta) -> Result<bool, StoreError> {
    match store.get_bytes(key, sealed.bytes.len() as u64).await {
        Ok(found) => Ok(found == sealed.bytes),
        Err(StoreError::TooLarge { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest revision any object promises.
pub(crate) fn newest_revision(catalogue: &Catalogue) -> Revision {
    max_revision(&catalogue.fulls).max(max_revision(&catalogue.deltas))
}

fn max_revision(objects: &[SnapshotObject]) -> Revision {
    let ends = objects.iter().map(|object| object.name.last);
    ends.max().unwrap_or_default()
}
