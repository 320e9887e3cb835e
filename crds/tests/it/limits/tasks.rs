//! The limits of tasks.

use serde_json::json;

use super::{accepts, changed, refuses, requires};
use crate::apiserver::ApiServer;

#[test]
fn tasks_need_what_they_act_on() {
    requires("copy-backups.yaml", "/spec/sourceStore");
    requires("copy-backups.yaml", "/spec/targetStore/prefix");
    requires(
        "copy-backups-everything.yaml",
        "/spec/waitForFinalSnapshot/enabled",
    );
    requires("ops-snapshot.yaml", "/spec/config");
    requires("ops-snapshot.yaml", "/spec/config/onDemandSnapshot/type");
    requires("ops-snapshot.yaml", "/spec");
}

#[test]
fn a_missing_spec_is_not_refused_where_etcd_druid_does_not() {
    let empty = changed("copy-backups.yaml", "/spec", None);
    assert!(ApiServer::copy().create(&empty).is_ok());
}

#[test]
fn numbers_have_their_bounds() {
    for pointer in [
        "/spec/maxBackupAge",
        "/spec/maxBackups",
        "/spec/ttlSecondsAfterFinished",
    ] {
        accepts("copy-backups.yaml", pointer, &[json!(0), json!(i32::MAX)]);
        refuses(
            "copy-backups.yaml",
            pointer,
            &[json!(-1), json!(1_i64 << 31)],
        );
    }
    accepts(
        "ops-snapshot.yaml",
        "/spec/ttlSecondsAfterFinished",
        &[json!(1)],
    );
    refuses(
        "ops-snapshot.yaml",
        "/spec/ttlSecondsAfterFinished",
        &[json!(0), json!("1")],
    );
    let snapshot = "/spec/config/onDemandSnapshot";
    accepts(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsDelta"),
        &[json!(10)],
    );
    refuses(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsDelta"),
        &[json!(9)],
    );
    accepts(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(120)],
    );
    refuses(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(119)],
    );
    refuses(
        "ops-restore-revision.yaml",
        "/spec/config/restore/toRevision",
        &[json!(0), json!("7")],
    );
}

#[test]
fn a_task_asks_for_one_thing() {
    refuses(
        "ops-snapshot.yaml",
        "/spec/config",
        &[json!({}), json!({ "compact": {}, "moveLeader": {} })],
    );
    for kind in [
        "restore",
        "compact",
        "defragment",
        "verifyBackup",
        "recoverQuorum",
        "moveLeader",
    ] {
        accepts("ops-snapshot.yaml", "/spec/config", &[json!({ kind: {} })]);
    }
}

#[test]
fn a_task_keeps_ten_errors() {
    let error = json!({ "code": "ERR", "description": "d", "observedAt": "2026-01-01T00:00:00Z" });
    accepts(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error.clone(); 10])],
    );
    refuses(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error; 11])],
    );
}

#[test]
fn defaults_are_stored() {
    let task = changed(
        "ops-snapshot.yaml",
        "/spec/config",
        Some(json!({ "onDemandSnapshot": { "type": "delta" } })),
    );
    let stored = ApiServer::ops().create(&task).unwrap();
    assert_eq!(
        stored["spec"]["config"]["onDemandSnapshot"],
        json!({ "type": "delta", "timeoutSecondsDelta": 60, "timeoutSecondsFull": 900 })
    );
}

#[test]
fn a_restore_aims_at_a_time_that_can_be_read() {
    let to_time = "/spec/config/restore/toTime";
    accepts(
        "ops-restore-time.yaml",
        to_time,
        &[json!("2026-01-02T02:10:00+01:00")],
    );
    refuses(
        "ops-restore-time.yaml",
        to_time,
        &[json!("ten past two"), json!("")],
    );
}
