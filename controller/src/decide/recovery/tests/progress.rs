//! The steps of an open recovery.

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{RecoveryCause, RecoveryStage};
use mainstay_verdict::Verdict;

use super::fixture::*;
use crate::decide::tests::fixture::*;
use crate::model::{
    Blocker, FailureClass, InitFinding, JobState, ObservedLock, ObservedMembership, Ordinal,
    QuorumMembers, ReconcileStep, RecoveryBlocker, RecoveryJobKind, RecoveryStep,
};

fn created_job(fixture: &ClusterFixture) -> (u32, RecoveryJobKind) {
    match fixture.recovery_step() {
        RecoveryStep::CreateJob { ordinal, kind, .. } => (ordinal.0, kind),
        other => panic!("no Job is created: {other:?}"),
    }
}

/// A recovery whose volumes are written and whose pods are restarted.
fn restored_cluster(size: u32, base: u32) -> ClusterFixture {
    let mut fixture = with_lost_data(size, &[]);
    fixture.observed.recovery = recovery_in_progress(size, base).observed.recovery;
    let incident = fixture.incident_mut();
    incident.stage = RecoveryStage::Restored;
    incident.revision = Some(1_000);
    incident.cluster = Some(mainstay_ids::ClusterId(7).to_string());
    fixture
}

#[test]
fn pods_are_stopped_before_a_volume_is_written() {
    let mut fixture = recovery_in_progress(3, 0);
    fixture.stateful_set_mut().replicas = 3;
    fixture
        .observed
        .pods
        .insert(Ordinal(2), pod(2, OLD_REVISION));
    assert_eq!(
        fixture.recovery_step(),
        RecoveryStep::Scale { from: 3, to: 0 }
    );
    assert_eq!(fixture.plan().effective_spec.unwrap().replicas, 0);
    fixture.stateful_set_mut().replicas = 0;
    assert_eq!(fixture.recovery_blocker(), RecoveryBlocker::PodsStopping);
    fixture.pod_mut(2).is_deleting = true;
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::PodsStopping,
        "it may still write"
    );
}

#[test]
fn stateful_set_deleted_during_recovery_is_recreated_without_pods() {
    let mut fixture = recovery_in_progress(3, 0);
    fixture.observed.stateful_set = None;
    let plan = fixture.plan();
    assert_eq!(plan.effective_spec.unwrap().replicas, 0);
    let blocker = Blocker::StatefulSetUnobserved;
    assert_eq!(plan.step, Some(ReconcileStep::Wait { blocker }));
}

#[test]
fn base_is_restored_before_the_other_volumes_are_emptied() {
    let fixture = recovery_in_progress(3, 1);
    assert_eq!(created_job(&fixture), (1, RecoveryJobKind::Restore));
    let fixture = fixture.with_job(1, JobState::Running);
    let ordinal = Ordinal(1);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::JobRunning { ordinal }
    );
    let fixture = fixture.with_job(1, succeeded_job());
    assert_eq!(
        created_job(&fixture),
        (0, RecoveryJobKind::RenameToPrevious)
    );
    let fixture = fixture.with_job(0, JobState::Running);
    assert_eq!(
        created_job(&fixture),
        (2, RecoveryJobKind::RenameToPrevious)
    );
    let fixture = fixture.with_job(2, succeeded_job());
    let ordinal = Ordinal(0);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::JobRunning { ordinal }
    );
    let next = fixture.with_job(0, succeeded_job()).recorded_incident();
    assert_eq!(
        (next.stage, next.revision),
        (RecoveryStage::Restored, Some(1_000))
    );
    assert_eq!(next.cluster, Some(mainstay_ids::ClusterId(7).to_string()));
    assert_eq!(
        next.message,
        "restored revision 900 from Full-00000000-00000900-1"
    );
}

