//! How a recovery goes on, from what is written down and what is there.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{RecoveryCause, Incident, RecoveryStage};
use mainstay_verdict::CommandDetails;

use super::loss::is_volume_writable;
use super::{RecoveryBlocker, RecoveryStep, RecoveryJobKind, stop_running_jobs, wait, require_lock};
use crate::cadence;
use crate::decide::{Blocker, ReconcileStep, World, quorum};
use crate::observe::{FailureClass, InitFinding, JobFailure, JobState, Ordinal, ObservedJob, ObservedLock};

/// Verdicts of the restorer that another attempt will not change.
const PERMANENT_VERDICTS: [&str; 5] = [
    "usage",
    "wrong-volume",
    "no-backup",
    "incomplete",
    "damaged-backup",
];

/// The next step.
pub(super) fn plan_next(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    if let Some(step) = require_lock(world) {
        return step;
    }
    let step = match incident.stage {
        RecoveryStage::Restoring => continue_restoring(world, incident),
        RecoveryStage::Restored => continue_restored(world, incident),
        RecoveryStage::Abandoned => continue_abandoned(world, incident),
        RecoveryStage::Closed | RecoveryStage::Failed => ReconcileStep::Recover(RecoveryStep::ReleaseLock),
    };
    match (step, &world.observed.recovery.lock) {
        // Whoever waits shows that it lives.
        (ReconcileStep::Wait { blocker: on }, ObservedLock::HeldByUs { renewed_at: renewed, .. }) if is_lock_renewal_due(world.now, *renewed) => {
            ReconcileStep::Recover(RecoveryStep::RenewLock(Box::new(on)))
        }
        (step, _) => step,
    }
}

fn is_lock_renewal_due(now: Timestamp, renewed: Timestamp) -> bool {
    now.duration_since(renewed).unsigned_abs() >= cadence::LOCK_TTL / 3
}

/// Pods stop, then volumes are written.
fn continue_restoring(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    let Some(set) = world.stateful_set() else {
        return ReconcileStep::Wait {
            blocker: Blocker::StatefulSetUnobserved,
        };
    };
    if set.replicas > 0 {
        return ReconcileStep::Recover(RecoveryStep::Scale {
            from: set.replicas,
            to: 0,
        });
    }
    // Until Kubernetes has taken note of that, it may start another pod.
    if !world.observed.pods.is_empty() || !set.is_observed {
        return wait(RecoveryBlocker::PodsStopping);
    }
    let base = Ordinal(incident.base);
    if is_volume_lost(world, base) {
        return abandon_incident(world, incident, describe_lost_volume(world, base));
    }
    if !is_volume_writable(world, base) {
        return wait(RecoveryBlocker::VolumeUnavailable { ordinal: base }); // it will be bound, or nobody knows at the moment
    }
    match check_job(world, incident, base, RecoveryJobKind::Restore) {
        Err(step) => step,
        Ok(Err(failure)) => handle_job_failure(world, incident, base, failure),
        Ok(Ok((at, done))) => rename_other_data_dirs(world, incident, base, at).unwrap_or_else(|| {
            let next = Incident {
                stage: RecoveryStage::Restored,
                revision: done.start_revision.or(done.revision),
                cluster: done.cluster_id.clone(),
                message: describe_restore(done),
                ..with_change_time(world, incident)
            };
            record_incident(incident, next)
        }),
    }
}

fn is_volume_lost(world: &World<'_>, ordinal: Ordinal) -> bool {
    let claim = world.observed.pvcs.get(&ordinal);
    claim.is_none_or(|claim| claim.is_lost || claim.is_deleting)
}

fn describe_lost_volume(world: &World<'_>, ordinal: Ordinal) -> String {
    format!("the volume of {} is gone", world.desired.pod_name(ordinal))
}

/// How a Job ended, and when.
type RecoveryJobResult<'a> = Result<(Timestamp, &'a CommandDetails), (Timestamp, &'a JobFailure)>;

/// The Job of this attempt on a volume: how it ended, or what is to be done until it has.
fn check_job<'a>(
    world: &World<'a>,
    incident: &Incident,
    ordinal: Ordinal,
    task: RecoveryJobKind,
) -> Result<RecoveryJobResult<'a>, ReconcileStep> {
    let Some(job) = world.observed.recovery.jobs.get(&ordinal) else {
        if world.observed.recovery.active_writers.contains(&ordinal) {
            return Err(wait(RecoveryBlocker::JobRunning { ordinal })); // of an earlier one
        }
        return Err(ReconcileStep::Recover(RecoveryStep::CreateJob {
            ordinal,
            kind: task,
            incident: Box::new(incident.clone()),
        }));
    };
    if job.is_deleting {
        return Err(wait(RecoveryBlocker::JobRunning { ordinal }));
    }
    if !job.belongs_to(incident) {
        return Err(delete_job(ordinal, job));
    }
    match &job.state {
        JobState::Running => Err(wait(RecoveryBlocker::JobRunning { ordinal })),
        JobState::Succeeded { at, done } if is_result_pending(world.now, task, (*at, done)) => {
            Err(wait(RecoveryBlocker::JobRunning { ordinal }))
        }
        JobState::Succeeded { at, done } => Ok(Ok((*at, done))),
        JobState::Failed { at, failure } => match raise_epoch(world, failure) {
            Some(step) => Err(step),
            None => Ok(Err((*at, failure))),
        },
    }
}

