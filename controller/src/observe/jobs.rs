//! Observed Jobs and the termination messages of their pods.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mainstay_coordination::Epoch;
use mainstay_verdict::TerminationMessage;

use super::termination;
use crate::caches::packed::{JOB_UID_LABEL, PackedStore, find};
use crate::model::annotations::{ATTEMPT, INCIDENT};
use crate::model::{FailureClass, JobFailure, JobState, ObservedJob};

/// Converts a Job, with the termination message of its pod.
pub(crate) fn observe_job(job: &Job, pods: &PackedStore<Pod>) -> ObservedJob {
    let annotation = |key: &str| job.annotations().get(key).cloned();
    ObservedJob {
        uid: job.uid().unwrap_or_default(),
        incident_token: annotation(INCIDENT),
        attempt: annotation(ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or_default(),
        is_deleting: job.metadata.deletion_timestamp.is_some(),
        created_at: job.metadata.creation_timestamp.as_ref().map(|time| time.0),
        state: job_state(job, || find_pod(job, pods)),
    }
}

fn find_pod(job: &Job, pods: &PackedStore<Pod>) -> Option<Pod> {
    let uid = job.metadata.uid.as_ref()?;
    let namespace = job.metadata.namespace.as_ref();
    find(pods, |pod| {
        let labels = pod.labels.as_ref();
        pod.namespace.as_ref() == namespace
            && labels.and_then(|labels| labels.get(JOB_UID_LABEL)) == Some(uid)
    })
}

/// State of a Job. `pod` is called only for a finished Job, because the lookup scans all pods.
pub(crate) fn job_state(job: &Job, pod: impl FnOnce() -> Option<Pod>) -> JobState {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let finished = conditions.into_iter().flatten().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    });
    let Some(finished) = finished else {
        return JobState::Running;
    };
    let at = finished
        .last_transition_time
        .as_ref()
        .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let pod = pod();
    if finished.type_ == "Complete" {
        let terminated = pod.as_ref().and_then(termination::find_terminated);
        let text = terminated.and_then(termination::termination_message);
        let done = text.and_then(|text| TerminationMessage::parse(text).ok());
        let done = done.map(|message| message.details).unwrap_or_default();
        return JobState::Succeeded { at, done };
    }
    let reason = finished.reason.as_deref().unwrap_or_default();
    let condition_message = finished.message.as_deref().unwrap_or_default();
    JobState::Failed {
        at,
        failure: classify_failure(reason, condition_message, pod.as_ref()),
    }
}

fn classify_failure(reason: &str, condition_message: &str, pod: Option<&Pod>) -> JobFailure {
    let terminated = pod.and_then(termination::find_terminated);
    let message = terminated.and_then(termination::termination_message);
    let verdict = message.and_then(|text| TerminationMessage::parse(text).ok());
    let class = match find_disruption(pod) {
        _ if reason == "DeadlineExceeded" => FailureClass::Deadline,
        // A disrupted pod also terminates with an error, so the disruption is checked first.
        Some(class) => class,
        None if terminated.is_some() => FailureClass::Process,
        None => FailureClass::Unknown,
    };
    let description = match &verdict {
        Some(message) => message
            .reason
            .clone()
            .unwrap_or_else(|| message.verdict.name().to_owned()),
        None => terminated
            .and_then(termination::describe_termination)
            .unwrap_or_else(|| format!("{reason}: {condition_message}")),
    };
    let superseding = verdict.as_ref().and_then(|message| message.overtaken_by);
    JobFailure {
        class,
        superseded_by: superseding.and_then(Epoch::from_external),
        verdict: verdict.and_then(|message| message.verdict.known()),
        message: description,
    }
}

