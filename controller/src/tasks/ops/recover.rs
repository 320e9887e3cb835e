//! Restores and recoveries that a person asks for. The task writes down what is to be done and waits: the Etcd's own
//! recovery does it, with its lock and its steps.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_coordination::incident::{self, RecoveryCause, Incident, RecoverySource, RecoveryStage};
use mainstay_coordination::{CoordinationError, Purpose};
use mainstay_crds::Etcd;
use mainstay_crds::ops::{OpsTaskResult, RecoverQuorum, TaskState};
use mainstay_manifests::Names;
use mainstay_manifests::jobs::RestorePoint;
use mainstay_telemetry::ErrorChain;

use super::decide::{TaskReport, report_incident};
use super::execute::{SafetySnapshot, Sight, failed_outcome, take_safety_snapshot};
use super::{TaskOutcome, OpsTaskReconciler, retry_later};
use crate::act::ActError;
use crate::act::recovery::{acquire_lock, get_coordinator};
use crate::decide::recovery::{build_requested_incident, build_token};
use crate::decide::{LastKnown, World};
use crate::observe::{self, Dialer, Ordinal};
use crate::status::{describe_recovery_blocker, plan_of};
use crate::tasks::TaskError;

/// How far a recovery of this task is.
enum TaskRecoveryState {
    /// It is over.
    Finished(TaskReport),
    /// It goes on, or another one does.
    InProgress,
    /// Another one goes on that nobody asked for, and it has failed before: a person may want another state instead.
    Stuck(Incident),
    /// Nothing goes on; this is what was last.
    NotStarted(Option<Incident>),
}

/// Puts the cluster back to a state of its backup.
pub(super) async fn restore(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    target: RestorePoint,
) -> Result<TaskOutcome, TaskError> {
    let last = match read_recovery_state(pass, etcd).await? {
        TaskRecoveryState::Finished(telling) => return Ok(TaskOutcome::Report(telling)),
        TaskRecoveryState::Stuck(incident) => Some(incident),
        TaskRecoveryState::InProgress => return Ok(retry_later()),
        TaskRecoveryState::NotStarted(last) => last,
    };
    let status = pass.task.status.as_ref();
    if status.and_then(|status| status.mainstay.as_ref()).is_none() {
        return Ok(match take_safety_snapshot(pass, etcd, sight).await {
            Ok(safety) => TaskOutcome::Report(report_safety_snapshot(safety)),
            Err(error) => failed_outcome(
                "ERR_CREATE_SNAPSHOT",
                format!(
                    "the present state could not be saved, so nothing was restored: {}",
                    ErrorChain(&error)
                ),
            ),
        });
    }
    let base = Ordinal(0);
    let claim = sight.objects.observation.pvcs.get(&base);
    if !claim.is_some_and(|claim| claim.is_bound && !claim.is_lost && !claim.is_deleting) {
        return Ok(failed_outcome("ERR_RESTORE", "there is no volume to restore to"));
    }
    let set = sight.objects.observation.stateful_set.as_ref();
    let size = set.map_or(0, |set| set.replicas).max(sight.desired.replicas);
    if size == 0 {
        return Ok(failed_outcome(
            "ERR_ETCD_ASLEEP",
            "the Etcd went to sleep meanwhile",
        ));
    }
    match build_incident(pass.operation_id(), (base, size), target) {
        Ok(incident) => open_incident(pass, etcd, last.as_ref(), &incident).await,
        Err(words) => Ok(failed_outcome("ERR_INVALID_TASK", words)),
    }
}

/// The restore of a state that a person wants.
fn build_incident(id: String, (base, size): (Ordinal, u32), target: RestorePoint) -> Result<Incident, String> {
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
                Err(_) => return Err(format!("{time:?} is no time")),
            },
            RestorePoint::Full { name, revision } => incident::RecoveryTarget::Full { name, revision },
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
    let (words, taken) = match safety {
        SafetySnapshot::Taken(name) => {
            let words = format!("the present state was saved as {name}; the restore begins");
            (words, Some(name))
        }
        SafetySnapshot::Unchanged => (
            "nothing has changed since the last snapshot, so the present state is saved".to_owned(),
            None,
        ),
        SafetySnapshot::NotServing => (
            "the cluster does not serve, so there is no present state to save".to_owned(),
            None,
        ),
    };
    TaskReport::ok(TaskState::InProgress, words.clone()).with_result(OpsTaskResult {
        summary: words,
        revision: None,
        snapshot: None,
        safety_snapshot: taken,
    })
}

