use mainstay_verdict::CommandDetails;
use serde_json::{Value, json};

use super::*;
use crate::model::annotations::SUSPEND_RECONCILE;
use crate::model::{JobState, ReportedOutcome};

fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

fn task(config: &Value, state: Option<&str>) -> EtcdOpsTask {
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
        "metadata": { "name": "task", "namespace": "shoot", "finalizers": [FINALIZER] },
        "spec": { "etcdName": "main", "config": config },
        "status": { "state": state, "lastTransitionTime": "2026-11-16T11:30:00Z" },
    }))
    .unwrap()
}

fn etcd(ready: &str, has_store: bool) -> Etcd {
    let store = has_store.then(|| json!({ "provider": "aws", "prefix": "p" }));
    serde_json::from_value(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
        "metadata": { "name": "main", "namespace": "shoot" },
        "spec": { "labels": {}, "etcd": {}, "backup": { "store": store }, "replicas": 3 },
        "status": { "conditions": [{
            "type": "Ready", "status": ready, "reason": "x", "message": "no quorum",
            "lastTransitionTime": "2026-11-16T11:00:00Z", "lastUpdateTime": "2026-11-16T11:00:00Z",
        }]},
    }))
    .unwrap()
}

fn rejection_code(
    config: &Value,
    etcd: Option<&Etcd>,
    blocking: Option<&str>,
) -> Option<&'static str> {
    let task = task(config, Some("Pending"));
    let observed = ObservedOpsTask {
        task: &task,
        etcd,
        blocking_task: blocking,
        now: noon(),
    };
    admit(&observed).err().map(|(code, _)| code)
}

#[test]
fn every_task_kind_has_its_preconditions() {
    let (healthy, unhealthy, without_store) =
        (etcd("True", true), etcd("False", true), etcd("True", false));
    let snapshot = || json!({ "onDemandSnapshot": { "type": "full" } });
    let table = [
        (snapshot(), &healthy, None),
        (snapshot(), &unhealthy, Some("ERR_ETCD_NOT_READY")),
        (snapshot(), &without_store, Some("ERR_BACKUP_NOT_ENABLED")),
        (
            json!({ "onDemandSnapshot": { "type": "delta", "isFinal": true } }),
            &healthy,
            Some("ERR_INVALID_TASK"),
        ),
        (json!({ "restore": {} }), &unhealthy, None),
        (
            json!({ "restore": {} }),
            &without_store,
            Some("ERR_BACKUP_NOT_ENABLED"),
        ),
        (
            json!({ "restore": { "fromFull": "Incr-1-2-3" } }),
            &healthy,
            Some("ERR_INVALID_TASK"),
        ),
        (
            json!({ "restore": { "toRevision": 4, "fromFull": "Full-0-4-3" } }),
            &healthy,
            Some("ERR_INVALID_TASK"),
        ),
        (json!({ "compact": {} }), &unhealthy, None),
        (json!({ "verifyBackup": {} }), &unhealthy, None),
        (
            json!({ "defragment": {} }),
            &unhealthy,
            Some("ERR_ETCD_NOT_READY"),
        ),
        (json!({ "moveLeader": {} }), &healthy, None),
        (
            json!({ "recoverQuorum": {} }),
            &healthy,
            Some("ERR_QUORUM_PRESENT"),
        ),
        (json!({ "recoverQuorum": {} }), &unhealthy, None),
    ];
    for (config, etcd, expected) in table {
        let code = rejection_code(&config, Some(etcd), None);
        assert_eq!(code, expected, "{config}");
    }
    let code = rejection_code(&snapshot(), None, None);
    assert_eq!(code, Some("ERR_GET_ETCD"));
    assert_eq!(
        rejection_code(&snapshot(), Some(&healthy), Some("other")),
        Some("ERR_DUPLICATE_TASK")
    );
    assert_eq!(
        rejection_code(&json!({}), Some(&healthy), None),
        Some("ERR_UNSUPPORTED_TASK")
    );
}

