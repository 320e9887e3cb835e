//! The way of a recovery, step by step.

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Cause, Stage};

use super::scene::*;
use crate::decide::recovery::{Hold, Recovery, Task};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, Step};
use crate::observe::{FailureClass, Finding, JobState, Members, Membership, Ordinal, SeenLock};

fn launched(scene: &Scene) -> (u32, Task) {
    match scene.recovery() {
        Recovery::Launch { ordinal, task, .. } => (ordinal.0, task),
        other => panic!("no Job starts: {other:?}"),
    }
}

/// The volumes are written and the pods are there again.
fn restored(size: u32, base: u32) -> Scene {
    let mut scene = lost(size, &[]);
    scene.seen.recovery = under_way(size, base).seen.recovery;
    let incident = scene.incident_mut();
    incident.stage = Stage::Restored;
    incident.revision = Some(1_000);
    incident.cluster = Some(mainstay_ids::ClusterId(7).to_string());
    scene
}

#[test]
fn pods_are_stopped_before_a_volume_is_touched() {
    let mut scene = under_way(3, 0);
    scene.set_mut().replicas = 3;
    scene.seen.pods.insert(Ordinal(2), pod(2, OLD));
    assert_eq!(scene.recovery(), Recovery::Scale { from: 3, to: 0 });
    assert_eq!(scene.plan().shape.unwrap().replicas, 0);
    scene.set_mut().replicas = 0;
    assert_eq!(scene.hold(), Hold::PodsStop);
    scene.pod_mut(2).is_deleting = true;
    assert_eq!(scene.hold(), Hold::PodsStop, "it may still write");
}

#[test]
fn a_stateful_set_that_vanishes_meanwhile_comes_back_without_pods() {
    let mut scene = under_way(3, 0);
    scene.seen.set = None;
    let plan = scene.plan();
    assert_eq!(plan.shape.unwrap().replicas, 0);
    let on = Blocker::SetUnobserved;
    assert_eq!(plan.step, Some(Step::Wait { on }));
}

#[test]
fn the_base_is_restored_first_and_then_the_others_are_emptied() {
    let scene = under_way(3, 1);
    assert_eq!(launched(&scene), (1, Task::Restore));
    let scene = scene.with_job(1, JobState::Running);
    let ordinal = Ordinal(1);
    assert_eq!(scene.hold(), Hold::JobRuns { ordinal });
    let scene = scene.with_job(1, succeeded());
    assert_eq!(launched(&scene), (0, Task::SetAside));
    let scene = scene.with_job(0, JobState::Running);
    assert_eq!(launched(&scene), (2, Task::SetAside));
    let scene = scene.with_job(2, succeeded());
    let ordinal = Ordinal(0);
    assert_eq!(scene.hold(), Hold::JobRuns { ordinal });
    let next = scene.with_job(0, succeeded()).recorded();
    assert_eq!((next.stage, next.revision), (Stage::Restored, Some(1_000)));
    assert_eq!(next.cluster, Some(mainstay_ids::ClusterId(7).to_string()));
    assert_eq!(
        next.message,
        "revision 900 was restored from Full-00000000-00000900-1"
    );
}

#[test]
fn a_volume_that_is_not_emptied_is_tried_again_after_a_pause() {
    let emptied = || {
        under_way(3, 0)
            .with_job(0, succeeded())
            .with_job(2, succeeded())
    };
    let scene = emptied().with_job(1, failed("disk", 5));
    let ordinal = Ordinal(1);
    assert!(matches!(scene.hold(), Hold::JobFailed { ordinal: on, .. } if on == ordinal));
    let scene = emptied().with_job(1, failed("disk", 30));
    let uid = "job".to_owned();
    assert_eq!(scene.recovery(), Recovery::RemoveJob { ordinal, uid });
    let mut scene = scene;
    scene.seen.recovery.jobs.remove(&ordinal);
    assert_eq!(launched(&scene), (1, Task::SetAside));
}

