//! The last look before something is written.

use std::time::Duration;

use super::poll::{OnStop, OnStopCell};
use crate::etcd::{EtcdClient, EtcdError};
use crate::state::MemberStatus;

/// Why nothing may be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderFenceError {
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

impl LeaderFenceError {
    /// Whether the own member says itself that it does not lead.
    pub fn is_not_leading(&self) -> bool {
        matches!(self, Self::NotLeading)
    }
}

/// Asks once more whether this sidecar leads: an object is completed only behind a fence.
#[derive(Clone)]
pub struct LeaderFence {
    /// The etcd beside this sidecar.
    pub etcd: EtcdClient,
    /// How long to wait for an answer.
    pub timeout: Duration,
    on_stop: OnStopCell,
}

impl LeaderFence {
    /// A fence for whoever leads.
    pub fn new(etcd: EtcdClient, patience: Duration) -> Self {
        Self {
            etcd,
            timeout: patience,
            on_stop: OnStopCell::default(),
        }
    }

    /// A fence that also lets those pass whom the note tells to store what they have. What was captured is committed,
    /// whoever leads now; a successor that captures it again only repeats it.
    #[must_use]
    pub fn with_on_stop(&self, farewell: OnStopCell) -> Self {
        Self {
            on_stop: farewell,
            ..self.clone()
        }
    }

    /// Passes only while the own member leads, or has just handed over, and a quorum agrees.
    pub async fn check(&self) -> Result<(), LeaderFenceError> {
        let unconfirmed = |source| LeaderFenceError::Unconfirmed { source };
        let member_status = self.etcd.fetch_status(self.timeout).await.map_err(unconfirmed)?;
        let is_leaving = self.on_stop.get() == Some(&OnStop::Store);
        if !can_write(&member_status, is_leaving) {
            return Err(LeaderFenceError::NotLeading);
        }
        let confirmed = self.etcd.read_quorum_revision(self.timeout).await;
        confirmed.map_err(unconfirmed).map(drop)
    }
}

fn can_write(member_status: &MemberStatus, is_leaving: bool) -> bool {
    match member_status.leader {
        _ if member_status.is_learner => false,
        Some(leader) => leader == member_status.member || is_leaving,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::MemberId;

    use super::super::judge::tests::member_status;
    use super::*;

    #[test]
    fn only_who_leads_may_write() {
        assert!(can_write(&member_status(Some(1)), false));
        assert!(!can_write(&member_status(Some(2)), false));
        assert!(!can_write(&member_status(None), false));
    }

    #[test]
    fn who_leaves_may_write_while_somebody_leads() {
        assert!(can_write(&member_status(Some(1)), true));
        assert!(can_write(&member_status(Some(2)), true));
        assert!(!can_write(&member_status(None), true));
    }

    #[test]
    fn a_learner_never_writes() {
        let learner = MemberStatus {
            is_learner: true,
            leader: Some(MemberId(2)),
            ..member_status(None)
        };
        assert!(!can_write(&learner, true));
    }
}
