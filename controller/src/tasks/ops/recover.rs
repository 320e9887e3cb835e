//! Restores and quorum recoveries requested by a task.
//!
//! The task records an incident in the coordination ConfigMap and waits. The recovery of the Etcd executes it under its lock.
//! **Invariant**: a task starts one recovery, never a second one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_coordination::incident::{
    self, Incident, RecoveryCause, RecoverySource, RecoveryStage,
};
use mainstay_coordination::{CoordinationError, Purpose};
use mainstay_crds::Etcd;
use mainstay_crds::ops::{OpsTaskResult, RecoverQuorum, TaskState};
use mainstay_manifests::Names;
use mainstay_manifests::jobs::RestorePoint;
use mainstay_telemetry::ErrorChain;

use super::decide::{TaskReport, report_incident};
use super::execute::{SafetySnapshot, Sight, failed_outcome, take_safety_snapshot};
use super::{OpsTaskReconciler, TaskOutcome, retry_later};
use crate::act::ActError;
use crate::act::recovery::{acquire_lock, get_coordinator};
use crate::decide::recovery::{build_requested_incident, build_token};
use crate::messages::{describe_incident, describe_recovery_blocker};
use crate::model::{LastKnown, Ordinal, World};
use crate::observe::{self, Dialer};
use crate::tasks::TaskError;

/// Progress of the recovery of this task.
enum TaskRecoveryState {
    Finished(TaskReport),
    /// This recovery or another one is open.
    InProgress,
    /// An automatic recovery is open and has failed before; a requested restore may replace it.
    Stuck(Incident),
    /// No recovery is open; carries the last one.
    NotStarted(Option<Incident>),
}

/// Restores the cluster to a point of its backup.
pub(super) async fn restore(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    target: RestorePoint,
) -> Result<TaskOutcome, TaskError> {
    let last = match read_recovery_state(reconciler, etcd).await? {
        TaskRecoveryState::Finished(report) => return Ok(TaskOutcome::Report(report)),
        TaskRecoveryState::Stuck(incident) => Some(incident),
        TaskRecoveryState::InProgress => return Ok(retry_later()),
        TaskRecoveryState::NotStarted(last) => last,
    };
    // The result is set by the safety snapshot; a restore without one could not be undone.
    let status = reconciler.task.status.as_ref();
    if status.and_then(|status| status.mainstay.as_ref()).is_none() {
        return Ok(match take_safety_snapshot(reconciler, etcd, sight).await {
            Ok(safety) => TaskOutcome::Report(report_safety_snapshot(safety)),
            Err(error) => failed_outcome(
                "ERR_CREATE_SNAPSHOT",
                format!(
                    "Restore not started: snapshot of the current state failed: {}",
                    ErrorChain(&error)
                ),
            ),
        });
    }
    let base = Ordinal(0);
    let pvc = sight.objects.observation.pvcs.get(&base);
    if !pvc.is_some_and(|pvc| pvc.is_bound && !pvc.is_lost && !pvc.is_deleting) {
        return Ok(failed_outcome("ERR_RESTORE", "No bound PVC to restore to"));
    }
    let set = sight.objects.observation.stateful_set.as_ref();
    let size = set
        .map_or(0, |set| set.replicas)
        .max(sight.desired.replicas);
    if size == 0 {
        return Ok(failed_outcome(
            "ERR_ETCD_ASLEEP",
            "Etcd was hibernated before the restore started",
        ));
    }
    match build_incident(reconciler.operation_id(), (base, size), target) {
        Ok(incident) => open_incident(reconciler, etcd, last.as_ref(), &incident).await,
        Err(message) => Ok(failed_outcome("ERR_INVALID_TASK", message)),
    }
}

/// The incident of a requested restore.
fn build_incident(
    id: String,
    (base, size): (Ordinal, u32),
    target: RestorePoint,
) -> Result<Incident, String> {
    let now = Timestamp::now();
    Ok(Incident {
        token: build_token(&id, now),
        id,
        cause: RecoveryCause::Requested,
        stage: RecoveryStage::Restoring,
        base: base.0,
        size,
        source: RecoverySource::Backup,
        target: match target {
            RestorePoint::Newest => incident::RecoveryTarget::Newest,
            RestorePoint::Revision(revision) => incident::RecoveryTarget::Revision(revision),
            RestorePoint::Time(time) => match time.parse() {
                Ok(time) => incident::RecoveryTarget::Time(time),
                Err(_) => return Err(format!("Invalid toTime {time:?}")),
            },
            RestorePoint::Full { name, revision } => {
                incident::RecoveryTarget::Full { name, revision }
            }
        },
        attempt: 1,
        started: now,
        changed: now,
        revision: None,
        cluster: None,
        message: String::new(),
        other: BTreeMap::new(),
    })
}

