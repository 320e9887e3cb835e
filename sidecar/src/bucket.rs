//! The store of the backups, opened when first needed and again when its credentials change.

use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, Listed};
use mainstay_archive::layout::list_prefixes;
use mainstay_store::{Environment, OpenError, SnapStore, StoreConfig, StoreError};
use tokio::sync::Mutex;
use tracing::{info, warn};

/// Why there is no store, or no listing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// It cannot be opened.
    #[error("open the store")]
    Open {
        /// What is missing or wrong.
        source: OpenError,
    },
    /// It cannot be listed.
    #[error("list the store")]
    List {
        /// What the store said.
        source: StoreError,
    },
    /// The process is stopping.
    #[error("open the store: the process is stopping")]
    Stopping,
}

impl BucketError {
    /// The store's own error, where there is one.
    pub fn store(&self) -> Option<&StoreError> {
        match self {
            Self::List { source } => Some(source),
            _ => None,
        }
    }
}

/// The store of the backups. Cheap to clone.
#[derive(Clone)]
pub struct Bucket(Arc<Inner>);

struct Inner {
    config: StoreConfig,
    environment: Environment,
    open: Mutex<Option<SnapStore>>,
}

impl Bucket {
    /// Nothing is opened yet.
    pub fn new(config: StoreConfig, environment: Environment) -> Self {
        Self(Arc::new(Inner {
            config,
            environment,
            open: Mutex::new(None),
        }))
    }

    /// How the store is configured.
    pub fn config(&self) -> &StoreConfig {
        &self.0.config
    }

    /// The store, with the credentials as they are now. When new ones cannot be read the old ones stay in use:
    /// files may be in the middle of being replaced.
    pub async fn store(&self) -> Result<SnapStore, BucketError> {
        let mut open = self.0.open.lock().await;
        let before = open.clone();
        let inner = Arc::clone(&self.0);
        let looked = tokio::task::spawn_blocking(move || match before {
            Some(store) if !store.credentials_changed() => Ok(store),
            Some(store) => match store.reopen() {
                Ok(store) => {
                    info!("the credentials of the store have changed and were read again");
                    Ok(store)
                }
                Err(error) => {
                    warn!(error = %error, "new credentials cannot be read, the old ones stay in use");
                    Ok(store)
                }
            },
            None => SnapStore::open(&inner.config, &inner.environment),
        });
        let store = looked
            .await
            .map_err(|_| BucketError::Stopping)?
            .map_err(|source| BucketError::Open { source })?;
        *open = Some(store.clone());
        Ok(store)
    }

    /// What the store holds now, in both layouts.
    pub async fn list(&self) -> Result<Catalogue, BucketError> {
        let store = self.store().await?;
        let mut listed = Vec::new();
        for folder in list_prefixes(store.prefix()) {
            let objects = store.list(&folder).await;
            let objects = objects.map_err(|source| BucketError::List { source })?;
            listed.extend(objects.into_iter().map(|object| Listed {
                key: object.key,
                size: object.size,
                modified: object.modified,
            }));
        }
        Ok(Catalogue::from_listing(store.prefix(), listed))
    }
}
