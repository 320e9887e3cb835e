//! `EtcdOpsTask`: something done to a cluster once, on request.
//!
//! ```text
//! Pending ─ admitted ─► InProgress ─┬─► Succeeded ─┐
//!    └─ refused ─► Rejected ─┐      └─► Failed ────┴─ after its time ─► removed
//!                            └────────────────────────────▲
//! ```
//!
//! **Holds**: what a task does never changes, and no state is ever left backwards.

mod kinds;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kinds::{
    Chains, Compact, Defragment, MoveLeader, OnDemandSnapshot, RecoverQuorum, Restore,
    RestoreTarget, RestoreTargetError, SnapshotType, VerifyBackup,
};

use crate::condition::{LastError, LastOperation};

/// What is to be done.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdOpsTask",
    plural = "etcdopstasks",
    shortname = "eot",
    namespaced,
    crates(kube_core = "::kube_core"),
    doc = "Something done to an etcd cluster once: a snapshot, a restore, a defragmentation.",
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
    /// What to do: exactly one of the fields. It cannot be changed.
    pub config: EtcdOpsTaskConfig,
    /// How many seconds a finished task stays to be looked at before it is removed. Default: 3600. It
    /// cannot be changed.
    #[serde(default = "one_hour")]
    #[schemars(range(min = 1))]
    pub ttl_seconds_after_finished: i32,
    /// Name of the Etcd, in the namespace of the task. It cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_name: Option<String>,
}

const fn one_hour() -> i32 {
    3600
}

/// What to do: exactly one of the fields. All but `onDemandSnapshot` are etcd-mainstay's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct EtcdOpsTaskConfig {
    /// Takes a snapshot now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_demand_snapshot: Option<OnDemandSnapshot>,
    /// Puts the cluster back to a state its backup holds: the newest, unless one of `toRevision`, `toTime`
    /// and `fromFull` says which. A snapshot of the present state is taken first, where there is one to
    /// take; the members stop meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
    /// Folds the deltas of the backup into a new full snapshot, in a Job that never touches etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact: Option<Compact>,
    /// Gives unused pages of the database back to the volume, one member after another, the leader last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragment: Option<Defragment>,
    /// Reads the backup and checks that every object is whole and no revision is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify_backup: Option<VerifyBackup>,
    /// Recovers a cluster that has lost its quorum for good. Rejected while enough members live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recover_quorum: Option<RecoverQuorum>,
    /// Makes another member the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_leader: Option<MoveLeader>,
}

/// What a task does, once it is known that it does one thing.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// Take a snapshot.
    OnDemandSnapshot(&'a OnDemandSnapshot),
    /// Restore from the backup.
    Restore(&'a Restore),
    /// Fold the deltas of the backup.
    Compact(&'a Compact),
    /// Defragment members.
    Defragment(&'a Defragment),
    /// Check the backup.
    VerifyBackup(&'a VerifyBackup),
    /// Recover a lost quorum.
    RecoverQuorum(&'a RecoverQuorum),
    /// Move leadership.
    MoveLeader(&'a MoveLeader),
}

/// Why a task does not do one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Nothing this version knows; the task may be meant for a newer one.
    #[error("the task asks for nothing that is known here")]
    Unknown,
    /// More than one thing; only an API server without validation lets that pass.
    #[error("the task asks for {count} things at once")]
    Ambiguous {
        /// How many.
        count: usize,
    },
}

impl EtcdOpsTaskConfig {
    /// The one thing the task does.
    pub fn operation(&self) -> Result<Operation<'_>, OperationError> {
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

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaskState {
    /// It waits.
    Pending,
    /// It runs.
    InProgress,
    /// It is done.
    Succeeded,
    /// It was tried and failed.
    Failed,
    /// It was refused and nothing was done.
    Rejected,
}

impl TaskState {
    /// Whether nothing more will happen but removal.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Rejected)
    }
}

/// How a task is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdOpsTaskStatus {
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// When the state last became another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When it was admitted and began to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// What went wrong, the newest last; at most ten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub last_errors: Option<Vec<LastError>>,
    /// Which step it is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// What came of it, beyond what etcd-druid tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<OpsTaskResult>,
}

/// What came of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpsTaskResult {
    /// The outcome in a sentence; for a dry run, what would have been done.
    pub summary: String,
    /// The revision that was saved, restored or checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The snapshot that was written or restored, by the name of its object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The snapshot taken of the state before a restore: what to restore to take it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety_snapshot: Option<String>,
}

#[cfg(test)]
mod tests;