/// The disruption that terminated the pod, if any.
fn find_disruption(pod: Option<&Pod>) -> Option<FailureClass> {
    let status = pod?.status.as_ref()?;
    let disrupted = status.conditions.as_ref().and_then(|conditions| {
        conditions
            .iter()
            .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
    });
    let reason = disrupted.and_then(|condition| condition.reason.as_deref())?;
    Some(match reason {
        "PreemptionByScheduler" => FailureClass::Preempted,
        "DeletionByTaintManager" => FailureClass::Tainted,
        "EvictionByEvictionAPI" => FailureClass::Evicted,
        "TerminationByKubelet" => FailureClass::Terminated,
        _ => FailureClass::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use mainstay_verdict::Verdict;
    use serde_json::{Value, json};

    use super::*;

    fn job(condition: Option<Value>) -> Job {
        serde_json::from_value(json!({
            "metadata": { "name": "main-restore-0", "uid": "j1" },
            "status": { "conditions": condition.into_iter().collect::<Vec<_>>() },
        }))
        .unwrap()
    }

    fn ended_condition(type_: &str, reason: &str) -> Value {
        json!({ "type": type_, "status": "True", "reason": reason, "message": "too slow",
            "lastTransitionTime": "2026-11-16T12:00:00Z" })
    }

    fn pod(message: &str, disruption: Option<&str>) -> Pod {
        let conditions: Vec<Value> = disruption
            .iter()
            .map(|reason| json!({ "type": "DisruptionTarget", "status": "True", "reason": reason }))
            .collect();
        serde_json::from_value(json!({ "status": {
            "conditions": conditions,
            "containerStatuses": [{
                "name": "restore", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": 1, "message": message } },
            }],
        }}))
        .unwrap()
    }

    fn failed_job(reason: &str, pod: Option<Pod>) -> JobFailure {
        match job_state(&job(Some(ended_condition("Failed", reason))), || pod) {
            JobState::Failed { failure, .. } => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn job_without_an_end_condition_is_running() {
        assert_eq!(
            job_state(&job(None), || panic!("pod looked up")),
            JobState::Running
        );
    }

    #[test]
    fn job_result_is_read_from_the_termination_message() {
        let text = r#"{"verdict": "restored", "startRevision": 7, "clusterId": "c1"}"#;
        let state = job_state(&job(Some(ended_condition("Complete", ""))), || {
            Some(pod(text, None))
        });
        let JobState::Succeeded { done, .. } = state else {
            panic!("{state:?}")
        };
        assert_eq!(
            (done.start_revision, done.cluster_id.as_deref()),
            (Some(7), Some("c1"))
        );
    }

    #[test]
    fn superseded_job_reports_the_epoch_on_its_volume() {
        let epoch = |number: &str| {
            let text = format!(r#"{{"verdict": "in-use", "overtakenBy": {number}}}"#);
            failed_job("BackoffLimitExceeded", Some(pod(&text, None))).superseded_by
        };
        assert_eq!(epoch("1800000000"), Some(Epoch(1_800_000_000)));
        for invalid in ["4503599627370496", "18446744073709551615", "-1", "null"] {
            assert_eq!(epoch(invalid), None, "{invalid}");
        }
        assert_eq!(failed_job("BackoffLimitExceeded", None).superseded_by, None);
    }

    #[test]
    fn job_failures_are_classified_as_etcd_druid_does() {
        let text = r#"{"verdict": "store-unavailable", "reason": "no answer"}"#;
        let process = failed_job("BackoffLimitExceeded", Some(pod(text, None)));
        assert_eq!(
            (process.class, process.message.as_str()),
            (FailureClass::Process, "no answer")
        );
        assert_eq!(process.verdict, Some(Verdict::StoreUnavailable));
        let crash = failed_job(
            "BackoffLimitExceeded",
            Some(pod("line\npanic: full\n", None)),
        );
        assert_eq!(
            (crash.class, crash.message.as_str(), crash.verdict),
            (FailureClass::Process, "panic: full", None)
        );
        let late = failed_job("DeadlineExceeded", None);
        assert_eq!(
            (late.class, late.message.as_str()),
            (FailureClass::Deadline, "DeadlineExceeded: too slow")
        );
        for (reason, class) in [
            ("PreemptionByScheduler", FailureClass::Preempted),
            ("DeletionByTaintManager", FailureClass::Tainted),
            ("EvictionByEvictionAPI", FailureClass::Evicted),
            ("TerminationByKubelet", FailureClass::Terminated),
        ] {
            let failure = failed_job("BackoffLimitExceeded", Some(pod("", Some(reason))));
            assert_eq!((failure.class, class.reason()), (class, reason));
        }
        assert_eq!(
            failed_job("BackoffLimitExceeded", None).class,
            FailureClass::Unknown
        );
    }
}
