//! What to do with an ops task next. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{Incident, Stage};
use mainstay_crds::ops::{OpsTaskResult, TaskState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, EtcdOpsTask};

use crate::decide::upkeep::Told;
use crate::observe::JobState;
use crate::validate::{SUSPEND, members};

/// Keeps a task until it may go.
pub const FINALIZER: &str = "druid.gardener.cloud/etcd-ops-task";

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The task.
    pub task: &'a EtcdOpsTask,
    /// The Etcd it names, if that exists.
    pub etcd: Option<&'a Etcd>,
    /// Another task of the same Etcd that is not over, if there is one.
    pub rival: Option<&'a str>,
    /// Now.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Keeps the task until it may go.
    Hold,
    /// Tells the state it is in now.
    Tell(Box<Telling>),
    /// Does what it asks for.
    Execute,
    /// Nothing, for this long.
    Wait(Duration),
    /// Deletes the task: it has been looked at for long enough.
    Delete,
    /// Lets the task go.
    Release,
}

/// A state and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Telling {
    /// The state.
    pub state: TaskState,
    /// What goes on, in a sentence.
    pub words: String,
    /// The error, in one word for programs.
    pub code: Option<&'static str>,
    /// What came of it.
    pub result: Option<OpsTaskResult>,
}

impl Telling {
    /// Nothing is wrong.
    pub fn well(state: TaskState, words: impl Into<String>) -> Self {
        Self {
            state,
            words: words.into(),
            code: None,
            result: None,
        }
    }

    /// It ended, and not well.
    pub fn ill(state: TaskState, code: &'static str, words: impl Into<String>) -> Self {
        Self {
            code: Some(code),
            ..Self::well(state, words)
        }
    }

    /// With what came of it.
    #[must_use]
    pub fn with(self, result: OpsTaskResult) -> Self {
        Self {
            result: Some(result),
            ..self
        }
    }
}

/// Decides.
pub fn next(seen: &Seen<'_>) -> Next {
    let task = seen.task;
    let finalizers = task.metadata.finalizers.as_deref().unwrap_or_default();
    let is_held = finalizers.iter().any(|name| name == FINALIZER);
    if task.metadata.deletion_timestamp.is_some() {
        return Next::Release;
    }
    let status = task.status.as_ref();
    match status.and_then(|status| status.state) {
        Some(state) if state.is_final() => linger(seen),
        _ if !is_held => Next::Hold,
        None => Next::Tell(Box::new(Telling::well(
            TaskState::Pending,
            "it waits to be admitted",
        ))),
        Some(TaskState::Pending) => Next::Tell(Box::new(match admit(seen) {
            Ok(()) => Telling::well(TaskState::InProgress, "it is admitted and begins"),
            Err((code, words)) => Telling::ill(TaskState::Rejected, code, words),
        })),
        Some(_) => Next::Execute,
    }
}

/// A finished task stays for its time to live.
fn linger(seen: &Seen<'_>) -> Next {
    let status = seen.task.status.as_ref();
    let since = status
        .and_then(|status| status.last_transition_time.as_ref())
        .map_or(seen.now, |time| time.0);
    let ttl = SignedDuration::from_secs(seen.task.spec.ttl_seconds_after_finished.into());
    let left = ttl - seen.now.duration_since(since);
    if left.is_positive() {
        Next::Wait(left.unsigned_abs())
    } else {
        Next::Delete
    }
}

