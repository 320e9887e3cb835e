//! Decides the next action on an ops task. Pure.

use std::time::Duration;

use crate::model::annotations::SUSPEND_RECONCILE;
use crate::model::{JobState, ReportedOutcome, count_members};
use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{Incident, RecoveryStage};
use mainstay_crds::ops::{OpsTaskResult, TaskState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdOpsTask};

/// Finalizer of etcd-druid on ops tasks.
pub(crate) const FINALIZER: &str = "druid.gardener.cloud/etcd-ops-task";

/// Observed state of an ops task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedOpsTask<'a> {
    pub(crate) task: &'a EtcdOpsTask,
    /// The Etcd of the task; `None` when it does not exist.
    pub(crate) etcd: Option<&'a Etcd>,
    /// Name of an earlier unfinished task of the same Etcd.
    pub(crate) blocking_task: Option<&'a str>,
    pub(crate) now: Timestamp,
}

/// The next action on an ops task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OpsTaskAction {
    AddFinalizer,
    /// Publishes a state.
    Report(Box<TaskReport>),
    /// Executes the operation.
    Execute,
    /// Reconciles again after this time.
    Wait(Duration),
    /// The time to live has passed.
    DeleteTask,
    RemoveFinalizer,
}

/// A state of a task to publish.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskReport {
    pub(crate) state: TaskState,
    pub(crate) message: String,
    /// Machine-readable error, `ERR_…`.
    pub(crate) error_code: Option<&'static str>,
    pub(crate) result: Option<OpsTaskResult>,
}

impl TaskReport {
    pub(crate) fn ok(state: TaskState, text: impl Into<String>) -> Self {
        Self {
            state,
            message: text.into(),
            error_code: None,
            result: None,
        }
    }

    pub(crate) fn error(state: TaskState, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            error_code: Some(code),
            ..Self::ok(state, text)
        }
    }

    #[must_use]
    pub(crate) fn with_result(self, result: OpsTaskResult) -> Self {
        Self {
            result: Some(result),
            ..self
        }
    }
}

/// Decides the next action.
pub(crate) fn next_action(observed: &ObservedOpsTask<'_>) -> OpsTaskAction {
    let task = observed.task;
    let finalizers = task.metadata.finalizers.as_deref().unwrap_or_default();
    let has_finalizer = finalizers.iter().any(|name| name == FINALIZER);
    // A recovery that the task has started continues without it.
    if task.metadata.deletion_timestamp.is_some() {
        return OpsTaskAction::RemoveFinalizer;
    }
    let status = task.status.as_ref();
    match status.and_then(|status| status.state) {
        Some(state) if state.is_final() => wait_for_ttl(observed),
        _ if !has_finalizer => OpsTaskAction::AddFinalizer,
        None => OpsTaskAction::Report(Box::new(TaskReport::ok(
            TaskState::Pending,
            "Waiting for admission",
        ))),
        Some(TaskState::Pending) => OpsTaskAction::Report(Box::new(match admit(observed) {
            Ok(()) => TaskReport::ok(TaskState::InProgress, "Admitted, starting"),
            Err((code, message)) => TaskReport::error(TaskState::Rejected, code, message),
        })),
        Some(_) => OpsTaskAction::Execute,
    }
}

/// Keeps a finished task until its time to live has passed.
fn wait_for_ttl(observed: &ObservedOpsTask<'_>) -> OpsTaskAction {
    let status = observed.task.status.as_ref();
    let since = status
        .and_then(|status| status.last_transition_time.as_ref())
        .map_or(observed.now, |time| time.0);
    let ttl = SignedDuration::from_secs(observed.task.spec.ttl_seconds_after_finished.into());
    let left = ttl - observed.now.duration_since(since);
    if left.is_positive() {
        OpsTaskAction::Wait(left.unsigned_abs())
    } else {
        OpsTaskAction::DeleteTask
    }
}