#[test]
fn emptying_a_volume_is_retried_after_a_delay() {
    let emptied = || {
        recovery_in_progress(3, 0)
            .with_job(0, succeeded_job())
            .with_job(2, succeeded_job())
    };
    let fixture = emptied().with_job(1, failed_job(Verdict::Disk, 5));
    let ordinal = Ordinal(1);
    assert!(
        matches!(fixture.recovery_blocker(), RecoveryBlocker::JobFailed { ordinal: on, .. } if on == ordinal)
    );
    let fixture = emptied().with_job(1, failed_job(Verdict::Disk, 30));
    let uid = "job".to_owned();
    assert_eq!(
        fixture.recovery_step(),
        RecoveryStep::DeleteJob { ordinal, uid }
    );
    let mut fixture = fixture;
    fixture.observed.recovery.jobs.remove(&ordinal);
    assert_eq!(
        created_job(&fixture),
        (1, RecoveryJobKind::RenameToPrevious)
    );
}

#[test]
fn unmountable_minority_of_volumes_does_not_block_the_recovery() {
    let timed_out = || {
        let mut state = failed_job(Verdict::Failed, 1);
        let JobState::Failed { failure, .. } = &mut state else {
            unreachable!()
        };
        failure.class = FailureClass::Deadline;
        state
    };
    let mut fixture = recovery_in_progress(3, 0)
        .with_job(0, succeeded_job())
        .with_job(1, timed_out());
    fixture.observed.pvcs.get_mut(&Ordinal(2)).unwrap().is_lost = true;
    assert_eq!(fixture.recorded_incident().stage, RecoveryStage::Restored);
    let fixture = recovery_in_progress(3, 0)
        .with_job(0, succeeded_job())
        .with_job(1, timed_out())
        .with_job(2, timed_out());
    let blocker = fixture.recovery_blocker();
    assert!(
        matches!(blocker, RecoveryBlocker::JobFailed { .. }),
        "a quorum of old volumes could start the old cluster: {blocker:?}"
    );
}

#[test]
fn foreign_volume_is_not_emptied() {
    let fixture = recovery_in_progress(3, 0)
        .with_job(0, succeeded_job())
        .with_job(1, failed_job(Verdict::WrongVolume, 1))
        .with_job(2, succeeded_job());
    assert_eq!(fixture.recorded_incident().stage, RecoveryStage::Restored);
}

#[test]
fn no_pod_starts_while_a_job_may_write() {
    let ordinal = Ordinal(0);
    let remove = RecoveryStep::DeleteJob {
        ordinal,
        uid: "job".to_owned(),
    };
    let mut abandoned = recovery_in_progress(3, 0).with_job(0, JobState::Running);
    abandoned.incident_mut().stage = RecoveryStage::Abandoned;
    let mut orphaned = recovery_in_progress(3, 0).with_job(0, JobState::Running);
    orphaned.observed.recovery.incident = None;
    for mut fixture in [abandoned, orphaned] {
        assert_eq!(fixture.recovery_step(), remove);
        fixture
            .observed
            .recovery
            .jobs
            .get_mut(&ordinal)
            .unwrap()
            .is_deleting = true;
        assert_eq!(
            fixture.recovery_blocker(),
            RecoveryBlocker::JobRunning { ordinal }
        );
        fixture.observed.recovery.jobs.clear();
        fixture.observed.recovery.active_writers.insert(ordinal);
        assert_eq!(
            fixture.recovery_blocker(),
            RecoveryBlocker::JobRunning { ordinal },
            "its pod is terminating"
        );
        fixture.observed.stateful_set = None;
        assert_eq!(fixture.plan().effective_spec.unwrap().replicas, 0);
        fixture.observed.stateful_set = Some(stateful_set(0));
        fixture.observed.recovery.active_writers.clear();
        let step = fixture.step();
        let is_finished = matches!(
            step,
            Some(ReconcileStep::Recover(
                RecoveryStep::Scale { from: 0, .. } | RecoveryStep::ReleaseLock
            ))
        );
        assert!(is_finished, "{step:?}");
    }
}

