//! Plans the next step of an open recovery from the recorded incident and the observed state.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{Incident, RecoveryCause, RecoveryStage};
use mainstay_verdict::{CommandDetails, Verdict};

use super::loss::is_volume_writable;
use super::{require_lock, stop_running_jobs, wait};
use crate::intervals;
use crate::model::{
    Blocker, FailureClass, InitFinding, JobFailure, JobState, ObservedJob, ObservedLock, Ordinal,
    ReconcileStep, RecoveryBlocker, RecoveryJobKind, RecoveryStep, World, quorum,
};

/// Verdicts of the restorer that a retry does not change.
const PERMANENT_VERDICTS: [Verdict; 5] = [
    Verdict::Usage,
    Verdict::WrongVolume,
    Verdict::NoBackup,
    Verdict::Incomplete,
    Verdict::DamagedBackup,
];

pub(super) fn plan_next(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    if let Some(step) = require_lock(world) {
        return step;
    }
    let step = match incident.stage {
        RecoveryStage::Restoring => continue_restoring(world, incident),
        RecoveryStage::Restored => continue_restored(world, incident),
        RecoveryStage::Abandoned => continue_abandoned(world, incident),
        RecoveryStage::Closed | RecoveryStage::Failed => {
            ReconcileStep::Recover(RecoveryStep::ReleaseLock)
        }
    };
    match (step, &world.observed.recovery.lock) {
        // A recovery that waits longer than the TTL would lose the lock.
        (ReconcileStep::Wait { blocker }, ObservedLock::HeldByUs { renewed_at, .. })
            if is_lock_renewal_due(world.now, *renewed_at) =>
        {
            ReconcileStep::Recover(RecoveryStep::RenewLock(Box::new(blocker)))
        }
        (step, _) => step,
    }
}

fn is_lock_renewal_due(now: Timestamp, renewed: Timestamp) -> bool {
    now.duration_since(renewed).unsigned_abs() >= intervals::LOCK_TTL / 3
}

/// Stage `Restoring`: stops all pods, then runs the Jobs that write volumes.
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
    // Until the StatefulSet controller observed the scale-down, it may start another pod that mounts a volume.
    if !world.observed.pods.is_empty() || !set.is_observed {
        return wait(RecoveryBlocker::PodsStopping);
    }
    let base = Ordinal(incident.base);
    if is_volume_lost(world, base) {
        return abandon_incident(world, incident, describe_lost_volume(world, base));
    }
    if !is_volume_writable(world, base) {
        return wait(RecoveryBlocker::VolumeUnavailable { ordinal: base }); // not bound yet: binding may still succeed
    }
    match check_job(world, incident, base, RecoveryJobKind::Restore) {
        Err(step) => step,
        Ok(Err(failure)) => handle_job_failure(world, incident, base, failure),
        Ok(Ok((at, done))) => {
            rename_other_data_dirs(world, incident, base, at).unwrap_or_else(|| {
                let next = Incident {
                    stage: RecoveryStage::Restored,
                    revision: done.start_revision.or(done.revision),
                    cluster: done.cluster_id.clone(),
                    message: describe_restore(done),
                    ..with_change_time(world, incident)
                };
                record_incident(incident, next)
            })
        }
    }
}

fn is_volume_lost(world: &World<'_>, ordinal: Ordinal) -> bool {
    let pvc = world.observed.pvcs.get(&ordinal);
    pvc.is_none_or(|pvc| pvc.is_lost || pvc.is_deleting)
}

fn describe_lost_volume(world: &World<'_>, ordinal: Ordinal) -> String {
    format!("volume of {} is lost", world.desired.pod_name(ordinal))
}

