//! Replacement of members that lost their data.

use mainstay_coordination::incident::RecoveryStage;

use super::fixture::*;
use crate::decide::recovery::tests::fixture::incident;
use crate::model::{
    Blocker, InitFinding, MemberRemovalReason, ObservedPvc, Ordinal, PodDeletionReason,
    PvcDeletionReason, ReconcileStep, RecoveryBlocker,
};

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

fn delete_pvc(reason: PvcDeletionReason) -> ReconcileStep {
    ReconcileStep::DeletePvc {
        ordinal: Ordinal(2),
        uid: "claim-2".to_owned(),
        pod_uid: Some("pod-2-old".to_owned()),
        reason,
    }
}

#[test]
fn unresponsive_member_without_proof_of_loss_is_not_removed() {
    for finding in [InitFinding::CanStart, InitFinding::Refused] {
        let fixture = ClusterFixture::healthy(3)
            .with_member_down(2)
            .with_finding(2, finding);
        assert_eq!(fixture.blocker(), Some(member_unhealthy(2)), "{finding:?}");
    }
}

#[test]
fn member_without_data_is_removed_and_added_again_as_a_learner() {
    let fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_finding(2, InitFinding::WaitingToJoin);
    assert_eq!(fixture.step(), Some(remove_lost_member(2)));
    let fixture = fixture.without_member(2);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn corrupt_or_foreign_pvc_is_deleted_only_after_member_removal() {
    for (finding, because) in [
        (InitFinding::Corrupt, PvcDeletionReason::Corrupt),
        (InitFinding::Foreign, PvcDeletionReason::Foreign),
    ] {
        let fixture = ClusterFixture::healthy(3)
            .with_member_down(2)
            .with_finding(2, finding);
        assert_eq!(fixture.step(), Some(remove_lost_member(2)), "{finding:?}");
        assert_eq!(fixture.without_member(2).step(), Some(delete_pvc(because)));
    }
}

#[test]
fn old_data_is_kept_until_the_recovered_cluster_has_quorum() {
    for finding in [InitFinding::Corrupt, InitFinding::Foreign] {
        let fixture = |size: u32, down: &[u32]| {
            let mut fixture = ClusterFixture::healthy(size);
            let mut finished = incident(size, 0);
            (finished.stage, finished.changed) = (RecoveryStage::Closed, ago(60));
            fixture.observed.recovery.incident = Some(finished);
            for ordinal in down {
                fixture = fixture
                    .with_member_down(*ordinal)
                    .with_finding(*ordinal, finding);
                fixture = fixture.without_member(*ordinal);
                let lease = fixture.observed.leases.get_mut(&Ordinal(*ordinal)).unwrap();
                lease.renewed_at = Some(ago(90));
            }
            fixture
        };
        let without_others = fixture(3, &[1, 2]);
        assert_eq!(
            without_others.blocker(),
            Some(member_unhealthy(1)),
            "one of three members is no quorum"
        );
        let joining = without_others.with_finding(1, InitFinding::WaitingToJoin);
        let ordinal = Ordinal(1);
        assert_eq!(joining.step(), Some(ReconcileStep::AddLearner { ordinal }));
        for (size, down) in [(3, &[2][..]), (5, &[2, 3]), (2, &[1])] {
            let step = fixture(size, down).step();
            let is_pvc_deleted = matches!(step, Some(ReconcileStep::DeletePvc { .. }));
            assert!(is_pvc_deleted, "{size}: {step:?}");
        }
        let mut renewed = fixture(3, &[1, 2]);
        let lease = renewed.observed.leases.get_mut(&Ordinal(1)).unwrap();
        lease.renewed_at = Some(ago(30));
        let step = renewed.step();
        assert!(
            matches!(step, Some(ReconcileStep::DeletePvc { .. })),
            "data written after the recovery is on the other members as well: {step:?}"
        );
    }
}

#[test]
fn crash_looping_pod_is_deleted_so_that_its_data_is_checked_again() {
    let crashing_status = |times: u32| {
        let mut fixture = ClusterFixture::healthy(3).with_member_down(2);
        fixture.pod_mut(2).crash_count = times;
        fixture
    };
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        reason: PodDeletionReason::CrashLooping,
    };
    assert_eq!(crashing_status(5).step(), Some(delete.clone()));
    let without_majority = crashing_status(5)
        .with_member_down(1)
        .with_finding(1, InitFinding::Corrupt)
        .without_quorum();
    assert_eq!(
        without_majority.step(),
        Some(delete),
        "the init check must run again"
    );
    assert_eq!(
        crashing_status(4).blocker(),
        Some(member_unhealthy(2)),
        "below the crash limit"
    );
    let mut young = crashing_status(9);
    young.pod_mut(2).created_at = Some(ago(599));
    assert_eq!(
        young.blocker(),
        Some(member_unhealthy(2)),
        "the pod is too young"
    );
    let mut serves = ClusterFixture::healthy(3);
    serves.pod_mut(2).crash_count = 9;
    assert_eq!(serves.step(), None, "it serves");
}

