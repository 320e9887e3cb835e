use super::*;

fn config(json: &serde_json::Value) -> EtcdOpsTaskConfig {
    serde_json::from_value(json.clone()).unwrap()
}

#[test]
fn task_has_exactly_one_operation() {
    let one = config(&serde_json::json!({ "moveLeader": { "to": "main-1" } }));
    assert!(
        matches!(one.operation(), Ok(Operation::MoveLeader(to)) if to.to.as_deref() == Some("main-1"))
    );

    let two = config(&serde_json::json!({ "compact": {}, "defragment": {} }));
    assert_eq!(two.operation(), Err(OperationError::Ambiguous { count: 2 }));

    let newer = config(&serde_json::json!({ "removeMembers": { "names": ["main-2"] } }));
    assert_eq!(newer.operation(), Err(OperationError::Unknown));
}

#[test]
fn restore_targets_the_newest_state_by_default() {
    assert_eq!(Restore::default().target(), Ok(RestoreTarget::Newest));
    let both = Restore {
        to_revision: Some(7),
        from_full: Some("Full-0-7-1".into()),
        ..Restore::default()
    };
    assert_eq!(both.target(), Err(RestoreTargetError::Ambiguous));
    let one = Restore {
        to_revision: Some(7),
        ..Restore::default()
    };
    assert_eq!(one.target(), Ok(RestoreTarget::Revision(7)));
}

#[test]
fn snapshot_without_timeouts_has_the_documented_defaults() {
    let bare: OnDemandSnapshot =
        serde_json::from_value(serde_json::json!({ "type": "full" })).unwrap();
    assert_eq!(bare, OnDemandSnapshot::new(SnapshotType::Full));
    assert_eq!(bare.timeout_seconds(), 900);
    assert_eq!(
        OnDemandSnapshot::new(SnapshotType::Delta).timeout_seconds(),
        60
    );
}

#[test]
fn only_finished_tasks_are_final() {
    let finals = [TaskState::Succeeded, TaskState::Failed, TaskState::Rejected];
    assert!(finals.into_iter().all(TaskState::is_final));
    assert!(
        ![TaskState::Pending, TaskState::InProgress]
            .into_iter()
            .any(TaskState::is_final)
    );
}
