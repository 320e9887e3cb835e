//! Objects in use by a restore, a compaction or a copy, which must not be deleted.

use std::collections::BTreeSet;

use async_trait::async_trait;

/// Keys or names of objects that must not be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedKeys(pub BTreeSet<String>);

#[derive(Debug, thiserror::Error)]
#[error("read pins in {location}")]
pub struct PinsError {
    /// Where the pins are stored.
    pub location: String,
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Source of the pins.
#[async_trait]
pub trait PinSource: Send + Sync + 'static {
    /// Reads the current pins. On an error nothing is deleted.
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError>;
}

/// Fixed pins; by default none, for an etcd outside Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPins(pub PinnedKeys);

#[async_trait]
impl PinSource for StaticPins {
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError> {
        Ok(self.0.clone())
    }
}