/// Outcome and end time of a Job.
type RecoveryJobResult<'a> = Result<(Timestamp, &'a CommandDetails), (Timestamp, &'a JobFailure)>;

/// The outcome of the Job of this attempt on a volume, or the step until it has one.
fn check_job<'a>(
    world: &World<'a>,
    incident: &Incident,
    ordinal: Ordinal,
    kind: RecoveryJobKind,
) -> Result<RecoveryJobResult<'a>, ReconcileStep> {
    let Some(job) = world.observed.recovery.jobs.get(&ordinal) else {
        // The pod of an earlier Job still writes the volume.
        if world.observed.recovery.active_writers.contains(&ordinal) {
            return Err(wait(RecoveryBlocker::JobRunning { ordinal }));
        }
        return Err(ReconcileStep::Recover(RecoveryStep::CreateJob {
            ordinal,
            kind,
            incident: Box::new(incident.clone()),
        }));
    };
    if job.is_deleting {
        return Err(wait(RecoveryBlocker::JobRunning { ordinal }));
    }
    // A Job of an earlier attempt or of a lost incident proves nothing about this one.
    if !job.belongs_to(incident) {
        return Err(delete_job(ordinal, job));
    }
    match &job.state {
        JobState::Running => Err(wait(RecoveryBlocker::JobRunning { ordinal })),
        JobState::Succeeded { at, done } if is_result_pending(world.now, kind, (*at, done)) => {
            Err(wait(RecoveryBlocker::JobRunning { ordinal }))
        }
        JobState::Succeeded { at, done } => Ok(Ok((*at, done))),
        JobState::Failed { at, failure } => match raise_epoch(world, failure) {
            Some(step) => Err(step),
            None => Ok(Err((*at, failure))),
        },
    }
}

/// Whether a restore succeeded but its result is not observed yet. The pod carries the result, and its watch event may arrive
/// after that of the Job.
fn is_result_pending(
    now: Timestamp,
    task: RecoveryJobKind,
    (at, done): (Timestamp, &CommandDetails),
) -> bool {
    let has_no_result = task == RecoveryJobKind::Restore && done.revision.is_none();
    has_no_result && now < add_pause(at, intervals::JOB_RESULT_TIMEOUT)
}

/// Raises the epoch before a Job is retried whose volume recorded an epoch that is not below the lock's: the coordination document
/// was lost and the clock is behind. Happens once, since the new epoch is higher.
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

/// Renames the data of the other members, so that they join the new cluster as learners; failures are retried. Two kinds of
/// volumes are skipped, since the new cluster does not accept their data: volumes of another Etcd, and volumes that could not be
/// mounted in time, as long as those are fewer than a quorum of the old cluster.
fn rename_other_data_dirs(
    world: &World<'_>,
    incident: &Incident,
    base: Ordinal,
    since: Timestamp,
) -> Option<ReconcileStep> {
    let others = world.observed.pvcs.keys().copied();
    let others = others.filter(|ordinal| {
        *ordinal != base && ordinal.0 < incident.size && is_volume_writable(world, *ordinal)
    });
    let (mut running, mut timed_out) = (None, 0);
    for ordinal in others {
        let step = match check_job(world, incident, ordinal, RecoveryJobKind::RenameToPrevious) {
            Ok(Ok(_)) => continue,
            Ok(Err((_, failure))) if is_wrong_volume(failure) => continue,
            Ok(Err((at, failure))) => {
                // A quorum of old volumes could start the old cluster again.
                timed_out += usize::from(failure.class == FailureClass::Deadline);
                if failure.class == FailureClass::Deadline
                    && timed_out < quorum(incident.size as usize)
                {
                    continue;
                }
                retry_rename(world, ordinal, since, (at, failure))
            }
            Err(step) => step,
        };
        match step {
            // Jobs on different volumes run in parallel.
            step @ ReconcileStep::Wait { .. } => running = Some(step),
            step => return Some(step),
        }
    }
    running
}

/// Deletes the failed Job of one volume for the next attempt. The backoff equals the time since the first attempt, within limits.
fn retry_rename(
    world: &World<'_>,
    ordinal: Ordinal,
    since: Timestamp,
    (at, failure): (Timestamp, &JobFailure),
) -> ReconcileStep {
    let (first, longest) = intervals::RECOVERY_BACKOFF;
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
    failure.verdict == Some(Verdict::WrongVolume)
}

