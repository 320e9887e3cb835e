//! How a recovery goes on, from what is written down and what is there.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::incident::{Cause, Incident, Stage};
use mainstay_verdict::Done;

use super::loss::is_writable;
use super::{Hold, Recovery, Task, unfinished, wait, without_lock};
use crate::cadence;
use crate::decide::{Blocker, Step, World, quorum};
use crate::observe::{FailureClass, Finding, JobFailure, JobState, Ordinal, SeenJob, SeenLock};

/// Verdicts of the restorer that another attempt will not change.
const HOPELESS: [&str; 5] = [
    "usage",
    "wrong-volume",
    "no-backup",
    "incomplete",
    "damaged-backup",
];

/// The next step.
pub(super) fn next(world: &World<'_>, incident: &Incident) -> Step {
    if let Some(step) = without_lock(world) {
        return step;
    }
    let step = match incident.stage {
        Stage::Restoring => restoring(world, incident),
        Stage::Restored => restored(world, incident),
        Stage::Abandoned => abandoned(world, incident),
        Stage::Closed | Stage::Failed => Step::Recover(Recovery::Release),
    };
    match (step, &world.seen.recovery.lock) {
        // Whoever waits shows that it lives.
        (Step::Wait { on }, SeenLock::Ours { renewed, .. }) if is_due(world.now, *renewed) => {
            Step::Recover(Recovery::Renew(Box::new(on)))
        }
        (step, _) => step,
    }
}

fn is_due(now: Timestamp, renewed: Timestamp) -> bool {
    now.duration_since(renewed).unsigned_abs() >= cadence::LOCK_TTL / 3
}

/// Pods stop, then volumes are written.
fn restoring(world: &World<'_>, incident: &Incident) -> Step {
    let Some(set) = world.set() else {
        return Step::Wait {
            on: Blocker::SetUnobserved,
        };
    };
    if set.replicas > 0 {
        return Step::Recover(Recovery::Scale {
            from: set.replicas,
            to: 0,
        });
    }
    // Until Kubernetes has taken note of that, it may start another pod.
    if !world.seen.pods.is_empty() || !set.is_observed {
        return wait(Hold::PodsStop);
    }
    let base = Ordinal(incident.base);
    if is_gone(world, base) {
        return abandon(world, incident, gone(world, base));
    }
    if !is_writable(world, base) {
        return wait(Hold::Claim { ordinal: base }); // it will be bound, or nobody knows at the moment
    }
    match job(world, incident, base, Task::Restore) {
        Err(step) => step,
        Ok(Err(failure)) => failed(world, incident, base, failure),
        Ok(Ok((at, done))) => others(world, incident, base, at).unwrap_or_else(|| {
            let next = Incident {
                stage: Stage::Restored,
                revision: done.start_revision.or(done.revision),
                cluster: done.cluster_id.clone(),
                message: told(done),
                ..changed(world, incident)
            };
            record(incident, next)
        }),
    }
}

fn is_gone(world: &World<'_>, ordinal: Ordinal) -> bool {
    let claim = world.seen.claims.get(&ordinal);
    claim.is_none_or(|claim| claim.is_lost || claim.is_deleting)
}

fn gone(world: &World<'_>, ordinal: Ordinal) -> String {
    format!("the volume of {} is gone", world.wanted.pod(ordinal))
}

/// How a Job ended, and when.
type Ended<'a> = Result<(Timestamp, &'a Done), (Timestamp, &'a JobFailure)>;

/// The Job of this attempt on a volume: how it ended, or what is to be done until it has.
fn job<'a>(
    world: &World<'a>,
    incident: &Incident,
    ordinal: Ordinal,
    task: Task,
) -> Result<Ended<'a>, Step> {
    let Some(job) = world.seen.recovery.jobs.get(&ordinal) else {
        if world.seen.recovery.writers.contains(&ordinal) {
            return Err(wait(Hold::JobRuns { ordinal })); // of an earlier one
        }
        return Err(Step::Recover(Recovery::Launch {
            ordinal,
            task,
            incident: Box::new(incident.clone()),
        }));
    };
    if job.is_deleting {
        return Err(wait(Hold::JobRuns { ordinal }));
    }
    if !job.is_of(incident) {
        return Err(remove(ordinal, job));
    }
    match &job.state {
        JobState::Running => Err(wait(Hold::JobRuns { ordinal })),
        JobState::Succeeded { at, done } if is_untold(world.now, task, (*at, done)) => {
            Err(wait(Hold::JobRuns { ordinal }))
        }
        JobState::Succeeded { at, done } => Ok(Ok((*at, done))),
        JobState::Failed { at, failure } => match outranked(world, failure) {
            Some(step) => Err(step),
            None => Ok(Err((*at, failure))),
        },
    }
}

