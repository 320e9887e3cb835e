//! Members that lost their data.

use mainstay_coordination::incident::RecoveryStage;

use super::fixture::*;
use crate::decide::recovery::RecoveryBlocker;
use crate::decide::recovery::tests::scene::incident;
use crate::decide::{Blocker, MemberRemovalReason, PodDeletionReason, ReconcileStep, PvcDeletionReason};
use crate::observe::{InitFinding, Ordinal, ObservedPvc};

fn remove_lost_member(ordinal: u32) -> ReconcileStep {
    ReconcileStep::RemoveMember {
        member: member_id(ordinal),
        ordinal: Ordinal(ordinal),
        reason: MemberRemovalReason::DataLost,
    }
}

fn member_unhealthy(ordinal: u32) -> Blocker {
    let ordinal = Ordinal(ordinal);
    Blocker::MemberUnhealthy { ordinal }
}

fn delete_pvc(because: PvcDeletionReason) -> ReconcileStep {
    ReconcileStep::DeletePvc {
        ordinal: Ordinal(2),
        uid: "claim-2".to_owned(),
        pod_uid: Some("pod-2-old".to_owned()),
        reason: because,
    }
}

#[test]
fn silence_proves_nothing() {
    for finding in [InitFinding::CanStart, InitFinding::Refused] {
        let scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, finding);
        assert_eq!(scene.blocker(), Some(member_unhealthy(2)), "{finding:?}");
    }
}

#[test]
fn a_member_without_data_is_removed_and_comes_back_as_a_learner() {
    let scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, InitFinding::WaitingToJoin);
    assert_eq!(scene.step(), Some(remove_lost_member(2)));
    let scene = scene.without_member(2);
    assert_eq!(
        scene.step(),
        Some(ReconcileStep::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn damaged_data_is_given_up_only_after_its_member_is_out() {
    for (finding, because) in [
        (InitFinding::Corrupt, PvcDeletionReason::Corrupt),
        (InitFinding::Foreign, PvcDeletionReason::Foreign),
    ] {
        let scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, finding);
        assert_eq!(scene.step(), Some(remove_lost_member(2)), "{finding:?}");
        assert_eq!(scene.without_member(2).step(), Some(delete_pvc(because)));
    }
}

#[test]
fn old_data_is_kept_until_the_new_cluster_is_whole_without_it() {
    for finding in [InitFinding::Corrupt, InitFinding::Foreign] {
        let scene = |size: u32, down: &[u32]| {
            let mut scene = ClusterFixture::healthy(size);
            let mut over = incident(size, 0);
            (over.stage, over.changed) = (RecoveryStage::Closed, ago(60));
            scene.observed.recovery.incident = Some(over);
            for ordinal in down {
                scene = scene.with_member_down(*ordinal).with_finding(*ordinal, finding);
                scene = scene.without_member(*ordinal);
                let lease = scene.observed.leases.get_mut(&Ordinal(*ordinal)).unwrap();
                lease.renewed_at = Some(ago(90));
            }
            scene
        };
        let alone = scene(3, &[1, 2]);
        assert_eq!(alone.blocker(), Some(member_unhealthy(1)), "one of three is no quorum");
        let joining = alone.with_finding(1, InitFinding::WaitingToJoin);
        let ordinal = Ordinal(1);
        assert_eq!(joining.step(), Some(ReconcileStep::AddLearner { ordinal }));
        for (size, down) in [(3, &[2][..]), (5, &[2, 3]), (2, &[1])] {
            let step = scene(size, down).step();
            let is_given_up = matches!(step, Some(ReconcileStep::DeletePvc { .. }));
            assert!(is_given_up, "{size}: {step:?}");
        }
        let mut lived = scene(3, &[1, 2]);
        let lease = lived.observed.leases.get_mut(&Ordinal(1)).unwrap();
        lease.renewed_at = Some(ago(30));
        let step = lived.step();
        assert!(
            matches!(step, Some(ReconcileStep::DeletePvc { .. })),
            "what came after the recovery is no better than what the others have: {step:?}"
        );
    }
}

#[test]
fn data_on_which_etcd_ends_again_and_again_is_checked_again() {
    let crashing_status = |times: u32| {
        let mut scene = ClusterFixture::healthy(3).with_member_down(2);
        scene.pod_mut(2).crash_count = times;
        scene
    };
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        reason: PodDeletionReason::CrashLooping,
    };
    assert_eq!(crashing_status(5).step(), Some(delete.clone()));
    let silent = crashing_status(5).with_member_down(1).with_finding(1, InitFinding::Corrupt).without_quorum();
    assert_eq!(silent.step(), Some(delete), "what it holds is asked for");
    assert_eq!(crashing_status(4).blocker(), Some(member_unhealthy(2)), "it may still come");
    let mut young = crashing_status(9);
    young.pod_mut(2).created_at = Some(ago(599));
    assert_eq!(young.blocker(), Some(member_unhealthy(2)), "not again at once");
    let mut serves = ClusterFixture::healthy(3);
    serves.pod_mut(2).crash_count = 9;
    assert_eq!(serves.step(), None, "it takes part");
}

