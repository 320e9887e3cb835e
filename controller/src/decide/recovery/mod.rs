//! Data that is lost for good: what is done about it when no member can give it back.
//!
//! ```text
//! loss, proven ─► may it be done? ─► Open ─► Scale 0 ─► Launch: restore, set aside ─► Record ─► Scale up ─► Close
//!  verdicts,       mode, approval     lock,   pods       Jobs on volumes               Restored   pods       etcd answers
//!  volumes                            record  are gone
//! ```
//!
//! It is asked before every other concern, because nothing else may move while data is at stake.
//!
//! **Holds**: silence proves nothing; a member that does not answer and has not said that its data is gone keeps everything
//! waiting. A store that cannot be reached is not an empty backup. A volume of somebody else is never written. Nothing is
//! deleted: what a volume held is put aside. Whatever is restored is a new cluster, with revisions nobody has seen, so
//! that old members cannot rejoin and clients notice. **After a crash** the document, the Jobs and the StatefulSet say
//! how far it is; every step may be repeated.

mod begin;
mod loss;
mod progress;
#[cfg(test)]
pub(in crate::decide) mod tests;

pub use begin::{build_requested_incident, build_token};
pub(super) use loss::is_alive_since;
#[cfg(test)]
pub(crate) fn test_incident() -> Incident {
    tests::test_incident()
}

use jiff::Timestamp;
use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Incident, RecoveryStage};

use super::{Blocker, ReconcileStep, World};
use crate::observe::{JobState, Ordinal, ObservedLock};

/// One step of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Takes the lock and writes down what is going to be done.
    OpenIncident(Box<Incident>),
    /// Takes the lock again, which was lost while nobody was there to renew it.
    ReacquireLock,
    /// Raises the epoch of the lock, which is ours, above one that a volume remembers of a document that is lost.
    RaiseEpoch {
        /// The epoch the volume remembers.
        above: Epoch,
    },
    /// Shows a sign of life while something is waited for.
    RenewLock(Box<Blocker>),
    /// Starts or stops pods.
    Scale {
        /// From this many.
        from: u32,
        /// To this many.
        to: u32,
    },
    /// Starts a Job on the volume of a member.
    CreateJob {
        /// Whose volume.
        ordinal: Ordinal,
        /// What it does.
        kind: RecoveryJobKind,
        /// For this.
        incident: Box<Incident>,
    },
    /// Deletes a Job that is over, or of an earlier attempt.
    DeleteJob {
        /// Whose volume it was on.
        ordinal: Ordinal,
        /// This very one.
        uid: String,
    },
    /// Writes down how far it is, if that is still what was seen.
    RecordIncident {
        /// What was seen.
        from: Box<Incident>,
        /// What is written.
        to: Box<Incident>,
    },
    /// Writes down how it ended, deletes the Jobs, gives the lock back.
    CloseIncident {
        /// What was seen.
        from: Box<Incident>,
        /// What is written.
        to: Box<Incident>,
    },
    /// Gives back a lock that is not needed after all.
    ReleaseLock,
}

/// What a Job does to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryJobKind {
    /// Writes the data of the new cluster.
    Restore,
    /// Puts away what is there.
    RenameToPrevious,
}

/// What a recovery waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryBlocker {
    /// That the loss lasts.
    LossUnconfirmed,
    /// A person who says that it may begin.
    ApprovalRequired {
        /// What the person has to say.
        id: String,
    },
    /// A person who does it: that is the mode.
    ManualMode,
    /// What a member has to say about its data.
    DataStateUnknown {
        /// Which.
        ordinal: Ordinal,
    },
    /// The check of a volume, before a former backup is restored: it may hold data.
    VolumeUnchecked {
        /// Whose.
        ordinal: Ordinal,
    },
    /// A person who saves what the last survivor has: its volume goes with it.
    SurvivorAtRisk {
        /// Who.
        ordinal: Ordinal,
    },
    /// There is neither usable data nor a backup.
    NothingToRestore,
    /// A volume to write to.
    VolumeUnavailable {
        /// Whose.
        ordinal: Ordinal,
    },
    /// Somebody else who disrupts the cluster.
    LockHeld {
        /// Who.
        holder: String,
    },
    /// Somebody who makes the document readable again.
    DocumentUnreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// Pods that stop.
    PodsStopping,
    /// A Job.
    JobRunning {
        /// On whose volume.
        ordinal: Ordinal,
    },
    /// The next attempt.
    JobFailed {
        /// On whose volume.
        ordinal: Ordinal,
        /// Why the last one failed.
        reason: String,
        /// When the next one begins.
        retry_at: Timestamp,
    },
    /// etcd, to answer with the restored data.
    AwaitingConfirmation,
}

