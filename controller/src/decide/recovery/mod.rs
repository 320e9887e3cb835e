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

pub use begin::{on_request, token};
pub(super) use loss::lives_since;
#[cfg(test)]
pub(crate) fn an_incident() -> Incident {
    tests::an_incident()
}

use jiff::Timestamp;
use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Incident, Stage};

use super::{Blocker, Step, World};
use crate::observe::{JobState, Ordinal, SeenLock};

/// One step of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Takes the lock and writes down what is going to be done.
    Open(Box<Incident>),
    /// Takes the lock again, which was lost while nobody was there to renew it.
    Reclaim,
    /// Raises the epoch of the lock, which is ours, above one that a volume remembers of a document that is lost.
    Outrank {
        /// The epoch the volume remembers.
        above: Epoch,
    },
    /// Shows a sign of life while something is waited for.
    Renew(Box<Blocker>),
    /// Starts or stops pods.
    Scale {
        /// From this many.
        from: u32,
        /// To this many.
        to: u32,
    },
    /// Starts a Job on the volume of a member.
    Launch {
        /// Whose volume.
        ordinal: Ordinal,
        /// What it does.
        task: Task,
        /// For this.
        incident: Box<Incident>,
    },
    /// Deletes a Job that is over, or of an earlier attempt.
    RemoveJob {
        /// Whose volume it was on.
        ordinal: Ordinal,
        /// This very one.
        uid: String,
    },
    /// Writes down how far it is, if that is still what was seen.
    Record {
        /// What was seen.
        from: Box<Incident>,
        /// What is written.
        to: Box<Incident>,
    },
    /// Writes down how it ended, deletes the Jobs, gives the lock back.
    Close {
        /// What was seen.
        from: Box<Incident>,
        /// What is written.
        to: Box<Incident>,
    },
    /// Gives back a lock that is not needed after all.
    Release,
}

/// What a Job does to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Writes the data of the new cluster.
    Restore,
    /// Puts away what is there.
    SetAside,
}

/// What a recovery waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// That the loss lasts.
    Unconfirmed,
    /// A person who says that it may begin.
    Approval {
        /// What the person has to say.
        id: String,
    },
    /// A person who does it: that is the mode.
    Manual,
    /// What a member has to say about its data.
    Verdict {
        /// Which.
        ordinal: Ordinal,
    },
    /// The check of a volume, before a former backup is restored: it may hold data.
    Unlooked {
        /// Whose.
        ordinal: Ordinal,
    },
    /// A person who saves what the last survivor has: its volume goes with it.
    Doomed {
        /// Who.
        ordinal: Ordinal,
    },
    /// There is neither usable data nor a backup.
    NothingToRestore,
    /// A volume to write to.
    Claim {
        /// Whose.
        ordinal: Ordinal,
    },
    /// Somebody else who disrupts the cluster.
    Locked {
        /// Who.
        holder: String,
    },
    /// Somebody who makes the document readable again.
    Unreadable {
        /// What is wrong with it.
        why: String,
    },
    /// Pods that stop.
    PodsStop,
    /// A Job.
    JobRuns {
        /// On whose volume.
        ordinal: Ordinal,
    },
    /// The next attempt.
    JobFailed {
        /// On whose volume.
        ordinal: Ordinal,
        /// Why the last one failed.
        why: String,
        /// When the next one begins.
        retry_at: Timestamp,
    },
    /// etcd, to answer with the restored data.
    Confirmation,
}

impl Hold {
    /// Whether somebody should look, since waiting alone may not help.
    pub fn is_trouble(&self) -> bool {
        match self {
            Self::Unconfirmed
            | Self::Approval { .. }
            | Self::Manual
            | Self::Verdict { .. }
            | Self::Doomed { .. }
            | Self::NothingToRestore
            | Self::Unreadable { .. }
            | Self::JobFailed { .. } => true,
            Self::Unlooked { .. }
            | Self::Claim { .. }
            | Self::Locked { .. }
            | Self::PodsStop
            | Self::JobRuns { .. }
            | Self::Confirmation => false,
        }
    }
}

/// The next step of a recovery that goes on, or of one that has to begin.
pub(super) fn consider(world: &World<'_>) -> Option<Step> {
    let seen = &world.seen.recovery;
    let begun = seen.open();
    let step = match begun {
        Some(incident) => Some(progress::next(world, incident)),
        None => orphaned(world).or_else(|| begin::next(world)),
    };
    match (&seen.unreadable, step) {
        // What is written there may be a recovery that goes on.
        (Some(why), Some(_)) => Some(wait(Hold::Unreadable { why: why.clone() })),
        (_, step) => step,
    }
}

/// Whether a recovery goes on, or nothing but a person's word keeps one from beginning.
pub(super) fn is_open_or_may_begin(world: &World<'_>) -> bool {
    let loss = loss::assess(world);
    let may_begin = loss.is_some_and(|loss| loss.base.is_some() && loss.hold.is_none());
    may_begin || world.seen.recovery.open().is_some()
}

/// Whether pods must not be started, whatever else is wanted.
pub(super) fn keeps_down(world: &World<'_>) -> bool {
    let incident = world.seen.recovery.open();
    incident.is_some_and(|incident| incident.stage == Stage::Restoring)
        || unfinished(world).is_some()
}

/// What is done about Jobs that may still write, before a pod starts beside them; `None` when there are none.
fn unfinished(world: &World<'_>) -> Option<Step> {
    let seen = &world.seen.recovery;
    let runs = seen.jobs.iter();
    let mut runs = runs.filter(|(_, job)| job.state == JobState::Running);
    if let Some((ordinal, job)) = runs.clone().find(|(_, job)| !job.is_deleting) {
        return Some(Step::Recover(Recovery::RemoveJob {
            ordinal: *ordinal,
            uid: job.uid.clone(),
        }));
    }
    let goes = runs.next().map(|(ordinal, _)| *ordinal);
    let ordinal = goes.or_else(|| seen.writers.first().copied())?;
    Some(wait(Hold::JobRuns { ordinal }))
}

/// Jobs that nobody knows what they are for: the document they belong to is gone, or says that all is over.
fn orphaned(world: &World<'_>) -> Option<Step> {
    let step = unfinished(world)?;
    let is_deed = step.is_deed();
    without_lock(world).filter(|_| is_deed).or(Some(step))
}

/// Whether a cluster was made by a recovery, so that nobody founds another.
pub(super) fn has_made_a_cluster(world: &World<'_>) -> bool {
    let incident = world.seen.recovery.incident.as_ref();
    incident.is_some_and(|incident| matches!(incident.stage, Stage::Restored | Stage::Closed))
}

/// Whether etcd has to be asked.
pub(super) fn wants_an_answer(world: &World<'_>) -> bool {
    let incident = world.seen.recovery.open();
    incident.is_some_and(|incident| incident.stage == Stage::Restored)
}

fn wait(on: Hold) -> Step {
    Step::Wait {
        on: Blocker::RecoveryNeeded(on),
    }
}

/// What keeps the lock from being ours; `None` when it is.
fn without_lock(world: &World<'_>) -> Option<Step> {
    match &world.seen.recovery.lock {
        SeenLock::Ours { .. } => None,
        SeenLock::Others {
            holder, expires, ..
        } if world.now < *expires => Some(wait(Hold::Locked {
            holder: holder.clone(),
        })),
        SeenLock::Free { .. } | SeenLock::Others { .. } => Some(Step::Recover(Recovery::Reclaim)),
    }
}
