//! One attempt to store a sealed delta.

use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::layout::object_key;
use mainstay_ids::Revision;
use mainstay_store::{Class, SnapStore, StoreError, UploadOptions};

use super::batch::Sealed;
use crate::bucket::{Bucket, BucketError};
use crate::election::{Fence, FenceError};
use crate::state::Stored;

/// Why a delta is not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShipError {
    /// The store cannot be opened.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// This sidecar leads no more.
    #[error("{name} is not stored")]
    Fenced {
        /// The delta.
        name: String,
        /// Why not.
        source: FenceError,
    },
    /// Another sidecar has stored these revisions already.
    #[error("the store already reaches revision {reaches}, {name} would overlap")]
    Overtaken {
        /// The delta.
        name: String,
        /// How far the store reaches.
        reaches: Revision,
    },
    /// The attempt ended in the middle.
    #[error("the attempt to store a delta broke off")]
    BrokeOff {
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

impl ShipError {
    /// One word for metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::BrokeOff { .. } => "internal",
            Self::Bucket(_) | Self::Overtaken { .. } | Self::Store { .. } => "store",
        }
    }
}

/// A delta in the store.
#[derive(Debug)]
pub struct Shipped {
    /// The object.
    pub stored: Stored,
    /// Parts it was sent in.
    pub parts: usize,
}

/// Stores deltas.
#[derive(Clone)]
pub struct Shipper {
    /// Where to.
    pub bucket: Bucket,
    /// What is asked before an object is completed.
    pub fence: Fence,
}

impl Shipper {
    /// Stores a delta. `first` looks at the store before: a leader that has just gone may have stored more deltas than
    /// were there when this one began. A full snapshot that reaches further makes no delta needless: without it the
    /// revisions in between could not be restored.
    pub async fn attempt(&self, sealed: &Sealed, first: bool) -> Result<Shipped, ShipError> {
        let store = self.bucket.store().await?;
        let name = sealed.name.to_string();
        if first {
            let reaches = newest_of(&self.bucket.list().await?.deltas);
            if reaches >= sealed.name.start {
                return Err(ShipError::Overtaken { name, reaches });
            }
        }
        let failed = |source| ShipError::Store {
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
            return Err(ShipError::Fenced { name, source });
        }
        let (size, parts) = (sealed.bytes.len() as u64, upload.parts());
        match upload.finish().await {
            Ok(_) => {}
            // An attempt before this one may have succeeded without our hearing of it.
            Err(error) if error.class() == Class::Exists => {
                if !is_ours(&store, &key, sealed).await.map_err(failed)? {
                    let reaches = sealed.name.last;
                    return Err(ShipError::Overtaken { name, reaches });
                }
            }
            Err(error) => return Err(failed(error)),
        }
        let stored = Stored {
            name: sealed.name.clone(),
            key,
            size,
        };
        Ok(Shipped { stored, parts })
    }
}

/// Compares an object that is in the way with the one that was to be stored.
async fn is_ours(store: &SnapStore, key: &str, sealed: &Sealed) -> Result<bool, StoreError> {
    match store.get_bytes(key, sealed.bytes.len() as u64).await {
        Ok(found) => Ok(found == sealed.bytes),
        Err(StoreError::TooLarge { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The newest revision any object promises.
pub(crate) fn newest(catalogue: &Catalogue) -> Revision {
    newest_of(&catalogue.fulls).max(newest_of(&catalogue.deltas))
}

fn newest_of(objects: &[Object]) -> Revision {
    let ends = objects.iter().map(|object| object.name.last);
    ends.max().unwrap_or_default()
}
