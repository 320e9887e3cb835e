//! The object store of the backups, opened on first use and reopened when its credentials change.

use std::sync::Arc;

use mainstay_archive::catalogue::Catalogue;
use mainstay_store::{Environment, SnapStore, StoreConfig, StoreError, StoreOpenError};
use tokio::sync::Mutex;
use tracing::{info, warn};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BackupStoreError {
    #[error("failed to open the object store")]
    Open { source: StoreOpenError },
    #[error("failed to list the object store")]
    List { source: StoreError },
    /// The process is stopping.
    #[error("failed to open the object store: the process is stopping")]
    Stopping,
}

impl BackupStoreError {
    /// Error of the store's request; `None` for failures to open it.
    pub(crate) fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::List { source } => Some(source),
            _ => None,
        }
    }
}

/// The object store of the backups. Cheap to clone.
#[derive(Clone)]
pub(crate) struct BackupStore(Arc<BackupStoreInner>);

struct BackupStoreInner {
    config: StoreConfig,
    environment: Environment,
    opened: Mutex<Option<SnapStore>>,
}

impl BackupStore {
    /// Does not open the store yet.
    pub(crate) fn new(config: StoreConfig, environment: Environment) -> Self {
        Self(Arc::new(BackupStoreInner {
            config,
            environment,
            opened: Mutex::new(None),
        }))
    }

    pub(crate) fn config(&self) -> &StoreConfig {
        &self.0.config
    }

    /// The store with the current credentials. If changed ones cannot be read, the previous ones stay in use: the files may
    /// be in the middle of an update.
    pub(crate) async fn open(&self) -> Result<SnapStore, BackupStoreError> {
        let mut open = self.0.opened.lock().await;
        let previous = open.clone();
        let inner = Arc::clone(&self.0);
        // Checking and reading the credentials are blocking file operations.
        let opening = tokio::task::spawn_blocking(move || match previous {
            Some(store) if !store.has_changed_credentials() => Ok(store),
            Some(store) => match store.reopen() {
                Ok(store) => {
                    info!("credentials of the object store reloaded");
                    Ok(store)
                }
                Err(error) => {
                    warn!(error = %error, "failed to reload credentials, keeping the previous ones");
                    Ok(store)
                }
            },
            None => SnapStore::open(&inner.config, &inner.environment),
        });
        let store = opening
            .await
            .map_err(|_| BackupStoreError::Stopping)?
            .map_err(|source| BackupStoreError::Open { source })?;
        *open = Some(store.clone());
        Ok(store)
    }

    /// Lists the store, in both layouts (v1 and v2).
    pub(crate) async fn list_snapshots(&self) -> Result<Catalogue, BackupStoreError> {
        let store = self.open().await?;
        mainstay_backup::list_snapshots(&store)
            .await
            .map_err(|source| BackupStoreError::List { source })
    }
}
