//! `RecoveryRequired` and `status.mainstay.recovery`: lost data and the progress of its recovery.

use jiff::Timestamp;
use mainstay_coordination::incident::{Incident, RecoveryStage};
use mainstay_crds::etcd::{MainstayStatus, RecoveryPhase, RecoveryStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};
use mainstay_telemetry::format_bytes;

use super::conditions::{ConditionUpdate, build_update};
use super::{Facts, timestamps};
use crate::messages::{describe_incident, describe_recovery_blocker, describe_step};
use crate::model::{
    Blocker, Ordinal, ReconcileStep, RecoveryBlocker, RecoveryStep, RestoreProgress,
};

/// When `RecoveryRequired` became true. `None` while it is not.
pub(crate) fn read_data_lost_since(status: &EtcdStatus) -> Option<Timestamp> {
    let conditions = status.conditions.as_ref()?;
    let reported = conditions.iter().find(|condition| {
        condition.type_ == ConditionType::RecoveryRequired
            && condition.status == ConditionStatus::True
    })?;
    Some(reported.last_transition_time.0)
}

/// Absent until data was lost once.
pub(super) fn check_recovery_required(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    let message = |step: &ReconcileStep| {
        super::operation::append_data_check(facts, describe_step(step, facts.desired))
    };
    let step = facts.plan.step.as_ref();
    let reason = match (step.and_then(ReconcileStep::blocker), step) {
        (Some(Blocker::RecoveryBlocked(blocker)), _) => Some(condition_reason(blocker)),
        // The lock is released after the incident is closed: no data is missing any more.
        (_, Some(ReconcileStep::Recover(RecoveryStep::ReleaseLock))) => None,
        (_, Some(ReconcileStep::Recover(_))) => Some("RecoveryInProgress"),
        // Another step may come first while the incident is open.
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
        "No data is lost",
    ))
}

fn condition_reason(blocker: &RecoveryBlocker) -> &'static str {
    match blocker {
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

/// Keeps the status of the last recovery until another one starts.
pub(super) fn set_recovery_status(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let reported = build_recovery_status(facts);
    if reported.is_none() && before.is_none() {
        return None;
    }
    let before = before.unwrap_or_default();
    let recovery = reported.or_else(|| before.recovery.clone());
    Some(MainstayStatus { recovery, ..before })
}

fn build_recovery_status(facts: &Facts<'_>) -> Option<RecoveryStatus> {
    if let Some(ReconcileStep::Wait {
        blocker: Blocker::RecoveryBlocked(blocker @ RecoveryBlocker::ApprovalRequired { id }),
    }) = &facts.plan.step
    {
        let since = facts.last_known.data_lost_since.unwrap_or(facts.now);
        return Some(RecoveryStatus {
            id: id.clone(),
            phase: RecoveryPhase::AwaitingApproval,
            message: describe_recovery_blocker(blocker, facts.desired),
            percent: None,
            started_at: timestamps::to_whole_seconds(since),
            finished_at: None,
            member: None,
            revision: None,
        });
    }
    let incident = facts.observed.recovery.incident.as_ref()?;
    let phase = recovery_phase(facts, incident);
    let progress = facts.observed.recovery.progress;
    // Progress of an earlier stage would look like the current one.
    let progress = progress.filter(|_| phase == RecoveryPhase::Restoring);
    let note = Some(incident.message.clone()).filter(|note| !note.is_empty());
    let message = std::iter::once(describe_incident(incident, facts.desired))
        .chain(note)
        .chain(progress.map(describe_progress));
    Some(RecoveryStatus {
        id: incident.id.clone(),
        phase,
        message: message.collect::<Vec<_>>().join("; "),
        percent: progress.map(|progress| i32::from(progress.percent)),
        started_at: timestamps::to_whole_seconds(incident.started),
        finished_at: (!incident.is_open()).then(|| timestamps::to_whole_seconds(incident.changed)),
        member: Some(facts.desired.member_name(Ordinal(incident.base))),
        revision: incident.revision,
    })
}

/// Text that changes only with the percentage, so that a status is written at most a hundred times per restore.
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
        // Jobs mount the volumes, so all pods have to stop first.
        RecoveryStage::Restoring if facts.world().size() > 0 => RecoveryPhase::ScalingDown,
        RecoveryStage::Restoring if !facts.observed.pods.is_empty() => RecoveryPhase::ScalingDown,
        RecoveryStage::Restoring => RecoveryPhase::Restoring,
        RecoveryStage::Restored | RecoveryStage::Abandoned if !is_up => RecoveryPhase::ScalingUp,
        RecoveryStage::Restored | RecoveryStage::Abandoned => RecoveryPhase::Confirming,
        RecoveryStage::Closed => RecoveryPhase::Succeeded,
        RecoveryStage::Failed => RecoveryPhase::Failed,
    }
}
