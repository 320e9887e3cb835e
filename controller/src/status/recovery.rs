//! Lost data and its recovery, as they are told.

use jiff::Timestamp;
use mainstay_coordination::incident::{RecoveryCause, Incident, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::{APPROVE_RECOVERY, MainstayStatus, RecoveryPhase, RecoveryStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};
use mainstay_telemetry::format_bytes;

use super::conditions::{ConditionUpdate, build_update};
use super::{Facts, clock};
use crate::decide::recovery::{RecoveryBlocker, RecoveryStep, RecoveryJobKind};
use crate::decide::{Blocker, ReconcileStep};
use crate::observe::{Ordinal, RestoreProgress};
use crate::validate::DesiredState;

/// What a step of a recovery does.
pub(super) fn describe_recovery_step(step: &RecoveryStep, wanted: &DesiredState) -> String {
    let pod = |ordinal: Ordinal| wanted.pod_name(ordinal);
    match step {
        RecoveryStep::OpenIncident(incident) => format!("a recovery begins: {}", describe_incident(incident, wanted)),
        RecoveryStep::ReacquireLock => "the lock of the recovery is taken again".to_owned(),
        RecoveryStep::RaiseEpoch { above } => {
            format!("the lock of the recovery goes above epoch {above}, which a volume remembers")
        }
        RecoveryStep::RenewLock(on) => super::describe_blocker(on, wanted),
        RecoveryStep::Scale { from, to: 0 } => format!("the {from} pods are stopped for the recovery"),
        RecoveryStep::Scale { to, .. } => format!("{to} pods are started after the recovery"),
        RecoveryStep::CreateJob { ordinal, kind: task, .. } => match task {
            RecoveryJobKind::Restore => format!("the data of {} is restored", pod(*ordinal)),
            RecoveryJobKind::RenameToPrevious => format!("the old data of {} is put aside", pod(*ordinal)),
        },
        RecoveryStep::DeleteJob { ordinal, .. } => {
            format!("the last Job on the volume of {} is removed", pod(*ordinal))
        }
        RecoveryStep::RecordIncident { to, .. } => match to.stage {
            RecoveryStage::Restored => format!("the data is back: {}", to.message),
            RecoveryStage::Abandoned => format!("the recovery is given up: {}", to.message),
            _ => format!("attempt {} of the recovery: {}", to.attempt, to.message),
        },
        RecoveryStep::CloseIncident { to, .. } => format!("the recovery is over: {}", to.message),
        RecoveryStep::ReleaseLock => "the lock of the recovery is given back".to_owned(),
    }
}

/// What a recovery waits for.
pub fn describe_recovery_blocker(hold: &RecoveryBlocker, wanted: &DesiredState) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod_name(*ordinal);
    match hold {
        RecoveryBlocker::LossUnconfirmed => {
            "a quorum of members seems to have lost its data; whether that lasts is waited for"
                .to_owned()
        }
        RecoveryBlocker::ApprovalRequired { id } => format!(
            "a quorum of members has lost its data; the recovery waits for the annotation {APPROVE_RECOVERY}={id}"
        ),
        RecoveryBlocker::ManualMode => {
            "data is lost, and spec.mainstay.recovery.mode leaves its recovery to an EtcdOpsTask"
                .to_owned()
        }
        RecoveryBlocker::DataStateUnknown { ordinal } => format!(
            "a quorum is lost, and whether the data of {} is good is not known yet",
            pod(ordinal)
        ),
        RecoveryBlocker::VolumeUnchecked { ordinal } => format!(
            "a former cluster of this name has left a backup; before it is restored, the volume of {} is looked at",
            pod(ordinal)
        ),
        RecoveryBlocker::SurvivorAtRisk { ordinal } => format!(
            "a quorum is lost; {} has the newest copy, and its volume claim is being deleted: save its data, for example with \
             a snapshot of its etcd, and delete the pod to let the backup be restored",
            pod(ordinal)
        ),
        RecoveryBlocker::NothingToRestore => {
            "data is lost, and there is neither another copy nor a backup of it".to_owned()
        }
        RecoveryBlocker::VolumeUnavailable { ordinal } => {
            format!("the recovery waits for the volume of {}", pod(ordinal))
        }
        RecoveryBlocker::LockHeld { holder } => format!("the recovery waits for {holder}, who has the lock"),
        RecoveryBlocker::DocumentUnreadable { reason: why } => format!(
            "data is lost, and the coordination document cannot be read, which a person has to correct: {why}"
        ),
        RecoveryBlocker::PodsStopping => "the recovery waits for pods to stop".to_owned(),
        RecoveryBlocker::JobRunning { ordinal } => {
            format!(
                "the recovery waits for the Job on the volume of {}",
                pod(ordinal)
            )
        }
        RecoveryBlocker::JobFailed {
            ordinal,
            reason: why,
            retry_at,
        } => format!(
            "the restore of {} failed and is tried again at {}: {why}",
            pod(ordinal),
            truncate_to_seconds(*retry_at)
        ),
        RecoveryBlocker::AwaitingConfirmation => {
            "the recovery waits for etcd to answer with the restored data".to_owned()
        }
    }
}

