//! What retention must leave alone because somebody is reading it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_coordination::{ConfigMapBacking, CoordinationError, Coordinator, ActivePins};
use tokio::sync::OnceCell;

use super::connection::{KubeConnectError, KubeConnection};

/// Why it is not known what is pinned. Nothing may be deleted then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinReadError {
    /// There is no connection to Kubernetes.
    #[error("connect to Kubernetes to read pins")]
    Connect {
        /// Why.
        source: KubeConnectError,
    },
    /// The document cannot be read.
    #[error("read pins")]
    Read {
        /// Why.
        source: CoordinationError,
    },
    /// Void pins could not be removed.
    #[error("remove void pins")]
    Sweep {
        /// Why.
        source: CoordinationError,
    },
}

/// Reads the pins of one etcd. Keep one and use it again: it judges by how long *it* has seen a pin unchanged.
#[derive(Debug)]
pub struct PinReader {
    connection: Arc<KubeConnection>,
    namespace: String,
    name: String,
    coordinator: OnceCell<Arc<Coordinator>>,
}

impl PinReader {
    /// Pins in the ConfigMap of this name. One that does not exist holds none, and is not created.
    pub fn new(connection: Arc<KubeConnection>, namespace: &str, name: &str) -> Self {
        Self {
            connection,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            coordinator: OnceCell::new(),
        }
    }

    /// What is pinned now.
    pub async fn read_pinned(&self) -> Result<ActivePins, PinReadError> {
        let coordinator = self.coordinator().await?;
        coordinator
            .list_active_pins()
            .await
            .map_err(|source| PinReadError::Read { source })
    }

    /// Those keys of a listing that are pinned now.
    pub async fn read_pinned_keys<'a>(
        &self,
        listing: impl IntoIterator<Item = &'a str> + Send,
    ) -> Result<BTreeSet<String>, PinReadError> {
        Ok(self.read_pinned().await?.filter_pinned(listing))
    }

    /// Removes the pins of readers that died; tells their names.
    pub async fn sweep(&self) -> Result<Vec<String>, PinReadError> {
        let coordinator = self.coordinator().await?;
        coordinator
            .remove_expired_pins()
            .await
            .map_err(|source| PinReadError::Sweep { source })
    }

    async fn coordinator(&self) -> Result<&Arc<Coordinator>, PinReadError> {
        self.coordinator
            .get_or_try_init(async || {
                let client = self.connection.client().await;
                let client = client.map_err(|source| PinReadError::Connect { source })?;
                let backing = ConfigMapBacking::new(client, &self.namespace, &self.name);
                Ok(Coordinator::new(Arc::new(backing)))
            })
            .await
    }
}
