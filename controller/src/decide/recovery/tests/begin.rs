//! What starts a recovery, and what never does.

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{RecoveryCause, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::RecoveryMode;

use super::fixture::*;
use crate::decide::recovery::build_token;
use crate::decide::tests::fixture::*;
use crate::model::{
    Blocker, InitFinding, ObservedLock, Ordinal, PvcDeletionReason, ReconcileStep, RecoveryBlocker,
    RecoveryStep,
};

#[test]
fn single_member_that_lost_its_data_is_restored_from_the_backup() {
    for finding in [InitFinding::NeedsRestore, InitFinding::Corrupt] {
        let incident = with_lost_data(1, &[(0, finding)]).opened_incident();
        assert_eq!(
            (incident.cause, incident.source),
            (RecoveryCause::MemberLost, RecoverySource::Backup)
        );
        assert_eq!((incident.base, incident.size), (0, 1));
    }
}

#[test]
fn refused_volume_is_never_restored_automatically() {
    // Wrong volume, unreachable store and data in use are all reported as a refusal.
    let blocker = Blocker::MemberUnhealthy {
        ordinal: Ordinal(0),
    };
    let wait = Some(ReconcileStep::Wait { blocker });
    let fixture = with_lost_data(1, &[(0, InitFinding::Refused)]);
    assert_eq!(fixture.step(), wait);
    let mut silent = with_lost_data(1, &[(0, InitFinding::Refused)]);
    silent.pod_mut(0).finding = None;
    assert_eq!(silent.step(), wait);
}

#[test]
fn nothing_is_restored_without_a_backup() {
    let mut fixture = with_lost_data(1, &[(0, InitFinding::Corrupt)]);
    fixture.desired.backup = None;
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::NothingToRestore
    );
    assert_eq!(
        with_lost_data(1, &[(0, InitFinding::NothingToRestore)]).recovery_blocker(),
        RecoveryBlocker::NothingToRestore
    );
}

#[test]
fn new_cluster_starts_from_the_backup_of_a_former_one() {
    let mut fixture = with_lost_data(
        3,
        &[
            (0, InitFinding::BackupExists),
            (1, InitFinding::BackupExists),
            (2, InitFinding::BackupExists),
        ],
    );
    fixture.observed.leases.clear();
    fixture.stateful_set_mut().recorded_size = None;
    let incident = fixture.opened_incident();
    assert_eq!(
        (incident.cause, incident.base, incident.size),
        (RecoveryCause::FormerBackup, 0, 3)
    );
}

#[test]
fn no_volume_is_written_before_all_volumes_are_checked() {
    let all = [
        (0, InitFinding::Refused),
        (1, InitFinding::BackupExists),
        (2, InitFinding::BackupExists),
    ];
    let mut fixture = with_lost_data(3, &all);
    fixture.observed.leases.clear();
    fixture.stateful_set_mut().recorded_size = None;
    let ordinal = Ordinal(0);
    for finding in [Some(InitFinding::Refused), None] {
        fixture.pod_mut(0).finding = finding;
        assert_eq!(
            fixture.recovery_blocker(),
            RecoveryBlocker::VolumeUnchecked { ordinal }
        );
    }
    // A PVC that was never bound holds no data.
    fixture.observed.pvcs.get_mut(&ordinal).unwrap().is_bound = false;
    assert_eq!(fixture.opened_incident().cause, RecoveryCause::FormerBackup);
    // Intact data there is the best copy.
    fixture.observed.pvcs.get_mut(&ordinal).unwrap().is_bound = true;
    fixture.pod_mut(0).finding = Some(InitFinding::CanStart);
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    let incident = fixture.opened_incident();
    assert_eq!(
        (incident.base, incident.source),
        (0, RecoverySource::BestCopy)
    );
}

#[test]
fn bootstrapping_members_are_not_stopped_by_one_late_init_check() {
    let mut fixture = with_lost_data(3, &[(0, InitFinding::BackupExists)]);
    fixture.observed.leases.clear();
    fixture.stateful_set_mut().recorded_size = None;
    let step = fixture.step();
    assert!(
        matches!(
            step,
            Some(ReconcileStep::Wait {
                blocker: Blocker::Bootstrapping
            })
        ),
        "{step:?}"
    );
}

