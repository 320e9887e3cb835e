//! The limits of tasks.

use serde_json::json;

use crate::apiserver::ApiServer;
use crate::trials::{Trials, changed, claims};

claims!(
    tasks_need_what_they_act_on,
    a_missing_spec_is_not_refused_where_etcd_druid_does_not,
    numbers_have_their_bounds,
    a_task_asks_for_one_thing,
    a_task_keeps_ten_errors,
    a_snapshot_needs_no_timeouts,
    a_restore_aims_at_a_time_that_can_be_read,
);

fn tasks_need_what_they_act_on(trials: &mut Trials) {
    trials.requires("copy-backups.yaml", "/spec/sourceStore");
    trials.requires("copy-backups.yaml", "/spec/targetStore/prefix");
    trials.requires(
        "copy-backups-everything.yaml",
        "/spec/waitForFinalSnapshot/enabled",
    );
    trials.requires("ops-snapshot.yaml", "/spec/config");
    trials.requires("ops-snapshot.yaml", "/spec/config/onDemandSnapshot/type");
    trials.requires("ops-snapshot.yaml", "/spec");
}

fn a_missing_spec_is_not_refused_where_etcd_druid_does_not(trials: &mut Trials) {
    trials.spares("copy-backups.yaml", "/spec");
}

fn numbers_have_their_bounds(trials: &mut Trials) {
    for pointer in [
        "/spec/maxBackupAge",
        "/spec/maxBackups",
        "/spec/ttlSecondsAfterFinished",
    ] {
        trials.accepts("copy-backups.yaml", pointer, &[json!(0), json!(i32::MAX)]);
        trials.refuses("copy-backups.yaml", pointer, &[json!(-1)]);
        // As with etcd-druid's definitions: what reads it has to cope.
        trials.lets_pass("copy-backups.yaml", pointer, &[json!(1_i64 << 31)]);
    }
    trials.accepts(
        "ops-snapshot.yaml",
        "/spec/ttlSecondsAfterFinished",
        &[json!(1)],
    );
    trials.refuses(
        "ops-snapshot.yaml",
        "/spec/ttlSecondsAfterFinished",
        &[json!(0), json!("1")],
    );
    let snapshot = "/spec/config/onDemandSnapshot";
    trials.accepts(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsDelta"),
        &[json!(10)],
    );
    trials.refuses(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsDelta"),
        &[json!(9)],
    );
    trials.accepts(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(120)],
    );
    trials.refuses(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(119)],
    );
    trials.refuses(
        "ops-restore-revision.yaml",
        "/spec/config/restore/toRevision",
        &[json!(0), json!("7")],
    );
}

fn a_task_asks_for_one_thing(trials: &mut Trials) {
    trials.refuses(
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
        trials.accepts("ops-snapshot.yaml", "/spec/config", &[json!({ kind: {} })]);
    }
}

fn a_task_keeps_ten_errors(trials: &mut Trials) {
    let error = json!({ "code": "ERR", "description": "d", "observedAt": "2026-01-01T00:00:00Z" });
    trials.accepts(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error.clone(); 10])],
    );
    trials.refuses(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error; 11])],
    );
}

const WITHOUT_TIMEOUTS: &str = r#"{ "onDemandSnapshot": { "type": "delta" } }"#;

fn a_snapshot_needs_no_timeouts(trials: &mut Trials) {
    let config = WITHOUT_TIMEOUTS.parse().unwrap();
    trials.accepts("ops-snapshot.yaml", "/spec/config", &[config]);
}

#[test]
fn defaults_are_stored() {
    let config = WITHOUT_TIMEOUTS.parse().unwrap();
    let task = changed("ops-snapshot.yaml", "/spec/config", Some(config));
    let stored = ApiServer::of(&task).create(&task).unwrap();
    assert_eq!(
        stored["spec"]["config"]["onDemandSnapshot"],
        json!({ "type": "delta", "timeoutSecondsDelta": 60, "timeoutSecondsFull": 900 })
    );
}

fn a_restore_aims_at_a_time_that_can_be_read(trials: &mut Trials) {
    let to_time = "/spec/config/restore/toTime";
    trials.accepts(
        "ops-restore-time.yaml",
        to_time,
        &[json!("2026-01-02T02:10:00+01:00")],
    );
    trials.refuses(
        "ops-restore-time.yaml",
        to_time,
        &[json!("ten past two"), json!("")],
    );
}