#[test]
fn orphaned_job_is_stopped_only_with_the_lock_held() {
    let mut fixture = recovery_in_progress(3, 0).with_job(0, JobState::Running);
    fixture.observed.recovery.incident = None;
    fixture.observed.recovery.lock = ObservedLock::default();
    assert_eq!(fixture.recovery_step(), RecoveryStep::ReacquireLock);
    fixture.observed.recovery.jobs.clear();
    let step = fixture.step();
    assert!(
        matches!(step, Some(ReconcileStep::Scale { from: 0, to: 3 })),
        "{step:?}"
    );
}

#[test]
fn job_waits_until_the_pod_of_the_previous_job_ends() {
    let mut fixture = recovery_in_progress(1, 0);
    fixture.observed.recovery.active_writers.insert(Ordinal(0));
    let ordinal = Ordinal(0);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::JobRunning { ordinal }
    );
}

#[test]
fn job_result_of_a_lost_document_does_not_count_for_a_new_recovery() {
    let mut fixture = recovery_in_progress(1, 0).with_job(0, succeeded_job());
    fixture.incident_mut().token = "restored-5f3a-of-today".to_owned(); // same incident ID, same volume
    assert!(matches!(
        fixture.recovery_step(),
        RecoveryStep::DeleteJob { .. }
    ));
}

#[test]
fn failed_restore_is_retried_with_growing_delay() {
    let fixture = recovery_in_progress(1, 0).with_job(0, failed_job(Verdict::StoreUnavailable, 5));
    assert!(
        matches!(fixture.recovery_blocker(), RecoveryBlocker::JobFailed { reason, .. } if reason == "store unreachable")
    );
    let next = recovery_in_progress(1, 0)
        .with_job(0, failed_job(Verdict::StoreUnavailable, 21))
        .recorded_incident();
    assert_eq!((next.stage, next.attempt), (RecoveryStage::Restoring, 2));
    let mut second =
        recovery_in_progress(1, 0).with_job(0, failed_job(Verdict::StoreUnavailable, 21));
    second.incident_mut().attempt = 2;
    assert!(
        matches!(second.recovery_step(), RecoveryStep::DeleteJob { .. }),
        "the Job of the first attempt is deleted"
    );
    second
        .observed
        .recovery
        .jobs
        .get_mut(&Ordinal(0))
        .unwrap()
        .attempt = 2;
    assert!(
        matches!(second.recovery_blocker(), RecoveryBlocker::JobFailed { .. }),
        "the backoff is 40 s now"
    );
    second.observed.recovery.jobs.clear();
    assert_eq!(created_job(&second), (0, RecoveryJobKind::Restore));
}

#[test]
fn lock_epoch_is_raised_once_above_a_higher_epoch_on_the_volume() {
    let refused =
        |seconds_ago| recovery_in_progress(1, 0).with_job(0, superseded_job(9, seconds_ago));
    let above = Epoch(9);
    for mut fixture in [refused(5), refused(21)] {
        assert_eq!(fixture.recovery_step(), RecoveryStep::RaiseEpoch { above });
        fixture = fixture.with_lock_epoch(9);
        assert_eq!(
            fixture.recovery_step(),
            RecoveryStep::RaiseEpoch { above },
            "the epoch must be higher"
        );
    }
    let fixture = refused(5).with_lock_epoch(10);
    assert!(
        matches!(
            fixture.recovery_blocker(),
            RecoveryBlocker::JobFailed { .. }
        ),
        "the retry waits for the backoff"
    );
    let mut fixture = refused(21).with_lock_epoch(10);
    let next = fixture.recorded_incident();
    assert_eq!((next.stage, next.attempt), (RecoveryStage::Restoring, 2));
    *fixture.incident_mut() = next;
    assert!(matches!(
        fixture.recovery_step(),
        RecoveryStep::DeleteJob { .. }
    ));
    fixture.observed.recovery.jobs.clear();
    assert_eq!(created_job(&fixture), (0, RecoveryJobKind::Restore));
}

