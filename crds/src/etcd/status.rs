//! `status` of an Etcd: what is known about the cluster.
//!
//! **Holds**: the controller writes it by server-side apply as one field manager, and only when it says
//! something new.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, LastError, LastOperation};
use crate::openenum::open_enum;

/// What is known about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdStatus {
    /// Generation of the spec this status is about. While it differs from `metadata.generation`, the
    /// rest describes an older spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The `StatefulSet` of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<ObjectReference>,
    /// Statements about the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// What stopped the last operation, if anything did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_errors: Option<Vec<LastError>>,
    /// What was done last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    /// Pods of the current revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_replicas: Option<i32>,
    /// Pods there are; what `kubectl scale` reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Whether every pod is ready and runs what the spec asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Never written. Deprecated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub label_selector: Option<LabelSelector>,
    /// The members, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<EtcdMemberStatus>>,
    /// Whether members talk TLS with each other.
    #[serde(
        rename = "peerUrlTLSEnabled",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_url_tls_enabled: Option<bool>,
    /// Selects the pods; what `kubectl scale` and autoscalers use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The cluster whose members were joined. Written once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapStatus>,
    /// What etcd-mainstay knows beyond etcd-druid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<MainstayStatus>,
}

/// An object of the same namespace.
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
    /// What a member is to the cluster.
    MemberRole {
        /// It leads.
        Leader,
        /// It votes.
        Member,
        /// It catches up and does not vote yet.
        Learner,
    }
}

open_enum! {
    /// How a member is doing.
    MemberState {
        /// It serves.
        Ready,
        /// It does not.
        NotReady,
        /// Nobody can say at the moment.
        Unknown,
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdMemberStatus {
    /// Name of the member, and of its Lease.
    pub name: String,
    /// Identity of the member in the cluster, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `Leader`, `Member` or `Learner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<MemberRole>,
    /// `Ready`, `NotReady` or `Unknown`.
    pub status: MemberState,
    /// Why, in one word for programs.
    pub reason: String,
    /// When the status last became another one.
    pub last_transition_time: Time,
    /// Version of etcd it runs. Ours, besides etcd-druid's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Size of its database file in bytes. Ours, besides etcd-druid's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size_bytes: Option<i64>,
    /// How much of the file is in use, in bytes; defragmentation gives back the rest. Ours, besides
    /// etcd-druid's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub db_size_in_use_bytes: Option<i64>,
}

/// The cluster whose members were joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapStatus {
    /// When all members had joined.
    pub joined_at: Time,
    /// The members that were there before.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub members: Vec<JoinedMember>,
}

/// A member of the cluster that was joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinedMember {
    /// Its name.
    pub name: String,
    /// Where other members reached it.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub peer_urls: Vec<String>,
}

/// What etcd-mainstay knows beyond etcd-druid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MainstayStatus {
    /// The recovery that goes on, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryStatus>,
    /// The last rehearsal of a restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_drill: Option<DrillStatus>,
}

open_enum! {
    /// How far a recovery is.
    RecoveryPhase {
        /// It waits for a person.
        AwaitingApproval,
        /// The pods are being stopped.
        ScalingDown,
        /// Data is written into a volume.
        Restoring,
        /// The pods are being started.
        ScalingUp,
        /// The cluster is checked before the old data is let go.
        Confirming,
        /// It is over and went well.
        Succeeded,
        /// It is over and did not; the message says what to do.
        Failed,
    }
}

/// A recovery of lost data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryStatus {
    /// Identifies the incident; what an approval has to name.
    pub id: String,
    /// `AwaitingApproval`, `ScalingDown`, `Restoring`, `ScalingUp`, `Confirming`,
    /// `Succeeded` or `Failed`.
    pub phase: RecoveryPhase,
    /// What was lost, what is being done about it, how far that is, and what may be missing afterwards.
    pub message: String,
    /// How much of the backup was read into the volume, in percent of its bytes. Only while that goes on, and only if the
    /// log of the Job tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i32>,
    /// When it began.
    pub started_at: Time,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The member whose volume is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// The revision the data ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

/// A rehearsal of a restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrillStatus {
    /// When it ended.
    pub finished_at: Time,
    /// Whether the data was what the cluster had held.
    pub succeeded: bool,
    /// How many rehearsals there have been, this one included. Every fourth restores an older state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// The revision that was restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// How many seconds it took: what a restore of this cluster takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// What was compared, or what went wrong.
    pub message: String,
}