fn truncate_to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// What an incident does and what may be missing afterwards.
pub fn describe_incident(incident: &Incident, wanted: &DesiredState) -> String {
    let base = wanted.pod_name(Ordinal(incident.base));
    let why = match incident.cause {
        RecoveryCause::MemberLost => "the only member has lost its data",
        RecoveryCause::QuorumLost => "a quorum of members has lost its data",
        RecoveryCause::FormerBackup => "a former cluster of this name has left a backup",
        RecoveryCause::Requested => "a restore was asked for",
    };
    let from = match incident.source {
        RecoverySource::Backup => "the backup; what was written after its last snapshot is lost",
        RecoverySource::BestCopy => {
            "its own data or the backup, whichever is newer; what only lost members had is lost"
        }
    };
    format!("{why}; {base} is made from {from}")
}

/// Since when data was told to be lost.
pub fn read_data_lost_since(status: &EtcdStatus) -> Option<Timestamp> {
    let conditions = status.conditions.as_ref()?;
    let told = conditions.iter().find(|condition| {
        condition.type_ == ConditionType::RecoveryRequired
            && condition.status == ConditionStatus::True
    })?;
    Some(told.last_transition_time.0)
}

/// The condition. Absent until it was needed once.
pub(super) fn check_recovery_required(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    let message =
        |step: &ReconcileStep| super::operation::append_data_check(facts, super::describe_step(step, facts.desired));
    let step = facts.plan.step.as_ref();
    let reason = match (step.and_then(ReconcileStep::blocker), step) {
        (Some(Blocker::RecoveryBlocked(hold)), _) => Some(condition_reason(hold)),
        (_, Some(ReconcileStep::Recover(RecoveryStep::ReleaseLock))) => None,
        (_, Some(ReconcileStep::Recover(_))) => Some("RecoveryInProgress"),
        _ if facts.observed.recovery.open_incident().is_some() => Some("RecoveryInProgress"),
        _ => None,
    };
    if let (Some(reason), Some(step)) = (reason, step) {
        return Some(build_update(ConditionStatus::True, reason, message(step)));
    }
    facts.previous_condition(&ConditionType::RecoveryRequired)?;
    Some(build_update(
        ConditionStatus::False,
        "NoDataLost",
        "no data is lost",
    ))
}