type Refusal = (&'static str, String);

/// Whether a task may begin.
pub fn admit(seen: &Seen<'_>) -> Result<(), Refusal> {
    use mainstay_crds::ops::Operation;
    let operation = seen.task.spec.config.operation();
    let operation = operation.map_err(|error| ("ERR_UNSUPPORTED_TASK", error.to_string()))?;
    let name = seen.task.spec.etcd_name.as_deref().unwrap_or_default();
    let Some(etcd) = seen.etcd else {
        return Err(("ERR_GET_ETCD", format!("there is no Etcd {name:?}")));
    };
    if let Some(rival) = seen.rival {
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
            has_store(etcd)?;
            is_ready(etcd)
        }
        Operation::Restore(restore) => {
            has_store(etcd)?;
            if restore.dry_run != Some(true) {
                is_looked_after(etcd)?;
            }
            match restore.target() {
                Ok(mainstay_crds::ops::RestoreTarget::Full(name)) => full(name).map(drop),
                Ok(_) => Ok(()),
                Err(error) => Err(("ERR_INVALID_TASK", error.to_string())),
            }
        }
        Operation::Compact(_) | Operation::VerifyBackup(_) => has_store(etcd),
        Operation::Defragment(_) | Operation::MoveLeader(_) => is_ready(etcd),
        // Whether the loss is proven is looked at again when the task begins.
        Operation::RecoverQuorum(_) if is_ready(etcd).is_ok() && !needs_recovery(etcd) => Err((
            "ERR_QUORUM_PRESENT",
            "the cluster has its quorum: there is nothing to recover".to_owned(),
        )),
        Operation::RecoverQuorum(how) if how.dry_run == Some(true) => Ok(()),
        Operation::RecoverQuorum(_) => is_looked_after(etcd),
        _ => Err((
            "ERR_UNSUPPORTED_TASK",
            "this version does not know how".to_owned(),
        )),
    }
}

/// The last revision of a full snapshot, from its name.
pub fn full(name: &str) -> Result<i64, Refusal> {
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

fn has_store(etcd: &Etcd) -> Result<(), Refusal> {
    let store = etcd.spec.backup.store.as_ref();
    let provider = store.and_then(|store| store.provider.as_deref());
    match provider.filter(|provider| !provider.is_empty()) {
        Some(_) => Ok(()),
        None => Err(("ERR_BACKUP_NOT_ENABLED", "the Etcd has no store".to_owned())),
    }
}

/// Whether somebody would do it: a recovery is done by passes over the Etcd, and ends with pods that serve.
fn is_looked_after(etcd: &Etcd) -> Result<(), Refusal> {
    let annotations = etcd.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key(SUSPEND)) {
        let words = format!("reconciliation of the Etcd is suspended by the annotation {SUSPEND}");
        return Err(("ERR_ETCD_SUSPENDED", words));
    }
    if members(etcd) == 0 {
        let words = "the Etcd sleeps, with spec.replicas 0: wake it first".to_owned();
        return Err(("ERR_ETCD_ASLEEP", words));
    }
    Ok(())
}

pub(super) fn is_ready(etcd: &Etcd) -> Result<(), Refusal> {
    match condition(etcd, &ConditionType::Ready) {
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
    let told = condition(etcd, &ConditionType::RecoveryRequired);
    told.is_some_and(|told| told.status == ConditionStatus::True)
}

fn condition<'a>(etcd: &'a Etcd, type_: &ConditionType) -> Option<&'a Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == *type_)
}

/// What a recovery that was asked for has come to; `None` while it goes on.
pub fn of_incident(incident: &Incident) -> Option<Telling> {
    let result = |summary: String| OpsTaskResult {
        summary,
        revision: incident.revision,
        snapshot: None,
        safety_snapshot: None,
    };
    match incident.stage {
        Stage::Restoring | Stage::Restored | Stage::Abandoned => None,
        Stage::Closed => {
            let words = format!("the cluster serves again: {}", incident.message);
            Some(Telling::well(TaskState::Succeeded, words.clone()).with(result(words)))
        }
        Stage::Failed => {
            let words = format!("the restore was given up: {}", incident.message);
            Some(Telling::ill(TaskState::Failed, "ERR_RESTORE", words))
        }
    }
}

/// What a compaction that was asked for has come to; `None` while nothing was told since.
pub fn of_compaction(told: Option<&Told>, started: Timestamp) -> Option<Telling> {
    let told = told.filter(|told| told.at >= started)?;
    Some(match told.status {
        ConditionStatus::True => {
            Telling::well(TaskState::Succeeded, told.message.clone()).with(OpsTaskResult {
                summary: told.message.clone(),
                ..OpsTaskResult::default()
            })
        }
        _ => Telling::ill(TaskState::Failed, "ERR_COMPACT", told.message.clone()),
    })
}

/// What a check of the backup has come to; `None` while it runs.
pub fn of_check(state: &JobState) -> Option<Telling> {
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
            Some(Telling::well(TaskState::Succeeded, summary).with(result))
        }
        JobState::Failed { failure, .. } => Some(Telling::ill(
            TaskState::Failed,
            "ERR_VERIFY_BACKUP",
            failure.words.clone(),
        )),
    }
}

#[cfg(test)]
mod tests;