/// Recovers a lost quorum, whatever the mode of the Etcd says.
pub(super) async fn recover_quorum(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &RecoverQuorum,
) -> Result<TaskOutcome, TaskError> {
    let last = match read_recovery_state(pass, etcd).await? {
        TaskRecoveryState::Finished(telling) => return Ok(TaskOutcome::Report(telling)),
        TaskRecoveryState::InProgress | TaskRecoveryState::Stuck(_) => return Ok(retry_later()),
        TaskRecoveryState::NotStarted(last) => last,
    };
    let base = match &how.from_member {
        None => None,
        Some(name) => {
            let Some(ordinal) = Names::new(etcd).member_ordinal(name) else {
                let words = format!("{name:?} is no member of this Etcd");
                return Ok(failed_outcome("ERR_INVALID_TASK", words));
            };
            Some(Ordinal(ordinal))
        }
    };
    let mut observed = sight.objects.observation.clone();
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    observed.membership = observe::query_members(&dialer, etcd, &observed).await;
    let known = LastKnown::default();
    let world = World {
        desired: &sight.desired,
        observed: &observed,
        policy: &pass.ctx.policy,
        last_known: &known,
        now: Timestamp::now(),
    };
    let incident = match build_requested_incident(&world, &pass.operation_id(), base) {
        Ok(incident) => incident,
        Err(Some(hold)) => {
            return Ok(failed_outcome(
                "ERR_RECOVER_QUORUM",
                describe_recovery_blocker(&hold, &sight.desired),
            ));
        }
        Err(None) => {
            let words = "that the data of a quorum is lost is not proven";
            return Ok(failed_outcome("ERR_QUORUM_PRESENT", words));
        }
    };
    if how.dry_run == Some(true) {
        let summary = plan_of(&incident, &sight.desired);
        let result = OpsTaskResult {
            summary: summary.clone(),
            ..OpsTaskResult::default()
        };
        let telling = TaskReport::ok(TaskState::Succeeded, summary).with_result(result);
        return Ok(TaskOutcome::Report(telling));
    }
    open_incident(pass, etcd, last.as_ref(), &incident).await
}

async fn read_recovery_state(pass: &OpsTaskReconciler<'_>, etcd: &Etcd) -> Result<TaskRecoveryState, TaskError> {
    let coordinator = get_coordinator(pass.ctx, etcd);
    let found = coordinator.read_incident().await;
    let found = found.map_err(|source| coordination_error("look for a recovery", source))?;
    let is_ours = |incident: &Incident| incident.id == pass.operation_id();
    if !pass.has_started_recovery() && found.as_ref().is_some_and(is_ours) {
        pass.record_recovery_start().await?;
    }
    Ok(classify_recovery(found, &pass.operation_id(), pass.has_started_recovery()))
}

/// What a document says about the recovery of a task. What was begun once is not begun again, whatever became of it.
fn classify_recovery(found: Option<Incident>, id: &str, has_begun: bool) -> TaskRecoveryState {
    match found {
        Some(incident) if incident.id == id => match report_incident(&incident) {
            Some(telling) => TaskRecoveryState::Finished(telling),
            None => TaskRecoveryState::InProgress,
        },
        _ if has_begun => {
            let words = "the recovery that this task began is not written down any more, so how it ended is not known; \
                         the Events and the status of the Etcd tell more";
            TaskRecoveryState::Finished(TaskReport::error(TaskState::Failed, "ERR_RESTORE", words))
        }
        Some(incident) if is_stuck(&incident) => TaskRecoveryState::Stuck(incident),
        Some(incident) if incident.is_open() => TaskRecoveryState::InProgress,
        last => TaskRecoveryState::NotStarted(last),
    }
}

