//! `status` of an Etcd: the observed state of the cluster.
//!
//! **Invariant**: the controller writes it by server-side apply as one field manager, and only when its content
//! changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, LastError, LastOperation};
use crate::openenum::open_enum;

/// Observed state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdStatus {
    /// Generation of the spec that this status describes. If it differs from `metadata.generation`, the status
    /// describes an older spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The `StatefulSet` of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<ObjectReference>,
    /// Conditions of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Errors of the last operation. Absent if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errors: Option<Vec<LastError>>,
    /// The current or last operation of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Number of pods of the current `StatefulSet` revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// Number of pods, as reported by the scale subresource (`kubectl scale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Number of ready pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// True if every pod is ready and matches the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Deprecated and never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub label_selector: Option<LabelSelector>,
    /// The members of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<EtcdMemberStatus>>,
    /// True if the members use TLS for traffic between members.
    #[serde(
        rename = "peerUrlTLSEnabled",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_url_tls_enabled: Option<bool>,
    /// Label selector of the pods, used by the scale subresource and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The existing cluster that the members joined. Written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapStatus>,
    /// Status of features that etcd-druid does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<MainstayStatus>,
}

/// Reference to an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// API version of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
}

open_enum! {
    /// Raft role of a member.
    MemberRole {
        /// The raft leader.
        Leader,
        /// A voting follower.
        Member,
        /// A learner: it replicates and does not vote.
        Learner,
    }
}

open_enum! {
    /// Health of a member.
    MemberState {
        /// The member is healthy.
        Ready,
        /// The member is unhealthy.
        NotReady,
        /// The health of the member is unknown.
        Unknown,
    }
}

/// Observed state of one member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberStatus {
    /// Name of the member and of its Lease.
    pub name: String,
    /// Member ID in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Raft role of the member: `Leader`, `Member` or `Learner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// Health of the member: `Ready`, `NotReady` or `Unknown`.
    pub status: MemberState,
    /// Machine-readable reason of the status, one word.
    pub reason: String,
    /// Time of the last change of `status`.
    pub last_transition_time: Time,
    /// Version of etcd that the member runs. etcd-druid does not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Size of the database file in bytes. etcd-druid does not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size_bytes: Option<i64>,
    /// Bytes of the database file that are in use; defragmentation frees the rest. etcd-druid does not have
    /// this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size_in_use_bytes: Option<i64>,
}

/// The existing cluster that the members joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapStatus {
    /// Time at which the last member had joined.
    pub joined_at: Time,
    /// Members of the existing cluster at that time.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub members: Vec<JoinedMember>,
}

/// Member of the existing cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinedMember {
    /// Name of the member in the existing cluster.
    pub name: String,
    /// Peer URLs of the member.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub peer_urls: Vec<String>,
}

/// Status of features that etcd-druid does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MainstayStatus {
    /// The current recovery, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryStatus>,
    /// The last restore drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_drill: Option<DrillStatus>,
}

open_enum! {
    /// Phase of a recovery.
    RecoveryPhase {
        /// Waiting for the approval of a user.
        AwaitingApproval,
        /// Stopping the pods.
        ScalingDown,
        /// Writing data into a volume.
        Restoring,
        /// Starting the pods.
        ScalingUp,
        /// Checking the cluster before the previous data is deleted.
        Confirming,
        /// Finished successfully.
        Succeeded,
        /// Failed; the message says what to do.
        Failed,
    }
}

/// Recovery from data loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// Identifier of the incident. The annotation `etcd-mainstay.io/approve-recovery` must have this value.
    pub id: String,
    /// Phase of the recovery: `AwaitingApproval`, `ScalingDown`, `Restoring`, `ScalingUp`, `Confirming`,
    /// `Succeeded` or `Failed`.
    pub phase: RecoveryPhase,
    /// What was lost, what the controller does about it, the progress, and which data can be missing
    /// afterwards.
    pub message: String,
    /// Progress of the restore in percent of the bytes of the backup. Present only while a Job restores and its
    /// log reports progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
    /// Start time of the recovery.
    pub started_at: Time,
    /// End time of the recovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Name of the member whose volume is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Last revision of the restored data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

/// Result of a restore drill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillStatus {
    /// End time of the drill.
    pub finished_at: Time,
    /// True if the restored data matches the data of the cluster.
    pub succeeded: bool,
    /// Number of drills so far, including this one. Every fourth drill restores an older state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Last revision of the restored data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Duration of the drill in seconds, which is how long a restore of this cluster takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// What was compared, or why the drill failed.
    pub message: String,
}