fn report_safety_snapshot(safety: SafetySnapshot) -> TaskReport {
    let (message, taken) = match safety {
        SafetySnapshot::Taken(name) => {
            let message = format!("Starting restore; current state saved as {name}");
            (message, Some(name))
        }
        SafetySnapshot::Unchanged => (
            "Starting restore; current state is already in the last snapshot (no changes since)"
                .to_owned(),
            None,
        ),
        SafetySnapshot::NotServing => (
            "Starting restore without a snapshot of the current state: cluster is not serving"
                .to_owned(),
            None,
        ),
    };
    TaskReport::ok(TaskState::InProgress, message.clone()).with_result(OpsTaskResult {
        summary: message,
        revision: None,
        snapshot: None,
        safety_snapshot: taken,
    })
}

/// Recovers a lost quorum, whatever recovery mode the Etcd has.
pub(super) async fn recover_quorum(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &RecoverQuorum,
) -> Result<TaskOutcome, TaskError> {
    let last = match read_recovery_state(reconciler, etcd).await? {
        TaskRecoveryState::Finished(report) => return Ok(TaskOutcome::Report(report)),
        TaskRecoveryState::InProgress | TaskRecoveryState::Stuck(_) => return Ok(retry_later()),
        TaskRecoveryState::NotStarted(last) => last,
    };
    let base = match &how.from_member {
        None => None,
        Some(name) => {
            let Some(ordinal) = Names::new(etcd).member_ordinal(name) else {
                let message = format!("fromMember {name:?} is not a member of this Etcd");
                return Ok(failed_outcome("ERR_INVALID_TASK", message));
            };
            Some(Ordinal(ordinal))
        }
    };
    let mut observed = sight.objects.observation.clone();
    let dialer = Dialer::new(&reconciler.ctx.client, etcd);
    observed.membership = observe::query_members(&dialer, etcd, &observed).await;
    let last_known = LastKnown::default();
    let world = World {
        desired: &sight.desired,
        observed: &observed,
        policy: &reconciler.ctx.policy,
        last_known: &last_known,
        now: Timestamp::now(),
    };
    let incident = match build_requested_incident(&world, &reconciler.operation_id(), base) {
        Ok(incident) => incident,
        Err(Some(hold)) => {
            return Ok(failed_outcome(
                "ERR_RECOVER_QUORUM",
                describe_recovery_blocker(&hold, &sight.desired),
            ));
        }
        Err(None) => {
            let message = "Quorum loss not confirmed";
            return Ok(failed_outcome("ERR_QUORUM_PRESENT", message));
        }
    };
    if how.dry_run == Some(true) {
        let summary = describe_incident(&incident, &sight.desired);
        let result = OpsTaskResult {
            summary: summary.clone(),
            ..OpsTaskResult::default()
        };
        let report = TaskReport::ok(TaskState::Succeeded, summary).with_result(result);
        return Ok(TaskOutcome::Report(report));
    }
    open_incident(reconciler, etcd, last.as_ref(), &incident).await
}

async fn read_recovery_state(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
) -> Result<TaskRecoveryState, TaskError> {
    let coordinator = get_coordinator(reconciler.ctx, etcd);
    let found = coordinator.read_incident().await;
    let found = found.map_err(|source| coordination_error("read the incident", source))?;
    let is_ours = |incident: &Incident| incident.id == reconciler.operation_id();
    // An earlier process recorded the incident and stopped before it annotated the task.
    if !reconciler.has_started_recovery() && found.as_ref().is_some_and(is_ours) {
        reconciler.record_recovery_start().await?;
    }
    Ok(classify_recovery(
        found,
        &reconciler.operation_id(),
        reconciler.has_started_recovery(),
    ))
}

/// Classifies the recorded incident from the view of a task. A recovery that was started once is not started again.
fn classify_recovery(found: Option<Incident>, id: &str, has_started: bool) -> TaskRecoveryState {
    match found {
        Some(incident) if incident.id == id => match report_incident(&incident) {
            Some(report) => TaskRecoveryState::Finished(report),
            None => TaskRecoveryState::InProgress,
        },
        // The incident was replaced or deleted: starting again would overwrite data a second time.
        _ if has_started => {
            let message = "Outcome unknown: the record of the recovery started by this task is gone; \
                         check the Events and the status of the Etcd";
            TaskRecoveryState::Finished(TaskReport::error(
                TaskState::Failed,
                "ERR_RESTORE",
                message,
            ))
        }
        Some(incident) if is_stuck(&incident) => TaskRecoveryState::Stuck(incident),
        Some(incident) if incident.is_open() => TaskRecoveryState::InProgress,
        last => TaskRecoveryState::NotStarted(last),
    }
}