#[test]
fn restore_of_a_suspended_or_hibernated_etcd_is_rejected() {
    let mut suspended = etcd("True", true);
    let annotations = suspended.metadata.annotations.get_or_insert_default();
    annotations.insert(SUSPEND_RECONCILE.to_owned(), String::new());
    let mut hibernated = etcd("False", true);
    hibernated.spec.replicas = 0;
    let restore = json!({ "restore": { "toRevision": 4 } });
    let dry_run = json!({ "restore": { "toRevision": 4, "dryRun": true } });
    for (etcd, expected) in [
        (&suspended, "ERR_ETCD_SUSPENDED"),
        (&hibernated, "ERR_ETCD_ASLEEP"),
    ] {
        assert_eq!(rejection_code(&restore, Some(etcd), None), Some(expected));
        assert_eq!(
            rejection_code(&dry_run, Some(etcd), None),
            None,
            "a dry run only reads"
        );
    }
    let quorum = json!({ "recoverQuorum": {} });
    let expected = Some("ERR_ETCD_ASLEEP");
    assert_eq!(rejection_code(&quorum, Some(&hibernated), None), expected);
}

#[test]
fn quorum_recovery_is_accepted_once_data_loss_is_reported() {
    let mut etcd = etcd("True", true);
    let conditions = etcd.status.as_mut().unwrap().conditions.as_mut().unwrap();
    let lost = Condition {
        type_: ConditionType::RecoveryRequired,
        ..conditions[0].clone()
    };
    conditions.push(lost);
    let task = json!({ "recoverQuorum": {} });
    assert_eq!(rejection_code(&task, Some(&etcd), None), None);
}

fn next_for(task: &EtcdOpsTask) -> OpsTaskAction {
    let etcd = etcd("True", true);
    next_action(&ObservedOpsTask {
        task,
        etcd: Some(&etcd),
        blocking_task: None,
        now: noon(),
    })
}

#[test]
fn task_moves_through_its_states_and_never_back() {
    let config = || json!({ "onDemandSnapshot": { "type": "full" } });
    let mut fresh = task(&config(), None);
    fresh.metadata.finalizers = None;
    assert_eq!(next_for(&fresh), OpsTaskAction::AddFinalizer);
    let reported = |next| match next {
        OpsTaskAction::Report(report) => report.state,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        reported(next_for(&task(&config(), None))),
        TaskState::Pending
    );
    assert_eq!(
        reported(next_for(&task(&config(), Some("Pending")))),
        TaskState::InProgress
    );
    assert_eq!(
        reported(next_for(&task(&json!({}), Some("Pending")))),
        TaskState::Rejected
    );
    assert_eq!(
        next_for(&task(&config(), Some("InProgress"))),
        OpsTaskAction::Execute
    );
    for state in ["Succeeded", "Failed", "Rejected"] {
        let mut finished = task(&config(), Some(state));
        assert_eq!(
            next_for(&finished),
            OpsTaskAction::Wait(Duration::from_mins(30)),
            "{state}"
        );
        finished.spec.ttl_seconds_after_finished = 1_800;
        assert_eq!(next_for(&finished), OpsTaskAction::DeleteTask, "{state}");
        finished.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(noon()));
        assert_eq!(
            next_for(&finished),
            OpsTaskAction::RemoveFinalizer,
            "{state}"
        );
    }
}

#[test]
fn full_snapshot_revision_is_parsed_from_its_name() {
    assert_eq!(
        parse_full_revision("Full-00000000-00000042-1700000000.gz"),
        Ok(42)
    );
    assert_eq!(
        parse_full_revision("v2/Full-00000000-00000042-1700000000"),
        Ok(42)
    );
    for wrong in ["", "Full", "Full-1", "Full-1-x-2", "Incr-1-2-3"] {
        assert!(parse_full_revision(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn verification_reports_the_restorable_revision() {
    assert_eq!(report_verification(&JobState::Running), None);
    let done = CommandDetails {
        revision: Some(7),
        ..CommandDetails::default()
    };
    let report = report_verification(&JobState::Succeeded { at: noon(), done }).unwrap();
    assert_eq!(
        report.message,
        "Backup verified, restorable up to revision 7"
    );
    assert_eq!(report.result.unwrap().revision, Some(7));
}

#[test]
fn only_a_compaction_reported_after_the_task_start_counts() {
    let reported = |at: &str| ReportedOutcome {
        status: ConditionStatus::True,
        reason: "None".to_owned(),
        message: "compacted".to_owned(),
        reported_at: at.parse().unwrap(),
    };
    assert_eq!(report_compaction(None, noon()), None);
    assert_eq!(
        report_compaction(Some(&reported("2026-11-16T11:59:59Z")), noon()),
        None
    );
    let report = report_compaction(Some(&reported("2026-11-16T12:00:00Z")), noon()).unwrap();
    assert_eq!(report.state, TaskState::Succeeded);
}
