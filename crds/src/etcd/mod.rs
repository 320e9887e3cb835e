//! `Etcd`: one etcd cluster.
//!
//! ```text
//! spec   ─ server ─ how etcd runs          status ─ conditions, members, operation, errors
//!        ─ backup ─ how it is backed up           ─ mainstay: what is ours
//!        ─ mainstay: what is ours
//! ```
//!
//! **Holds**: nothing in it has a schema default; a stored Etcd stays as its author wrote it, and
//! defaults are applied where they are used.

mod backup;
mod mainstay;
mod server;
mod status;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, TopologySpreadConstraint};
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

/// What an etcd cluster should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "Etcd",
    plural = "etcds",
    namespaced,
    crates(kube_core = "::kube_core"),
    doc = "An etcd cluster: how it runs, how it is backed up, and how it is doing.",
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
    /// Put in front of the name of every member: `<prefix>-<pod>` instead of `<pod>`. Default: none.
    /// It can neither be added, changed nor removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = NAME_PATTERN))]
    pub member_name_prefix: Option<String>,
    /// Accepted and ignored: the controller chooses the selector of the pods. Deprecated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub selector: Option<LabelSelector>,
    /// Labels of the pods. Where one has the name of a label the controller sets, the controller's
    /// stands. Changing them restarts the members one at a time.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods. Changing them restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// How etcd runs. `{}` is enough. Unless a field says otherwise, changing it restarts the members one
    /// at a time.
    pub etcd: EtcdConfig,
    /// How etcd is backed up. `{}` means: not at all. Unless a field says otherwise, changing it restarts
    /// the members one at a time.
    pub backup: BackupSpec,
    /// Settings of etcd that its backup has to know too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_config: Option<SharedConfig>,
    /// Where the pods may run. Both fields go into the pods as they are; changing them restarts the
    /// members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// How many members the cluster has. Use an odd number: an even one survives no more failures
    /// than the odd number below it. Members are added one at a time as learners, and removed one at
    /// a time, as long as the others have a quorum. `0` hibernates the cluster: a last snapshot is taken,
    /// the pods go, the volumes stay.
    pub replicas: i32,
    /// Priority class of the pods. Default: none. Changing it restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Storage class of the volumes. Default: that of the cluster. It can neither be added, changed
    /// nor removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Size of each member's volume. Default: `16Gi`. A larger value grows the volumes where their
    /// storage class can; a smaller one is reported and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_capacity: Option<Quantity>,
    /// Name of the claim template of the volumes: claims are called `<template>-<pod>`. Default: the
    /// name of the Etcd. It can neither be added, changed nor removed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<String>,
    /// Whether the containers run as user 0 instead of 65532. Default: false. For volumes that only
    /// root can write; pods that do so are refused in namespaces with restricted pod security.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_root: Option<bool>,
    /// Addresses of members that somebody else runs, as etcd-druid 0.38 has them. Accepted, so that
    /// nothing is lost on the way through this version; such a cluster is left alone and a condition
    /// says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub externally_managed_member_addresses: Option<Vec<String>>,
    /// What etcd-mainstay can do beyond etcd-druid. All of it is optional, and changing it restarts no
    /// member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mainstay: Option<MainstaySpec>,
}

impl EtcdSpec {
    /// What may be done about lost data without asking.
    pub fn recovery_mode(&self) -> RecoveryMode {
        self.mainstay
            .as_ref()
            .and_then(|ours| ours.recovery.as_ref())
            .and_then(|recovery| recovery.mode)
            .unwrap_or_default()
    }

    /// What a raised `storageCapacity` does.
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

/// How etcd forgets old revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompactionMode {
    /// Revisions older than a length of time.
    Periodic,
    /// All but a number of revisions.
    Revision,
}

/// Settings of etcd that its backup has to know too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedConfig {
    /// How etcd forgets old revisions. Default: `periodic`. Changing it restarts the members one at
    /// a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction_mode: Option<CompactionMode>,
    /// How much history is kept: a length of time (`30m`) or, in the mode `revision`, a number of
    /// revisions. Default: `30m`. Changing it restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction_retention: Option<String>,
}

/// Where the pods may run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingConstraints {
    /// Which nodes and which other pods are sought or avoided. Default: no preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods are spread over zones and nodes. Default: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
}
