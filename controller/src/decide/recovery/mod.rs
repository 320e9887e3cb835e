//! Recovers lost data when no member of the cluster can supply it.
//!
//! ```text
//! loss proven ─► start allowed? ─► open ──► scale to 0 ─► restore and rename Jobs ─► record ──► scale up ─► close
//!  verdicts,      mode, approval   lock,    all pods      one Job per volume         Restored   pods       etcd answers
//!  volumes                         incident stopped
//! ```
//!
//! Recovery runs before every planner that changes the cluster, because no other change is safe while data is at risk.
//!
//! Invariants:
//! * A member that does not answer and whose init check has not reported data loss blocks the recovery: silence is not evidence.
//! * An unreachable store is not an empty backup.
//! * A volume that belongs to another Etcd is never written.
//! * Nothing is deleted: existing data is renamed to the previous data directory.
//! * A restore creates a new cluster with higher revisions, so that old members cannot rejoin and clients notice.
//! * After a crash, the incident, the Jobs and the StatefulSet show the progress; every step may be repeated.

mod begin;
mod loss;
mod progress;
#[cfg(test)]
pub(in crate::decide) mod tests;

pub(crate) use begin::{build_requested_incident, build_token};
pub(super) use loss::is_alive_since;
#[cfg(test)]
pub(crate) use tests::test_incident;

use mainstay_coordination::incident::RecoveryStage;

use crate::model::{
    Blocker, JobState, ObservedLock, ReconcileStep, RecoveryBlocker, RecoveryStep, World,
};

/// The next step of an open recovery, or the start of a new one.
pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let observed = &world.observed.recovery;
    let open_incident = observed.open_incident();
    let step = match open_incident {
        Some(incident) => Some(progress::plan_next(world, incident)),
        None => stop_orphaned_jobs(world).or_else(|| begin::plan_start(world)),
    };
    match (&observed.parse_error, step) {
        // The unreadable document may contain an open recovery.
        (Some(cause), Some(_)) => Some(wait(RecoveryBlocker::DocumentUnreadable {
            reason: cause.clone(),
        })),
        (_, step) => step,
    }
}

/// Whether a recovery is open, or could start as soon as its mode and approval allow it.
pub(super) fn is_open_or_startable(world: &World<'_>) -> bool {
    let loss = loss::assess(world);
    let may_begin = loss.is_some_and(|loss| loss.base.is_some() && loss.blocker.is_none());
    may_begin || world.observed.recovery.open_incident().is_some()
}

/// Whether pods must stay stopped, because a Job may write their volumes.
pub(super) fn should_keep_pods_stopped(world: &World<'_>) -> bool {
    let incident = world.observed.recovery.open_incident();
    incident.is_some_and(|incident| incident.stage == RecoveryStage::Restoring)
        || stop_running_jobs(world).is_some()
}

/// Stops Jobs that may still write a volume, before a pod mounts it; `None` when there are none.
fn stop_running_jobs(world: &World<'_>) -> Option<ReconcileStep> {
    let observed = &world.observed.recovery;
    let runs = observed.jobs.iter();
    let mut runs = runs.filter(|(_, job)| job.state == JobState::Running);
    if let Some((ordinal, job)) = runs.clone().find(|(_, job)| !job.is_deleting) {
        return Some(ReconcileStep::Recover(RecoveryStep::DeleteJob {
            ordinal: *ordinal,
            uid: job.uid.clone(),
        }));
    }
    // The pod of a deleted Job may write until it terminates.
    let terminating = runs.next().map(|(ordinal, _)| *ordinal);
    let ordinal = terminating.or_else(|| observed.active_writers.first().copied())?;
    Some(wait(RecoveryBlocker::JobRunning { ordinal }))
}

/// Stops Jobs without an open incident: the coordination document was lost, or the incident is finished.
fn stop_orphaned_jobs(world: &World<'_>) -> Option<ReconcileStep> {
    let step = stop_running_jobs(world)?;
    // Deleting a Job requires the lock; waiting for one does not.
    let is_action = step.is_action();
    require_lock(world).filter(|_| is_action).or(Some(step))
}

/// Whether the recovery waits for an answer of etcd.
pub(super) fn is_confirmation_pending(world: &World<'_>) -> bool {
    let incident = world.observed.recovery.open_incident();
    incident.is_some_and(|incident| incident.stage == RecoveryStage::Restored)
}

fn wait(on: RecoveryBlocker) -> ReconcileStep {
    ReconcileStep::Wait {
        blocker: Blocker::RecoveryBlocked(on),
    }
}

/// The step or wait to acquire the lock; `None` when it is held.
fn require_lock(world: &World<'_>) -> Option<ReconcileStep> {
    match &world.observed.recovery.lock {
        ObservedLock::HeldByUs { .. } => None,
        ObservedLock::HeldByOther {
            holder, expires_at, ..
        } if world.now < *expires_at => Some(wait(RecoveryBlocker::LockHeld {
            holder: holder.clone(),
        })),
        // An expired lock may be taken over; compare-and-swap decides between two candidates.
        ObservedLock::Free { .. } | ObservedLock::HeldByOther { .. } => {
            Some(ReconcileStep::Recover(RecoveryStep::ReacquireLock))
        }
    }
}