/// Whether an automatic recovery has failed to restore a volume at least once, for example because the backup has a gap.
fn is_stuck(incident: &Incident) -> bool {
    incident.stage == RecoveryStage::Restoring
        && incident.attempt > 1
        && incident.cause != RecoveryCause::Requested
}

async fn open_incident(
    reconciler: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    last: Option<&Incident>,
    incident: &Incident,
) -> Result<TaskOutcome, TaskError> {
    reconciler.ctx.writer.check_leadership()?;
    let coordinator = get_coordinator(reconciler.ctx, etcd);
    let purpose = match incident.cause {
        RecoveryCause::QuorumLost => Purpose::RecoverQuorum,
        _ => Purpose::Restore,
    };
    let Some(held) = acquire_lock(&coordinator, purpose).await? else {
        return Ok(retry_later());
    };
    match held.fence().write_incident(last, incident).await {
        Ok(found) if found.as_ref() == Some(incident) => reconciler.record_recovery_start().await?,
        // Another incident or holder came first: the next reconcile decides again.
        Ok(_) | Err(CoordinationError::LockLost { .. }) => {}
        Err(source) => return Err(coordination_error("record the requested incident", source)),
    }
    let key = crate::model::EtcdKey {
        namespace: reconciler.namespace.clone(),
        name: etcd.metadata.name.clone().unwrap_or_default(),
    };
    reconciler.ctx.trigger.request(&key);
    Ok(retry_later())
}

fn coordination_error(step: &'static str, source: CoordinationError) -> TaskError {
    ActError::Coordinate { step, source }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::recovery::test_incident;

    fn incident_at(id: &str, stage: RecoveryStage) -> Incident {
        Incident {
            id: id.to_owned(),
            stage,
            ..test_incident()
        }
    }

    #[test]
    fn task_starts_only_one_recovery() {
        let id = "task-1";
        assert!(matches!(
            classify_recovery(None, id, false),
            TaskRecoveryState::NotStarted(None)
        ));
        let others = || Some(incident_at("5f3a", RecoveryStage::Closed));
        assert!(matches!(
            classify_recovery(others(), id, false),
            TaskRecoveryState::NotStarted(Some(_))
        ));
        for found in [
            None,
            others(),
            Some(incident_at("5f3a", RecoveryStage::Restoring)),
        ] {
            let TaskRecoveryState::Finished(report) = classify_recovery(found.clone(), id, true)
            else {
                panic!("the recovery would be started again: {found:?}")
            };
            assert_eq!(report.state, TaskState::Failed);
        }
        let own = |stage| classify_recovery(Some(incident_at(id, stage)), id, true);
        assert!(matches!(
            own(RecoveryStage::Restored),
            TaskRecoveryState::InProgress
        ));
        assert!(
            matches!(own(RecoveryStage::Closed), TaskRecoveryState::Finished(report) if report.state == TaskState::Succeeded)
        );
        let busy = classify_recovery(
            Some(incident_at("5f3a", RecoveryStage::Restoring)),
            id,
            false,
        );
        assert!(matches!(busy, TaskRecoveryState::InProgress));
    }

    #[test]
    fn recovery_that_keeps_failing_yields_to_a_requested_task() {
        let failing = |stage, cause| Incident {
            attempt: 2,
            cause,
            ..incident_at("5f3a", stage)
        };
        let classified = |incident| classify_recovery(Some(incident), "task-1", false);
        for cause in [
            RecoveryCause::MemberLost,
            RecoveryCause::QuorumLost,
            RecoveryCause::FormerBackup,
        ] {
            let stuck = classified(failing(RecoveryStage::Restoring, cause));
            assert!(matches!(stuck, TaskRecoveryState::Stuck(_)), "{cause:?}");
            let restored = classified(failing(RecoveryStage::Restored, cause));
            assert!(
                matches!(restored, TaskRecoveryState::InProgress),
                "the data is already restored"
            );
        }
        let requested = classified(failing(RecoveryStage::Restoring, RecoveryCause::Requested));
        assert!(
            matches!(requested, TaskRecoveryState::InProgress),
            "requested by another task"
        );
    }

    #[test]
    fn serving_cluster_is_not_reported_as_not_serving() {
        let message = |safety| report_safety_snapshot(safety).message;
        assert!(message(SafetySnapshot::NotServing).contains("not serving"));
        assert!(message(SafetySnapshot::Unchanged).contains("no changes since"));
        let taken = report_safety_snapshot(SafetySnapshot::Taken("Full-1".to_owned()))
            .result
            .unwrap();
        assert_eq!(taken.safety_snapshot.as_deref(), Some("Full-1"));
    }
}