#[test]
fn newly_added_learner_is_not_treated_as_lost() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_finding(2, InitFinding::WaitingToJoin);
    let member = fixture.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::LearnerLagging {
            ordinal: Ordinal(2)
        })
    );
}

#[test]
fn member_removal_waits_while_it_would_lose_quorum() {
    let fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_member_down(1)
        .with_finding(2, InitFinding::Corrupt);
    let blocker = Blocker::QuorumAtRisk {
        ordinal: Ordinal(2),
        healthy: 1,
        voters: 2,
    };
    assert_eq!(fixture.blocker(), Some(blocker));
}

#[test]
fn single_member_without_a_backup_is_not_replaced() {
    let fixture = ClusterFixture::healthy(1)
        .with_member_down(0)
        .with_finding(0, InitFinding::Corrupt);
    assert_eq!(fixture.blocker(), Some(member_unhealthy(0)));
    let recovery_blocker = RecoveryBlocker::NothingToRestore;
    assert_eq!(
        fixture.without_quorum().blocker(),
        Some(Blocker::RecoveryBlocked(recovery_blocker))
    );
}

#[test]
fn lost_quorum_waits_for_the_recovery_and_nothing_else_changes() {
    let fixture = ClusterFixture::healthy(3)
        .with_new_template()
        .with_replicas(5)
        .with_member_down(0)
        .with_member_down(1);
    let fixture = fixture
        .with_finding(0, InitFinding::NeedsRestore)
        .with_finding(1, InitFinding::Corrupt)
        .without_quorum();
    let recovery_blocker = RecoveryBlocker::LossUnconfirmed;
    assert_eq!(
        fixture.blocker(),
        Some(Blocker::RecoveryBlocked(recovery_blocker))
    );
}

#[test]
fn pod_whose_pvc_is_deleted_is_recreated_with_a_new_one() {
    let mut fixture = ClusterFixture::healthy(3).with_member_down(2);
    fixture.observed.pvcs.remove(&Ordinal(2));
    assert_eq!(fixture.step(), Some(remove_lost_member(2)));
    let reason = PodDeletionReason::VolumeLost;
    let fixture = fixture.without_member(2);
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(2),
        uid: "pod-2-old".to_owned(),
        reason,
    };
    assert_eq!(fixture.step(), Some(delete));
}

/// The pod of the only member waits for a deleted PVC.
fn cluster_without_volume() -> ClusterFixture {
    let mut fixture = ClusterFixture::healthy(1)
        .with_backup(60)
        .with_member_down(0)
        .without_quorum();
    let pod = fixture.pod_mut(0);
    (pod.finding, pod.address) = (None, None);
    fixture.observed.pvcs.remove(&Ordinal(0));
    fixture
}

#[test]
fn pod_whose_pvc_is_deleted_is_recreated_without_a_quorum() {
    let delete = ReconcileStep::DeletePod {
        ordinal: Ordinal(0),
        uid: "pod-0-old".to_owned(),
        reason: PodDeletionReason::VolumeLost,
    };
    assert_eq!(cluster_without_volume().step(), Some(delete.clone()));
    let with_pvc = |is_lost: bool| {
        let mut fixture = cluster_without_volume();
        let terminating_pvc = ObservedPvc {
            is_lost,
            is_deleting: true,
            ..pvc(0)
        };
        fixture.observed.pvcs.insert(Ordinal(0), terminating_pvc);
        fixture
    };
    assert_eq!(
        with_pvc(true).step(),
        Some(delete),
        "a lost PVC is terminating"
    );
    assert!(
        with_pvc(false).blocker().is_some(),
        "its data may be needed"
    );
    let mut young = cluster_without_volume();
    young.pod_mut(0).created_at = Some(ago(59));
    assert!(
        young.blocker().is_some(),
        "the watch may deliver the PVC later"
    );
    let started = cluster_without_volume().with_finding(0, InitFinding::CanStart);
    assert!(started.blocker().is_some(), "it has mounted its volume");
    let mut checks = cluster_without_volume();
    checks.pod_mut(0).address = Some("10.0.0.1".to_owned());
    assert!(checks.blocker().is_some(), "the init check is running");
}