/// Whether a restore is over, but what it did has not been heard yet: of pods it is heard later than of Jobs, at times.
fn is_result_pending(now: Timestamp, task: RecoveryJobKind, (at, done): (Timestamp, &CommandDetails)) -> bool {
    let is_silent = task == RecoveryJobKind::Restore && done.revision.is_none();
    is_silent && now < add_pause(at, cadence::JOB_RESULT_TIMEOUT)
}

/// What is done before a Job is tried again whose volume remembers an epoch that is not below ours: the document it was from is
/// lost, and the clock is behind it. Once, since ours is above it then.
fn raise_epoch(world: &World<'_>, failure: &JobFailure) -> Option<ReconcileStep> {
    let ObservedLock::HeldByUs { epoch, .. } = world.observed.recovery.lock else {
        return None;
    };
    let above = failure.superseded_by.filter(|found| *found >= epoch)?;
    Some(ReconcileStep::Recover(RecoveryStep::RaiseEpoch { above }))
}

fn delete_job(ordinal: Ordinal, job: &ObservedJob) -> ReconcileStep {
    ReconcileStep::Recover(RecoveryStep::DeleteJob {
        ordinal,
        uid: job.uid.clone(),
    })
}

/// The volumes of the others are emptied, so that they join anew; what fails is tried again. Two are left as they are,
/// since the new cluster does not take their data: a volume of somebody else, and one that nobody could mount in time,
/// as long as those cannot make up the old cluster.
fn rename_other_data_dirs(world: &World<'_>, incident: &Incident, base: Ordinal, since: Timestamp) -> Option<ReconcileStep> {
    let others = world.observed.pvcs.keys().copied();
    let others = others.filter(|ordinal| {
        *ordinal != base && ordinal.0 < incident.size && is_volume_writable(world, *ordinal)
    });
    let (mut running, mut late) = (None, 0);
    for ordinal in others {
        let step = match check_job(world, incident, ordinal, RecoveryJobKind::RenameToPrevious) {
            Ok(Ok(_)) => continue,
            Ok(Err((_, failure))) if is_wrong_volume(failure) => continue,
            Ok(Err((at, failure))) => {
                late += usize::from(failure.class == FailureClass::Deadline);
                if failure.class == FailureClass::Deadline && late < quorum(incident.size as usize)
                {
                    continue;
                }
                retry_rename(world, ordinal, since, (at, failure))
            }
            Err(step) => step,
        };
        match step {
            step @ ReconcileStep::Wait { .. } => running = Some(step),
            step => return Some(step),
        }
    }
    running
}

/// The next attempt at one volume: its Job goes, and another takes its place. The pause is as long as it has failed for.
fn retry_rename(
    world: &World<'_>,
    ordinal: Ordinal,
    since: Timestamp,
    (at, failure): (Timestamp, &JobFailure),
) -> ReconcileStep {
    let (first, longest) = cadence::RECOVERY_BACKOFF;
    let pause = at.duration_since(since).unsigned_abs();
    let retry_at = add_pause(at, pause.clamp(first, longest));
    match world.observed.recovery.jobs.get(&ordinal) {
        Some(job) if world.now >= retry_at => delete_job(ordinal, job),
        _ => wait(RecoveryBlocker::JobFailed {
            ordinal,
            reason: failure.message.clone(),
            retry_at,
        }),
    }
}

fn is_wrong_volume(failure: &JobFailure) -> bool {
    failure.verdict.as_deref() == Some("wrong-volume")
}

