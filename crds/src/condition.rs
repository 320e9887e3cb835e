//! Parts of a status that several resources share: conditions, the last operation, errors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::openenum::open_enum;

open_enum! {
    /// Type of a condition.
    ConditionType {
        /// The cluster has quorum, counted over `spec.replicas`.
        Ready,
        /// Every member exists and is healthy.
        AllMembersReady,
        /// Every member matches the spec.
        AllMembersUpdated,
        /// Full and delta snapshots are as recent as their schedules require.
        BackupReady,
        /// Every volume is bound and has the desired size.
        DataVolumesReady,
        /// Members belong to different etcd clusters. `True` is bad.
        ClusterIDMismatch,
        /// The members have joined the existing cluster. Absent unless the spec names one.
        BootstrappedWithExistingCluster,
        /// The last compaction of the backup succeeded.
        LastSnapshotCompactionSucceeded,
        /// Data is lost and must be recovered; the reason says what the recovery waits for. `True` is bad.
        RecoveryRequired,
        /// The last restore drill restored the data of the cluster.
        LastRestoreDrillSucceeded,
        /// A copy task succeeded.
        Succeeded,
        /// A copy task failed.
        Failed,
    }
}

open_enum! {
    /// Status of a condition.
    ConditionStatus {
        /// The condition is true.
        True,
        /// The condition is false.
        False,
        /// The controller cannot determine the condition.
        Unknown,
        /// Legacy value of etcd-druid, treated as `Unknown`.
        Progressing,
        /// Legacy value of etcd-druid, treated as `Unknown`.
        ConditionCheckError,
    }
}

/// Condition of a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition. For an Etcd: `Ready` (has quorum, counted over `spec.replicas`),
    /// `AllMembersReady`, `AllMembersUpdated`, `BackupReady`, `DataVolumesReady`, `ClusterIDMismatch` (`True`
    /// is bad), `BootstrappedWithExistingCluster`, `LastSnapshotCompactionSucceeded`, and in addition to
    /// etcd-druid `RecoveryRequired` (`True` is bad) and `LastRestoreDrillSucceeded`. For a copy task:
    /// `Succeeded`, `Failed`.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// Status of the condition: `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// Time of the last change of `status`.
    pub last_transition_time: Time,
    /// Time of the last change of the condition.
    pub last_update_time: Time,
    /// Machine-readable reason, one word.
    pub reason: String,
    /// Human-readable explanation.
    pub message: String,
}

open_enum! {
    /// Type of an operation.
    OperationType {
        /// The controller creates the objects of an Etcd for the first time.
        Create,
        /// The controller reconciles an Etcd.
        Reconcile,
        /// The controller deletes the objects of an Etcd.
        Delete,
        /// The controller checks a task before it starts.
        Admit,
        /// The task runs.
        Execution,
        /// The controller deletes a finished task.
        Cleanup,
    }
}

open_enum! {
    /// State of an operation. An Etcd uses the first four states, a task the others.
    OperationState {
        /// The operation is running.
        Processing,
        /// The operation succeeded.
        Succeeded,
        /// The operation failed and is retried.
        Error,
        /// The operation waits for a condition and is retried.
        Requeue,
        /// The operation is running.
        InProgress,
        /// The operation succeeded.
        Completed,
        /// The operation failed and is not retried.
        Failed,
    }
}

/// The current or last operation on a resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastOperation {
    /// Type of the operation. For an Etcd `Create`, `Reconcile` or `Delete`; for a task `Admit`, `Execution` or
    /// `Cleanup`.
    #[serde(rename = "type")]
    pub type_: OperationType,
    /// State of the operation. For an Etcd `Processing`, `Succeeded`, `Error` or `Requeue`; for a task
    /// `InProgress`, `Completed` or `Failed`.
    pub state: OperationState,
    /// Human-readable description of the operation.
    pub description: String,
    /// Identifier of the operation in the log of the controller.
    #[serde(rename = "runID")]
    pub run_id: String,
    /// Time of the last update of this operation.
    pub last_update_time: Time,
}

/// Error that stopped an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// Machine-readable code of the step that failed, for example `ERR_SYNC_STATEFULSET`.
    pub code: String,
    /// Human-readable description of the error.
    pub description: String,
    /// Time at which the error occurred.
    pub observed_at: Time,
}