#[test]
fn lost_minority_is_not_restored_from_the_backup() {
    let fixture = with_lost_data(3, &[(2, InitFinding::NeedsRestore)]);
    assert!(
        !matches!(fixture.step(), Some(ReconcileStep::Recover(_))),
        "{:?}",
        fixture.step()
    );
    let fixture = with_lost_data(
        5,
        &[(2, InitFinding::WaitingToJoin), (3, InitFinding::Corrupt)],
    );
    assert!(
        !matches!(fixture.step(), Some(ReconcileStep::Recover(_))),
        "{:?}",
        fixture.step()
    );
}

#[test]
fn lost_quorum_waits_for_approval_of_this_incident() {
    let mut fixture = with_lost_data(
        3,
        &[(0, InitFinding::WaitingToJoin), (1, InitFinding::Corrupt)],
    );
    let RecoveryBlocker::ApprovalRequired { id } = fixture.recovery_blocker() else {
        panic!("{:?}", fixture.recovery_blocker())
    };
    fixture.desired.recovery.approved_id = Some("another".to_owned());
    assert!(matches!(
        fixture.recovery_blocker(),
        RecoveryBlocker::ApprovalRequired { .. }
    ));
    fixture.desired.recovery.approved_id = Some(id.clone());
    assert_eq!(fixture.opened_incident().id, id);
    // A larger loss is a different incident.
    let mut worse = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::Corrupt),
            (2, InitFinding::Corrupt),
        ],
    );
    worse.desired.recovery.approved_id = Some(id.clone());
    assert!(matches!(
        worse.recovery_blocker(),
        RecoveryBlocker::ApprovalRequired { .. }
    ));
    // The approval was for the previous recovery of the same volumes.
    let mut last = fixture.opened_incident();
    for stage in [RecoveryStage::Closed, RecoveryStage::Failed] {
        (last.stage, last.changed) = (stage, ago(100_000));
        fixture.observed.recovery.incident = Some(last.clone());
        assert!(
            matches!(fixture.recovery_blocker(), RecoveryBlocker::ApprovalRequired { id: other } if other != id)
        );
    }
}

#[test]
fn reopened_recovery_creates_another_cluster() {
    let opened = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]).opened_incident();
    let (earlier, now) = (build_token(&opened.id, ago(60)), opened.token);
    assert_ne!(
        earlier, now,
        "the token differs although the ID is the same"
    );
}

#[test]
fn approval_counts_after_a_controller_crash_with_the_lock_held() {
    let mut fixture = with_lost_data(
        3,
        &[(0, InitFinding::WaitingToJoin), (1, InitFinding::Corrupt)],
    );
    let RecoveryBlocker::ApprovalRequired { id } = fixture.recovery_blocker() else {
        panic!("{:?}", fixture.recovery_blocker())
    };
    fixture.desired.recovery.approved_id = Some(id.clone());
    fixture.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1_800_000_000),
        renewed_at: ago(1),
    };
    assert_eq!(fixture.opened_incident().id, id);
}

#[test]
fn recovery_mode_decides_whether_approval_is_needed() {
    let mut quorum = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
        ],
    );
    let mut single = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    quorum.desired.recovery.mode = RecoveryMode::Automatic;
    assert_eq!(quorum.opened_incident().cause, RecoveryCause::QuorumLost);
    for fixture in [&mut quorum, &mut single] {
        fixture.desired.recovery.mode = RecoveryMode::Manual;
        assert_eq!(fixture.recovery_blocker(), RecoveryBlocker::ManualMode);
    }
}

#[test]
fn quorum_that_is_briefly_unavailable_is_not_lost() {
    let mut fixture = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    for since in [None, Some(ago(10))] {
        fixture.last_known.data_lost_since = since;
        assert_eq!(fixture.recovery_blocker(), RecoveryBlocker::LossUnconfirmed);
    }
}

#[test]
fn survivor_without_a_verdict_blocks_the_recovery() {
    let mut fixture = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
            (2, InitFinding::CanStart),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    let ordinal = Ordinal(2);
    fixture.pod_mut(2).finding = None;
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::DataStateUnknown { ordinal }
    );
    fixture.observed.pods.remove(&ordinal);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::DataStateUnknown { ordinal }
    );
}

