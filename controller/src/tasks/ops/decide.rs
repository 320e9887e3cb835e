//! What to do with an ops task next. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{Incident, RecoveryStage};
use mainstay_crds::ops::{OpsTaskResult, TaskState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdOpsTask};

use crate::decide::upkeep::ReportedOutcome;
use crate::observe::JobState;
use crate::validate::{SUSPEND_RECONCILE, count_members};

/// Keeps a task until it may go.
pub const FINALIZER: &str = "druid.gardener.cloud/etcd-ops-task";

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct ObservedOpsTask<'a> {
    /// The task.
    pub task: &'a EtcdOpsTask,
    /// The Etcd it names, if that exists.
    pub etcd: Option<&'a Etcd>,
    /// Another task of the same Etcd that is not over, if there is one.
    pub blocking_task: Option<&'a str>,
    /// Now.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum OpsTaskAction {
    /// Keeps the task until it may go.
    AddFinalizer,
    /// Tells the state it is in now.
    Report(Box<TaskReport>),
    /// Does what it asks for.
    Execute,
    /// Nothing, for this long.
    Wait(Duration),
    /// Deletes the task: it has been looked at for long enough.
    DeleteTask,
    /// Lets the task go.
    RemoveFinalizer,
}

/// A state and why.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskReport {
    /// The state.
    pub state: TaskState,
    /// What goes on, in a sentence.
    pub message: String,
    /// The error, in one word for programs.
    pub error_code: Option<&'static str>,
    /// What came of it.
    pub result: Option<OpsTaskResult>,
}

impl TaskReport {
    /// Nothing is wrong.
    pub fn ok(state: TaskState, words: impl Into<String>) -> Self {
        Self {
            state,
            message: words.into(),
            error_code: None,
            result: None,
        }
    }

    /// It ended, and not well.
    pub fn error(state: TaskState, code: &'static str, words: impl Into<String>) -> Self {
        Self {
            error_code: Some(code),
            ..Self::ok(state, words)
        }
    }

    /// With what came of it.
    #[must_use]
    pub fn with_result(self, result: OpsTaskResult) -> Self {
        Self {
            result: Some(result),
            ..self
        }
    }
}

/// Decides.
pub fn next_action(observed: &ObservedOpsTask<'_>) -> OpsTaskAction {
    let task = observed.task;
    let finalizers = task.metadata.finalizers.as_deref().unwrap_or_default();
    let is_held = finalizers.iter().any(|name| name == FINALIZER);
    if task.metadata.deletion_timestamp.is_some() {
        return OpsTaskAction::RemoveFinalizer;
    }
    let status = task.status.as_ref();
    match status.and_then(|status| status.state) {
        Some(state) if state.is_final() => wait_for_ttl(observed),
        _ if !is_held => OpsTaskAction::AddFinalizer,
        None => OpsTaskAction::Report(Box::new(TaskReport::ok(
            TaskState::Pending,
            "it waits to be admitted",
        ))),
        Some(TaskState::Pending) => OpsTaskAction::Report(Box::new(match admit(observed) {
            Ok(()) => TaskReport::ok(TaskState::InProgress, "it is admitted and begins"),
            Err((code, words)) => TaskReport::error(TaskState::Rejected, code, words),
        })),
        Some(_) => OpsTaskAction::Execute,
    }
}

/// A finished task stays for its time to live.
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

/// Whether a task may begin.
pub fn admit(observed: &ObservedOpsTask<'_>) -> Result<(), TaskRejection> {
    use mainstay_crds::ops::Operation;
    let operation = observed.task.spec.config.operation();
    let operation = operation.map_err(|error| ("ERR_UNSUPPORTED_TASK", error.to_string()))?;
    let name = observed.task.spec.etcd_name.as_deref().unwrap_or_default();
    let Some(etcd) = observed.etcd else {
        return Err(("ERR_GET_ETCD", format!("there is no Etcd {name:?}")));
    };
    if let Some(rival) = observed.blocking_task {
        let words = format!("the task {rival} for the same Etcd is not over");
        return Err(("ERR_DUPLICATE_TASK", words));
    }
    match operation {
        Operation::OnDemandSnapshot(snapshot) => {
            let is_delta = snapshot.type_ == mainstay_crds::ops::SnapshotType::Delta;
            if is_delta && snapshot.is_final == Some(true) {
                let words = "a delta cannot be the final snapshot".to_owned();
                return Err(("ERR_INVALID_TASK", words));
            }
            require_store(etcd)?;
            require_ready(etcd)
        }
        Operation::Restore(restore) => {
            require_store(etcd)?;
            if restore.dry_run != Some(true) {
                require_reconciled(etcd)?;
            }
            match restore.target() {
                Ok(mainstay_crds::ops::RestoreTarget::Full(name)) => parse_full_revision(name).map(drop),
                Ok(_) => Ok(()),
                Err(error) => Err(("ERR_INVALID_TASK", error.to_string())),
            }
        }
        Operation::Compact(_) | Operation::VerifyBackup(_) => require_store(etcd),
        Operation::Defragment(_) | Operation::MoveLeader(_) => require_ready(etcd),
        // Whether the loss is proven is looked at again when the task begins.
        Operation::RecoverQuorum(_) if require_ready(etcd).is_ok() && !needs_recovery(etcd) => Err((
            "ERR_QUORUM_PRESENT",
            "the cluster has its quorum: there is nothing to recover".to_owned(),
        )),
        Operation::RecoverQuorum(how) if how.dry_run == Some(true) => Ok(()),
        Operation::RecoverQuorum(_) => require_reconciled(etcd),
        _ => Err((
            "ERR_UNSUPPORTED_TASK",
            "this version does not know how".to_owned(),
        )),
    }
}

