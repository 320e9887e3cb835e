//! Backup maintenance: settings, observed Jobs, published outcomes and actions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::ObservedJob;
use jiff::Timestamp;
use mainstay_crds::ConditionStatus;

/// Renewal interval of a pin: a third of its lifetime, so that two renewals may fail.
pub(crate) const PIN_RENEWAL: Duration = Duration::from_mins(20);

/// Reason of a condition that keeps its last status because the cluster is hibernated. etcd-druid uses the same reason.
pub(crate) const NOT_CHECKED: &str = "NotChecked";

/// Condition reason of etcd-druid for a full snapshot taken instead of a compaction.
pub(crate) const FULL_SNAPSHOT_TAKEN: &str = "FullSnapshotTakenSuccessfully";

/// Condition reason of etcd-druid for a full snapshot that failed.
pub(crate) const FULL_SNAPSHOT_FAILED: &str = "ErrorTriggeringFullSnapshot";

/// Observed upkeep of a backup.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedUpkeep {
    /// The Job that compacts deltas into a full snapshot.
    pub(crate) compaction: Option<ObservedJob>,
    /// The Job that runs a restore drill.
    pub(crate) drill: Option<ObservedJob>,
    /// Deltas since a full snapshot; `None` with a sidecar of etcd-backup-restore, which does not report it.
    pub(crate) delta_backlog: Option<DeltaBacklog>,
    /// The full snapshot requested instead of a compaction.
    pub(crate) fallback: FallbackSnapshot,
    /// Pins of this controller by name. A pin keeps retention from deleting what a Job reads.
    pub(crate) pins: BTreeMap<String, ObservedPin>,
}

/// Deltas since a full snapshot, as the sidecar reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaBacklog {
    /// Revision of that full snapshot.
    pub(crate) since_revision: i64,
    pub(crate) bytes: u64,
}

/// A pin of this controller, in this process or an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedPin {
    /// First revision that retention must keep.
    pub(crate) from_revision: i64,
    pub(crate) renewed_at: Timestamp,
}

/// A full snapshot requested instead of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FallbackSnapshot {
    /// None requested since this process started.
    #[default]
    None,
    Running,
    Taken,
    Failed {
        reason: String,
    },
}

/// Backup maintenance settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpkeepPolicy {
    pub(crate) is_compaction_enabled: bool,
    /// Events since the last full snapshot that trigger a compaction.
    pub(crate) events_threshold: i64,
    /// Bytes of delta snapshots that trigger a compaction.
    pub(crate) bytes_threshold: u64,
    /// Events above which the sidecar takes a full snapshot instead of a compaction.
    pub(crate) full_snapshot_threshold: i64,
    /// Time between a failed compaction and the next attempt.
    pub(crate) retry_interval: Duration,
    /// Deadline of a Job.
    pub(crate) job_deadline: Duration,
}

impl Default for UpkeepPolicy {
    fn default() -> Self {
        Self {
            is_compaction_enabled: true,
            events_threshold: 1_000_000,
            bytes_threshold: 1 << 30,
            full_snapshot_threshold: 3_000_000,
            retry_interval: Duration::from_mins(10),
            job_deadline: Duration::from_hours(3),
        }
    }
}

/// Outcomes published by earlier reconciles.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReportedUpkeep {
    pub(crate) compaction: Option<ReportedOutcome>,
    pub(crate) drill: Option<ReportedOutcome>,
    /// Number of finished restore drills.
    pub(crate) drill_count: u32,
}

/// The published outcome of a Job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportedOutcome {
    /// `True` for success.
    pub(crate) status: ConditionStatus,
    pub(crate) reason: String,
    /// Ends with a marker that identifies the Job.
    pub(crate) message: String,
    pub(crate) reported_at: Timestamp,
}

/// An action of backup maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpkeepAction {
    StartCompaction {
        /// Revision of the full snapshot the Job starts from: retention must keep this revision and later ones.
        from_revision: i64,
    },
    /// Requests a full snapshot from the leader's sidecar.
    RequestFullSnapshot,
    DeleteCompactionJob {
        uid: String,
        /// Revision of the full snapshot that the Job wrote.
        snapshot_revision: Option<i64>,
    },
    StartDrill {
        /// Revision to restore; `None` means the newest.
        to_revision: Option<i64>,
    },
    DeleteDrillJob {
        uid: String,
    },
    /// Renews the pin of a running Job, so that retention keeps what the Job reads.
    RenewPin {
        owner: PinOwner,
        /// Retention must keep this revision and later ones.
        from_revision: i64,
    },
}

/// The Job that holds a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinOwner {
    Compaction,
    Drill,
}

impl PinOwner {
    /// Name of the pin in the coordination document.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Compaction => "compaction",
            Self::Drill => "restore-drill",
        }
    }
}

/// The marker in a condition message that identifies a Job: its end time in whole seconds.
pub(crate) fn format_job_marker(ended: Timestamp) -> String {
    let whole = Timestamp::from_second(ended.as_second()).unwrap_or(ended);
    format!("({whole})")
}