#[test]
fn lock_epoch_is_raised_for_a_volume_to_be_emptied_too() {
    let fixture = recovery_in_progress(3, 0)
        .with_job(0, succeeded_job())
        .with_job(1, superseded_job(9, 30))
        .with_job(2, superseded_job(12, 30));
    let above = Epoch(9);
    assert_eq!(fixture.recovery_step(), RecoveryStep::RaiseEpoch { above });
    let mut fixture = fixture.with_lock_epoch(13);
    let ordinal = Ordinal(1);
    let uid = "job".to_owned();
    assert_eq!(
        fixture.recovery_step(),
        RecoveryStep::DeleteJob { ordinal, uid }
    );
    fixture.observed.recovery.jobs.remove(&ordinal);
    assert_eq!(
        created_job(&fixture),
        (1, RecoveryJobKind::RenameToPrevious)
    );
}

#[test]
fn epoch_is_raised_only_for_a_job_of_this_attempt_with_our_lock() {
    let mut earlier = recovery_in_progress(1, 0).with_job(0, superseded_job(9, 5));
    earlier.incident_mut().attempt = 2;
    assert!(matches!(
        earlier.recovery_step(),
        RecoveryStep::DeleteJob { .. }
    ));
    let mut free = recovery_in_progress(1, 0).with_job(0, superseded_job(9, 5));
    free.observed.recovery.lock = ObservedLock::Free { epoch: Epoch(1) };
    assert_eq!(free.recovery_step(), RecoveryStep::ReacquireLock);
    let mut others = recovery_in_progress(1, 0).with_job(0, superseded_job(9, 5));
    others.observed.recovery.lock = ObservedLock::HeldByOther {
        holder: "copy-1".to_owned(),
        purpose: mainstay_coordination::Purpose::Copy,
        epoch: Epoch(4),
        expires_at: noon() + jiff::SignedDuration::from_secs(5),
    };
    assert!(matches!(
        others.recovery_blocker(),
        RecoveryBlocker::LockHeld { .. }
    ));
}

#[test]
fn recovery_of_a_loss_is_never_abandoned_but_a_requested_one_is() {
    let fixture = |cause| {
        let mut fixture =
            recovery_in_progress(1, 0).with_job(0, failed_job(Verdict::Incomplete, 1));
        fixture.incident_mut().cause = cause;
        fixture
    };
    assert!(matches!(
        fixture(RecoveryCause::MemberLost).recovery_blocker(),
        RecoveryBlocker::JobFailed { .. }
    ));
    let abandoned = fixture(RecoveryCause::Requested).recorded_incident();
    assert_eq!(abandoned.stage, RecoveryStage::Abandoned);
    let mut fixture = fixture(RecoveryCause::Requested);
    *fixture.incident_mut() = abandoned;
    assert_eq!(
        fixture.recovery_step(),
        RecoveryStep::Scale { from: 0, to: 1 }
    );
    fixture.stateful_set_mut().replicas = 1;
    assert_eq!(fixture.recorded_incident().stage, RecoveryStage::Failed);
}

#[test]
fn foreign_volume_is_never_restored_to() {
    for cause in [
        RecoveryCause::MemberLost,
        RecoveryCause::QuorumLost,
        RecoveryCause::Requested,
    ] {
        let mut fixture =
            recovery_in_progress(1, 0).with_job(0, failed_job(Verdict::WrongVolume, 1_000));
        fixture.incident_mut().cause = cause;
        assert_eq!(
            fixture.recorded_incident().stage,
            RecoveryStage::Abandoned,
            "{cause:?}"
        );
    }
}

#[test]
fn pvc_lost_during_the_restore_ends_the_recovery() {
    let mut fixture = recovery_in_progress(1, 0);
    fixture.observed.pvcs.clear();
    assert_eq!(fixture.recorded_incident().stage, RecoveryStage::Abandoned);
}

#[test]
fn pods_start_with_the_configuration_of_an_existing_cluster() {
    let mut fixture = restored_cluster(3, 0);
    fixture.observed.leases.clear();
    fixture.observed.pods.clear();
    (
        fixture.stateful_set_mut().replicas,
        fixture.stateful_set_mut().recorded_size,
    ) = (0, None);
    assert_eq!(
        fixture.recovery_step(),
        RecoveryStep::Scale { from: 0, to: 3 }
    );
    let shape = fixture.plan().effective_spec.unwrap();
    assert_eq!(
        (shape.replicas, shape.phase),
        (3, crate::model::BootstrapPhase::Bootstrapped)
    );
}

