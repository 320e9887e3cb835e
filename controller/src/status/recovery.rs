//! Lost data and its recovery, as they are told.

use jiff::Timestamp;
use mainstay_coordination::incident::{Cause, Incident, Source, Stage};
use mainstay_crds::etcd::{APPROVE_RECOVERY, MainstayStatus, RecoveryPhase, RecoveryStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};
use mainstay_telemetry::human_bytes;

use super::conditions::{Says, says};
use super::{Facts, clock};
use crate::decide::recovery::{Hold, Recovery, Task};
use crate::decide::{Blocker, Step};
use crate::observe::{Ordinal, Progress};
use crate::validate::Wanted;

/// What a step of a recovery does.
pub(super) fn describe(step: &Recovery, wanted: &Wanted) -> String {
    let pod = |ordinal: Ordinal| wanted.pod(ordinal);
    match step {
        Recovery::Open(incident) => format!("a recovery begins: {}", plan(incident, wanted)),
        Recovery::Reclaim => "the lock of the recovery is taken again".to_owned(),
        Recovery::Outrank { above } => {
            format!("the lock of the recovery goes above epoch {above}, which a volume remembers")
        }
        Recovery::Renew(on) => super::describe_blocker(on, wanted),
        Recovery::Scale { from, to: 0 } => format!("the {from} pods are stopped for the recovery"),
        Recovery::Scale { to, .. } => format!("{to} pods are started after the recovery"),
        Recovery::Launch { ordinal, task, .. } => match task {
            Task::Restore => format!("the data of {} is restored", pod(*ordinal)),
            Task::SetAside => format!("the old data of {} is put aside", pod(*ordinal)),
        },
        Recovery::RemoveJob { ordinal, .. } => {
            format!("the last Job on the volume of {} is removed", pod(*ordinal))
        }
        Recovery::Record { to, .. } => match to.stage {
            Stage::Restored => format!("the data is back: {}", to.message),
            Stage::Abandoned => format!("the recovery is given up: {}", to.message),
            _ => format!("attempt {} of the recovery: {}", to.attempt, to.message),
        },
        Recovery::Close { to, .. } => format!("the recovery is over: {}", to.message),
        Recovery::Release => "the lock of the recovery is given back".to_owned(),
    }
}

/// What a recovery waits for.
pub fn describe_hold(hold: &Hold, wanted: &Wanted) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod(*ordinal);
    match hold {
        Hold::Unconfirmed => {
            "a quorum of members seems to have lost its data; whether that lasts is waited for"
                .to_owned()
        }
        Hold::Approval { id } => format!(
            "a quorum of members has lost its data; the recovery waits for the annotation {APPROVE_RECOVERY}={id}"
        ),
        Hold::Manual => {
            "data is lost, and spec.mainstay.recovery.mode leaves its recovery to an EtcdOpsTask"
                .to_owned()
        }
        Hold::Verdict { ordinal } => format!(
            "a quorum is lost, and whether the data of {} is good is not known yet",
            pod(ordinal)
        ),
        Hold::Unlooked { ordinal } => format!(
            "a former cluster of this name has left a backup; before it is restored, the volume of {} is looked at",
            pod(ordinal)
        ),
        Hold::Doomed { ordinal } => format!(
            "a quorum is lost; {} has the newest copy, and its volume claim is being deleted: save its data, for example with \
             a snapshot of its etcd, and delete the pod to let the backup be restored",
            pod(ordinal)
        ),
        Hold::NothingToRestore => {
            "data is lost, and there is neither another copy nor a backup of it".to_owned()
        }
        Hold::Claim { ordinal } => {
            format!("the recovery waits for the volume of {}", pod(ordinal))
        }
        Hold::Locked { holder } => format!("the recovery waits for {holder}, who has the lock"),
        Hold::Unreadable { why } => format!(
            "data is lost, and the coordination document cannot be read, which a person has to correct: {why}"
        ),
        Hold::PodsStop => "the recovery waits for pods to stop".to_owned(),
        Hold::JobRuns { ordinal } => {
            format!(
                "the recovery waits for the Job on the volume of {}",
                pod(ordinal)
            )
        }
        Hold::JobFailed {
            ordinal,
            why,
            retry_at,
        } => format!(
            "the restore of {} failed and is tried again at {}: {why}",
            pod(ordinal),
            whole(*retry_at)
        ),
        Hold::Confirmation => {
            "the recovery waits for etcd to answer with the restored data".to_owned()
        }
    }
}

fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// What an incident does and what may be missing afterwards.
pub fn plan(incident: &Incident, wanted: &Wanted) -> String {
    let base = wanted.pod(Ordinal(incident.base));
    let why = match incident.cause {
        Cause::MemberLost => "the only member has lost its data",
        Cause::QuorumLost => "a quorum of members has lost its data",
        Cause::FormerBackup => "a former cluster of this name has left a backup",
        Cause::Requested => "a restore was asked for",
    };
    let from = match incident.source {
        Source::Backup => "the backup; what was written after its last snapshot is lost",
        Source::BestCopy => {
            "its own data or the backup, whichever is newer; what only lost members had is lost"
        }
    };
    format!("{why}; {base} is made from {from}")
}