type TaskRejection = (&'static str, String);

/// Whether a task may start.
pub(crate) fn admit(observed: &ObservedOpsTask<'_>) -> Result<(), TaskRejection> {
    use mainstay_crds::ops::Operation;
    let operation = observed.task.spec.config.operation();
    let operation = operation.map_err(|error| ("ERR_UNSUPPORTED_TASK", error.to_string()))?;
    let name = observed.task.spec.etcd_name.as_deref().unwrap_or_default();
    let Some(etcd) = observed.etcd else {
        return Err(("ERR_GET_ETCD", format!("Etcd {name:?} not found")));
    };
    if let Some(blocking) = observed.blocking_task {
        let message = format!("Task {blocking} of the same Etcd is not finished");
        return Err(("ERR_DUPLICATE_TASK", message));
    }
    match operation {
        Operation::OnDemandSnapshot(snapshot) => {
            let is_delta = snapshot.type_ == mainstay_crds::ops::SnapshotType::Delta;
            if is_delta && snapshot.is_final == Some(true) {
                let message = "isFinal requires a full snapshot".to_owned();
                return Err(("ERR_INVALID_TASK", message));
            }
            require_store(etcd)?;
            require_ready(etcd)
        }
        Operation::Restore(restore) => {
            require_store(etcd)?;
            // A dry run only reads the backup, so the Etcd may be suspended or hibernated.
            if restore.dry_run != Some(true) {
                require_reconciled(etcd)?;
            }
            match restore.target() {
                Ok(mainstay_crds::ops::RestoreTarget::Full(name)) => {
                    parse_full_revision(name).map(drop)
                }
                Ok(_) => Ok(()),
                Err(error) => Err(("ERR_INVALID_TASK", error.to_string())),
            }
        }
        Operation::Compact(_) | Operation::VerifyBackup(_) => require_store(etcd),
        Operation::Defragment(_) | Operation::MoveLeader(_) => require_ready(etcd),
        // The status can be stale: the quorum loss is confirmed again when the task is executed.
        Operation::RecoverQuorum(_) if require_ready(etcd).is_ok() && !needs_recovery(etcd) => {
            Err((
                "ERR_QUORUM_PRESENT",
                "Nothing to recover: the cluster has quorum".to_owned(),
            ))
        }
        Operation::RecoverQuorum(how) if how.dry_run == Some(true) => Ok(()),
        Operation::RecoverQuorum(_) => require_reconciled(etcd),
        _ => Err((
            "ERR_UNSUPPORTED_TASK",
            "Operation not supported by this version".to_owned(),
        )),
    }
}

/// The last revision of a full snapshot, parsed from its name.
pub(crate) fn parse_full_revision(name: &str) -> Result<i64, TaskRejection> {
    let invalid = || {
        (
            "ERR_INVALID_TASK",
            format!("Invalid name of a full snapshot: {name:?}"),
        )
    };
    let file = name.rsplit('/').next().unwrap_or(name);
    let mut parts = file.split('-');
    let (kind, _, last) = (parts.next(), parts.next(), parts.next());
    if kind != Some("Full") {
        return Err(invalid());
    }
    last.and_then(|last| last.parse().ok()).ok_or_else(invalid)
}

fn require_store(etcd: &Etcd) -> Result<(), TaskRejection> {
    let store = etcd.spec.backup.store.as_ref();
    let provider = store.and_then(|store| store.provider.as_deref());
    match provider.filter(|provider| !provider.is_empty()) {
        Some(_) => Ok(()),
        None => Err((
            "ERR_BACKUP_NOT_ENABLED",
            "Backup not enabled: spec.backup.store is not set".to_owned(),
        )),
    }
}

/// Requires an Etcd that is reconciled and has members: its reconciles execute the recovery, which ends with ready pods.
fn require_reconciled(etcd: &Etcd) -> Result<(), TaskRejection> {
    let annotations = etcd.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(SUSPEND_RECONCILE)) {
        let message =
            format!("Reconciliation of the Etcd is suspended by annotation {SUSPEND_RECONCILE}");
        return Err(("ERR_ETCD_SUSPENDED", message));
    }
    if count_members(etcd) == 0 {
        let message = "Etcd is hibernated (spec.replicas is 0): wake it up first".to_owned();
        return Err(("ERR_ETCD_ASLEEP", message));
    }
    Ok(())
}

