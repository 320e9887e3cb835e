//! What begins a recovery, and what never does.

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{RecoveryCause, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::RecoveryMode;

use super::scene::*;
use crate::decide::recovery::{RecoveryBlocker, RecoveryStep, build_token};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, ReconcileStep, PvcDeletionReason};
use crate::observe::{InitFinding, Ordinal, ObservedLock};

#[test]
fn a_single_member_that_lost_its_data_is_restored_from_the_backup() {
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
fn what_only_a_person_may_judge_is_never_restored() {
    // A wrong volume, a store that cannot be reached, data in use: all of them are refusals.
    let on = Blocker::MemberUnhealthy {
        ordinal: Ordinal(0),
    };
    let waits = Some(ReconcileStep::Wait { blocker: on });
    let scene = with_lost_data(1, &[(0, InitFinding::Refused)]);
    assert_eq!(scene.step(), waits);
    let mut silent = with_lost_data(1, &[(0, InitFinding::Refused)]);
    silent.pod_mut(0).finding = None;
    assert_eq!(silent.step(), waits);
}

#[test]
fn without_a_backup_there_is_nothing_to_restore() {
    let mut scene = with_lost_data(1, &[(0, InitFinding::Corrupt)]);
    scene.desired.backup = None;
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::NothingToRestore);
    assert_eq!(
        with_lost_data(1, &[(0, InitFinding::NothingToRestore)]).recovery_blocker(),
        RecoveryBlocker::NothingToRestore
    );
}

#[test]
fn a_cluster_that_never_was_begins_with_the_backup_of_a_former_one() {
    let mut scene = with_lost_data(
        3,
        &[
            (0, InitFinding::BackupExists),
            (1, InitFinding::BackupExists),
            (2, InitFinding::BackupExists),
        ],
    );
    scene.observed.leases.clear();
    scene.stateful_set_mut().recorded_size = None;
    let incident = scene.opened_incident();
    assert_eq!(
        (incident.cause, incident.base, incident.size),
        (RecoveryCause::FormerBackup, 0, 3)
    );
}

#[test]
fn no_volume_is_written_before_each_was_looked_at() {
    let all = [
        (0, InitFinding::Refused),
        (1, InitFinding::BackupExists),
        (2, InitFinding::BackupExists),
    ];
    let mut scene = with_lost_data(3, &all);
    scene.observed.leases.clear();
    scene.stateful_set_mut().recorded_size = None;
    let ordinal = Ordinal(0);
    for finding in [Some(InitFinding::Refused), None] {
        scene.pod_mut(0).finding = finding;
        assert_eq!(scene.recovery_blocker(), RecoveryBlocker::VolumeUnchecked { ordinal });
    }
    // A claim that was never bound holds nothing.
    scene.observed.pvcs.get_mut(&ordinal).unwrap().is_bound = false;
    assert_eq!(scene.opened_incident().cause, RecoveryCause::FormerBackup);
    // What is good there is the best copy.
    scene.observed.pvcs.get_mut(&ordinal).unwrap().is_bound = true;
    scene.pod_mut(0).finding = Some(InitFinding::CanStart);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    let incident = scene.opened_incident();
    assert_eq!((incident.base, incident.source), (0, RecoverySource::BestCopy));
}

#[test]
fn members_that_found_a_cluster_are_not_stopped_by_one_that_looks_too_late() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::BackupExists)]);
    scene.observed.leases.clear();
    scene.stateful_set_mut().recorded_size = None;
    let step = scene.step();
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
fn a_lost_minority_is_no_matter_for_the_backup() {
    let scene = with_lost_data(3, &[(2, InitFinding::NeedsRestore)]);
    assert!(
        !matches!(scene.step(), Some(ReconcileStep::Recover(_))),
        "{:?}",
        scene.step()
    );
    let scene = with_lost_data(5, &[(2, InitFinding::WaitingToJoin), (3, InitFinding::Corrupt)]);
    assert!(
        !matches!(scene.step(), Some(ReconcileStep::Recover(_))),
        "{:?}",
        scene.step()
    );
}