#[test]
fn recovery_closes_when_the_restored_cluster_serves_restored_data() {
    let fixture = restored_cluster(3, 0);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::AwaitingConfirmation
    );
    let answering = |cluster: u64, revision: i64| {
        let mut fixture = restored_cluster(3, 0);
        let mut base = member(&fixture.desired, 0);
        base.status.as_mut().unwrap().revision = revision;
        fixture.observed.membership = ObservedMembership::Known(QuorumMembers {
            cluster_id: mainstay_ids::ClusterId(cluster),
            list: vec![base],
        });
        fixture
    };
    assert_eq!(
        answering(7, 1_000).recorded_incident().stage,
        RecoveryStage::Closed
    );
    assert_eq!(
        answering(7, 999).recovery_blocker(),
        RecoveryBlocker::AwaitingConfirmation,
        "revision too low"
    );
    assert_eq!(
        answering(8, 2_000).recovery_blocker(),
        RecoveryBlocker::AwaitingConfirmation,
        "different cluster ID"
    );
}

#[test]
fn restored_data_that_etcd_cannot_start_on_is_restored_again() {
    for finding in [
        InitFinding::Corrupt,
        InitFinding::NeedsRestore,
        InitFinding::Foreign,
        InitFinding::WaitingToJoin,
        InitFinding::NothingToRestore,
    ] {
        let fixture = restored_cluster(1, 0).with_finding(0, finding);
        let next = fixture.recorded_incident();
        let (stage, attempt) = (next.stage, next.attempt);
        assert_eq!(
            (stage, attempt),
            (RecoveryStage::Restoring, 2),
            "{finding:?}"
        );
    }
    let fixture = restored_cluster(1, 0).with_finding(0, InitFinding::Refused);
    assert_eq!(
        fixture.recovery_blocker(),
        RecoveryBlocker::AwaitingConfirmation,
        "a user must look"
    );
}

#[test]
fn repeated_restore_of_unusable_data_backs_off() {
    let mut fixture = restored_cluster(1, 0).with_finding(0, InitFinding::Corrupt);
    fixture.incident_mut().attempt = 4;
    assert!(matches!(
        fixture.recovery_blocker(),
        RecoveryBlocker::JobFailed { .. }
    ));
    fixture.incident_mut().changed = ago(161);
    assert_eq!(fixture.recorded_incident().attempt, 5);
}

#[test]
fn restored_volume_that_is_lost_ends_the_recovery() {
    let mut fixture = restored_cluster(3, 0);
    fixture.observed.pvcs.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    let next = fixture.recorded_incident();
    assert_eq!(next.stage, RecoveryStage::Abandoned);
    *fixture.incident_mut() = next;
    assert_eq!(fixture.recorded_incident().stage, RecoveryStage::Failed);
}

#[test]
fn lock_is_renewed_while_waiting_and_reacquired_when_lost() {
    let mut fixture = recovery_in_progress(1, 0).with_job(0, JobState::Running);
    fixture.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1),
        renewed_at: ago(300),
    };
    assert!(matches!(
        fixture.recovery_step(),
        RecoveryStep::RenewLock(_)
    ));
    fixture.observed.recovery.lock = ObservedLock::Free { epoch: Epoch(2) };
    assert_eq!(fixture.recovery_step(), RecoveryStep::ReacquireLock);
}

#[test]
fn no_other_change_is_made_during_a_recovery() {
    let scenes = [
        recovery_in_progress(3, 0)
            .with_replicas(5)
            .with_new_template(),
        recovery_in_progress(3, 0).with_replicas(1),
        restored_cluster(3, 0).with_replicas(5).with_new_template(),
    ];
    for fixture in scenes {
        let step = fixture.step().unwrap();
        let is_of_recovery = matches!(
            &step,
            ReconcileStep::Recover(_)
                | ReconcileStep::Wait {
                    blocker: Blocker::RecoveryBlocked(_)
                }
        );
        assert!(is_of_recovery, "{step:?}");
    }
}
