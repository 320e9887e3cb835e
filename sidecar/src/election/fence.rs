//! The last look before something is written.

use std::time::Duration;

use super::poll::{Farewell, FarewellNote};
use crate::etcd::{Etcd, EtcdError};
use crate::state::Sighting;

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

impl FenceError {
    /// Whether the own member says itself that it does not lead.
    pub fn is_not_leading(&self) -> bool {
        matches!(self, Self::NotLeading)
    }
}

/// Asks once more whether this sidecar leads: an object is completed only behind a fence.
#[derive(Clone)]
pub struct Fence {
    /// The etcd beside this sidecar.
    pub etcd: Etcd,
    /// How long to wait for an answer.
    pub patience: Duration,
    farewell: FarewellNote,
}

impl Fence {
    /// A fence for whoever leads.
    pub fn new(etcd: Etcd, patience: Duration) -> Self {
        Self {
            etcd,
            patience,
            farewell: FarewellNote::default(),
        }
    }

    /// A fence that also lets those pass whom the note tells to store what they have. What was captured is committed,
    /// whoever leads now; a successor that captures it again only repeats it.
    #[must_use]
    pub fn until(&self, farewell: FarewellNote) -> Self {
        Self {
            farewell,
            ..self.clone()
        }
    }

    /// Passes only while the own member leads, or has just handed over, and a quorum agrees.
    pub async fn check(&self) -> Result<(), FenceError> {
        let unconfirmed = |source| FenceError::Unconfirmed { source };
        let sighting = self.etcd.sight(self.patience).await.map_err(unconfirmed)?;
        let is_leaving = self.farewell.get() == Some(&Farewell::Store);
        if !may_pass(&sighting, is_leaving) {
            return Err(FenceError::NotLeading);
        }
        let confirmed = self.etcd.confirm(self.patience).await;
        confirmed.map_err(unconfirmed).map(drop)
    }
}

fn may_pass(sighting: &Sighting, is_leaving: bool) -> bool {
    match sighting.leader {
        _ if sighting.is_learner => false,
        Some(leader) => leader == sighting.member || is_leaving,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::MemberId;

    use super::super::judge::tests::sighting;
    use super::*;

    #[test]
    fn only_who_leads_may_write() {
        assert!(may_pass(&sighting(Some(1)), false));
        assert!(!may_pass(&sighting(Some(2)), false));
        assert!(!may_pass(&sighting(None), false));
    }

    #[test]
    fn who_leaves_may_write_while_somebody_leads() {
        assert!(may_pass(&sighting(Some(1)), true));
        assert!(may_pass(&sighting(Some(2)), true));
        assert!(!may_pass(&sighting(None), true));
    }

    #[test]
    fn a_learner_never_writes() {
        let learner = Sighting {
            is_learner: true,
            leader: Some(MemberId(2)),
            ..sighting(None)
        };
        assert!(!may_pass(&learner, true));
    }
}