/// Since when data was told to be lost.
pub fn loss_since(status: &EtcdStatus) -> Option<Timestamp> {
    let conditions = status.conditions.as_ref()?;
    let told = conditions.iter().find(|condition| {
        condition.type_ == ConditionType::RecoveryRequired
            && condition.status == ConditionStatus::True
    })?;
    Some(told.last_transition_time.0)
}

/// The condition. Absent until it was needed once.
pub(super) fn required(facts: &Facts<'_>) -> Option<Says> {
    let message =
        |step: &Step| super::operation::with_check(facts, super::describe_step(step, facts.wanted));
    let step = facts.plan.step.as_ref();
    let reason = match (step.and_then(Step::blocker), step) {
        (Some(Blocker::RecoveryNeeded(hold)), _) => Some(reason(hold)),
        (_, Some(Step::Recover(Recovery::Release))) => None,
        (_, Some(Step::Recover(_))) => Some("RecoveryInProgress"),
        _ if facts.seen.recovery.open().is_some() => Some("RecoveryInProgress"),
        _ => None,
    };
    if let (Some(reason), Some(step)) = (reason, step) {
        return Some(says(ConditionStatus::True, reason, message(step)));
    }
    facts.condition(&ConditionType::RecoveryRequired)?;
    Some(says(
        ConditionStatus::False,
        "NoDataLost",
        "no data is lost",
    ))
}

fn reason(hold: &Hold) -> &'static str {
    match hold {
        Hold::Unconfirmed | Hold::Verdict { .. } => "QuorumLost",
        Hold::Approval { .. } => "ApprovalRequired",
        Hold::Manual => "ManualRecovery",
        Hold::Doomed { .. } => "SurvivorAtRisk",
        Hold::NothingToRestore => "NothingToRestore",
        Hold::Unreadable { .. } => "CoordinationUnreadable",
        Hold::JobFailed { .. } => "RestoreFailed",
        Hold::Unlooked { .. }
        | Hold::Claim { .. }
        | Hold::Locked { .. }
        | Hold::PodsStop
        | Hold::JobRuns { .. }
        | Hold::Confirmation => "RecoveryInProgress",
    }
}

/// What is told beyond etcd-druid's status.
pub(super) fn mainstay(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let told = told(facts);
    if told.is_none() && before.is_none() {
        return None;
    }
    let before = before.unwrap_or_default();
    let recovery = told.or_else(|| before.recovery.clone());
    Some(MainstayStatus { recovery, ..before })
}

fn told(facts: &Facts<'_>) -> Option<RecoveryStatus> {
    if let Some(Step::Wait {
        on: Blocker::RecoveryNeeded(hold @ Hold::Approval { id }),
    }) = &facts.plan.step
    {
        let since = facts.known.loss_since.unwrap_or(facts.now);
        return Some(RecoveryStatus {
            id: id.clone(),
            phase: RecoveryPhase::AwaitingApproval,
            message: describe_hold(hold, facts.wanted),
            percent: None,
            started_at: clock::time(since),
            finished_at: None,
            member: None,
            revision: None,
        });
    }
    let incident = facts.seen.recovery.incident.as_ref()?;
    let phase = phase(facts, incident);
    let progress = facts.seen.recovery.progress;
    let progress = progress.filter(|_| phase == RecoveryPhase::Restoring);
    let words = Some(incident.message.clone()).filter(|words| !words.is_empty());
    let message = std::iter::once(plan(incident, facts.wanted))
        .chain(words)
        .chain(progress.map(how_far));
    Some(RecoveryStatus {
        id: incident.id.clone(),
        phase,
        message: message.collect::<Vec<_>>().join("; "),
        percent: progress.map(|progress| i32::from(progress.percent)),
        started_at: clock::time(incident.started),
        finished_at: (!incident.is_open()).then(|| clock::time(incident.changed)),
        member: Some(facts.wanted.member(Ordinal(incident.base))),
        revision: incident.revision,
    })
}

/// How far a restore is, in words that change only with its percents.
fn how_far(progress: Progress) -> String {
    format!(
        "restoring: {} %, {} of {}",
        progress.percent,
        human_bytes(progress.done_bytes()),
        human_bytes(progress.total_bytes)
    )
}

fn phase(facts: &Facts<'_>, incident: &Incident) -> RecoveryPhase {
    let is_up = facts.world().size() >= incident.size;
    match incident.stage {
        Stage::Restoring if facts.world().size() > 0 => RecoveryPhase::ScalingDown,
        Stage::Restoring if !facts.seen.pods.is_empty() => RecoveryPhase::ScalingDown,
        Stage::Restoring => RecoveryPhase::Restoring,
        Stage::Restored | Stage::Abandoned if !is_up => RecoveryPhase::ScalingUp,
        Stage::Restored | Stage::Abandoned => RecoveryPhase::Confirming,
        Stage::Closed => RecoveryPhase::Succeeded,
        Stage::Failed => RecoveryPhase::Failed,
    }
}