impl RecoveryBlocker {
    /// Whether somebody should look, since waiting alone may not help.
    pub fn is_error(&self) -> bool {
        match self {
            Self::LossUnconfirmed
            | Self::ApprovalRequired { .. }
            | Self::ManualMode
            | Self::DataStateUnknown { .. }
            | Self::SurvivorAtRisk { .. }
            | Self::NothingToRestore
            | Self::DocumentUnreadable { .. }
            | Self::JobFailed { .. } => true,
            Self::VolumeUnchecked { .. }
            | Self::VolumeUnavailable { .. }
            | Self::LockHeld { .. }
            | Self::PodsStopping
            | Self::JobRunning { .. }
            | Self::AwaitingConfirmation => false,
        }
    }
}

/// The next step of a recovery that goes on, or of one that has to begin.
pub(super) fn plan_step(world: &World<'_>) -> Option<ReconcileStep> {
    let observed = &world.observed.recovery;
    let begun = observed.open_incident();
    let step = match begun {
        Some(incident) => Some(progress::plan_next(world, incident)),
        None => stop_orphaned_jobs(world).or_else(|| begin::plan_start(world)),
    };
    match (&observed.parse_error, step) {
        // What is written there may be a recovery that goes on.
        (Some(why), Some(_)) => Some(wait(RecoveryBlocker::DocumentUnreadable { reason: why.clone() })),
        (_, step) => step,
    }
}

/// Whether a recovery goes on, or nothing but a person's word keeps one from beginning.
pub(super) fn is_open_or_startable(world: &World<'_>) -> bool {
    let loss = loss::assess(world);
    let may_begin = loss.is_some_and(|loss| loss.base.is_some() && loss.blocker.is_none());
    may_begin || world.observed.recovery.open_incident().is_some()
}

/// Whether pods must not be started, whatever else is wanted.
pub(super) fn should_keep_pods_stopped(world: &World<'_>) -> bool {
    let incident = world.observed.recovery.open_incident();
    incident.is_some_and(|incident| incident.stage == RecoveryStage::Restoring)
        || stop_running_jobs(world).is_some()
}

/// What is done about Jobs that may still write, before a pod starts beside them; `None` when there are none.
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
    let goes = runs.next().map(|(ordinal, _)| *ordinal);
    let ordinal = goes.or_else(|| observed.active_writers.first().copied())?;
    Some(wait(RecoveryBlocker::JobRunning { ordinal }))
}

/// Jobs that nobody knows what they are for: the document they belong to is gone, or says that all is over.
fn stop_orphaned_jobs(world: &World<'_>) -> Option<ReconcileStep> {
    let step = stop_running_jobs(world)?;
    let is_deed = step.is_action();
    require_lock(world).filter(|_| is_deed).or(Some(step))
}

/// Whether a cluster was made by a recovery, so that nobody founds another.
pub(super) fn has_created_cluster(world: &World<'_>) -> bool {
    let incident = world.observed.recovery.incident.as_ref();
    incident.is_some_and(|incident| matches!(incident.stage, RecoveryStage::Restored | RecoveryStage::Closed))
}

/// Whether etcd has to be asked.
pub(super) fn is_confirmation_pending(world: &World<'_>) -> bool {
    let incident = world.observed.recovery.open_incident();
    incident.is_some_and(|incident| incident.stage == RecoveryStage::Restored)
}

fn wait(on: RecoveryBlocker) -> ReconcileStep {
    ReconcileStep::Wait {
        blocker: Blocker::RecoveryBlocked(on),
    }
}

/// What keeps the lock from being ours; `None` when it is.
fn require_lock(world: &World<'_>) -> Option<ReconcileStep> {
    match &world.observed.recovery.lock {
        ObservedLock::HeldByUs { .. } => None,
        ObservedLock::HeldByOther {
            holder, expires_at: expires, ..
        } if world.now < *expires => Some(wait(RecoveryBlocker::LockHeld {
            holder: holder.clone(),
        })),
        ObservedLock::Free { .. } | ObservedLock::HeldByOther { .. } => Some(ReconcileStep::Recover(RecoveryStep::ReacquireLock)),
    }
}