#[test]
fn a_lost_quorum_waits_for_approval_of_this_very_loss() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::WaitingToJoin), (1, InitFinding::Corrupt)]);
    let RecoveryBlocker::ApprovalRequired { id } = scene.recovery_blocker() else {
        panic!("{:?}", scene.recovery_blocker())
    };
    scene.desired.recovery.approved_id = Some("another".to_owned());
    assert!(matches!(scene.recovery_blocker(), RecoveryBlocker::ApprovalRequired { .. }));
    scene.desired.recovery.approved_id = Some(id.clone());
    assert_eq!(scene.opened_incident().id, id);
    // More is lost: that is another matter.
    let mut worse = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::Corrupt),
            (2, InitFinding::Corrupt),
        ],
    );
    worse.desired.recovery.approved_id = Some(id.clone());
    assert!(matches!(worse.recovery_blocker(), RecoveryBlocker::ApprovalRequired { .. }));
    // The same volumes, after a recovery: the approval was for that one.
    let mut last = scene.opened_incident();
    for stage in [RecoveryStage::Closed, RecoveryStage::Failed] {
        (last.stage, last.changed) = (stage, ago(100_000));
        scene.observed.recovery.incident = Some(last.clone());
        assert!(matches!(scene.recovery_blocker(), RecoveryBlocker::ApprovalRequired { id: other } if other != id));
    }
}

#[test]
fn a_recovery_that_is_opened_again_makes_another_cluster() {
    let opened = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]).opened_incident();
    let (then, now) = (build_token(&opened.id, ago(60)), opened.token);
    assert_ne!(then, now, "by the same name, after the document was lost");
}

#[test]
fn an_approval_counts_also_when_the_controller_dies_with_the_lock_in_hand() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::WaitingToJoin), (1, InitFinding::Corrupt)]);
    let RecoveryBlocker::ApprovalRequired { id } = scene.recovery_blocker() else {
        panic!("{:?}", scene.recovery_blocker())
    };
    scene.desired.recovery.approved_id = Some(id.clone());
    scene.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1_800_000_000),
        renewed_at: ago(1),
    };
    assert_eq!(scene.opened_incident().id, id);
}

#[test]
fn the_mode_says_who_decides() {
    let mut quorum = with_lost_data(3, &[(0, InitFinding::WaitingToJoin), (1, InitFinding::WaitingToJoin)]);
    let mut single = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    quorum.desired.recovery.mode = RecoveryMode::Automatic;
    assert_eq!(quorum.opened_incident().cause, RecoveryCause::QuorumLost);
    for scene in [&mut quorum, &mut single] {
        scene.desired.recovery.mode = RecoveryMode::Manual;
        assert_eq!(scene.recovery_blocker(), RecoveryBlocker::ManualMode);
    }
}

#[test]
fn a_quorum_that_is_away_for_a_moment_is_not_lost() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::WaitingToJoin), (1, InitFinding::WaitingToJoin)]);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    for since in [None, Some(ago(10))] {
        scene.last_known.data_lost_since = since;
        assert_eq!(scene.recovery_blocker(), RecoveryBlocker::LossUnconfirmed);
    }
}

#[test]
fn silence_of_a_survivor_proves_nothing() {
    let mut scene = with_lost_data(
        3,
        &[(0, InitFinding::WaitingToJoin), (1, InitFinding::WaitingToJoin), (2, InitFinding::CanStart)],
    );
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    let ordinal = Ordinal(2);
    scene.pod_mut(2).finding = None;
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::DataStateUnknown { ordinal });
    scene.observed.pods.remove(&ordinal);
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::DataStateUnknown { ordinal });
}

#[test]
fn the_newest_survivor_is_the_base_and_is_compared_with_the_backup() {
    let mut scene = with_lost_data(
        5,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::WaitingToJoin),
            (2, InitFinding::WaitingToJoin),
        ],
    );
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    let crate::observe::ObservedMembership::NoQuorum { reachable: alive, .. } = &mut scene.observed.membership else {
        panic!()
    };
    *alive = [(Ordinal(3), 10), (Ordinal(4), 20)].into();
    let incident = scene.opened_incident();
    assert_eq!((incident.base, incident.source), (4, RecoverySource::BestCopy));
    // Without a backup the survivor alone will do.
    scene.desired.backup = None;
    assert_eq!(scene.opened_incident().base, 4);
}

