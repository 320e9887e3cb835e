//! What a resource reports about itself: conditions, the last operation, errors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::openenum::open_enum;

open_enum! {
    /// What a condition is about.
    ConditionType {
        /// The cluster has quorum, counted over `spec.replicas`.
        Ready,
        /// Every member is there and healthy.
        AllMembersReady,
        /// Every member runs what the spec asks for.
        AllMembersUpdated,
        /// Full and delta snapshots are as recent as their schedules promise.
        BackupReady,
        /// Every volume is bound, and as large as asked for.
        DataVolumesReady,
        /// Members belong to different clusters. `True` is bad.
        ClusterIDMismatch,
        /// The members have joined the cluster they were told to join. Absent unless asked for.
        BootstrappedWithExistingCluster,
        /// The last folding of deltas into a full snapshot went well.
        LastSnapshotCompactionSucceeded,
        /// Data is lost and has to be recovered; the reason says what is waited for. `True` is bad.
        RecoveryRequired,
        /// The last rehearsal of a restore gave the data the cluster had.
        LastRestoreDrillSucceeded,
        /// A copy task is done.
        Succeeded,
        /// A copy task has given up.
        Failed,
    }
}

open_enum! {
    /// Whether a condition holds.
    ConditionStatus {
        /// It does.
        True,
        /// It does not.
        False,
        /// Nobody can say at the moment.
        Unknown,
        /// Written by no current version; read as not knowing.
        Progressing,
        /// Written by no current version; read as not knowing.
        ConditionCheckError,
    }
}

/// One statement about a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about. Of an Etcd: `Ready` (it has quorum, counted over `spec.replicas`), `AllMembersReady`,
    /// `AllMembersUpdated`, `BackupReady`, `DataVolumesReady`, `ClusterIDMismatch` (`True` is bad),
    /// `BootstrappedWithExistingCluster`, `LastSnapshotCompactionSucceeded`, and of our own `RecoveryRequired`
    /// (`True` is bad) and `LastRestoreDrillSucceeded`. Of a copy task: `Succeeded`, `Failed`.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// When the status last became another one.
    pub last_transition_time: Time,
    /// When anything about the statement last changed.
    pub last_update_time: Time,
    /// Why, in one word for programs.
    pub reason: String,
    /// Why, in a sentence for people.
    pub message: String,
}

open_enum! {
    /// What was, or is being, done.
    OperationType {
        /// An Etcd is made for the first time.
        Create,
        /// An Etcd is brought to what its spec asks for.
        Reconcile,
        /// An Etcd is taken down.
        Delete,
        /// A task is checked before it may start.
        Admit,
        /// A task runs.
        Execution,
        /// A finished task is removed.
        Cleanup,
    }
}

open_enum! {
    /// How far an operation is. An Etcd uses the first four, a task the others.
    OperationState {
        /// It goes on.
        Processing,
        /// It is done.
        Succeeded,
        /// It failed and is tried again.
        Error,
        /// It waits for something and is tried again.
        Requeue,
        /// It goes on.
        InProgress,
        /// It is done.
        Completed,
        /// It failed for good.
        Failed,
    }
}

/// The most recent thing done to a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// What was done. For an Etcd `Create`, `Reconcile` or `Delete`; for a task `Admit`, `Execution` or
    /// `Cleanup`.
    #[serde(rename = "type")]
    pub type_: OperationType,
    /// How far it is. For an Etcd `Processing`, `Succeeded`, `Error` or `Requeue`; for a task
    /// `InProgress`, `Completed` or `Failed`.
    pub state: OperationState,
    /// What is going on, in a sentence.
    pub description: String,
    /// Identifies the run in the controller's log.
    #[serde(rename = "runID")]
    pub run_id: String,
    /// When this was last written.
    pub last_update_time: Time,
}

/// An error that stopped an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// Which step failed, in one word for programs: `ERR_SYNC_STATEFULSET` and the like.
    pub code: String,
    /// What went wrong, in a sentence.
    pub description: String,
    /// When it was seen.
    pub observed_at: Time,
}
