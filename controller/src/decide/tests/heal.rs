//! Members that lost their data.

use super::fixture::*;
use crate::decide::recovery::Hold;
use crate::decide::{Blocker, Removal, Restart, Step, Useless};
use crate::observe::{Finding, Ordinal};

fn lost(ordinal: u32) -> Step {
    Step::RemoveMember {
        member: id(ordinal),
        ordinal: Ordinal(ordinal),
        because: Removal::Lost,
    }
}

fn unwell(ordinal: u32) -> Blocker {
    let ordinal = Ordinal(ordinal);
    Blocker::MemberUnwell { ordinal }
}

fn discard(because: Useless) -> Step {
    Step::DiscardClaim {
        ordinal: Ordinal(2),
        uid: "claim-2".to_owned(),
        pod_uid: Some("pod-2-old".to_owned()),
        because,
    }
}

#[test]
fn silence_proves_nothing() {
    for finding in [Finding::Good, Finding::Refused] {
        let scene = Scene::whole(3).down(2).finding(2, finding);
        assert_eq!(scene.waits(), Some(unwell(2)), "{finding:?}");
    }
}

#[test]
fn a_member_without_data_is_removed_and_comes_back_as_a_learner() {
    let scene = Scene::whole(3).down(2).finding(2, Finding::Waits);
    assert_eq!(scene.step(), Some(lost(2)));
    let scene = scene.without_member(2);
    assert_eq!(
        scene.step(),
        Some(Step::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn damaged_data_is_given_up_only_after_its_member_is_out() {
    for (finding, because) in [
        (Finding::Corrupt, Useless::Corrupt),
        (Finding::Foreign, Useless::Foreign),
    ] {
        let scene = Scene::whole(3).down(2).finding(2, finding);
        assert_eq!(scene.step(), Some(lost(2)), "{finding:?}");
        assert_eq!(scene.without_member(2).step(), Some(discard(because)));
    }
}

#[test]
fn a_member_that_was_just_added_is_not_taken_for_lost() {
    let mut scene = Scene::whole(3).down(2).finding(2, Finding::Waits);
    let member = scene.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(
        scene.waits(),
        Some(Blocker::LearnerBehind {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_removal_that_costs_the_quorum_waits() {
    let scene = Scene::whole(3).down(2).down(1).finding(2, Finding::Corrupt);
    let blocker = Blocker::QuorumAtRisk {
        ordinal: Ordinal(2),
        well: 1,
        voters: 2,
    };
    assert_eq!(scene.waits(), Some(blocker));
}

#[test]
fn a_single_member_is_not_replaced_from_nothing() {
    let scene = Scene::whole(1).down(0).finding(0, Finding::Corrupt);
    assert_eq!(scene.waits(), Some(unwell(0)));
    let hold = Hold::NothingToRestore;
    assert_eq!(scene.silent().waits(), Some(Blocker::RecoveryNeeded(hold)));
}

#[test]
fn a_lost_quorum_waits_for_the_recovery_and_nothing_else_moves() {
    let scene = Scene::whole(3).outdated().replicas(5).down(0).down(1);
    let scene = scene
        .finding(0, Finding::NeedsRestore)
        .finding(1, Finding::Corrupt)
        .silent();
    let hold = Hold::Unconfirmed;
    assert_eq!(scene.waits(), Some(Blocker::RecoveryNeeded(hold)));
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_with_a_new_one() {
    let mut scene = Scene::whole(3).down(2);
    scene.seen.claims.remove(&Ordinal(2));
    assert_eq!(scene.step(), Some(lost(2)));
    let because = Restart::VolumeGone;
    let scene = scene.without_member(2);
    let delete = Step::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        because,
    };
    assert_eq!(scene.step(), Some(delete));
}

#[test]
fn a_claim_not_seen_yet_is_not_gone() {
    let mut scene = Scene::whole(3).down(2);
    scene.seen.claims.remove(&Ordinal(2));
    scene.pod_mut(2).created = Some(ago(10));
    assert_eq!(scene.waits(), Some(unwell(2)));
}

#[test]
fn a_claim_whose_volume_is_gone_is_given_up() {
    let mut scene = Scene::whole(3).down(2).without_member(2);
    scene.seen.claims.get_mut(&Ordinal(2)).unwrap().is_lost = true;
    assert_eq!(scene.step(), Some(discard(Useless::VolumeGone)));
}

#[test]
fn healing_does_not_wait_for_a_spec_to_be_accepted() {
    let mut scene = Scene::whole(3).down(2).finding(2, Finding::Waits);
    scene.wanted.generation = 2;
    assert_eq!(scene.step(), Some(lost(2)));
    assert_eq!(
        scene.without_member(2).step(),
        Some(Step::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

/// The pod ran and is as its check left it, but its member is out.
fn removed_while_it_ran(replicas: u32) -> Scene {
    Scene::whole(replicas)
        .down(replicas - 1)
        .without_member(replicas - 1)
}

#[test]
fn a_pod_whose_member_was_removed_while_it_ran_is_started_again() {
    for replicas in [2, 3] {
        let last = replicas - 1;
        let delete = Step::DeletePod {
            ordinal: Ordinal(last),
            uid: format!("pod-{last}-old"),
            because: Restart::Removed,
        };
        assert_eq!(removed_while_it_ran(replicas).step(), Some(delete));
    }
}

#[test]
fn a_pod_that_goes_anyway_is_not_mended_first() {
    let scene = removed_while_it_ran(3).replicas(2);
    assert_eq!(scene.step(), Some(Step::Resize { from: 3, to: 2 }));
}

#[test]
fn a_pod_is_not_started_again_for_a_member_nobody_can_tell() {
    let mut scene = removed_while_it_ran(3);
    scene.seen.leases.remove(&Ordinal(2));
    let waits = Step::AddLearner {
        ordinal: Ordinal(2),
    };
    assert_eq!(scene.step(), Some(waits));
}

#[test]
fn what_a_removed_member_left_does_not_keep_its_successor_from_starting() {
    let mut scene = Scene::whole(3).down(2).finding(2, Finding::Foreign);
    let member = scene.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(scene.step(), Some(discard(Useless::Foreign)));
}