/// Whether a restore is over, but what it did has not been heard yet: of pods it is heard later than of Jobs, at times.
fn is_untold(now: Timestamp, task: Task, (at, done): (Timestamp, &Done)) -> bool {
    let is_silent = task == Task::Restore && done.revision.is_none();
    is_silent && now < after(at, cadence::LAST_WORDS)
}

/// What is done before a Job is tried again whose volume remembers an epoch that is not below ours: the document it was from is
/// lost, and the clock is behind it. Once, since ours is above it then.
fn outranked(world: &World<'_>, failure: &JobFailure) -> Option<Step> {
    let SeenLock::Ours { epoch, .. } = world.seen.recovery.lock else {
        return None;
    };
    let above = failure.overtaken_by.filter(|found| *found >= epoch)?;
    Some(Step::Recover(Recovery::Outrank { above }))
}

fn remove(ordinal: Ordinal, job: &SeenJob) -> Step {
    Step::Recover(Recovery::RemoveJob {
        ordinal,
        uid: job.uid.clone(),
    })
}

/// The volumes of the others are emptied, so that they join anew; what fails is tried again. Two are left as they are,
/// since the new cluster does not take their data: a volume of somebody else, and one that nobody could mount in time,
/// as long as those cannot make up the old cluster.
fn others(world: &World<'_>, incident: &Incident, base: Ordinal, since: Timestamp) -> Option<Step> {
    let others = world.seen.claims.keys().copied();
    let others = others.filter(|ordinal| {
        *ordinal != base && ordinal.0 < incident.size && is_writable(world, *ordinal)
    });
    let (mut running, mut late) = (None, 0);
    for ordinal in others {
        let step = match job(world, incident, ordinal, Task::SetAside) {
            Ok(Ok(_)) => continue,
            Ok(Err((_, failure))) if is_foreign(failure) => continue,
            Ok(Err((at, failure))) => {
                late += usize::from(failure.class == FailureClass::Deadline);
                if failure.class == FailureClass::Deadline && late < quorum(incident.size as usize)
                {
                    continue;
                }
                not_aside(world, ordinal, since, (at, failure))
            }
            Err(step) => step,
        };
        match step {
            step @ Step::Wait { .. } => running = Some(step),
            step => return Some(step),
        }
    }
    running
}

/// The next attempt at one volume: its Job goes, and another takes its place. The pause is as long as it has failed for.
fn not_aside(
    world: &World<'_>,
    ordinal: Ordinal,
    since: Timestamp,
    (at, failure): (Timestamp, &JobFailure),
) -> Step {
    let (first, longest) = cadence::RECOVERY_BACKOFF;
    let pause = at.duration_since(since).unsigned_abs();
    let retry_at = after(at, pause.clamp(first, longest));
    match world.seen.recovery.jobs.get(&ordinal) {
        Some(job) if world.now >= retry_at => remove(ordinal, job),
        _ => wait(Hold::JobFailed {
            ordinal,
            why: failure.words.clone(),
            retry_at,
        }),
    }
}

fn is_foreign(failure: &JobFailure) -> bool {
    failure.verdict.as_deref() == Some("wrong-volume")
}

