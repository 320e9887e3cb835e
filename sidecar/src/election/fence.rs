//! Confirms leadership right before an object becomes visible.

use std::time::Duration;

use super::poll::{OnStop, OnStopCell};
use crate::etcd::{EtcdClient, EtcdError};
use crate::state::MemberStatus;

/// Why an object must not be completed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LeaderFenceError {
    #[error("own etcd member is not the leader any more")]
    NotLeading,
    #[error("leadership not confirmed by a quorum")]
    Unconfirmed { source: EtcdError },
}

impl LeaderFenceError {
    /// Whether the own member reported that it does not lead.
    pub(crate) fn is_not_leading(&self) -> bool {
        matches!(self, Self::NotLeading)
    }
}

/// Checks leadership. Every object is completed only after this check.
#[derive(Clone)]
pub(crate) struct LeaderFence {
    pub(crate) etcd: EtcdClient,
    /// Timeout of each request to etcd.
    pub(crate) timeout: Duration,
    on_stop: OnStopCell,
}

impl LeaderFence {
    /// Passes only while the own member leads.
    pub(crate) fn new(etcd: EtcdClient, timeout: Duration) -> Self {
        Self {
            etcd,
            timeout,
            on_stop: OnStopCell::default(),
        }
    }

    /// Also passes after a transfer of leadership, if the session is told to store its remaining events. Captured events
    /// are committed whoever leads now; a new leader that captures them again only duplicates them.
    #[must_use]
    pub(crate) fn with_on_stop(&self, on_stop: OnStopCell) -> Self {
        Self {
            on_stop,
            ..self.clone()
        }
    }

    /// Passes only while the own member leads, or has just transferred leadership, and a quorum confirms.
    pub(crate) async fn check(&self) -> Result<(), LeaderFenceError> {
        let unconfirmed = |source| LeaderFenceError::Unconfirmed { source };
        let member_status = self
            .etcd
            .fetch_status(self.timeout)
            .await
            .map_err(unconfirmed)?;
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
        // Without a leader nothing can be confirmed.
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::MemberId;

    use super::super::role::tests::member_status;
    use super::*;

    #[test]
    fn only_the_leader_can_write() {
        assert!(can_write(&member_status(Some(1)), false));
        assert!(!can_write(&member_status(Some(2)), false));
        assert!(!can_write(&member_status(None), false));
    }

    #[test]
    fn former_leader_can_write_only_while_a_leader_exists() {
        assert!(can_write(&member_status(Some(1)), true));
        assert!(can_write(&member_status(Some(2)), true));
        assert!(!can_write(&member_status(None), true));
    }

    #[test]
    fn learner_never_writes() {
        let learner = MemberStatus {
            is_learner: true,
            leader: Some(MemberId(2)),
            ..member_status(None)
        };
        assert!(!can_write(&learner, true));
    }
}
