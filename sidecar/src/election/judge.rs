//! From what etcd answered to what this sidecar is. Pure.

use mainstay_ids::Revision;

use crate::state::{Sighting, Standing};

/// What one poll found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The own member did not answer.
    Silence,
    /// It answered, and claims nothing that needs proof.
    Seen(Sighting),
    /// It claims to lead, and a quorum agreed up to this revision.
    Confirmed(Sighting, Revision),
    /// It claims to lead, and no quorum answered.
    Unconfirmed(Sighting),
}

/// What changed with a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that matters here.
    None,
    /// Leadership begins.
    Took,
    /// Leadership ended, and the cluster works: what was captured may still be stored.
    HandedOver,
    /// Leadership ended, or cannot be proven: nothing more is written.
    Lost,
}

/// What the evidence makes this sidecar.
pub fn judge(evidence: &Evidence) -> Standing {
    match evidence {
        Evidence::Silence | Evidence::Unconfirmed(_) => Standing::Unknown,
        Evidence::Confirmed(..) => Standing::Leader,
        Evidence::Seen(sighting) if sighting.leader.is_none() => Standing::Unknown,
        Evidence::Seen(sighting) if sighting.is_learner => Standing::Learner,
        Evidence::Seen(_) => Standing::Follower,
    }
}

/// What a new standing means for the session.
pub fn standing_after(before: Standing, now: Standing) -> Change {
    match (before, now) {
        (Standing::Leader, Standing::Leader) => Change::None,
        (_, Standing::Leader) => Change::Took,
        (Standing::Leader, Standing::Follower) => Change::HandedOver,
        (Standing::Leader, Standing::Unknown | Standing::Learner) => Change::Lost,
        _ => Change::None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;
    use mainstay_ids::{ClusterId, MemberId};

    use super::*;

    pub(in super::super) fn sighting(leader: Option<u64>) -> Sighting {
        Sighting {
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
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_a_confirmed_claim_makes_a_leader() {
        let own = sighting(Some(1));
        assert_eq!(
            judge(&Evidence::Confirmed(own.clone(), Revision(5))),
            Standing::Leader
        );
        assert_eq!(judge(&Evidence::Unconfirmed(own)), Standing::Unknown);
    }

    #[test]
    fn without_a_leader_nothing_is_known() {
        assert_eq!(judge(&Evidence::Seen(sighting(None))), Standing::Unknown);
        assert_eq!(judge(&Evidence::Silence), Standing::Unknown);
    }

    #[test]
    fn a_learner_is_no_follower() {
        let learner = Sighting {
            is_learner: true,
            ..sighting(Some(2))
        };
        assert_eq!(judge(&Evidence::Seen(learner)), Standing::Learner);
        assert_eq!(
            judge(&Evidence::Seen(sighting(Some(2)))),
            Standing::Follower
        );
    }

    #[test]
    fn only_a_hand_over_in_a_working_cluster_lets_the_rest_be_stored() {
        for before in Standing::ALL {
            for now in Standing::ALL {
                let change = standing_after(before, now);
                let led = before == Standing::Leader;
                let leads = now == Standing::Leader;
                assert_eq!(change == Change::Took, !led && leads, "{before:?} {now:?}");
                let ended = matches!(change, Change::HandedOver | Change::Lost);
                assert_eq!(ended, led && !leads, "{before:?} {now:?}");
                let works = now == Standing::Follower;
                assert_eq!(
                    change == Change::HandedOver,
                    led && works,
                    "{before:?} {now:?}"
                );
            }
        }
    }
}