fn after(time: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or_default();
    time.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Tried again after a pause, for as long as it takes: there is nothing else to serve. What somebody asked for is given up
/// when it cannot be had, and so is everything on a volume of somebody else.
fn failed(
    world: &World<'_>,
    incident: &Incident,
    ordinal: Ordinal,
    (at, failure): (Timestamp, &JobFailure),
) -> Step {
    let is_hopeless = failure
        .verdict
        .as_deref()
        .is_some_and(|verdict| HOPELESS.contains(&verdict));
    if is_foreign(failure) || (is_hopeless && incident.cause == Cause::Requested) {
        return abandon(world, incident, failure.words.clone());
    }
    later(world, incident, (ordinal, at), failure.words.clone())
}

/// The next attempt, when the pause after the last one is over.
fn later(
    world: &World<'_>,
    incident: &Incident,
    (ordinal, at): (Ordinal, Timestamp),
    why: String,
) -> Step {
    let retry_at = after(at, pause(incident.attempt));
    if world.now < retry_at {
        return wait(Hold::JobFailed {
            ordinal,
            why,
            retry_at,
        });
    }
    again(world, incident, why)
}

fn pause(attempt: u32) -> Duration {
    let (first, longest) = cadence::RECOVERY_BACKOFF;
    let doublings = attempt.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// Pods start; the recovery is over when etcd answers with the restored data.
fn restored(world: &World<'_>, incident: &Incident) -> Step {
    if let Some(step) = start(world, incident) {
        return step;
    }
    if is_confirmed(world, incident) {
        return close(world, incident, Stage::Closed);
    }
    let base = Ordinal(incident.base);
    if is_gone(world, base) {
        // What was restored is gone with it; that is another loss.
        return abandon(world, incident, gone(world, base));
    }
    let pod = world.pod(base).filter(|pod| !pod.is_deleting);
    match pod.and_then(|pod| pod.finding) {
        Some(
            Finding::NeedsRestore
            | Finding::Corrupt
            | Finding::Foreign
            | Finding::Waits
            | Finding::Unborn
            | Finding::Hopeless,
        ) => {
            let pod = world.wanted.pod(base);
            let why = format!("{pod} did not start on the restored data");
            later(world, incident, (base, incident.changed), why)
        }
        // What only a person may touch, or what the next check may find otherwise.
        Some(Finding::Good | Finding::Refused) | None => wait(Hold::Confirmation),
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
        .is_none_or(|cluster| *cluster == members.cluster.to_string());
    let revision = world.member(Ordinal(incident.base)).and_then(|member| {
        let answer = member.answer.as_ref()?;
        Some(answer.revision)
    });
    is_it && revision >= Some(incident.revision.unwrap_or_default())
}

/// Pods start with what they had.
fn abandoned(world: &World<'_>, incident: &Incident) -> Step {
    start(world, incident).unwrap_or_else(|| close(world, incident, Stage::Failed))
}

fn start(world: &World<'_>, incident: &Incident) -> Option<Step> {
    let Some(set) = world.set() else {
        return Some(Step::Wait {
            on: Blocker::SetUnobserved,
        });
    };
    let scale = Step::Recover(Recovery::Scale {
        from: set.replicas,
        to: incident.size,
    });
    (set.replicas < incident.size).then(|| unfinished(world).unwrap_or(scale))
}

fn changed(world: &World<'_>, incident: &Incident) -> Incident {
    Incident {
        changed: world.now,
        ..incident.clone()
    }
}

fn record(from: &Incident, to: Incident) -> Step {
    Step::Recover(Recovery::Record {
        from: Box::new(from.clone()),
        to: Box::new(to),
    })
}

fn close(world: &World<'_>, incident: &Incident, stage: Stage) -> Step {
    Step::Recover(Recovery::Close {
        from: Box::new(incident.clone()),
        to: Box::new(Incident {
            stage,
            ..changed(world, incident)
        }),
    })
}

fn again(world: &World<'_>, incident: &Incident, why: String) -> Step {
    let next = Incident {
        stage: Stage::Restoring,
        attempt: incident.attempt.saturating_add(1),
        message: why,
        ..changed(world, incident)
    };
    record(incident, next)
}

fn abandon(world: &World<'_>, incident: &Incident, why: String) -> Step {
    let next = Incident {
        stage: Stage::Abandoned,
        message: why,
        ..changed(world, incident)
    };
    record(incident, next)
}

/// What the restorer says it did.
fn told(done: &Done) -> String {
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
