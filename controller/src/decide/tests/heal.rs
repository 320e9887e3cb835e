//! Members that lost their data.

use mainstay_coordination::incident::Stage;

use super::fixture::*;
use crate::decide::recovery::Hold;
use crate::decide::recovery::tests::scene::incident;
use crate::decide::{Blocker, Removal, Restart, Step, Useless};
use crate::observe::{Finding, Ordinal, SeenClaim};

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
fn old_data_is_kept_until_the_new_cluster_is_whole_without_it() {
    for finding in [Finding::Corrupt, Finding::Foreign] {
        let scene = |size: u32, down: &[u32]| {
            let mut scene = Scene::whole(size);
            let mut over = incident(size, 0);
            (over.stage, over.changed) = (Stage::Closed, ago(60));
            scene.seen.recovery.incident = Some(over);
            for ordinal in down {
                scene = scene.down(*ordinal).finding(*ordinal, finding);
                scene = scene.without_member(*ordinal);
                let lease = scene.seen.leases.get_mut(&Ordinal(*ordinal)).unwrap();
                lease.renewed = Some(ago(90));
            }
            scene
        };
        let alone = scene(3, &[1, 2]);
        assert_eq!(alone.waits(), Some(unwell(1)), "one of three is no quorum");
        let joining = alone.finding(1, Finding::Waits);
        let ordinal = Ordinal(1);
        assert_eq!(joining.step(), Some(Step::AddLearner { ordinal }));
        for (size, down) in [(3, &[2][..]), (5, &[2, 3]), (2, &[1])] {
            let step = scene(size, down).step();
            let is_given_up = matches!(step, Some(Step::DiscardClaim { .. }));
            assert!(is_given_up, "{size}: {step:?}");
        }
        let mut lived = scene(3, &[1, 2]);
        let lease = lived.seen.leases.get_mut(&Ordinal(1)).unwrap();
        lease.renewed = Some(ago(30));
        let step = lived.step();
        assert!(
            matches!(step, Some(Step::DiscardClaim { .. })),
            "what came after the recovery is no better than what the others have: {step:?}"
        );
    }
}

#[test]
fn data_on_which_etcd_ends_again_and_again_is_checked_again() {
    let crashes = |times: u32| {
        let mut scene = Scene::whole(3).down(2);
        scene.pod_mut(2).crashes = times;
        scene
    };
    let delete = Step::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        because: Restart::Crashes,
    };
    assert_eq!(crashes(5).step(), Some(delete.clone()));
    let silent = crashes(5).down(1).finding(1, Finding::Corrupt).silent();
    assert_eq!(silent.step(), Some(delete), "what it holds is asked for");
    assert_eq!(crashes(4).waits(), Some(unwell(2)), "it may still come");
    let mut young = crashes(9);
    young.pod_mut(2).created = Some(ago(599));
    assert_eq!(young.waits(), Some(unwell(2)), "not again at once");
    let mut serves = Scene::whole(3);
    serves.pod_mut(2).crashes = 9;
    assert_eq!(serves.step(), None, "it takes part");
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

/// The only member's pod waits for its claim, which is gone.
fn stranded() -> Scene {
    let mut scene = Scene::whole(1).backed_up(60).down(0).silent();
    let pod = scene.pod_mut(0);
    (pod.finding, pod.address) = (None, None);
    scene.seen.claims.remove(&Ordinal(0));
    scene
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_also_without_a_quorum() {
    let delete = Step::DeletePod {
        ordinal: Ordinal(0),
        uid: "pod-0-old".to_owned(),
        because: Restart::VolumeGone,
    };
    assert_eq!(stranded().step(), Some(delete.clone()));
    let with = |is_lost: bool| {
        let mut scene = stranded();
        let given_up = SeenClaim {
            is_lost,
            is_deleting: true,
            ..claim(0)
        };
        scene.seen.claims.insert(Ordinal(0), given_up);
        scene
    };
    assert_eq!(with(true).step(), Some(delete), "it was given up");
    assert!(with(false).waits().is_some(), "what it holds may be needed");
    let mut young = stranded();
    young.pod_mut(0).created = Some(ago(59));
    assert!(young.waits().is_some(), "it may just not be seen yet");
    let began = stranded().finding(0, Finding::Good);
    assert!(began.waits().is_some(), "it has its volume");
    let mut checks = stranded();
    checks.pod_mut(0).address = Some("10.0.0.1".to_owned());
    assert!(checks.waits().is_some(), "its data is being looked at");
}

#[test]
fn a_pod_whose_claim_is_gone_waits_where_a_recovery_may_begin() {
    let down = Scene::whole(3).backed_up(60).down(1).down(2).silent();
    let mut scene = down.finding(1, Finding::Corrupt);
    let pod = scene.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    let given_up = SeenClaim {
        is_lost: true,
        is_deleting: true,
        ..claim(2)
    };
    scene.seen.claims.insert(Ordinal(2), given_up);
    let on = scene.waits();
    assert!(
        matches!(on, Some(Blocker::RecoveryNeeded(_))),
        "another claim would be another loss: {on:?}"
    );
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_where_a_recovery_waits_for_its_verdict() {
    let down = Scene::whole(3).backed_up(60).down(0).down(1).down(2);
    let mut scene = down.silent();
    for ordinal in [0, 1] {
        scene = scene.finding(ordinal, Finding::Corrupt);
    }
    let pod = scene.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    scene.seen.claims.remove(&Ordinal(2));
    let step = scene.step();
    assert!(
        matches!(
            step,
            Some(Step::DeletePod {
                ordinal: Ordinal(2),
                ..
            })
        ),
        "nobody else would make a claim for it: {step:?}"
    );
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
