//! Builds the status of an ops task. Pure, except for the current time.

use mainstay_crds::ops::{EtcdOpsTaskConfig, EtcdOpsTaskStatus, TaskState};
use mainstay_crds::{EtcdOpsTask, LastError, LastOperation, OperationState, OperationType};

use super::decide::TaskReport;
use crate::tasks::copy::now;

/// Errors to keep in the status: the limit of the CRD schema.
const MAX_ERRORS: usize = 10;

/// Metric label of the operation.
pub(super) fn operation_kind(config: &EtcdOpsTaskConfig) -> &'static str {
    use mainstay_crds::ops::Operation;
    match config.operation() {
        Ok(Operation::OnDemandSnapshot(_)) => "onDemandSnapshot",
        Ok(Operation::Restore(_)) => "restore",
        Ok(Operation::Compact(_)) => "compact",
        Ok(Operation::Defragment(_)) => "defragment",
        Ok(Operation::VerifyBackup(_)) => "verifyBackup",
        Ok(Operation::RecoverQuorum(_)) => "recoverQuorum",
        Ok(Operation::MoveLeader(_)) => "moveLeader",
        _ => "unknown",
    }
}

/// Metric label of the state.
pub(super) fn state_label(state: TaskState) -> &'static str {
    match state {
        TaskState::Pending => "Pending",
        TaskState::InProgress => "InProgress",
        TaskState::Succeeded => "Succeeded",
        TaskState::Failed => "Failed",
        TaskState::Rejected => "Rejected",
    }
}

/// The status with the report applied.
pub(super) fn build_status(
    task: &EtcdOpsTask,
    report: &TaskReport,
    run_id: &str,
) -> EtcdOpsTaskStatus {
    let before = task.status.clone().unwrap_or_default();
    let now = now();
    let is_new = before.state != Some(report.state);
    let (type_, operation) = match report.state {
        TaskState::Pending => (OperationType::Admit, OperationState::InProgress),
        TaskState::Rejected => (OperationType::Admit, OperationState::Failed),
        TaskState::InProgress => (OperationType::Execution, OperationState::InProgress),
        TaskState::Succeeded => (OperationType::Execution, OperationState::Completed),
        TaskState::Failed => (OperationType::Execution, OperationState::Failed),
    };
    let mut errors = before.last_errors.unwrap_or_default();
    errors.extend(report.error_code.map(|code| LastError {
        code: code.to_owned(),
        description: report.message.clone(),
        observed_at: now.clone(),
    }));
    let surplus = errors.len().saturating_sub(MAX_ERRORS);
    errors.drain(..surplus);
    let has_started = is_new && report.state == TaskState::InProgress;
    let mut result = report.result.clone().or(before.mainstay.clone());
    // The final result must still name the safety snapshot: it is the way back from a restore.
    if let (Some(result), Some(before)) = (&mut result, before.mainstay) {
        result.safety_snapshot = result.safety_snapshot.take().or(before.safety_snapshot);
    }
    EtcdOpsTaskStatus {
        state: Some(report.state),
        last_transition_time: if is_new {
            Some(now.clone())
        } else {
            before.last_transition_time
        },
        started_at: if has_started {
            Some(now.clone())
        } else {
            before.started_at
        },
        last_errors: (!errors.is_empty()).then_some(errors),
        last_operation: Some(LastOperation {
            type_,
            state: operation,
            description: report.message.clone(),
            run_id: run_id.to_owned(),
            last_update_time: now,
        }),
        mainstay: result,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_crds::ops::OpsTaskResult;
    use serde_json::json;

    use super::*;

    fn task(status: &serde_json::Value) -> EtcdOpsTask {
        serde_json::from_value(json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "EtcdOpsTask",
            "metadata": { "name": "task" }, "spec": { "config": { "compact": {} } }, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn safety_snapshot_is_kept_in_the_final_report() {
        let before = json!({ "state": "InProgress", "startedAt": "2026-11-16T12:00:00Z",
            "mainstay": { "summary": "saved", "safetySnapshot": "Full-1" } });
        let report = TaskReport::ok(TaskState::Succeeded, "done").with_result(OpsTaskResult {
            summary: "restored".to_owned(),
            ..OpsTaskResult::default()
        });
        let status = build_status(&task(&before), &report, "run");
        let result = status.mainstay.unwrap();
        assert_eq!(
            (result.summary.as_str(), result.safety_snapshot.as_deref()),
            ("restored", Some("Full-1"))
        );
        assert_eq!(
            status.started_at.unwrap().0.to_string(),
            "2026-11-16T12:00:00Z"
        );
    }

    #[test]
    fn only_the_last_errors_are_kept() {
        let error = |n: u32| json!({ "code": format!("E{n}"), "description": "x", "observedAt": "2026-11-16T12:00:00Z" });
        let errors: Vec<_> = (1..=10).map(error).collect();
        let before = json!({ "state": "InProgress", "lastErrors": errors });
        let report = TaskReport::error(TaskState::Failed, "E11", "restore failed");
        let status = build_status(&task(&before), &report, "run");
        let codes: Vec<String> = status
            .last_errors
            .unwrap()
            .into_iter()
            .map(|e| e.code)
            .collect();
        let last: Vec<String> = (2..=11).map(|n| format!("E{n}")).collect();
        assert_eq!(codes, last);
    }
}