fn add_pause(time: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or_default();
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Retries a failed restore with backoff, without limit, because the cluster has no other data to serve. A requested restore is
/// abandoned on a permanent failure, and any restore on a volume of another Etcd.
fn handle_job_failure(
    world: &World<'_>,
    incident: &Incident,
    ordinal: Ordinal,
    (at, failure): (Timestamp, &JobFailure),
) -> ReconcileStep {
    let is_permanent = failure
        .verdict
        .is_some_and(|verdict| PERMANENT_VERDICTS.contains(&verdict));
    if is_wrong_volume(failure) || (is_permanent && incident.cause == RecoveryCause::Requested) {
        return abandon_incident(world, incident, failure.message.clone());
    }
    retry_later(world, incident, (ordinal, at), failure.message.clone())
}

/// Starts the next attempt after the backoff.
fn retry_later(
    world: &World<'_>,
    incident: &Incident,
    (ordinal, at): (Ordinal, Timestamp),
    detail: String,
) -> ReconcileStep {
    let retry_at = add_pause(at, compute_backoff(incident.attempt));
    if world.now < retry_at {
        return wait(RecoveryBlocker::JobFailed {
            ordinal,
            reason: detail,
            retry_at,
        });
    }
    start_next_attempt(world, incident, detail)
}

fn compute_backoff(attempt: u32) -> Duration {
    let (first, longest) = intervals::RECOVERY_BACKOFF;
    let doublings = attempt.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// Stage `Restored`: starts the pods, and closes the incident when etcd serves the restored data.
fn continue_restored(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    if let Some(step) = start_pods(world, incident) {
        return step;
    }
    if is_confirmed(world, incident) {
        return close_incident(world, incident, RecoveryStage::Closed);
    }
    let base = Ordinal(incident.base);
    if is_volume_lost(world, base) {
        // The restored data is lost as well, which is a new loss and needs a new incident.
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
            let detail = format!("init check of {pod} rejected the restored data");
            retry_later(world, incident, (base, incident.changed), detail)
        }
        // A refusal needs a user, and a later init check may report a different result.
        Some(InitFinding::CanStart | InitFinding::Refused) | None => {
            wait(RecoveryBlocker::AwaitingConfirmation)
        }
    }
}

/// Whether the restored cluster has quorum and serves the restored revision.
fn is_confirmed(world: &World<'_>, incident: &Incident) -> bool {
    let Some(members) = world.members().filter(|_| world.has_quorum()) else {
        return false;
    };
    // Cluster ID and revision are unknown when the result of the restore Job was not observed in time.
    let is_restored_cluster = incident
        .cluster
        .as_ref()
        .is_none_or(|cluster| *cluster == members.cluster_id.to_string());
    let revision = world.member(Ordinal(incident.base)).and_then(|member| {
        let status = member.status.as_ref()?;
        Some(status.revision)
    });
    is_restored_cluster && revision >= Some(incident.revision.unwrap_or_default())
}

/// Stage `Abandoned`: starts the pods on the data they have, then closes the incident as failed.
fn continue_abandoned(world: &World<'_>, incident: &Incident) -> ReconcileStep {
    start_pods(world, incident)
        .unwrap_or_else(|| close_incident(world, incident, RecoveryStage::Failed))
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
    // No pod may mount a volume that a Job still writes.
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

fn start_next_attempt(world: &World<'_>, incident: &Incident, detail: String) -> ReconcileStep {
    let next = Incident {
        stage: RecoveryStage::Restoring,
        attempt: incident.attempt.saturating_add(1),
        message: detail,
        ..with_change_time(world, incident)
    };
    record_incident(incident, next)
}

fn abandon_incident(world: &World<'_>, incident: &Incident, detail: String) -> ReconcileStep {
    let next = Incident {
        stage: RecoveryStage::Abandoned,
        message: detail,
        ..with_change_time(world, incident)
    };
    record_incident(incident, next)
}

/// The restore result of the restorer, for the status.
fn describe_restore(done: &CommandDetails) -> String {
    let from = match (&done.from_data_dir, &done.base) {
        (Some(_), _) => "the data directory of the member".to_owned(),
        (None, Some(base)) => base.clone(),
        (None, None) => "the backup".to_owned(),
    };
    match done.revision {
        Some(revision) => format!("restored revision {revision} from {from}"),
        None => format!("restored data from {from}"),
    }
}
