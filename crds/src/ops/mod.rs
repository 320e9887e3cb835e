//! `EtcdOpsTask`: a one-time operation on a cluster.
//!
//! ```text
//! Pending ─ admitted ─► InProgress ─┬─► Succeeded ─┐
//!    └─ refused ─► Rejected ─┐      └─► Failed ────┴─ TTL expires ─► deleted
//!                            └──────────────────────────▲
//! ```
//!
//! **Invariants**: the operation of a task never changes, and a task never returns to an earlier state.

mod operations;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use operations::{
    Chains, Compact, Defragment, MoveLeader, OnDemandSnapshot, RecoverQuorum, Restore,
    RestoreTarget, RestoreTargetError, SnapshotType, VerifyBackup,
};

use crate::condition::{LastError, LastOperation};

/// Desired operation.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdOpsTask",
    plural = "etcdopstasks",
    shortname = "eot",
    namespaced,
    crates(kube_core = "::kube_core"),
    doc = "A one-time operation on an etcd cluster: a snapshot, a restore, a defragmentation.",
    derive = "PartialEq",
    status = "EtcdOpsTaskStatus",
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state"}"#,
    printcolumn = r#"{"name": "Etcd", "type": "string", "jsonPath": ".spec.etcdName"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.lastOperation.type", "priority": 1}"#,
    printcolumn = r#"{"name": "TTL", "type": "integer", "jsonPath": ".spec.ttlSecondsAfterFinished", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdOpsTaskSpec {
    /// The operation: exactly one of the fields. Immutable.
    pub config: EtcdOpsTaskConfig,
    /// Seconds after which a finished task is deleted. Default: 3600. Immutable.
    #[serde(default = "one_hour")]
    #[schemars(range(min = 1))]
    pub ttl_seconds_after_finished: i32,
    /// Name of the Etcd, in the namespace of the task. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_name: Option<String>,
}

const fn one_hour() -> i32 {
    3600
}

/// The operation: exactly one of the fields. etcd-druid has `onDemandSnapshot` only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct EtcdOpsTaskConfig {
    /// Take a snapshot now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot: Option<OnDemandSnapshot>,
    /// Restore the cluster to a state in its backup: the newest, unless `toRevision`, `toTime` or `fromFull` is
    /// set. If the cluster has data, the controller takes a snapshot of the current state first. The members
    /// are stopped during the restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
    /// Compact the backup: a Job merges the delta snapshots into a new full snapshot. The Job does not connect
    /// to etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact: Option<Compact>,
    /// Defragment the database of the members, one member after another, the leader last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragment: Option<Defragment>,
    /// Verify the backup: read every object, check its integrity, and check that no revision is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_backup: Option<VerifyBackup>,
    /// Recover a cluster that lost its quorum permanently. Rejected while enough members are alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_quorum: Option<RecoverQuorum>,
    /// Transfer leadership to another member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_leader: Option<MoveLeader>,
}

/// The operation of a task, after the check that there is exactly one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Take a snapshot.
    OnDemandSnapshot(&'a OnDemandSnapshot),
    /// Restore from the backup.
    Restore(&'a Restore),
    /// Compact the backup.
    Compact(&'a Compact),
    /// Defragment members.
    Defragment(&'a Defragment),
    /// Verify the backup.
    VerifyBackup(&'a VerifyBackup),
    /// Recover a lost quorum.
    RecoverQuorum(&'a RecoverQuorum),
    /// Transfer leadership.
    MoveLeader(&'a MoveLeader),
}

/// Why a task has no single operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// No operation that this version knows; the task may need a newer version.
    #[error("spec.config contains no operation that this version supports")]
    Unknown,
    /// More than one operation; only an API server without validation stores such a task.
    #[error("spec.config contains {count} operations, must be exactly one")]
    Ambiguous {
        /// Number of operations in the spec.
        count: usize,
    },
}

impl EtcdOpsTaskConfig {
    /// The one operation of the task.
    pub fn operation(&self) -> Result<Operation<'_>, OperationError> {
        // No `..`: a new operation must be added to the list below.
        let Self {
            on_demand_snapshot,
            restore,
            compact,
            defragment,
            verify_backup,
            recover_quorum,
            move_leader,
        } = self;
        let given: Vec<_> = [
            on_demand_snapshot.as_ref().map(Operation::OnDemandSnapshot),
            restore.as_ref().map(Operation::Restore),
            compact.as_ref().map(Operation::Compact),
            defragment.as_ref().map(Operation::Defragment),
            verify_backup.as_ref().map(Operation::VerifyBackup),
            recover_quorum.as_ref().map(Operation::RecoverQuorum),
            move_leader.as_ref().map(Operation::MoveLeader),
        ]
        .into_iter()
        .flatten()
        .collect();
        match given[..] {
            [] => Err(OperationError::Unknown),
            [operation] => Ok(operation),
            _ => Err(OperationError::Ambiguous { count: given.len() }),
        }
    }
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaskState {
    /// Not started yet.
    Pending,
    /// Running.
    InProgress,
    /// Finished successfully.
    Succeeded,
    /// Started and failed.
    Failed,
    /// Refused before it started; nothing was changed.
    Rejected,
}

impl TaskState {
    /// True if the state never changes again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Rejected)
    }
}

/// Observed state of the task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdOpsTaskStatus {
    /// State of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Time of the last change of `state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Time at which the task was admitted and started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Errors of the task, oldest first; at most ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub last_errors: Option<Vec<LastError>>,
    /// The current step of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Result of the task. etcd-druid does not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<OpsTaskResult>,
}

/// Result of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpsTaskResult {
    /// Result in one sentence; for a dry run, what the task would have done.
    pub summary: String,
    /// Revision that was saved, restored or verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Object name of the snapshot that was written or restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Object name of the snapshot that was taken before a restore. Restore it to undo the restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety_snapshot: Option<String>,
}

#[cfg(test)]
mod tests;
