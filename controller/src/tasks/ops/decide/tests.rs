use mainstay_verdict::CommandDetails;
use serde_json::{Value, json};

use super::*;

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
            "type": "Ready", "status": ready, "reason": "x", "message": "so it is",
            "lastTransitionTime": "2026-11-16T11:00:00Z", "lastUpdateTime": "2026-11-16T11:00:00Z",
        }]},
    }))
    .unwrap()
}

fn rejection_code(config: &Value, etcd: Option<&Etcd>, rival: Option<&str>) -> Option<&'static str> {
    let task = task(config, Some("Pending"));
    let observed = ObservedOpsTask {
        task: &task,
        etcd,
        blocking_task: rival,
        now: noon(),
    };
    admit(&observed).err().map(|(code, _)| code)
}

#[test]
fn every_kind_has_its_conditions() {
    let (well, ill, bare) = (etcd("True", true), etcd("False", true), etcd("True", false));
    let snapshot = || json!({ "onDemandSnapshot": { "type": "full" } });
    let table = [
        (snapshot(), &well, None),
        (snapshot(), &ill, Some("ERR_ETCD_NOT_READY")),
        (snapshot(), &bare, Some("ERR_BACKUP_NOT_ENABLED")),
        (
            json!({ "onDemandSnapshot": { "type": "delta", "isFinal": true } }),
            &well,
            Some("ERR_INVALID_TASK"),
        ),
        (json!({ "restore": {} }), &ill, None),
        (
            json!({ "restore": {} }),
            &bare,
            Some("ERR_BACKUP_NOT_ENABLED"),
        ),
        (
            json!({ "restore": { "fromFull": "Incr-1-2-3" } }),
            &well,
            Some("ERR_INVALID_TASK"),
        ),
        (
            json!({ "restore": { "toRevision": 4, "fromFull": "Full-0-4-3" } }),
            &well,
            Some("ERR_INVALID_TASK"),
        ),
        (json!({ "compact": {} }), &ill, None),
        (json!({ "verifyBackup": {} }), &ill, None),
        (
            json!({ "defragment": {} }),
            &ill,
            Some("ERR_ETCD_NOT_READY"),
        ),
        (json!({ "moveLeader": {} }), &well, None),
        (
            json!({ "recoverQuorum": {} }),
            &well,
            Some("ERR_QUORUM_PRESENT"),
        ),
        (json!({ "recoverQuorum": {} }), &ill, None),
    ];
    for (config, etcd, expected) in table {
        assert_eq!(rejection_code(&config, Some(etcd), None), expected, "{config}");
    }
    assert_eq!(rejection_code(&snapshot(), None, None), Some("ERR_GET_ETCD"));
    assert_eq!(
        rejection_code(&snapshot(), Some(&well), Some("other")),
        Some("ERR_DUPLICATE_TASK")
    );
    assert_eq!(
        rejection_code(&json!({}), Some(&well), None),
        Some("ERR_UNSUPPORTED_TASK")
    );
}

#[test]
fn nothing_is_restored_where_nobody_would_do_it() {
    let mut suspended = etcd("True", true);
    let annotations = suspended.metadata.annotations.get_or_insert_default();
    annotations.insert(SUSPEND_RECONCILE.to_owned(), String::new());
    let mut asleep = etcd("False", true);
    asleep.spec.replicas = 0;
    let restore = json!({ "restore": { "toRevision": 4 } });
    let rehearsal = json!({ "restore": { "toRevision": 4, "dryRun": true } });
    for (etcd, expected) in [
        (&suspended, "ERR_ETCD_SUSPENDED"),
        (&asleep, "ERR_ETCD_ASLEEP"),
    ] {
        assert_eq!(rejection_code(&restore, Some(etcd), None), Some(expected));
        assert_eq!(rejection_code(&rehearsal, Some(etcd), None), None, "it only reads");
    }
    let quorum = json!({ "recoverQuorum": {} });
    let expected = Some("ERR_ETCD_ASLEEP");
    assert_eq!(rejection_code(&quorum, Some(&asleep), None), expected);
}

#[test]
fn a_quorum_may_be_recovered_as_soon_as_its_data_is_told_to_be_lost() {
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
fn a_task_goes_through_its_states_and_never_back() {
    let config = || json!({ "onDemandSnapshot": { "type": "full" } });
    let mut fresh = task(&config(), None);
    fresh.metadata.finalizers = None;
    assert_eq!(next_for(&fresh), OpsTaskAction::AddFinalizer);
    let told = |next| match next {
        OpsTaskAction::Report(telling) => telling.state,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(next_for(&task(&config(), None))), TaskState::Pending);
    assert_eq!(
        told(next_for(&task(&config(), Some("Pending")))),
        TaskState::InProgress
    );
    assert_eq!(
        told(next_for(&task(&json!({}), Some("Pending")))),
        TaskState::Rejected
    );
    assert_eq!(next_for(&task(&config(), Some("InProgress"))), OpsTaskAction::Execute);
    for state in ["Succeeded", "Failed", "Rejected"] {
        let mut over = task(&config(), Some(state));
        assert_eq!(next_for(&over), OpsTaskAction::Wait(Duration::from_mins(30)), "{state}");
        over.spec.ttl_seconds_after_finished = 1_800;
        assert_eq!(next_for(&over), OpsTaskAction::DeleteTask, "{state}");
        over.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(noon()));
        assert_eq!(next_for(&over), OpsTaskAction::RemoveFinalizer, "{state}");
    }
}

#[test]
fn a_full_snapshot_tells_its_revision_by_its_name() {
    assert_eq!(parse_full_revision("Full-00000000-00000042-1700000000.gz"), Ok(42));
    assert_eq!(parse_full_revision("v2/Full-00000000-00000042-1700000000"), Ok(42));
    for wrong in ["", "Full", "Full-1", "Full-1-x-2", "Incr-1-2-3"] {
        assert!(parse_full_revision(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_check_says_what_can_be_had() {
    assert_eq!(report_verification(&JobState::Running), None);
    let done = CommandDetails {
        revision: Some(7),
        ..CommandDetails::default()
    };
    let telling = report_verification(&JobState::Succeeded { at: noon(), done }).unwrap();
    assert_eq!(telling.message, "the backup is whole; revision 7 can be had");
    assert_eq!(telling.result.unwrap().revision, Some(7));
}

#[test]
fn only_what_was_told_since_the_task_began_is_about_it() {
    let told = |at: &str| ReportedOutcome {
        status: ConditionStatus::True,
        reason: "None".to_owned(),
        message: "folded".to_owned(),
        reported_at: at.parse().unwrap(),
    };
    assert_eq!(report_compaction(None, noon()), None);
    assert_eq!(
        report_compaction(Some(&told("2026-11-16T11:59:59Z")), noon()),
        None
    );
    let telling = report_compaction(Some(&told("2026-11-16T12:00:00Z")), noon()).unwrap();
    assert_eq!(telling.state, TaskState::Succeeded);
}