#[test]
fn a_survivor_that_restarted_is_the_base_although_its_etcd_waits_for_a_quorum() {
    let lost = [
        (0, InitFinding::WaitingToJoin),
        (1, InitFinding::WaitingToJoin),
        (2, InitFinding::WaitingToJoin),
        (3, InitFinding::CanStart),
    ];
    let mut scene = super::scene::with_lost_data(5, &lost);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    // The fifth answers, at revision 1000.
    scene.pod_mut(3).data_revision = Some(1_001);
    let incident = scene.opened_incident();
    assert_eq!((incident.base, incident.source), (3, RecoverySource::BestCopy));
    for older in [Some(999), None] {
        scene.pod_mut(3).data_revision = older;
        assert_eq!(scene.opened_incident().base, 4);
    }
    scene.last_known.data_lost_since = Some(ago(10));
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::LossUnconfirmed, "it may still answer");
}

#[test]
fn the_last_survivor_is_not_stopped_while_its_volume_would_go_with_it() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::WaitingToJoin), (1, InitFinding::WaitingToJoin)]);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    scene.observed.pvcs.get_mut(&Ordinal(2)).unwrap().is_deleting = true;
    let ordinal = Ordinal(2);
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::SurvivorAtRisk { ordinal });
}

#[test]
fn without_a_survivor_the_first_volume_there_is_gets_the_backup() {
    let mut scene = with_lost_data(
        3,
        &[
            (0, InitFinding::WaitingToJoin),
            (1, InitFinding::Corrupt),
            (2, InitFinding::WaitingToJoin),
        ],
    );
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    scene.observed.pvcs.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    let incident = scene.opened_incident();
    assert_eq!((incident.base, incident.source), (1, RecoverySource::Backup));
}

#[test]
fn a_pod_that_was_never_a_member_is_not_counted_as_one() {
    // The only member restarts while a second pod waits to be added.
    let mut scene = with_lost_data(2, &[(1, InitFinding::NeedsRestore)]);
    scene.observed.leases.remove(&Ordinal(1));
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    assert!(!matches!(scene.blocker(), Some(Blocker::RecoveryBlocked(_))));
    assert!(!matches!(scene.step(), Some(ReconcileStep::Recover(_))));
}

#[test]
fn after_a_recovery_only_those_count_who_have_given_a_sign_of_life_since() {
    let mut scene = with_lost_data(3, &[(1, InitFinding::WaitingToJoin), (2, InitFinding::WaitingToJoin)]);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    let mut over = incident(3, 0);
    over.stage = RecoveryStage::Closed;
    over.changed = ago(2);
    scene.observed.recovery.incident = Some(over);
    let step = scene.step();
    assert!(!matches!(step, Some(ReconcileStep::Recover(_))), "{step:?}");
    assert!(!matches!(scene.blocker(), Some(Blocker::RecoveryBlocked(_))));
}

#[test]
fn whoever_is_of_the_cluster_that_was_restored_is_a_member_whatever_its_clock_says() {
    let mut scene = with_lost_data(3, &[(0, InitFinding::WaitingToJoin)]);
    scene.desired.recovery.mode = RecoveryMode::Automatic;
    let mut over = incident(3, 0);
    (over.stage, over.changed) = (RecoveryStage::Closed, ago(2));
    let made = mainstay_ids::ClusterId(7);
    over.cluster = Some(made.to_string());
    scene.observed.recovery.incident = Some(over);
    for lease in scene.observed.leases.values_mut() {
        lease.renewed_at = Some(ago(100));
        lease.holder.as_mut().unwrap().cluster_id = Some(made);
    }
    let step = scene.step();
    assert!(!matches!(step, Some(ReconcileStep::Recover(_))), "{step:?}");
    assert!(!matches!(scene.blocker(), Some(Blocker::RecoveryBlocked(_))));
}

