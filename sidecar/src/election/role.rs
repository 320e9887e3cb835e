//! Derives the role of this sidecar from etcd's answers. Pure.

use mainstay_ids::Revision;

use crate::state::{MemberStatus, SidecarRole};

/// Result of one poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PollOutcome {
    /// The own member did not answer.
    NoAnswer,
    /// It answered and does not claim to lead.
    NotLeading(MemberStatus),
    /// It claims to lead, and a linearizable read at this revision confirmed it.
    ConfirmedLeader(MemberStatus, Revision),
    /// It claims to lead, but no quorum answered.
    UnconfirmedLeader(MemberStatus),
}

/// Change of leadership between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeadershipChange {
    None,
    Acquired,
    /// Another member leads and the cluster works: captured events may still be stored.
    Transferred,
    /// Leadership ended or cannot be confirmed: nothing more is written.
    Lost,
}

/// Derives the role from a poll.
pub(crate) fn decide_role(evidence: &PollOutcome) -> SidecarRole {
    match evidence {
        PollOutcome::NoAnswer | PollOutcome::UnconfirmedLeader(_) => SidecarRole::Unknown,
        PollOutcome::ConfirmedLeader(..) => SidecarRole::Leader,
        PollOutcome::NotLeading(member_status) if member_status.leader.is_none() => {
            SidecarRole::Unknown
        }
        PollOutcome::NotLeading(member_status) if member_status.is_learner => SidecarRole::Learner,
        PollOutcome::NotLeading(_) => SidecarRole::Follower,
    }
}

/// Derives the change of leadership from two roles.
pub(crate) fn detect_leadership_change(before: SidecarRole, now: SidecarRole) -> LeadershipChange {
    match (before, now) {
        (SidecarRole::Leader, SidecarRole::Leader) => LeadershipChange::None,
        (_, SidecarRole::Leader) => LeadershipChange::Acquired,
        (SidecarRole::Leader, SidecarRole::Follower) => LeadershipChange::Transferred,
        (SidecarRole::Leader, SidecarRole::Unknown | SidecarRole::Learner) => {
            LeadershipChange::Lost
        }
        _ => LeadershipChange::None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;
    use mainstay_ids::{ClusterId, MemberId};

    use super::*;

    pub(in super::super) fn member_status(leader: Option<u64>) -> MemberStatus {
        MemberStatus {
            member: MemberId(1),
            cluster: ClusterId(9),
            leader: leader.map(MemberId),
            term: 2,
            revision: Revision(5),
            is_learner: false,
            db_bytes: 0,
            db_bytes_in_use: 0,
            version: "3.5.16".into(),
            errors: Vec::new(),
            observed_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_confirmed_leadership_results_in_the_leader_role() {
        let own = member_status(Some(1));
        assert_eq!(
            decide_role(&PollOutcome::ConfirmedLeader(own.clone(), Revision(5))),
            SidecarRole::Leader
        );
        assert_eq!(
            decide_role(&PollOutcome::UnconfirmedLeader(own)),
            SidecarRole::Unknown
        );
    }

    #[test]
    fn role_is_unknown_without_a_leader() {
        assert_eq!(
            decide_role(&PollOutcome::NotLeading(member_status(None))),
            SidecarRole::Unknown
        );
        assert_eq!(decide_role(&PollOutcome::NoAnswer), SidecarRole::Unknown);
    }

    #[test]
    fn learner_is_not_a_follower() {
        let learner = MemberStatus {
            is_learner: true,
            ..member_status(Some(2))
        };
        assert_eq!(
            decide_role(&PollOutcome::NotLeading(learner)),
            SidecarRole::Learner
        );
        assert_eq!(
            decide_role(&PollOutcome::NotLeading(member_status(Some(2)))),
            SidecarRole::Follower
        );
    }

    #[test]
    fn leadership_is_transferred_only_when_the_role_becomes_follower() {
        for before in SidecarRole::ALL {
            for now in SidecarRole::ALL {
                let change = detect_leadership_change(before, now);
                let led = before == SidecarRole::Leader;
                let leads = now == SidecarRole::Leader;
                assert_eq!(
                    change == LeadershipChange::Acquired,
                    !led && leads,
                    "{before:?} {now:?}"
                );
                let ended = matches!(
                    change,
                    LeadershipChange::Transferred | LeadershipChange::Lost
                );
                assert_eq!(ended, led && !leads, "{before:?} {now:?}");
                let works = now == SidecarRole::Follower;
                assert_eq!(
                    change == LeadershipChange::Transferred,
                    led && works,
                    "{before:?} {now:?}"
                );
            }
        }
    }
}
