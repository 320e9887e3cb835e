//! Schema limits of tasks.

use serde_json::json;

use crate::admission::{AdmissionCases, claims};

claims!(
    tasks_need_what_they_act_on,
    a_missing_spec_is_not_refused_where_etcd_druid_does_not,
    numbers_have_their_bounds,
    a_task_asks_for_one_thing,
    names_of_members_and_snapshots_are_not_empty,
    a_task_keeps_ten_errors,
    a_snapshot_needs_no_timeouts,
    a_restore_aims_at_a_time_that_can_be_read,
);

fn tasks_need_what_they_act_on(trials: &mut AdmissionCases) {
    trials.requires("copy-backups.yaml", "/spec/sourceStore");
    trials.requires("copy-backups.yaml", "/spec/sourceStore/prefix");
    trials.requires("copy-backups.yaml", "/spec/targetStore");
    trials.requires("copy-backups.yaml", "/spec/targetStore/prefix");
    for store in ["sourceStore", "targetStore"] {
        let container = format!("/spec/{store}/container");
        trials.rejects("copy-backups.yaml", &container, &[json!("a/b")]);
    }
    trials.requires(
        "copy-backups-everything.yaml",
        "/spec/waitForFinalSnapshot/enabled",
    );
    trials.requires("ops-snapshot.yaml", "/spec/config");
    trials.requires("ops-snapshot.yaml", "/spec/config/onDemandSnapshot/type");
    trials.requires("ops-snapshot.yaml", "/spec");
}

fn a_missing_spec_is_not_refused_where_etcd_druid_does_not(trials: &mut AdmissionCases) {
    trials.allows_missing("copy-backups.yaml", "/spec");
}

fn numbers_have_their_bounds(trials: &mut AdmissionCases) {
    for pointer in [
        "/spec/maxBackupAge",
        "/spec/maxBackups",
        "/spec/ttlSecondsAfterFinished",
    ] {
        trials.accepts("copy-backups.yaml", pointer, &[json!(0), json!(i32::MAX)]);
        trials.rejects("copy-backups.yaml", pointer, &[json!(-1)]);
        // API servers before 1.36 may ignore `format: int32`, so readers must handle larger values.
        trials.never_reads("copy-backups.yaml", pointer, &[json!(1_i64 << 31)]);
    }
    trials.accepts(
        "ops-snapshot.yaml",
        "/spec/ttlSecondsAfterFinished",
        &[json!(1)],
    );
    trials.rejects(
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
    trials.rejects(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsDelta"),
        &[json!(9)],
    );
    trials.accepts(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(120)],
    );
    trials.rejects(
        "ops-snapshot.yaml",
        &format!("{snapshot}/timeoutSecondsFull"),
        &[json!(119)],
    );
    trials.rejects(
        "ops-restore-revision.yaml",
        "/spec/config/restore/toRevision",
        &[json!(0), json!("7")],
    );
}

fn a_task_asks_for_one_thing(trials: &mut AdmissionCases) {
    trials.rejects(
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

fn names_of_members_and_snapshots_are_not_empty(trials: &mut AdmissionCases) {
    let members = "/spec/config/defragment/members";
    trials.accepts("ops-defragment.yaml", members, &[json!(["main-0"])]);
    trials.rejects(
        "ops-defragment.yaml",
        members,
        &[json!([]), json!(["a", "a"])],
    );
    for (sample, pointer) in [
        ("ops-move-leader.yaml", "/spec/config/moveLeader/to"),
        (
            "ops-recover-quorum.yaml",
            "/spec/config/recoverQuorum/fromMember",
        ),
        ("ops-restore-full.yaml", "/spec/config/restore/fromFull"),
    ] {
        trials.rejects(sample, pointer, &[json!(""), json!("a".repeat(1025))]);
    }
}

fn a_task_keeps_ten_errors(trials: &mut AdmissionCases) {
    let error = json!({ "code": "ERR", "description": "d", "observedAt": "2026-01-01T00:00:00Z" });
    trials.accepts(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error.clone(); 10])],
    );
    trials.rejects(
        "ops-move-leader.yaml",
        "/status/lastErrors",
        &[json!(vec![error; 11])],
    );
}

/// The API server adds the default timeouts.
pub(crate) const WITHOUT_TIMEOUTS: &str = r#"{ "onDemandSnapshot": { "type": "delta" } }"#;

fn a_snapshot_needs_no_timeouts(trials: &mut AdmissionCases) {
    let config = WITHOUT_TIMEOUTS.parse().unwrap();
    trials.accepts("ops-snapshot.yaml", "/spec/config", &[config]);
}

fn a_restore_aims_at_a_time_that_can_be_read(trials: &mut AdmissionCases) {
    let to_time = "/spec/config/restore/toTime";
    trials.accepts(
        "ops-restore-time.yaml",
        to_time,
        &[json!("2026-01-02T02:10:00+01:00")],
    );
    trials.rejects(
        "ops-restore-time.yaml",
        to_time,
        &[json!("ten past two"), json!("")],
    );
}