fn condition_reason(hold: &RecoveryBlocker) -> &'static str {
    match hold {
        RecoveryBlocker::LossUnconfirmed | RecoveryBlocker::DataStateUnknown { .. } => "QuorumLost",
        RecoveryBlocker::ApprovalRequired { .. } => "ApprovalRequired",
        RecoveryBlocker::ManualMode => "ManualRecovery",
        RecoveryBlocker::SurvivorAtRisk { .. } => "SurvivorAtRisk",
        RecoveryBlocker::NothingToRestore => "NothingToRestore",
        RecoveryBlocker::DocumentUnreadable { .. } => "CoordinationUnreadable",
        RecoveryBlocker::JobFailed { .. } => "RestoreFailed",
        RecoveryBlocker::VolumeUnchecked { .. }
        | RecoveryBlocker::VolumeUnavailable { .. }
        | RecoveryBlocker::LockHeld { .. }
        | RecoveryBlocker::PodsStopping
        | RecoveryBlocker::JobRunning { .. }
        | RecoveryBlocker::AwaitingConfirmation => "RecoveryInProgress",
    }
}

/// What is told beyond etcd-druid's status.
pub(super) fn set_recovery_status(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let told = build_recovery_status(facts);
    if told.is_none() && before.is_none() {
        return None;
    }
    let before = before.unwrap_or_default();
    let recovery = told.or_else(|| before.recovery.clone());
    Some(MainstayStatus { recovery, ..before })
}

fn build_recovery_status(facts: &Facts<'_>) -> Option<RecoveryStatus> {
    if let Some(ReconcileStep::Wait {
        blocker: Blocker::RecoveryBlocked(hold @ RecoveryBlocker::ApprovalRequired { id }),
    }) = &facts.plan.step
    {
        let since = facts.last_known.data_lost_since.unwrap_or(facts.now);
        return Some(RecoveryStatus {
            id: id.clone(),
            phase: RecoveryPhase::AwaitingApproval,
            message: describe_recovery_blocker(hold, facts.desired),
            percent: None,
            started_at: clock::to_whole_seconds(since),
            finished_at: None,
            member: None,
            revision: None,
        });
    }
    let incident = facts.observed.recovery.incident.as_ref()?;
    let phase = recovery_phase(facts, incident);
    let progress = facts.observed.recovery.progress;
    let progress = progress.filter(|_| phase == RecoveryPhase::Restoring);
    let words = Some(incident.message.clone()).filter(|words| !words.is_empty());
    let message = std::iter::once(describe_incident(incident, facts.desired))
        .chain(words)
        .chain(progress.map(describe_progress));
    Some(RecoveryStatus {
        id: incident.id.clone(),
        phase,
        message: message.collect::<Vec<_>>().join("; "),
        percent: progress.map(|progress| i32::from(progress.percent)),
        started_at: clock::to_whole_seconds(incident.started),
        finished_at: (!incident.is_open()).then(|| clock::to_whole_seconds(incident.changed)),
        member: Some(facts.desired.member_name(Ordinal(incident.base))),
        revision: incident.revision,
    })
}

/// How far a restore is, in words that change only with its percents.
fn describe_progress(progress: RestoreProgress) -> String {
    format!(
        "restoring: {} %, {} of {}",
        progress.percent,
        format_bytes(progress.done_bytes()),
        format_bytes(progress.total_bytes)
    )
}

fn recovery_phase(facts: &Facts<'_>, incident: &Incident) -> RecoveryPhase {
    let is_up = facts.world().size() >= incident.size;
    match incident.stage {
        RecoveryStage::Restoring if facts.world().size() > 0 => RecoveryPhase::ScalingDown,
        RecoveryStage::Restoring if !facts.observed.pods.is_empty() => RecoveryPhase::ScalingDown,
        RecoveryStage::Restoring => RecoveryPhase::Restoring,
        RecoveryStage::Restored | RecoveryStage::Abandoned if !is_up => RecoveryPhase::ScalingUp,
        RecoveryStage::Restored | RecoveryStage::Abandoned => RecoveryPhase::Confirming,
        RecoveryStage::Closed => RecoveryPhase::Succeeded,
        RecoveryStage::Failed => RecoveryPhase::Failed,
    }
}
