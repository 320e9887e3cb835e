//! Claims about what is done with a copy task.

use mainstay_verdict::Done;
use serde_json::Value;

use super::*;
use crate::observe::{FailureClass, JobFailure};

fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn seen(attempt: u32, job: Option<JobState>) -> Seen {
    Seen {
        attempt,
        is_deleting: false,
        is_held: true,
        over: None,
        ttl: None,
        job,
        now: noon(),
    }
}

fn failed(verdict: &str, seconds_ago: i64) -> JobState {
    JobState::Failed {
        at: noon() - SignedDuration::from_secs(seconds_ago),
        failure: JobFailure {
            class: FailureClass::Process,
            verdict: Some(verdict.to_owned()),
            overtaken_by: None,
            words: "so it is".to_owned(),
        },
    }
}

#[test]
fn a_task_is_held_then_started_then_told() {
    let mut fresh = seen(1, None);
    fresh.is_held = false;
    assert_eq!(next(&fresh), Next::Hold);
    assert_eq!(next(&seen(1, None)), Next::Launch);
    assert!(matches!(
        next(&seen(1, Some(JobState::Running))),
        Next::Wait(_)
    ));
    let done = JobState::Succeeded {
        at: noon(),
        done: Done::default(),
    };
    assert!(matches!(
        next(&seen(1, Some(done))),
        Next::Tell {
            succeeded: true,
            ..
        }
    ));
}

#[test]
fn what_passes_is_tried_again_and_what_does_not_is_told() {
    let fresh = seen(1, Some(failed("store-unavailable", 5)));
    assert_eq!(next(&fresh), Next::Wait(Duration::from_secs(25)));
    let due = seen(1, Some(failed("store-unavailable", 31)));
    assert_eq!(next(&due), Next::Retry);
    for (attempt, verdict) in [(5, "store-unavailable"), (1, "usage"), (1, "no-backup")] {
        let words = "so it is".to_owned();
        let told = next(&seen(attempt, Some(failed(verdict, 1_000))));
        assert_eq!(
            told,
            Next::Tell {
                succeeded: false,
                words
            },
            "{verdict}"
        );
    }
}

#[test]
fn a_task_that_goes_takes_its_job_with_it() {
    let mut going = seen(1, Some(JobState::Running));
    going.is_deleting = true;
    assert_eq!(next(&going), Next::RemoveJob);
    going.job = None;
    assert_eq!(next(&going), Next::Release);
    going.is_held = false;
    assert_eq!(next(&going), Next::Rest);
}

#[test]
fn what_is_over_stays_over() {
    for job in [None, Some(JobState::Running), Some(failed("disk", 1))] {
        let mut over = seen(1, job);
        over.over = Some(noon() - SignedDuration::from_hours(10_000));
        assert_eq!(next(&over), Next::Rest);
    }
}

#[test]
fn what_is_over_goes_after_its_time_to_live_and_takes_its_job_with_it() {
    let over = |seconds_ago: i64, ttl: u64| Seen {
        over: Some(noon() - SignedDuration::from_secs(seconds_ago)),
        ttl: Some(Duration::from_secs(ttl)),
        ..seen(1, Some(failed("disk", 1)))
    };
    let minute = Duration::from_mins(1);
    assert_eq!(next(&over(0, 60)), Next::Linger(minute));
    assert_eq!(next(&over(45, 60)), Next::Linger(minute / 4));
    assert_eq!(next(&over(60, 60)), Next::Delete);
    assert_eq!(next(&over(0, 0)), Next::Delete);
    let mut going = over(60, 60);
    going.is_deleting = true;
    assert_eq!(next(&going), Next::RemoveJob);
    let mut running = over(60, 60);
    running.over = None;
    let pause = Duration::from_secs(29);
    assert_eq!(next(&running), Next::Wait(pause), "it is not over yet");
}

#[test]
fn the_time_to_live_counts_from_the_condition_that_became_true() {
    let told = |status: &str, at: &str| {
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
    assert_eq!(over(&task(json!([]))), None);
    let failed = told("False", "2026-11-16T11:00:00Z");
    assert_eq!(over(&task(json!([failed]))), None);
    let ended = task(json!([failed, told("True", noon_text)]));
    assert_eq!(over(&ended), Some(noon()));
}

#[test]
fn the_backup_that_is_copied_is_known_by_its_place() {
    let store = |prefix: &str| StoreSpec {
        provider: Some("aws".to_owned()),
        container: Some("backups".to_owned()),
        prefix: prefix.to_owned(),
        ..StoreSpec::default()
    };
    let mut etcd = Etcd::new("main", mainstay_crds::EtcdSpec::default());
    assert!(!writes(&etcd, &store("shoot/main")));
    etcd.spec.backup.store = Some(store("shoot/main/"));
    assert!(writes(&etcd, &store("shoot/main")));
    assert!(!writes(&etcd, &store("shoot/events")));
}