#[test]
fn a_new_volume_needs_nobodys_word() {
    for mode in [RecoveryMode::Manual, RecoveryMode::Approve] {
        let mut scene = with_lost_data(
            3,
            &[(0, InitFinding::CanStart), (1, InitFinding::CanStart), (2, InitFinding::CanStart)],
        );
        scene.desired.recovery.mode = mode;
        for claim in scene.observed.pvcs.values_mut() {
            claim.is_lost = true;
        }
        let step = scene.step();
        assert!(matches!(step, Some(ReconcileStep::DeletePvc { .. })), "{step:?}");
    }
}

#[test]
fn a_claim_without_a_volume_is_given_up_since_it_holds_nothing() {
    let mut scene = with_lost_data(1, &[(0, InitFinding::CanStart)]);
    scene.observed.pvcs.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    assert_eq!(
        scene.step(),
        Some(ReconcileStep::DeletePvc {
            ordinal: Ordinal(0),
            uid: "claim-0".to_owned(),
            pod_uid: Some("pod-0-old".to_owned()),
            reason: PvcDeletionReason::VolumeLost,
        })
    );
    scene.observed.pvcs.clear();
    scene = scene.with_finding(0, InitFinding::NeedsRestore);
    let ordinal = Ordinal(0);
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::VolumeUnavailable { ordinal });
}

#[test]
fn nothing_begins_while_somebody_else_has_the_lock() {
    let mut scene = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    let others = |expires| ObservedLock::HeldByOther {
        holder: "copy-1".to_owned(),
        purpose: mainstay_coordination::Purpose::Copy,
        epoch: Epoch(4),
        expires_at: expires,
    };
    scene.observed.recovery.lock = others(noon() + jiff::SignedDuration::from_secs(5));
    let holder = "copy-1".to_owned();
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::LockHeld { holder });
    scene.observed.recovery.lock = others(ago(5));
    assert_eq!(scene.opened_incident().base, 0, "it may have expired: that is tried");
}

#[test]
fn a_document_nobody_can_read_stops_a_recovery_and_nothing_else() {
    let mut scene = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]);
    scene.observed.recovery.parse_error = Some("no JSON".to_owned());
    let reason = "no JSON".to_owned();
    assert_eq!(scene.recovery_blocker(), RecoveryBlocker::DocumentUnreadable { reason });
    let mut whole = ClusterFixture::healthy(3);
    whole.observed.recovery.parse_error = Some("no JSON".to_owned());
    assert_eq!(whole.step(), None);
}

#[test]
fn a_lock_that_is_not_needed_after_all_is_given_back() {
    let mut scene = ClusterFixture::healthy(3);
    scene.observed.recovery.lock = ObservedLock::HeldByUs {
        epoch: Epoch(1),
        renewed_at: ago(1),
    };
    assert_eq!(scene.recovery_step(), RecoveryStep::ReleaseLock);
}

#[test]
fn a_cluster_that_sleeps_or_answers_has_lost_nothing() {
    let mut asleep = with_lost_data(1, &[(0, InitFinding::NeedsRestore)]).with_replicas(0);
    assert!(!matches!(asleep.step(), Some(ReconcileStep::Recover(_))));
    asleep.desired.requests.suspend = true;
    assert_eq!(asleep.step(), None);
    let serving = ClusterFixture::healthy(3).with_member_down(1).with_finding(1, InitFinding::NeedsRestore);
    assert!(!matches!(serving.step(), Some(ReconcileStep::Recover(_))));
}

#[test]
fn a_recovery_that_was_given_up_makes_nobody_a_member() {
    let scene = |stage| {
        let mut scene = with_lost_data(3, &[(1, InitFinding::NeedsRestore), (2, InitFinding::Corrupt)]);
        for lease in scene.observed.leases.values_mut() {
            lease.renewed_at = Some(ago(100));
        }
        let mut last = incident(3, 0);
        (last.stage, last.changed) = (stage, ago(90));
        scene.observed.recovery.incident = Some(last);
        scene.desired.recovery.mode = RecoveryMode::Automatic;
        scene
    };
    assert_eq!(scene(RecoveryStage::Failed).opened_incident().cause, RecoveryCause::QuorumLost);
    let step = scene(RecoveryStage::Closed).step();
    assert!(
        !matches!(step, Some(ReconcileStep::Recover(_))),
        "the only member is well: {step:?}"
    );
}
