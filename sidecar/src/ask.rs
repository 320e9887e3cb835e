//! What others may ask of the snapshotter, and what it answers when it cannot.

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;

use crate::state::StoredSnapshot;

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
pub enum SnapshotRequestError {
    /// No store is configured.
    #[error("no storage provider is configured, so there are no snapshots")]
    NoStore,
    /// Another sidecar takes the snapshots.
    #[error("this sidecar does not lead; its standing is {role}")]
    NotLeading {
        /// What it is.
        role: &'static str,
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
    Aborted,
}

/// The snapshotter as others see it.
#[async_trait]
pub trait Snapshotter: Send + Sync + 'static {
    /// Takes a full snapshot and returns when it is stored.
    async fn take_full(&self, finality: Finality) -> Result<StoredSnapshot, SnapshotRequestError>;

    /// Stores what was captured since the last delta; `None` when nothing was.
    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError>;

    /// What the store holds now.
    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError>;
}
