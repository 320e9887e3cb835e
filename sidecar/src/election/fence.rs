//! The last look before something is written.

use std::time::Duration;

use crate::etcd::{Etcd, EtcdError};

/// Why nothing may be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The own member does not lead any more.
    #[error("the own member does not lead any more")]
    NotLeading,
    /// Nobody can tell.
    #[error("leadership cannot be confirmed")]
    Unconfirmed {
        /// What etcd said.
        source: EtcdError,
    },
}

/// Asks once more whether this sidecar leads: an object is completed only behind a fence.
#[derive(Clone)]
pub struct Fence {
    /// The etcd beside this sidecar.
    pub etcd: Etcd,
    /// How long to wait for an answer.
    pub patience: Duration,
}

impl Fence {
    /// Passes only while the own member leads and a quorum agrees.
    pub async fn check(&self) -> Result<(), FenceError> {
        let unconfirmed = |source| FenceError::Unconfirmed { source };
        let sighting = self.etcd.sight(self.patience).await.map_err(unconfirmed)?;
        if sighting.leader != Some(sighting.member) || sighting.is_learner {
            return Err(FenceError::NotLeading);
        }
        let confirmed = self.etcd.confirm(self.patience).await;
        confirmed.map_err(unconfirmed).map(drop)
    }
}
