//! Recovery of lost data: its observed state, its steps and what blocks it.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Blocker, JobState, ObservedJob, Ordinal, RestoreProgress};
use jiff::Timestamp;
use mainstay_coordination::incident::{Incident, RecoveryStage};
use mainstay_coordination::{Epoch, Purpose};

/// Observed recovery of lost data.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedRecovery {
    pub(crate) lock: ObservedLock,
    /// The open incident, or the last closed one.
    pub(crate) incident: Option<Incident>,
    /// Restore and rename Jobs, by the member whose volume they write.
    pub(crate) jobs: BTreeMap<Ordinal, ObservedJob>,
    /// Members whose volume a pod of a Job may still write, even if the Job is deleted.
    pub(crate) active_writers: BTreeSet<Ordinal>,
    /// Progress of the restore Job, if its log shows it.
    pub(crate) progress: Option<RestoreProgress>,
    /// Error of parsing the ConfigMap. The state is unknown then, so no recovery step may be taken.
    pub(crate) parse_error: Option<String>,
}

/// Observed lock, which permits its holder to disrupt the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObservedLock {
    /// Never acquired, or released.
    Free {
        /// Epoch of the last holder.
        epoch: Epoch,
    },
    /// Held by this controller, in this process or an earlier one.
    HeldByUs { epoch: Epoch, renewed_at: Timestamp },
    HeldByOther {
        holder: String,
        purpose: Purpose,
        epoch: Epoch,
        /// Approximate, since it depends on the clock of the holder.
        expires_at: Timestamp,
    },
}

impl Default for ObservedLock {
    fn default() -> Self {
        Self::Free {
            epoch: Epoch::default(),
        }
    }
}

impl ObservedRecovery {
    pub(crate) fn open_incident(&self) -> Option<&Incident> {
        self.incident.as_ref().filter(|incident| incident.is_open())
    }

    /// The restore Job of the open incident, while it runs.
    pub(crate) fn running_restore(&self) -> Option<&ObservedJob> {
        let incident = self
            .open_incident()
            .filter(|open| open.stage == RecoveryStage::Restoring)?;
        let job = self.jobs.get(&Ordinal(incident.base))?;
        (job.belongs_to(incident) && !job.is_deleting && job.state == JobState::Running)
            .then_some(job)
    }

    pub(crate) fn finished_incident(&self) -> Option<&Incident> {
        self.incident
            .as_ref()
            .filter(|incident| !incident.is_open())
    }

    /// Whether a recovery created the cluster, so that members must not bootstrap another one.
    pub(crate) fn has_created_cluster(&self) -> bool {
        self.incident.as_ref().is_some_and(|incident| {
            matches!(
                incident.stage,
                RecoveryStage::Restored | RecoveryStage::Closed
            )
        })
    }
}

/// One step of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryStep {
    /// Acquires the lock and records the incident.
    OpenIncident(Box<Incident>),
    /// Acquires the lock again after it expired without renewal.
    ReacquireLock,
    /// Raises the epoch of the held lock above one that a volume recorded from a lost coordination document.
    RaiseEpoch {
        /// Epoch recorded on the volume.
        above: Epoch,
    },
    /// Renews the lock while the recovery waits.
    RenewLock(Box<Blocker>),
    /// Starts or stops all pods.
    Scale { from: u32, to: u32 },
    /// Creates a Job that writes the volume of a member.
    CreateJob {
        ordinal: Ordinal,
        kind: RecoveryJobKind,
        incident: Box<Incident>,
    },
    /// Deletes a Job that has failed, is orphaned or belongs to an earlier attempt.
    DeleteJob { ordinal: Ordinal, uid: String },
    /// Replaces the recorded incident if it still equals `from`.
    RecordIncident {
        from: Box<Incident>,
        to: Box<Incident>,
    },
    /// Records the outcome, deletes the Jobs and releases the lock.
    CloseIncident {
        from: Box<Incident>,
        to: Box<Incident>,
    },
    /// Releases a lock that is no longer needed.
    ReleaseLock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryJobKind {
    /// Restores the data of the new cluster.
    Restore,
    /// Renames existing data to the previous data directory.
    RenameToPrevious,
}

/// What blocks a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryBlocker {
    /// The loss has not lasted long enough to be confirmed.
    LossUnconfirmed,
    /// A user must approve the recovery.
    ApprovalRequired {
        /// Incident ID that the approval must name.
        id: String,
    },
    /// The recovery mode is manual: a user must start the recovery.
    ManualMode,
    /// The init check of a member has not reported the state of its data.
    DataStateUnknown { ordinal: Ordinal },
    /// A volume that may hold data is unchecked. A backup of a former cluster must not replace it.
    VolumeUnchecked { ordinal: Ordinal },
    /// The volume of the last surviving member is terminating or lost: a user must save its data first.
    SurvivorAtRisk { ordinal: Ordinal },
    /// Neither usable data nor a backup exists.
    NothingToRestore,
    /// No volume can be written.
    VolumeUnavailable { ordinal: Ordinal },
    /// Another operation holds the lock.
    LockHeld { holder: String },
    /// The coordination document cannot be parsed.
    DocumentUnreadable { reason: String },
    /// Pods are stopping.
    PodsStopping,
    /// A Job is running or terminating.
    JobRunning { ordinal: Ordinal },
    /// A Job failed; the next attempt starts at `retry_at`.
    JobFailed {
        ordinal: Ordinal,
        reason: String,
        retry_at: Timestamp,
    },
    /// etcd does not serve the restored data yet.
    AwaitingConfirmation,
}

impl RecoveryBlocker {
    /// Whether waiting alone may not help, so that a user should look.
    pub(crate) fn is_error(&self) -> bool {
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
