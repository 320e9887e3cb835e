//! `Etcd`: one etcd cluster.
//!
//! ```text
//! spec   ─ server ─ etcd settings          status ─ conditions, members, operation, errors
//!        ─ backup ─ backup settings               ─ mainstay: additions of etcd-mainstay
//!        ─ mainstay: additions of etcd-mainstay
//! ```
//!
//! **Invariant**: no field has a schema default. A stored Etcd stays as its author wrote it, and the controller
//! applies defaults where it uses a value.

mod backup;
mod mainstay;
mod server;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use backup::{
    BackupSpec, CompressionPolicy, CompressionSpec, GarbageCollectionPolicy, LeaderElectionSpec,
    SnapshotCompactionSpec,
};
pub use mainstay::{
    APPROVE_RECOVERY, CompactionTriggers, MainstaySpec, RecoveryMode, RecoveryPolicy, RestoreDrill,
    StoragePolicy, VolumeGrowth,
};
pub use server::{
    BootstrapMember, BootstrapWithExistingCluster, ClientService, EtcdConfig, FreelistType,
    MEMBER_PATTERN, MemberPeerUrls, MetricsLevel, TrafficDistribution,
};
pub use status::{
    BootstrapStatus, DrillStatus, EtcdMemberStatus, EtcdStatus, JoinedMember, MainstayStatus,
    MemberRole, MemberState, ObjectReference, RecoveryPhase, RecoveryStatus,
};

/// Desired state of an etcd cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "Etcd",
    plural = "etcds",
    namespaced,
    crates(kube_core = "::kube_core"),
    doc = "An etcd cluster and its backups.",
    derive = "PartialEq",
    status = "EtcdStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Quorate", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "All Members Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"AllMembersReady\")].status"}"#,
    printcolumn = r#"{"name": "Backup Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"BackupReady\")].status"}"#,
    printcolumn = r#"{"name": "Cluster ID Mismatch", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"ClusterIDMismatch\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Cluster Size", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1}"#,
    printcolumn = r#"{"name": "Current Replicas", "type": "integer", "jsonPath": ".status.currentReplicas", "priority": 1}"#,
    printcolumn = r#"{"name": "Ready Replicas", "type": "integer", "jsonPath": ".status.readyReplicas", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdSpec {
    /// Prefix of every member name: members are called `<prefix>-<pod>` instead of `<pod>`. Default: no prefix.
    /// Immutable: it cannot be added, changed or removed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAME_PATTERN))]
    pub member_name_prefix: Option<String>,
    /// Deprecated and ignored: the controller chooses the pod selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub selector: Option<LabelSelector>,
    /// Labels of the pods. If a key is also set by the controller, the controller's value wins. Changing labels
    /// restarts the members one at a time.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods. Changing annotations restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Settings of etcd. `{}` selects all defaults. Unless a field says otherwise, a change restarts the
    /// members one at a time.
    pub etcd: EtcdConfig,
    /// Settings of the backup. `{}` disables backups. Unless a field says otherwise, a change restarts the
    /// members one at a time.
    pub backup: BackupSpec,
    /// Settings that both etcd and the backup sidecar use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_config: Option<SharedConfig>,
    /// Scheduling constraints of the pods, copied into the pods unchanged. A change restarts the members one at
    /// a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// Number of members. Use an odd number: an even number tolerates no more failures than the odd number
    /// below it. The controller adds members one at a time as learners. It removes members one at a time, while
    /// the remaining members have quorum. `0` hibernates the cluster: the controller takes a last snapshot,
    /// deletes the pods and keeps the volumes.
    pub replicas: i32,
    /// Priority class of the pods. Default: none. A change restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Storage class of the volumes. Default: the default storage class of the Kubernetes cluster. Immutable:
    /// it cannot be added, changed or removed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Size of each member's volume. Default: `16Gi`. Raising it expands the existing volumes if their storage
    /// class supports expansion. A smaller value changes nothing and is reported in a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_capacity: Option<Quantity>,
    /// Name of the volume claim template; PVCs are called `<template>-<pod>`. Default: the name of the Etcd.
    /// Immutable: it cannot be added, changed or removed after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<String>,
    /// Run the containers as user 0 instead of 65532. Default: false. Set it for volumes that only root can
    /// write. Namespaces that enforce the restricted Pod Security Standard reject such pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_root: Option<bool>,
    /// Addresses of members that another system runs, as etcd-druid 0.38 defines them. The field is accepted,
    /// so that it is not lost, but not supported: the controller does not reconcile such a cluster and reports
    /// that in a condition. There is one address per replica. It can only be set when the Etcd is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub externally_managed_member_addresses: Option<Vec<String>>,
    /// Features of etcd-mainstay that etcd-druid does not have. Every field is optional. A change restarts no
    /// member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<MainstaySpec>,
}

impl EtcdSpec {
    /// `spec.mainstay.recovery.mode`, or its default.
    pub fn recovery_mode(&self) -> RecoveryMode {
        self.mainstay
            .as_ref()
            .and_then(|ours| ours.recovery.as_ref())
            .and_then(|recovery| recovery.mode)
            .unwrap_or_default()
    }

    /// `spec.mainstay.storage.growth`, or its default.
    pub fn volume_growth(&self) -> VolumeGrowth {
        self.mainstay
            .as_ref()
            .and_then(|ours| ours.storage.as_ref())
            .and_then(|storage| storage.growth)
            .unwrap_or_default()
    }
}

/// Lower-case letters, digits and inner dashes.
pub const NAME_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// How etcd compacts its revision history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompactionMode {
    /// Keep the revisions of a period of time.
    Periodic,
    /// Keep a number of revisions.
    Revision,
}

/// Settings that both etcd and the backup sidecar use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedConfig {
    /// How etcd compacts its revision history. Default: `periodic`. A change restarts the members one at a
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction_mode: Option<CompactionMode>,
    /// How much revision history etcd keeps: a duration such as `30m`, or a number of revisions in mode
    /// `revision`. Default: `30m`. A change restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction_retention: Option<String>,
}

/// Scheduling constraints of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingConstraints {
    /// Node and pod affinity and anti-affinity of the pods. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods are spread over zones and nodes. Default: no constraint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Taints of nodes that the pods tolerate. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}