#[test]
fn a_member_that_was_just_added_is_not_taken_for_lost() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, InitFinding::WaitingToJoin);
    let member = scene.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(
        scene.blocker(),
        Some(Blocker::LearnerLagging {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn a_removal_that_costs_the_quorum_waits() {
    let scene = ClusterFixture::healthy(3).with_member_down(2).with_member_down(1).with_finding(2, InitFinding::Corrupt);
    let blocker = Blocker::QuorumAtRisk {
        ordinal: Ordinal(2),
        healthy: 1,
        voters: 2,
    };
    assert_eq!(scene.blocker(), Some(blocker));
}

#[test]
fn a_single_member_is_not_replaced_from_nothing() {
    let scene = ClusterFixture::healthy(1).with_member_down(0).with_finding(0, InitFinding::Corrupt);
    assert_eq!(scene.blocker(), Some(member_unhealthy(0)));
    let hold = RecoveryBlocker::NothingToRestore;
    assert_eq!(scene.without_quorum().blocker(), Some(Blocker::RecoveryBlocked(hold)));
}

#[test]
fn a_lost_quorum_waits_for_the_recovery_and_nothing_else_moves() {
    let scene = ClusterFixture::healthy(3).with_new_template().with_replicas(5).with_member_down(0).with_member_down(1);
    let scene = scene
        .with_finding(0, InitFinding::NeedsRestore)
        .with_finding(1, InitFinding::Corrupt)
        .without_quorum();
    let hold = RecoveryBlocker::LossUnconfirmed;
    assert_eq!(scene.blocker(), Some(Blocker::RecoveryBlocked(hold)));
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_with_a_new_one() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2);
    scene.observed.pvcs.remove(&Ordinal(2));
    assert_eq!(scene.step(), Some(remove_lost_member(2)));
    let because = PodDeletionReason::VolumeLost;
    let scene = scene.without_member(2);
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        reason: because,
    };
    assert_eq!(scene.step(), Some(delete));
}

/// The only member's pod waits for its claim, which is gone.
fn cluster_without_volume() -> ClusterFixture {
    let mut scene = ClusterFixture::healthy(1).with_backup(60).with_member_down(0).without_quorum();
    let pod = scene.pod_mut(0);
    (pod.finding, pod.address) = (None, None);
    scene.observed.pvcs.remove(&Ordinal(0));
    scene
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_also_without_a_quorum() {
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(0),
        uid: "pod-0-old".to_owned(),
        reason: PodDeletionReason::VolumeLost,
    };
    assert_eq!(cluster_without_volume().step(), Some(delete.clone()));
    let with = |is_lost: bool| {
        let mut scene = cluster_without_volume();
        let given_up = ObservedPvc {
            is_lost,
            is_deleting: true,
            ..pvc(0)
        };
        scene.observed.pvcs.insert(Ordinal(0), given_up);
        scene
    };
    assert_eq!(with(true).step(), Some(delete), "it was given up");
    assert!(with(false).blocker().is_some(), "what it holds may be needed");
    let mut young = cluster_without_volume();
    young.pod_mut(0).created_at = Some(ago(59));
    assert!(young.blocker().is_some(), "it may just not be seen yet");
    let began = cluster_without_volume().with_finding(0, InitFinding::CanStart);
    assert!(began.blocker().is_some(), "it has its volume");
    let mut checks = cluster_without_volume();
    checks.pod_mut(0).address = Some("10.0.0.1".to_owned());
    assert!(checks.blocker().is_some(), "its data is being looked at");
}

#[test]
fn a_pod_whose_claim_is_gone_waits_where_a_recovery_may_begin() {
    let down = ClusterFixture::healthy(3).with_backup(60).with_member_down(1).with_member_down(2).without_quorum();
    let mut scene = down.with_finding(1, InitFinding::Corrupt);
    let pod = scene.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    let given_up = ObservedPvc {
        is_lost: true,
        is_deleting: true,
        ..pvc(2)
    };
    scene.observed.pvcs.insert(Ordinal(2), given_up);
    let on = scene.blocker();
    assert!(
        matches!(on, Some(Blocker::RecoveryBlocked(_))),
        "another claim would be another loss: {on:?}"
    );
}

#[test]
fn a_pod_whose_claim_is_gone_is_made_again_where_a_recovery_waits_for_its_verdict() {
    let down = ClusterFixture::healthy(3).with_backup(60).with_member_down(0).with_member_down(1).with_member_down(2);
    let mut scene = down.without_quorum();
    for ordinal in [0, 1] {
        scene = scene.with_finding(ordinal, InitFinding::Corrupt);
    }
    let pod = scene.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    scene.observed.pvcs.remove(&Ordinal(2));
    let step = scene.step();
    assert!(
        matches!(
            step,
            Some(ReconcileStep::DeletePod {
                ordinal: Ordinal(2),
                ..
            })
        ),
        "nobody else would make a claim for it: {step:?}"
    );
}

#[test]
fn a_claim_not_seen_yet_is_not_gone() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2);
    scene.observed.pvcs.remove(&Ordinal(2));
    scene.pod_mut(2).created_at = Some(ago(10));
    assert_eq!(scene.blocker(), Some(member_unhealthy(2)));
}

