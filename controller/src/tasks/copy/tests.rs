//! Tests of the next action on a copy task.

use mainstay_verdict::{CommandDetails, Verdict};
use serde_json::Value;

use super::*;
use crate::model::{FailureClass, JobFailure, JobState};

fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn observed(attempt: u32, job: Option<JobState>) -> ObservedCopyTask {
    ObservedCopyTask {
        attempt,
        is_deleting: false,
        has_finalizer: true,
        finished_at: None,
        ttl: None,
        job,
        now: noon(),
    }
}

fn failed_job(verdict: Verdict, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: noon() - SignedDuration::from_secs(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(verdict),
            superseded_by: None,
            message: "disk full".to_owned(),
        },
    }
}

#[test]
fn copy_task_gets_a_finalizer_then_a_job_then_a_report() {
    let mut fresh = observed(1, None);
    fresh.has_finalizer = false;
    assert_eq!(next_action(&fresh), CopyTaskAction::AddFinalizer);
    assert_eq!(next_action(&observed(1, None)), CopyTaskAction::CreateJob);
    assert!(matches!(
        next_action(&observed(1, Some(JobState::Running))),
        CopyTaskAction::Wait(_)
    ));
    let done = JobState::Succeeded {
        at: noon(),
        done: CommandDetails::default(),
    };
    assert!(matches!(
        next_action(&observed(1, Some(done))),
        CopyTaskAction::Report {
            succeeded: true,
            ..
        }
    ));
}

#[test]
fn transient_copy_failures_are_retried_and_permanent_ones_reported() {
    let fresh = observed(1, Some(failed_job(Verdict::StoreUnavailable, 5)));
    assert_eq!(
        next_action(&fresh),
        CopyTaskAction::Wait(Duration::from_secs(25))
    );
    let due = observed(1, Some(failed_job(Verdict::StoreUnavailable, 31)));
    assert_eq!(next_action(&due), CopyTaskAction::Retry);
    for (attempt, verdict) in [
        (5, Verdict::StoreUnavailable),
        (1, Verdict::Usage),
        (1, Verdict::NoBackup),
    ] {
        let message = "disk full".to_owned();
        let action = next_action(&observed(attempt, Some(failed_job(verdict, 1_000))));
        assert_eq!(
            action,
            CopyTaskAction::Report {
                succeeded: false,
                message,
            },
            "{verdict}"
        );
    }
}

#[test]
fn deleted_copy_task_deletes_its_job() {
    let mut deleting = observed(1, Some(JobState::Running));
    deleting.is_deleting = true;
    assert_eq!(next_action(&deleting), CopyTaskAction::DeleteJob);
    deleting.job = None;
    assert_eq!(next_action(&deleting), CopyTaskAction::RemoveFinalizer);
    deleting.has_finalizer = false;
    assert_eq!(next_action(&deleting), CopyTaskAction::AwaitChange);
}

#[test]
fn finished_copy_task_stays_finished() {
    for job in [
        None,
        Some(JobState::Running),
        Some(failed_job(Verdict::Disk, 1)),
    ] {
        let mut finished = observed(1, job);
        finished.finished_at = Some(noon() - SignedDuration::from_hours(10_000));
        assert_eq!(next_action(&finished), CopyTaskAction::AwaitChange);
    }
}

#[test]
fn finished_copy_task_is_deleted_with_its_job_after_its_ttl() {
    let finished = |seconds_ago: i64, ttl: u64| ObservedCopyTask {
        finished_at: Some(noon() - SignedDuration::from_secs(seconds_ago)),
        ttl: Some(Duration::from_secs(ttl)),
        ..observed(1, Some(failed_job(Verdict::Disk, 1)))
    };
    let minute = Duration::from_mins(1);
    assert_eq!(
        next_action(&finished(0, 60)),
        CopyTaskAction::WaitForTtl(minute)
    );
    assert_eq!(
        next_action(&finished(45, 60)),
        CopyTaskAction::WaitForTtl(minute / 4)
    );
    assert_eq!(next_action(&finished(60, 60)), CopyTaskAction::DeleteTask);
    assert_eq!(next_action(&finished(0, 0)), CopyTaskAction::DeleteTask);
    let mut deleting = finished(60, 60);
    deleting.is_deleting = true;
    assert_eq!(next_action(&deleting), CopyTaskAction::DeleteJob);
    let mut running = finished(60, 60);
    running.finished_at = None;
    let pause = Duration::from_secs(29);
    assert_eq!(
        next_action(&running),
        CopyTaskAction::Wait(pause),
        "the time to live starts when the task is finished"
    );
}

#[test]
fn ttl_counts_from_the_condition_that_became_true() {
    let condition = |status: &str, at: &str| {
        json!({ "type": "Succeeded", "status": status, "reason": "", "message": "",
            "lastTransitionTime": at, "lastUpdateTime": "2026-11-16T13:00:00Z" })
    };
    let task = |conditions: Value| -> EtcdCopyBackupsTask {
        let store = json!({ "prefix": "p" });
        serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdCopyBackupsTask",
            "metadata": { "name": "move" }, "spec": { "sourceStore": store, "targetStore": store },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    };
    let noon_text = "2026-11-16T12:00:00Z";
    assert_eq!(find_finish_time(&task(json!([]))), None);
    let failed = condition("False", "2026-11-16T11:00:00Z");
    assert_eq!(find_finish_time(&task(json!([failed]))), None);
    let ended = task(json!([failed, condition("True", noon_text)]));
    assert_eq!(find_finish_time(&ended), Some(noon()));
}

#[test]
fn source_backup_is_identified_by_its_store_location() {
    let store = |prefix: &str| StoreSpec {
        provider: Some("aws".to_owned()),
        container: Some("backups".to_owned()),
        prefix: prefix.to_owned(),
        ..StoreSpec::default()
    };
    let mut etcd = Etcd::new("main", mainstay_crds::EtcdSpec::default());
    assert!(!uses_store(&etcd, &store("shoot/main")));
    etcd.spec.backup.store = Some(store("shoot/main/"));
    assert!(uses_store(&etcd, &store("shoot/main")));
    assert!(!uses_store(&etcd, &store("shoot/events")));
}