#[test]
fn newest_survivor_is_the_base_and_is_compared_with_the_backup() {
    let mut fixture = with_lost_data(
        5,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
            (2, InitFinding::WaitingToJoin),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    let crate::model::ObservedMembership::NoQuorum {
        reachable: responsive,
        ..
    } = &mut fixture.observed.membership
    else {
        panic!()
    };
    *responsive = [(Ordinal(3), 10), (Ordinal(4), 20)].into();
    let incident = fixture.opened_incident();
    assert_eq!(
        (incident.base, incident.source),
        (4, RecoverySource::BestCopy)
    );
    // Without a backup the survivor is enough.
    fixture.desired.backup = None;
    assert_eq!(fixture.opened_incident().base, 4);
}

#[test]
fn restarted_survivor_without_a_quorum_can_be_the_base() {
    let lost = [
        (0, InitFinding::WaitingToJoin),
        (1, InitFinding::WaitingToJoin),
        (2, InitFinding::WaitingToJoin),
        (3, InitFinding::CanStart),
    ];
    let mut fixture = with_lost_data(5, &lost);
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    // Member 4 answers with revision 1000.
    fixture.pod_mut(3).data_revision = Some(1_001);
    let incident = fixture.opened_incident();
    assert_eq!(
        (incident.base, incident.source),
        (3, RecoverySource::BestCopy)
    );
    for older in [Some(999), None] {
        fixture.pod_mut(3).data_revision = older;
        assert_eq!(fixture.opened_incident().base, 4);
    }
    fixture.last_known.data_lost_since = Some(ago(10));
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::LossUnconfirmed,
        "its etcd may still answer"
    );
}

#[test]
fn last_survivor_is_not_stopped_while_its_pvc_is_terminating() {
    let mut fixture = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    fixture
        .observed
        .pvcs
        .get_mut(&Ordinal(2))
        .unwrap()
        .is_deleting = true;
    let ordinal = Ordinal(2);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::SurvivorAtRisk { ordinal }
    );
}

#[test]
fn first_available_volume_gets_the_backup_when_no_member_survives() {
    let mut fixture = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::Corrupt),
            (2, InitFinding::WaitingToJoin),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    fixture.observed.pvcs.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    let incident = fixture.opened_incident();
    assert_eq!(
        (incident.base, incident.source),
        (1, RecoverySource::Backup)
    );
}

#[test]
fn pod_that_was_never_a_member_is_not_counted_as_one() {
    // The only member restarts while a second pod waits to be added.
    let mut fixture = with_lost_data(2, &[(1, InitFinding::NeedsRestore)]);
    fixture.observed.leases.remove(&Ordinal(1));
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    assert!(!matches!(
        fixture.blocker(),
        Some(Blocker::RecoveryBlocked(_))
    ));
    assert!(!matches!(fixture.step(), Some(ReconcileStep::Recover(_))));
}

#[test]
fn only_leases_renewed_after_a_recovery_count_as_members() {
    let mut fixture = with_lost_data(
        3,
        &[
            (1, InitFinding::WaitingToJoin),
            (2, InitFinding::WaitingToJoin),
        ],
    );
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    let mut finished = incident(3, 0);
    finished.stage = RecoveryStage::Closed;
    finished.changed = ago(2);
    fixture.observed.recovery.incident = Some(finished);
    let step = fixture.step();
    assert!(!matches!(step, Some(ReconcileStep::Recover(_))), "{step:?}");
    assert!(!matches!(
        fixture.blocker(),
        Some(Blocker::RecoveryBlocked(_))
    ));
}

#[test]
fn member_of_the_restored_cluster_counts_despite_an_old_lease() {
    let mut fixture = with_lost_data(3, &[(0, InitFinding::WaitingToJoin)]);
    fixture.desired.recovery.mode = RecoveryMode::Automatic;
    let mut finished = incident(3, 0);
    (finished.stage, finished.changed) = (RecoveryStage::Closed, ago(2));
    let created = mainstay_ids::ClusterId(7);
    finished.cluster = Some(created.to_string());
    fixture.observed.recovery.incident = Some(finished);
    for lease in fixture.observed.leases.values_mut() {
        lease.renewed_at = Some(ago(100));
        lease.holder.as_mut().unwrap().cluster_id = Some(created);
    }
    let step = fixture.step();
    assert!(!matches!(step, Some(ReconcileStep::Recover(_))), "{step:?}");
    assert!(!matches!(
        fixture.blocker(),
        Some(Blocker::RecoveryBlocked(_))
    ));
}