#[test]
fn a_claim_whose_volume_is_gone_is_given_up() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2).without_member(2);
    scene.observed.pvcs.get_mut(&Ordinal(2)).unwrap().is_lost = true;
    assert_eq!(scene.step(), Some(delete_pvc(PvcDeletionReason::VolumeLost)));
}

#[test]
fn healing_does_not_wait_for_a_spec_to_be_accepted() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, InitFinding::WaitingToJoin);
    scene.desired.generation = 2;
    assert_eq!(scene.step(), Some(remove_lost_member(2)));
    assert_eq!(
        scene.without_member(2).step(),
        Some(ReconcileStep::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

/// The pod ran and is as its check left it, but its member is out.
fn with_removed_member(replicas: u32) -> ClusterFixture {
    ClusterFixture::healthy(replicas)
        .with_member_down(replicas - 1)
        .without_member(replicas - 1)
}

#[test]
fn a_pod_whose_member_was_removed_while_it_ran_is_started_again() {
    for replicas in [2, 3] {
        let last = replicas - 1;
        let delete = ReconcileStep::DeletePod {
            ordinal: Ordinal(last),
            uid: format!("pod-{last}-old"),
            reason: PodDeletionReason::MemberRemoved,
        };
        assert_eq!(with_removed_member(replicas).step(), Some(delete));
    }
}

#[test]
fn a_pod_that_goes_anyway_is_not_mended_first() {
    let scene = with_removed_member(3).with_replicas(2);
    assert_eq!(scene.step(), Some(ReconcileStep::Scale { from: 3, to: 2 }));
}

#[test]
fn a_pod_is_not_started_again_for_a_member_nobody_can_tell() {
    let mut scene = with_removed_member(3);
    scene.observed.leases.remove(&Ordinal(2));
    let waits = ReconcileStep::AddLearner {
        ordinal: Ordinal(2),
    };
    assert_eq!(scene.step(), Some(waits));
}

#[test]
fn what_a_removed_member_left_does_not_keep_its_successor_from_starting() {
    let mut scene = ClusterFixture::healthy(3).with_member_down(2).with_finding(2, InitFinding::Foreign);
    let member = scene.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(scene.step(), Some(delete_pvc(PvcDeletionReason::Foreign)));
}
