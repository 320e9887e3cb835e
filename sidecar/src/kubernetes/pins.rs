//! Pins: objects that retention must keep because a reader, such as a restore, uses them.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_coordination::{ActivePins, ConfigMapBacking, CoordinationError, Coordinator};
use tokio::sync::OnceCell;

use super::connection::{KubeConnectError, KubeConnection};

/// Failure to read the pins. Retention must not delete anything then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinReadError {
    #[error("failed to connect to Kubernetes")]
    Connect { source: KubeConnectError },
    #[error("failed to read pins")]
    Read { source: CoordinationError },
}

/// Reads the pins of one etcd. Reuse one instance: it detects expired pins by how long it has itself observed them
/// unchanged.
#[derive(Debug)]
pub struct PinReader {
    connection: Arc<KubeConnection>,
    namespace: String,
    name: String,
    coordinator: OnceCell<Arc<Coordinator>>,
}

impl PinReader {
    /// Pins in the ConfigMap of this name. A missing ConfigMap means no pins and is not created.
    pub fn new(connection: Arc<KubeConnection>, namespace: &str, name: &str) -> Self {
        Self {
            connection,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            coordinator: OnceCell::new(),
        }
    }

    /// Current pins.
    pub(crate) async fn read_pinned(&self) -> Result<ActivePins, PinReadError> {
        let coordinator = self.coordinator().await?;
        coordinator
            .list_active_pins()
            .await
            .map_err(|source| PinReadError::Read { source })
    }

    /// Keys of a listing that are currently pinned.
    pub async fn read_pinned_keys<'a>(
        &self,
        listing: impl IntoIterator<Item = &'a str> + Send,
    ) -> Result<BTreeSet<String>, PinReadError> {
        Ok(self.read_pinned().await?.filter_pinned(listing))
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