#[test]
fn lost_volumes_are_replaced_without_approval() {
    for mode in [RecoveryMode::Manual, RecoveryMode::Approve] {
        let mut fixture = with_lost_data(
            3,
            &[
                (0, InitFinding::CanStart),
                (1, InitFinding::CanStart),
                (2, InitFinding::CanStart),
            ],
        );
        fixture.desired.recovery.mode = mode;
        for pvc in fixture.observed.pvcs.values_mut() {
            pvc.is_lost = true;
        }
        let step = fixture.step();
        assert!(
            matches!(step, Some(ReconcileStep::DeletePvc { .. })),
            "{step:?}"
        );
    }
}

#[test]
fn pvc_whose_volume_is_lost_is_deleted() {
    let mut fixture = with_lost_data(1, &[(0, InitFinding::CanStart)]);
    fixture.observed.pvcs.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    assert_eq!(
        fixture.step(),
        Some(ReconcileStep::DeletePvc {
            ordinal: Ordinal(0),
            uid: "claim-0".to_owned(),
            pod_uid: Some("pod-0-old".to_owned()),
            reason: PvcDeletionReason::VolumeLost,
        })
    );
    fixture.observed.pvcs.clear();
    fixture = fixture.with_finding(0, InitFinding::NeedsRestore);
    let ordinal = Ordinal(0);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::VolumeUnavailable { ordinal }
    );
}

#[test]
fn recovery_does_not_start_while_another_holder_has_the_lock() {
    let mut fixture = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    let held_by_other = |expires_at| ObservedLock::HeldByOther {
        holder: "copy-1".to_owned(),
        purpose: mainstay_coordination::Purpose::Copy,
        epoch: Epoch(4),
        expires_at,
    };
    fixture.observed.recovery.lock = held_by_other(noon() + jiff::SignedDuration::from_secs(5));
    let holder = "copy-1".to_owned();
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::LockHeld { holder }
    );
    fixture.observed.recovery.lock = held_by_other(ago(5));
    assert_eq!(fixture.opened_incident().base, 0, "the lock has expired");
}

#[test]
fn unreadable_document_blocks_only_recovery() {
    let mut fixture = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    fixture.observed.recovery.parse_error = Some("invalid JSON".to_owned());
    let reason = "invalid JSON".to_owned();
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::DocumentUnreadable { reason }
    );
    let mut whole = ClusterFixture::healthy(3);
    whole.observed.recovery.parse_error = Some("invalid JSON".to_owned());
    assert_eq!(whole.step(), None);
}

#[test]
fn unneeded_lock_is_released() {
    let mut fixture = ClusterFixture::healthy(3);
    fixture.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1),
        renewed_at: ago(1),
    };
    assert_eq!(fixture.recovery_step(), RecoveryStep::ReleaseLock);
}

#[test]
fn hibernated_or_serving_cluster_is_not_recovered() {
    let mut hibernated = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]).with_replicas(0);
    assert!(!matches!(
        hibernated.step(),
        Some(ReconcileStep::Recover(_))
    ));
    hibernated.desired.requests.suspend = true;
    assert_eq!(hibernated.step(), None);
    let serving = ClusterFixture::healthy(3)
        .with_member_down(1)
        .with_finding(1, InitFinding::NeedsRestore);
    assert!(!matches!(serving.step(), Some(ReconcileStep::Recover(_))));
}

#[test]
fn failed_recovery_does_not_reset_the_member_count() {
    let fixture = |stage| {
        let mut fixture = with_lost_data(
            3,
            &[(1, InitFinding::NeedsRestore), (2, InitFinding::Corrupt)],
        );
        for lease in fixture.observed.leases.values_mut() {
            lease.renewed_at = Some(ago(100));
        }
        let mut last = incident(3, 0);
        (last.stage, last.changed) = (stage, ago(90));
        fixture.observed.recovery.incident = Some(last);
        fixture.desired.recovery.mode = RecoveryMode::Automatic;
        fixture
    };
    assert_eq!(
        fixture(RecoveryStage::Failed).opened_incident().cause,
        RecoveryCause::QuorumLost
    );
    let step = fixture(RecoveryStage::Closed).step();
    assert!(
        !matches!(step, Some(ReconcileStep::Recover(_))),
        "the only member is healthy: {step:?}"
    );
}