/// The last revision of a full snapshot, from its name.
pub fn parse_full_revision(name: &str) -> Result<i64, TaskRejection> {
    let wrong = || {
        (
            "ERR_INVALID_TASK",
            format!("{name:?} is not the name of a full snapshot"),
        )
    };
    let file = name.rsplit('/').next().unwrap_or(name);
    let mut parts = file.split('-');
    let (kind, _, last) = (parts.next(), parts.next(), parts.next());
    if kind != Some("Full") {
        return Err(wrong());
    }
    last.and_then(|last| last.parse().ok()).ok_or_else(wrong)
}

fn require_store(etcd: &Etcd) -> Result<(), TaskRejection> {
    let store = etcd.spec.backup.store.as_ref();
    let provider = store.and_then(|store| store.provider.as_deref());
    match provider.filter(|provider| !provider.is_empty()) {
        Some(_) => Ok(()),
        None => Err(("ERR_BACKUP_NOT_ENABLED", "the Etcd has no store".to_owned())),
    }
}

/// Whether somebody would do it: a recovery is done by passes over the Etcd, and ends with pods that serve.
fn require_reconciled(etcd: &Etcd) -> Result<(), TaskRejection> {
    let annotations = etcd.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(SUSPEND_RECONCILE)) {
        let words = format!("reconciliation of the Etcd is suspended by the annotation {SUSPEND_RECONCILE}");
        return Err(("ERR_ETCD_SUSPENDED", words));
    }
    if count_members(etcd) == 0 {
        let words = "the Etcd sleeps, with spec.replicas 0: wake it first".to_owned();
        return Err(("ERR_ETCD_ASLEEP", words));
    }
    Ok(())
}

pub(super) fn require_ready(etcd: &Etcd) -> Result<(), TaskRejection> {
    match find_condition(etcd, &ConditionType::Ready) {
        Some(ready) if ready.status == ConditionStatus::True => Ok(()),
        Some(ready) => Err(("ERR_ETCD_NOT_READY", ready.message.clone())),
        None => Err((
            "ERR_ETCD_NOT_READY",
            "nothing is known about the cluster yet".to_owned(),
        )),
    }
}

/// Data is proven to be lost. That is told sooner than that the quorum is gone: silence has to last before it means something.
fn needs_recovery(etcd: &Etcd) -> bool {
    let told = find_condition(etcd, &ConditionType::RecoveryRequired);
    told.is_some_and(|told| told.status == ConditionStatus::True)
}

fn find_condition<'a>(etcd: &'a Etcd, type_: &ConditionType) -> Option<&'a Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == *type_)
}

/// What a recovery that was asked for has come to; `None` while it goes on.
pub fn report_incident(incident: &Incident) -> Option<TaskReport> {
    let result = |summary: String| OpsTaskResult {
        summary,
        revision: incident.revision,
        snapshot: None,
        safety_snapshot: None,
    };
    match incident.stage {
        RecoveryStage::Restoring | RecoveryStage::Restored | RecoveryStage::Abandoned => None,
        RecoveryStage::Closed => {
            let words = format!("the cluster serves again: {}", incident.message);
            Some(TaskReport::ok(TaskState::Succeeded, words.clone()).with_result(result(words)))
        }
        RecoveryStage::Failed => {
            let words = format!("the restore was given up: {}", incident.message);
            Some(TaskReport::error(TaskState::Failed, "ERR_RESTORE", words))
        }
    }
}

/// What a compaction that was asked for has come to; `None` while nothing was told since.
pub fn report_compaction(told: Option<&ReportedOutcome>, started: Timestamp) -> Option<TaskReport> {
    let told = told.filter(|told| told.reported_at >= started)?;
    Some(match told.status {
        ConditionStatus::True => {
            TaskReport::ok(TaskState::Succeeded, told.message.clone()).with_result(OpsTaskResult {
                summary: told.message.clone(),
                ..OpsTaskResult::default()
            })
        }
        _ => TaskReport::error(TaskState::Failed, "ERR_COMPACT", told.message.clone()),
    })
}

/// What a check of the backup has come to; `None` while it runs.
pub fn report_verification(state: &JobState) -> Option<TaskReport> {
    match state {
        JobState::Running => None,
        JobState::Succeeded { done, .. } => {
            let revision = done.revision.or(done.reaches);
            let summary = match revision {
                Some(revision) => format!("the backup is whole; revision {revision} can be had"),
                None => "the backup is whole".to_owned(),
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