#[test]
fn a_volume_nobody_can_mount_does_not_stop_the_recovery() {
    let late = || {
        let mut state = failed("", 1);
        let JobState::Failed { failure, .. } = &mut state else {
            unreachable!()
        };
        failure.class = FailureClass::Deadline;
        state
    };
    let mut scene = under_way(3, 0).with_job(0, succeeded()).with_job(1, late());
    scene.seen.claims.get_mut(&Ordinal(2)).unwrap().is_lost = true;
    assert_eq!(scene.recorded().stage, Stage::Restored);
    let scene = under_way(3, 0)
        .with_job(0, succeeded())
        .with_job(1, late())
        .with_job(2, late());
    let hold = scene.hold();
    assert!(
        matches!(hold, Hold::JobFailed { .. }),
        "together they would be the old cluster: {hold:?}"
    );
}

#[test]
fn a_volume_of_somebody_else_is_not_emptied() {
    let scene = under_way(3, 0)
        .with_job(0, succeeded())
        .with_job(1, failed("wrong-volume", 1))
        .with_job(2, succeeded());
    assert_eq!(scene.recorded().stage, Stage::Restored);
}

#[test]
fn no_pod_starts_while_a_job_may_write() {
    let ordinal = Ordinal(0);
    let remove = Recovery::RemoveJob {
        ordinal,
        uid: "job".to_owned(),
    };
    let mut given_up = under_way(3, 0).with_job(0, JobState::Running);
    given_up.incident_mut().stage = Stage::Abandoned;
    let mut forgotten = under_way(3, 0).with_job(0, JobState::Running);
    forgotten.seen.recovery.incident = None;
    for mut scene in [given_up, forgotten] {
        assert_eq!(scene.recovery(), remove);
        scene
            .seen
            .recovery
            .jobs
            .get_mut(&ordinal)
            .unwrap()
            .is_deleting = true;
        assert_eq!(scene.hold(), Hold::JobRuns { ordinal });
        scene.seen.recovery.jobs.clear();
        scene.seen.recovery.writers.insert(ordinal);
        assert_eq!(scene.hold(), Hold::JobRuns { ordinal }, "its pod stops");
        scene.seen.set = None;
        assert_eq!(scene.plan().shape.unwrap().replicas, 0);
        scene.seen.set = Some(set(0));
        scene.seen.recovery.writers.clear();
        let step = scene.step();
        let is_over = matches!(
            step,
            Some(Step::Recover(
                Recovery::Scale { from: 0, .. } | Recovery::Release
            ))
        );
        assert!(is_over, "{step:?}");
    }
}

#[test]
fn a_job_nobody_remembers_is_stopped_with_the_lock_in_hand() {
    let mut scene = under_way(3, 0).with_job(0, JobState::Running);
    scene.seen.recovery.incident = None;
    scene.seen.recovery.lock = SeenLock::default();
    assert_eq!(scene.recovery(), Recovery::Reclaim);
    scene.seen.recovery.jobs.clear();
    let step = scene.step();
    assert!(
        matches!(step, Some(Step::Resize { from: 0, to: 3 })),
        "{step:?}"
    );
}

#[test]
fn a_job_waits_for_the_pod_of_the_one_before() {
    let mut scene = under_way(1, 0);
    scene.seen.recovery.writers.insert(Ordinal(0));
    let ordinal = Ordinal(0);
    assert_eq!(scene.hold(), Hold::JobRuns { ordinal });
}

#[test]
fn what_a_job_did_for_a_recovery_whose_document_is_lost_counts_for_no_other() {
    let mut scene = under_way(1, 0).with_job(0, succeeded());
    scene.incident_mut().token = "restored-5f3a-of-today".to_owned(); // by the same name, on the same volume
    assert!(matches!(scene.recovery(), Recovery::RemoveJob { .. }));
}

#[test]
fn a_failed_restore_is_tried_again_after_a_pause_that_grows() {
    let scene = under_way(1, 0).with_job(0, failed("store-unavailable", 5));
    assert!(
        matches!(scene.hold(), Hold::JobFailed { why, .. } if why == "no answer from the store")
    );
    let next = under_way(1, 0)
        .with_job(0, failed("store-unavailable", 21))
        .recorded();
    assert_eq!((next.stage, next.attempt), (Stage::Restoring, 2));
    let mut second = under_way(1, 0).with_job(0, failed("store-unavailable", 21));
    second.incident_mut().attempt = 2;
    assert!(
        matches!(second.recovery(), Recovery::RemoveJob { .. }),
        "the Job of the first attempt goes"
    );
    second
        .seen
        .recovery
        .jobs
        .get_mut(&Ordinal(0))
        .unwrap()
        .attempt = 2;
    assert!(matches!(second.hold(), Hold::JobFailed { .. }), "40 s now");
    second.seen.recovery.jobs.clear();
    assert_eq!(launched(&second), (0, Task::Restore));
}