pub(super) fn require_ready(etcd: &Etcd) -> Result<(), TaskRejection> {
    match find_condition(etcd, &ConditionType::Ready) {
        Some(ready) if ready.status == ConditionStatus::True => Ok(()),
        Some(ready) => Err(("ERR_ETCD_NOT_READY", ready.message.clone())),
        None => Err((
            "ERR_ETCD_NOT_READY",
            "Etcd has no Ready condition yet".to_owned(),
        )),
    }
}

/// Whether data loss is confirmed. `RecoveryRequired` becomes true before `Ready` becomes false, because a member that does not
/// answer counts as not ready only after a while.
fn needs_recovery(etcd: &Etcd) -> bool {
    let condition = find_condition(etcd, &ConditionType::RecoveryRequired);
    condition.is_some_and(|condition| condition.status == ConditionStatus::True)
}

fn find_condition<'a>(etcd: &'a Etcd, type_: &ConditionType) -> Option<&'a Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == *type_)
}

/// Outcome of a requested recovery; `None` while it is in progress.
pub(crate) fn report_incident(incident: &Incident) -> Option<TaskReport> {
    let result = |summary: String| OpsTaskResult {
        summary,
        revision: incident.revision,
        snapshot: None,
        safety_snapshot: None,
    };
    match incident.stage {
        RecoveryStage::Restoring | RecoveryStage::Restored | RecoveryStage::Abandoned => None,
        RecoveryStage::Closed => {
            let message = format!("Cluster recovered: {}", incident.message);
            Some(TaskReport::ok(TaskState::Succeeded, message.clone()).with_result(result(message)))
        }
        RecoveryStage::Failed => {
            let message = format!("Restore failed: {}", incident.message);
            Some(TaskReport::error(TaskState::Failed, "ERR_RESTORE", message))
        }
    }
}

/// Outcome of a requested compaction; `None` while none is reported since `started`.
pub(crate) fn report_compaction(
    reported: Option<&ReportedOutcome>,
    started: Timestamp,
) -> Option<TaskReport> {
    let reported = reported.filter(|reported| reported.reported_at >= started)?;
    Some(match reported.status {
        ConditionStatus::True => TaskReport::ok(TaskState::Succeeded, reported.message.clone())
            .with_result(OpsTaskResult {
                summary: reported.message.clone(),
                ..OpsTaskResult::default()
            }),
        _ => TaskReport::error(TaskState::Failed, "ERR_COMPACT", reported.message.clone()),
    })
}

/// Outcome of a backup verification; `None` while the Job runs.
pub(crate) fn report_verification(state: &JobState) -> Option<TaskReport> {
    match state {
        JobState::Running => None,
        JobState::Succeeded { done, .. } => {
            let revision = done.revision.or(done.reaches);
            let summary = match revision {
                Some(revision) => format!("Backup verified, restorable up to revision {revision}"),
                None => "Backup verified".to_owned(),
            };
            let result = OpsTaskResult {
                summary: summary.clone(),
                revision,
                snapshot: done.base.clone(),
                safety_snapshot: None,
            };
            Some(TaskReport::ok(TaskState::Succeeded, summary).with_result(result))
        }
        JobState::Failed { failure, .. } => Some(TaskReport::error(
            TaskState::Failed,
            "ERR_VERIFY_BACKUP",
            failure.message.clone(),
        )),
    }
}

#[cfg(test)]
mod tests;