#[test]
fn pod_whose_pvc_is_terminating_waits_when_a_recovery_may_start() {
    let down = ClusterFixture::healthy(3)
        .with_backup(60)
        .with_member_down(1)
        .with_member_down(2)
        .without_quorum();
    let mut fixture = down.with_finding(1, InitFinding::Corrupt);
    let pod = fixture.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    let terminating_pvc = ObservedPvc {
        is_lost: true,
        is_deleting: true,
        ..pvc(2)
    };
    fixture.observed.pvcs.insert(Ordinal(2), terminating_pvc);
    let on = fixture.blocker();
    assert!(
        matches!(on, Some(Blocker::RecoveryBlocked(_))),
        "a new PVC would change the incident: {on:?}"
    );
}

#[test]
fn pod_whose_pvc_is_deleted_is_recreated_when_recovery_needs_it() {
    let down = ClusterFixture::healthy(3)
        .with_backup(60)
        .with_member_down(0)
        .with_member_down(1)
        .with_member_down(2);
    let mut fixture = down.without_quorum();
    for ordinal in [0, 1] {
        fixture = fixture.with_finding(ordinal, InitFinding::Corrupt);
    }
    let pod = fixture.pod_mut(2);
    (pod.finding, pod.address) = (None, None);
    fixture.observed.pvcs.remove(&Ordinal(2));
    let step = fixture.step();
    assert!(
        matches!(
            step,
            Some(ReconcileStep::DeletePod {
                ordinal: Ordinal(2),
                ..
            })
        ),
        "only a new pod gets a new PVC: {step:?}"
    );
}

#[test]
fn pvc_not_observed_yet_is_not_treated_as_deleted() {
    let mut fixture = ClusterFixture::healthy(3).with_member_down(2);
    fixture.observed.pvcs.remove(&Ordinal(2));
    fixture.pod_mut(2).created_at = Some(ago(10));
    assert_eq!(fixture.blocker(), Some(member_unhealthy(2)));
}

#[test]
fn pvc_whose_volume_is_lost_is_deleted() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .without_member(2);
    fixture.observed.pvcs.get_mut(&Ordinal(2)).unwrap().is_lost = true;
    assert_eq!(
        fixture.step(),
        Some(delete_pvc(PvcDeletionReason::VolumeLost))
    );
}

#[test]
fn repair_does_not_wait_for_an_accepted_spec() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_finding(2, InitFinding::WaitingToJoin);
    fixture.desired.generation = 2;
    assert_eq!(fixture.step(), Some(remove_lost_member(2)));
    assert_eq!(
        fixture.without_member(2).step(),
        Some(ReconcileStep::AddLearner {
            ordinal: Ordinal(2)
        })
    );
}

/// The pod started after a successful init check, but its member was removed.
fn with_removed_member(replicas: u32) -> ClusterFixture {
    ClusterFixture::healthy(replicas)
        .with_member_down(replicas - 1)
        .without_member(replicas - 1)
}

#[test]
fn running_pod_whose_member_was_removed_is_restarted() {
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
fn pod_removed_by_scale_in_is_not_repaired_first() {
    let fixture = with_removed_member(3).with_replicas(2);
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::Scale { from: 3, to: 2 })
    );
}

#[test]
fn pod_without_a_member_lease_is_added_as_a_learner_not_restarted() {
    let mut fixture = with_removed_member(3);
    fixture.observed.leases.remove(&Ordinal(2));
    let add_learner = ReconcileStep::AddLearner {
        ordinal: Ordinal(2),
    };
    assert_eq!(fixture.step(), Some(add_learner));
}

#[test]
fn data_of_a_removed_member_does_not_block_its_successor() {
    let mut fixture = ClusterFixture::healthy(3)
        .with_member_down(2)
        .with_finding(2, InitFinding::Foreign);
    let member = fixture.member_mut(2);
    (member.name, member.is_learner) = (String::new(), true);
    assert_eq!(fixture.step(), Some(delete_pvc(PvcDeletionReason::Foreign)));
}