#[test]
fn a_volume_that_remembers_a_greater_epoch_is_outranked_once_and_then_written() {
    let refused = |seconds_ago| under_way(1, 0).with_job(0, overtaken(9, seconds_ago));
    let above = Epoch(9);
    for mut scene in [refused(5), refused(21)] {
        assert_eq!(scene.recovery(), Recovery::Outrank { above });
        scene = scene.under_epoch(9);
        assert_eq!(scene.recovery(), Recovery::Outrank { above }, "not above");
    }
    let scene = refused(5).under_epoch(10);
    assert!(
        matches!(scene.hold(), Hold::JobFailed { .. }),
        "then a pause"
    );
    let mut scene = refused(21).under_epoch(10);
    let next = scene.recorded();
    assert_eq!((next.stage, next.attempt), (Stage::Restoring, 2));
    *scene.incident_mut() = next;
    assert!(matches!(scene.recovery(), Recovery::RemoveJob { .. }));
    scene.seen.recovery.jobs.clear();
    assert_eq!(launched(&scene), (0, Task::Restore));
}

#[test]
fn a_volume_that_is_to_be_emptied_is_outranked_too() {
    let scene = under_way(3, 0)
        .with_job(0, succeeded())
        .with_job(1, overtaken(9, 30))
        .with_job(2, overtaken(12, 30));
    let above = Epoch(9);
    assert_eq!(scene.recovery(), Recovery::Outrank { above });
    let mut scene = scene.under_epoch(13);
    let ordinal = Ordinal(1);
    let uid = "job".to_owned();
    assert_eq!(scene.recovery(), Recovery::RemoveJob { ordinal, uid });
    scene.seen.recovery.jobs.remove(&ordinal);
    assert_eq!(launched(&scene), (1, Task::SetAside));
}

#[test]
fn only_a_job_of_this_attempt_and_a_lock_of_ours_outrank() {
    let mut earlier = under_way(1, 0).with_job(0, overtaken(9, 5));
    earlier.incident_mut().attempt = 2;
    assert!(matches!(earlier.recovery(), Recovery::RemoveJob { .. }));
    let mut free = under_way(1, 0).with_job(0, overtaken(9, 5));
    free.seen.recovery.lock = SeenLock::Free { epoch: Epoch(1) };
    assert_eq!(free.recovery(), Recovery::Reclaim);
    let mut others = under_way(1, 0).with_job(0, overtaken(9, 5));
    others.seen.recovery.lock = SeenLock::Others {
        holder: "copy-1".to_owned(),
        purpose: mainstay_coordination::Purpose::Copy,
        epoch: Epoch(4),
        expires: noon() + jiff::SignedDuration::from_secs(5),
    };
    assert!(matches!(others.hold(), Hold::Locked { .. }));
}

#[test]
fn a_lost_cluster_is_never_given_up_and_a_request_is() {
    let scene = |cause| {
        let mut scene = under_way(1, 0).with_job(0, failed("incomplete", 1));
        scene.incident_mut().cause = cause;
        scene
    };
    assert!(matches!(
        scene(Cause::MemberLost).hold(),
        Hold::JobFailed { .. }
    ));
    let given_up = scene(Cause::Requested).recorded();
    assert_eq!(given_up.stage, Stage::Abandoned);
    let mut scene = scene(Cause::Requested);
    *scene.incident_mut() = given_up;
    assert_eq!(scene.recovery(), Recovery::Scale { from: 0, to: 1 });
    scene.set_mut().replicas = 1;
    assert_eq!(scene.recorded().stage, Stage::Failed);
}

#[test]
fn nothing_is_ever_restored_on_a_volume_of_somebody_else() {
    for cause in [Cause::MemberLost, Cause::QuorumLost, Cause::Requested] {
        let mut scene = under_way(1, 0).with_job(0, failed("wrong-volume", 1_000));
        scene.incident_mut().cause = cause;
        assert_eq!(scene.recorded().stage, Stage::Abandoned, "{cause:?}");
    }
}

