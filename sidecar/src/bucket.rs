//! The store of the backups, opened when first needed and again when its credentials change.

use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::layout::list_prefixes;
use mainstay_store::{Environment, StoreOpenError, SnapStore, StoreConfig, StoreError};
use tokio::sync::Mutex;
use tracing::{info, warn};

/// Why there is no store, or no listing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupStoreError {
    /// It cannot be opened.
    #[error("open the store")]
    Open {
        /// What is missing or wrong.
        source: StoreOpenError,
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

impl BackupStoreError {
    /// The store's own error, where there is one.
    pub fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::List { source } => Some(source),
            _ => None,
        }
    }
}

/// The store of the backups. Cheap to clone.
#[derive(Clone)]
pub struct BackupStore(Arc<BackupStoreInner>);

struct BackupStoreInner {
    config: StoreConfig,
    environment: Environment,
    opened: Mutex<Option<SnapStore>>,
}

impl BackupStore {
    /// Nothing is opened yet.
    pub fn new(config: StoreConfig, environment: Environment) -> Self {
        Self(Arc::new(BackupStoreInner {
            config,
            environment,
            opened: Mutex::new(None),
        }))
    }

    /// How the store is configured.
    pub fn config(&self) -> &StoreConfig {
        &self.0.config
    }

    /// The store, with the credentials as they are now. When new ones cannot be read the old ones stay in use:
    /// files may be in the middle of being replaced.
    pub async fn open(&self) -> Result<SnapStore, BackupStoreError> {
        let mut open = self.0.opened.lock().await;
        let before = open.clone();
        let inner = Arc::clone(&self.0);
        let last_check = tokio::task::spawn_blocking(move || match before {
            Some(store) if !store.has_changed_credentials() => Ok(store),
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
        let store = last_check
            .await
            .map_err(|_| BackupStoreError::Stopping)?
            .map_err(|source| BackupStoreError::Open { source })?;
        *open = Some(store.clone());
        Ok(store)
    }

    /// What the store holds now, in both layouts.
    pub async fn list_snapshots(&self) -> Result<Catalogue, BackupStoreError> {
        let store = self.open().await?;
        let mut listed = Vec::new();
        for folder in list_prefixes(store.prefix()) {
            let objects = store.list(&folder).await;
            let objects = objects.map_err(|source| BackupStoreError::List { source })?;
            listed.extend(objects.into_iter().map(|object| ListedObject {
                key: object.key,
                size: object.size,
                modified: object.last_modified,
            }));
        }
        Ok(Catalogue::from_listing(store.prefix(), listed))
    }
}
