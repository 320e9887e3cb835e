//! `RecoveryRequired` and `status.mainstay.recovery`: lost data and the progress of its recovery.

use jiff::Timestamp;
use mainstay_coordination::incident::{Incident, RecoveryCause, RecoverySource, RecoveryStage};
use mainstay_crds::etcd::{APPROVE_RECOVERY, MainstayStatus, RecoveryPhase, RecoveryStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};
use mainstay_telemetry::format_bytes;

use super::conditions::{ConditionUpdate, build_update};
use super::{Facts, timestamps};
use crate::decide::recovery::{RecoveryBlocker, RecoveryJobKind, RecoveryStep};
use crate::decide::{Blocker, ReconcileStep};
use crate::observe::{Ordinal, RestoreProgress};
use crate::validate::DesiredState;

pub(super) fn describe_recovery_step(step: &RecoveryStep, desired: &DesiredState) -> String {
    let pod = |ordinal: Ordinal| desired.pod_name(ordinal);
    match step {
        RecoveryStep::OpenIncident(incident) => format!(
            "Starting recovery: {}",
            describe_incident(incident, desired)
        ),
        RecoveryStep::ReacquireLock => "Reacquiring the recovery lock".to_owned(),
        RecoveryStep::RaiseEpoch { above } => {
            format!(
                "Raising the epoch of the recovery lock above {above}, which is recorded on a volume"
            )
        }
        // The lock is renewed while the recovery waits, so the status names what it waits for.
        RecoveryStep::RenewLock(on) => super::describe_blocker(on, desired),
        RecoveryStep::Scale { from, to: 0 } => format!("Stopping {from} pods for the recovery"),
        RecoveryStep::Scale { to, .. } => format!("Starting {to} pods after the recovery"),
        RecoveryStep::CreateJob {
            ordinal,
            kind: job_kind,
            ..
        } => match job_kind {
            RecoveryJobKind::Restore => format!("Restoring the data of {}", pod(*ordinal)),
            RecoveryJobKind::RenameToPrevious => format!(
                "Moving the old data of {} to the previous data directory",
                pod(*ordinal)
            ),
        },
        RecoveryStep::DeleteJob { ordinal, .. } => {
            format!("Deleting the last Job on the volume of {}", pod(*ordinal))
        }
        RecoveryStep::RecordIncident { to, .. } => match to.stage {
            RecoveryStage::Restored => format!("Data restored: {}", to.message),
            RecoveryStage::Abandoned => format!("Recovery abandoned: {}", to.message),
            _ => format!("Recovery attempt {}: {}", to.attempt, to.message),
        },
        RecoveryStep::CloseIncident { to, .. } => format!("Recovery finished: {}", to.message),
        RecoveryStep::ReleaseLock => "Releasing the recovery lock".to_owned(),
    }
}

pub(crate) fn describe_recovery_blocker(
    blocker: &RecoveryBlocker,
    desired: &DesiredState,
) -> String {
    let pod = |ordinal: &Ordinal| desired.pod_name(*ordinal);
    match blocker {
        RecoveryBlocker::LossUnconfirmed => {
            "Confirming quorum loss: a quorum of members seems to have lost its data"
                .to_owned()
        }
        RecoveryBlocker::ApprovalRequired { id } => format!(
            "Waiting for approval: a quorum of members has lost its data; annotate {APPROVE_RECOVERY}={id} to start the recovery"
        ),
        RecoveryBlocker::ManualMode => {
            "Data lost: spec.mainstay.recovery.mode is Manual; create an EtcdOpsTask to start the recovery"
                .to_owned()
        }
        RecoveryBlocker::DataStateUnknown { ordinal } => format!(
            "Quorum lost: waiting for the data check of {}",
            pod(ordinal)
        ),
        RecoveryBlocker::VolumeUnchecked { ordinal } => format!(
            "Checking the volume of {} before the backup of a former cluster with this name is restored",
            pod(ordinal)
        ),
        RecoveryBlocker::SurvivorAtRisk { ordinal } => format!(
            "Quorum lost: {} has the newest copy, and its PVC is being deleted. Save its data, for example with \
             a snapshot of its etcd, then delete the pod to restore the backup",
            pod(ordinal)
        ),
        RecoveryBlocker::NothingToRestore => {
            "Data lost: no other copy and no backup exist".to_owned()
        }
        RecoveryBlocker::VolumeUnavailable { ordinal } => {
            format!("Recovering: waiting for the volume of {}", pod(ordinal))
        }
        RecoveryBlocker::LockHeld { holder } => format!("Recovering: waiting for {holder} to release the lock"),
        RecoveryBlocker::DocumentUnreadable { reason: cause } => format!(
            "Data lost: the coordination document cannot be read and has to be corrected by an operator: {cause}"
        ),
        RecoveryBlocker::PodsStopping => "Recovering: waiting for pods to stop".to_owned(),
        RecoveryBlocker::JobRunning { ordinal } => {
            format!(
                "Recovering: waiting for the Job on the volume of {}",
                pod(ordinal)
            )
        }
        RecoveryBlocker::JobFailed {
            ordinal,
            reason: cause,
            retry_at,
        } => format!(
            "Restore of {} failed, retrying at {}: {cause}",
            pod(ordinal),
            truncate_to_seconds(*retry_at)
        ),
        RecoveryBlocker::AwaitingConfirmation => {
            "Recovering: waiting for etcd to serve the restored data".to_owned()
        }
    }
}

fn truncate_to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Cause and source of a recovery, and which writes it loses.
pub(crate) fn describe_incident(incident: &Incident, desired: &DesiredState) -> String {
    let base = desired.pod_name(Ordinal(incident.base));
    let cause = match incident.cause {
        RecoveryCause::MemberLost => "the only member lost its data",
        RecoveryCause::QuorumLost => "a quorum of members lost its data",
        RecoveryCause::FormerBackup => "a former cluster with this name left a backup",
        RecoveryCause::Requested => "a restore was requested",
    };
    let from = match incident.source {
        RecoverySource::Backup => "the backup; writes after its last snapshot are lost",
        RecoverySource::BestCopy => {
            "its own data or the backup, whichever is newer; writes that only lost members held are lost"
        }
    };
    format!("{cause}; {base} is restored from {from}")
}

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
        super::operation::append_data_check(facts, super::describe_step(step, facts.desired))
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
