//! Which objects somebody is using: a restore, a compaction, a copy.

use std::collections::BTreeSet;

use async_trait::async_trait;

/// Objects that must stay, by key or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedKeys(pub BTreeSet<String>);

/// The pins could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read the pins in {location}")]
pub struct PinsError {
    /// Where they are kept.
    pub location: String,
    /// Why not.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Where readers say what they use.
#[async_trait]
pub trait PinSource: Send + Sync + 'static {
    /// What is in use now. An error means that it is not known, and nothing is deleted.
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError>;
}

/// Pins that never change; by default none, for an etcd without Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticPins(pub PinnedKeys);

#[async_trait]
impl PinSource for StaticPins {
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError> {
        Ok(self.0.clone())
    }
}