/// Whether a recovery writes a volume and could not do it: the backup does not hold what it wants.
fn is_stuck(incident: &Incident) -> bool {
    incident.stage == RecoveryStage::Restoring && incident.attempt > 1 && incident.cause != RecoveryCause::Requested
}

async fn open_incident(
    pass: &OpsTaskReconciler<'_>,
    etcd: &Etcd,
    last: Option<&Incident>,
    incident: &Incident,
) -> Result<TaskOutcome, TaskError> {
    pass.check_leadership()?;
    let coordinator = get_coordinator(pass.ctx, etcd);
    let purpose = match incident.cause {
        RecoveryCause::QuorumLost => Purpose::RecoverQuorum,
        _ => Purpose::Restore,
    };
    let Some(held) = acquire_lock(&coordinator, purpose).await? else {
        return Ok(retry_later());
    };
    match held.fence().write_incident(last, incident).await {
        Ok(found) if found.as_ref() == Some(incident) => pass.record_recovery_start().await?,
        Ok(_) | Err(CoordinationError::LockLost { .. }) => {}
        Err(source) => return Err(coordination_error("write down what is asked for", source)),
    }
    let key = crate::context::EtcdKey {
        namespace: pass.namespace.clone(),
        name: etcd.metadata.name.clone().unwrap_or_default(),
    };
    pass.ctx.trigger.request(&key);
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
    fn a_task_begins_one_recovery_and_not_another() {
        let id = "task-1";
        assert!(matches!(classify_recovery(None, id, false), TaskRecoveryState::NotStarted(None)));
        let others = || Some(incident_at("5f3a", RecoveryStage::Closed));
        assert!(matches!(
            classify_recovery(others(), id, false),
            TaskRecoveryState::NotStarted(Some(_))
        ));
        for found in [None, others(), Some(incident_at("5f3a", RecoveryStage::Restoring))] {
            let TaskRecoveryState::Finished(telling) = classify_recovery(found.clone(), id, true) else {
                panic!("it would begin again: {found:?}")
            };
            assert_eq!(telling.state, TaskState::Failed);
        }
        let own = |stage| classify_recovery(Some(incident_at(id, stage)), id, true);
        assert!(matches!(own(RecoveryStage::Restored), TaskRecoveryState::InProgress));
        assert!(
            matches!(own(RecoveryStage::Closed), TaskRecoveryState::Finished(telling) if telling.state == TaskState::Succeeded)
        );
        let busy = classify_recovery(Some(incident_at("5f3a", RecoveryStage::Restoring)), id, false);
        assert!(matches!(busy, TaskRecoveryState::InProgress));
    }

    #[test]
    fn a_recovery_that_fails_again_and_again_gives_way_to_what_a_person_asks_for() {
        let failing = |stage, cause| Incident {
            attempt: 2,
            cause,
            ..incident_at("5f3a", stage)
        };
        let judged = |incident| classify_recovery(Some(incident), "task-1", false);
        for cause in [RecoveryCause::MemberLost, RecoveryCause::QuorumLost, RecoveryCause::FormerBackup] {
            let stuck = judged(failing(RecoveryStage::Restoring, cause));
            assert!(matches!(stuck, TaskRecoveryState::Stuck(_)), "{cause:?}");
            let restored = judged(failing(RecoveryStage::Restored, cause));
            assert!(matches!(restored, TaskRecoveryState::InProgress), "its data is there");
        }
        let asked_for = judged(failing(RecoveryStage::Restoring, RecoveryCause::Requested));
        assert!(matches!(asked_for, TaskRecoveryState::InProgress), "somebody else's");
    }

    #[test]
    fn a_cluster_that_serves_is_not_said_to_be_silent() {
        let words = |safety| report_safety_snapshot(safety).message;
        assert!(words(SafetySnapshot::NotServing).contains("does not serve"));
        assert!(words(SafetySnapshot::Unchanged).contains("nothing has changed"));
        let taken = report_safety_snapshot(SafetySnapshot::Taken("Full-1".to_owned())).result.unwrap();
        assert_eq!(taken.safety_snapshot.as_deref(), Some("Full-1"));
    }
}