fn add_pause(time: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or_default();
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Tried again after a pause, for as long as it takes: there is nothing else to serve. What somebody asked for is given up
/// when it cannot be had, and so is everything on a volume of somebody else.
fn handle_job_failure(
    world: &World<'_>,
    incident: &Incident,
    ordinal: Ordinal,
    (at, failure): (Timestamp, &JobFailure),
) -> ReconcileStep {
    let is_hopeless = failure
        .verdict
        .as_deref()
        .is_some_and(|verdict| PERMANENT_VERDICTS.contains(&verdict));
    if is_wrong_volume(failure) || (is_hopeless && incident.cause == RecoveryCause::Requested) {
        return abandon_incident(world, incident, failure.message.clone());
    }
    retry_later(world, incident, (ordinal, at), failure.message.clone())
}

/// The next attempt, when the pause after the last one is over.
fn retry_later(
    world: &World<'_>,
    incident: &Incident,
    (ordinal, at): (Ordinal, Timestamp),
    why: String,
) -> ReconcileStep {
    let retry_at = add_pause(at, compute_backoff(incident.attempt));
    if world.now < retry_at {
        return wait(RecoveryBlocker::JobFailed {
            ordinal,
            reason: why,
            retry_at,
        });
    }
    start_next_attempt(world, incident, why)
}

fn compute_backoff(attempt: u32) -> Duration {
    let (first, longest) = cadence::RECOVERY_BACKOFF;
    let doublings = attempt.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// Pods start; the recovery is over when etcd answers with the restored data.
fn continue_restored(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    if let Some(step) = start_pods(world, incident) {
        return step;
    }
    if is_confirmed(world, incident) {
        return close_incident(world, incident, RecoveryStage::Closed);
    }
    let base = Ordinal(incident.base);
    if is_volume_lost(world, base) {
        // What was restored is gone with it; that is another loss.
        return abandon_incident(world, incident, describe_lost_volume(world, base));
    }
    let pod = world.pod(base).filter(|pod| !pod.is_deleting);
    match pod.and_then(|pod| pod.finding) {
        Some(
            InitFinding::NeedsRestore
            | InitFinding::Corrupt
            | InitFinding::Foreign
            | InitFinding::WaitingToJoin
            | InitFinding::BackupExists
            | InitFinding::NothingToRestore,
        ) => {
            let pod = world.desired.pod_name(base);
            let why = format!("{pod} did not start on the restored data");
            retry_later(world, incident, (base, incident.changed), why)
        }
        // What only a person may touch, or what the next check may find otherwise.
        Some(InitFinding::CanStart | InitFinding::Refused) | None => wait(RecoveryBlocker::AwaitingConfirmation),
    }
}

/// Whether the restored cluster answers with a quorum, and with what was restored.
fn is_confirmed(world: &World<'_>, incident: &Incident) -> bool {
    let Some(members) = world.members().filter(|_| world.has_quorum()) else {
        return false;
    };
    let is_it = incident
        .cluster
        .as_ref()
        .is_none_or(|cluster| *cluster == members.cluster_id.to_string());
    let revision = world.member(Ordinal(incident.base)).and_then(|member| {
        let answer = member.status.as_ref()?;
        Some(answer.revision)
    });
    is_it && revision >= Some(incident.revision.unwrap_or_default())
}

/// Pods start with what they had.
fn continue_abandoned(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    start_pods(world, incident).unwrap_or_else(|| close_incident(world, incident, RecoveryStage::Failed))
}

fn start_pods(world: &World<'_>, incident: &Incident) -> Option<ReconcileStep> {
    let Some(set) = world.stateful_set() else {
        return Some(ReconcileStep::Wait {
            blocker: Blocker::StatefulSetUnobserved,
        });
    };
    let scale = ReconcileStep::Recover(RecoveryStep::Scale {
        from: set.replicas,
        to: incident.size,
    });
    (set.replicas < incident.size).then(|| stop_running_jobs(world).unwrap_or(scale))
}

fn with_change_time(world: &World<'_>, incident: &Incident) -> Incident {
    Incident {
        changed: world.now,
        ..incident.clone()
    }
}

fn record_incident(from: &Incident, to: Incident) -> ReconcileStep {
    ReconcileStep::Recover(RecoveryStep::RecordIncident {
        from: Box::new(from.clone()),
        to: Box::new(to),
    })
}

fn close_incident(world: &World<'_>, incident: &Incident, stage: RecoveryStage) -> ReconcileStep {
    ReconcileStep::Recover(RecoveryStep::CloseIncident {
        from: Box::new(incident.clone()),
        to: Box::new(Incident {
            stage,
            ..with_change_time(world, incident)
        }),
    })
}

fn start_next_attempt(world: &World<'_>, incident: &Incident, why: String) -> ReconcileStep {
    let next = Incident {
        stage: RecoveryStage::Restoring,
        attempt: incident.attempt.saturating_add(1),
        message: why,
        ..with_change_time(world, incident)
    };
    record_incident(incident, next)
}

fn abandon_incident(world: &World<'_>, incident: &Incident, why: String) -> ReconcileStep {
    let next = Incident {
        stage: RecoveryStage::Abandoned,
        message: why,
        ..with_change_time(world, incident)
    };
    record_incident(incident, next)
}

/// What the restorer says it did.
fn describe_restore(done: &CommandDetails) -> String {
    let from = match (&done.from_data_dir, &done.base) {
        (Some(_), _) => "the data of the member itself".to_owned(),
        (None, Some(base)) => base.clone(),
        (None, None) => "the backup".to_owned(),
    };
    match done.revision {
        Some(revision) => format!("revision {revision} was restored from {from}"),
        None => format!("the data was restored from {from}"),
    }
}