#[test]
fn a_volume_that_vanishes_meanwhile_ends_the_recovery_so_that_another_is_made() {
    let mut scene = under_way(1, 0);
    scene.seen.claims.clear();
    assert_eq!(scene.recorded().stage, Stage::Abandoned);
}

#[test]
fn pods_start_with_the_configuration_of_a_cluster_that_exists() {
    let mut scene = restored(3, 0);
    scene.seen.leases.clear();
    scene.seen.pods.clear();
    (scene.set_mut().replicas, scene.set_mut().noted_size) = (0, None);
    assert_eq!(scene.recovery(), Recovery::Scale { from: 0, to: 3 });
    let shape = scene.plan().shape.unwrap();
    assert_eq!(
        (shape.replicas, shape.phase),
        (3, crate::decide::Phase::Formed)
    );
}

#[test]
fn it_is_over_when_the_restored_cluster_answers_with_what_was_restored() {
    let scene = restored(3, 0);
    assert_eq!(scene.hold(), Hold::Confirmation);
    let answering = |cluster: u64, revision: i64| {
        let mut scene = restored(3, 0);
        let mut base = member(&scene.wanted, 0);
        base.answer.as_mut().unwrap().revision = revision;
        scene.seen.membership = Membership::Known(Members {
            cluster: mainstay_ids::ClusterId(cluster),
            list: vec![base],
        });
        scene
    };
    assert_eq!(answering(7, 1_000).recorded().stage, Stage::Closed);
    assert_eq!(answering(7, 999).hold(), Hold::Confirmation, "too old");
    assert_eq!(
        answering(8, 2_000).hold(),
        Hold::Confirmation,
        "another one"
    );
}

#[test]
fn data_that_etcd_does_not_start_on_is_restored_again() {
    for finding in [
        Finding::Corrupt,
        Finding::NeedsRestore,
        Finding::Foreign,
        Finding::Waits,
        Finding::Hopeless,
    ] {
        let scene = restored(1, 0).finding(0, finding);
        let next = scene.recorded();
        let (stage, attempt) = (next.stage, next.attempt);
        assert_eq!((stage, attempt), (Stage::Restoring, 2), "{finding:?}");
    }
    let scene = restored(1, 0).finding(0, Finding::Refused);
    assert_eq!(scene.hold(), Hold::Confirmation, "a person has to look");
}

#[test]
fn it_is_not_restored_again_at_once_for_ever() {
    let mut scene = restored(1, 0).finding(0, Finding::Corrupt);
    scene.incident_mut().attempt = 4;
    assert!(matches!(scene.hold(), Hold::JobFailed { .. }));
    scene.incident_mut().changed = ago(161);
    assert_eq!(scene.recorded().attempt, 5);
}

#[test]
fn a_restored_volume_that_is_lost_ends_the_recovery_so_that_another_is_made() {
    let mut scene = restored(3, 0);
    scene.seen.claims.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    let next = scene.recorded();
    assert_eq!(next.stage, Stage::Abandoned);
    *scene.incident_mut() = next;
    assert_eq!(scene.recorded().stage, Stage::Failed);
}

#[test]
fn the_lock_is_renewed_while_something_is_waited_for_and_taken_again_when_lost() {
    let mut scene = under_way(1, 0).with_job(0, JobState::Running);
    scene.seen.recovery.lock = SeenLock::Ours {
        epoch: Epoch(1),
        renewed: ago(300),
    };
    assert!(matches!(scene.recovery(), Recovery::Renew(_)));
    scene.seen.recovery.lock = SeenLock::Free { epoch: Epoch(2) };
    assert_eq!(scene.recovery(), Recovery::Reclaim);
}

#[test]
fn nothing_else_moves_while_a_recovery_goes_on() {
    let scenes = [
        under_way(3, 0).replicas(5).outdated(),
        under_way(3, 0).replicas(1),
        restored(3, 0).replicas(5).outdated(),
    ];
    for scene in scenes {
        let step = scene.step().unwrap();
        let is_of_recovery = matches!(
            &step,
            Step::Recover(_)
                | Step::Wait {
                    on: Blocker::RecoveryNeeded(_)
                }
        );
        assert!(is_of_recovery, "{step:?}");
    }
}
