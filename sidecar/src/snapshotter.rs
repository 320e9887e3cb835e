//! Interface of the snapshotter for on-demand snapshots.

use async_trait::async_trait;
use mainstay_archive::catalogue::Catalogue;

use crate::state::StoredSnapshot;

/// Whether an on-demand full snapshot is the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finality {
    /// The backup continues after it.
    #[default]
    Ordinary,
    /// Last snapshot before the cluster moves elsewhere (control plane migration); marked `.final`.
    Final,
}

/// Failure of an on-demand snapshot.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotRequestError {
    #[error("no storage provider is configured: snapshots are disabled")]
    NoStore,
    /// This sidecar does not lead.
    #[error("this sidecar does not lead (role: {role})")]
    NotLeading { role: &'static str },
    /// Delta snapshots are disabled.
    #[error("delta snapshots are disabled: --delta-snapshot-period is below one second")]
    DeltasDisabled,
    /// The snapshot failed.
    #[error("snapshot failed: {reason}")]
    Failed {
        /// Error text with coordinates.
        reason: String,
    },
    /// This sidecar lost leadership during the snapshot, or the process is stopping.
    #[error("snapshot cancelled: this sidecar lost leadership or is stopping")]
    Aborted,
}

/// Takes snapshots on demand.
#[async_trait]
pub trait Snapshotter: Send + Sync + 'static {
    /// Takes a full snapshot; returns when it is stored.
    async fn take_full(&self, finality: Finality) -> Result<StoredSnapshot, SnapshotRequestError>;

    /// Stores the events captured since the last delta; `None` if there are none.
    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError>;

    /// Lists the store.
    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError>;
}
