//! What others may ask of the snapshotter, and what it answers when it cannot.

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;

use crate::state::Stored;

/// What is to become of the chain after a full snapshot on demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finality {
    /// It goes on.
    #[default]
    Ordinary,
    /// This is the last snapshot before the cluster moves elsewhere; marked `.final`.
    Final,
}

/// Why there is no snapshot.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// No store is configured.
    #[error("no storage provider is configured, so there are no snapshots")]
    NoStore,
    /// Another sidecar takes the snapshots.
    #[error("this sidecar does not lead; its standing is {standing}")]
    NotLeading {
        /// What it is.
        standing: &'static str,
    },
    /// Deltas are switched off.
    #[error("delta snapshots are disabled: --delta-snapshot-period is below one second")]
    DeltasDisabled,
    /// It was tried.
    #[error("the snapshot failed: {reason}")]
    Failed {
        /// In words, with coordinates.
        reason: String,
    },
    /// Leadership ended meanwhile, or the process is stopping.
    #[error("the snapshot was given up: leadership ended")]
    Ended,
}

/// The snapshotter as others see it.
#[async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// Takes a full snapshot and returns when it is stored.
    async fn full(&self, finality: Finality) -> Result<Stored, AskError>;

    /// Stores what was captured since the last delta; `None` when nothing was.
    async fn delta(&self) -> Result<Option<Stored>, AskError>;

    /// What the store holds now.
    async fn list(&self) -> Result<Catalogue, AskError>;
}
