//! Observed Jobs and their results.

use jiff::Timestamp;
use mainstay_coordination::Epoch;
use mainstay_coordination::incident::Incident;
use mainstay_verdict::{CommandDetails, Verdict};

/// Observed Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedJob {
    pub(crate) uid: String,
    /// Token of the recovery it was created for.
    pub(crate) incident_token: Option<String>,
    /// Attempt of that recovery.
    pub(crate) attempt: u32,
    pub(crate) is_deleting: bool,
    pub(crate) created_at: Option<Timestamp>,
    pub(crate) state: JobState,
}

/// State of a Job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum JobState {
    /// Running or pending.
    #[default]
    Running,
    Succeeded {
        at: Timestamp,
        /// Result in the termination message; empty when the pod is not cached or left none.
        done: CommandDetails,
    },
    Failed {
        at: Timestamp,
        failure: JobFailure,
    },
}

/// Failure of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobFailure {
    pub(crate) class: FailureClass,
    /// Verdict of the program; `None` when it was killed before it wrote one, or wrote one of another version.
    pub(crate) verdict: Option<Verdict>,
    /// Epoch recorded on the volume, when it is not below the epoch of the Job.
    pub(crate) superseded_by: Option<Epoch>,
    pub(crate) message: String,
}

/// Cause of a Job failure, in the classes of etcd-druid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FailureClass {
    /// The deadline of the Job passed.
    Deadline,
    /// The scheduler preempted the pod for one of higher priority.
    Preempted,
    /// The node got a taint that the pod does not tolerate.
    Tainted,
    /// The pod was evicted, for example by a drain.
    Evicted,
    /// The kubelet terminated the pod under memory or disk pressure.
    Terminated,
    /// The program exited with an error.
    Process,
    Unknown,
}

impl FailureClass {
    pub(crate) const ALL: [Self; 7] = [
        Self::Deadline,
        Self::Preempted,
        Self::Tainted,
        Self::Evicted,
        Self::Terminated,
        Self::Process,
        Self::Unknown,
    ];

    /// Reason in the condition, as in etcd-druid.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Deadline => "DeadlineExceeded",
            Self::Preempted => "PreemptionByScheduler",
            Self::Tainted => "DeletionByTaintManager",
            Self::Evicted => "EvictionByEvictionAPI",
            Self::Terminated => "TerminationByKubelet",
            Self::Process => "ProcessFailure",
            Self::Unknown => "Unknown",
        }
    }

    /// Metric label, as in etcd-druid.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Deadline => "deadlineExceeded",
            Self::Preempted => "preempted",
            Self::Tainted | Self::Evicted | Self::Terminated => "evicted",
            Self::Process => "processFailure",
            Self::Unknown => "unknown",
        }
    }
}

impl ObservedJob {
    /// Whether it was created for this attempt of a recovery. Compares tokens, because incident ids can repeat after the
    /// coordination ConfigMap is lost.
    pub(crate) fn belongs_to(&self, incident: &Incident) -> bool {
        self.incident_token.as_ref() == Some(&incident.token) && self.attempt == incident.attempt
    }
}

impl JobState {
    pub(crate) fn ended_at(&self) -> Option<Timestamp> {
        match self {
            Self::Running => None,
            Self::Succeeded { at, .. } | Self::Failed { at, .. } => Some(*at),
        }
    }
}
