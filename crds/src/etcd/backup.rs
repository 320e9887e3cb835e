//! `spec.backup`: how etcd is backed up.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::{Schedule, DurationString};
use crate::store::StoreSpec;
use crate::tls::TlsConfig;

/// How etcd is backed up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// Port of the sidecar: snapshots on demand, metrics, health. Default: 8080.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Certificates of the sidecar. Each secret holds `tls.crt` and `tls.key`; what they contain may be
    /// renewed at any time without a restart. Default: it talks plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Image of the sidecar. Default: the one the controller was installed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Where snapshots go. Default: nowhere, the cluster is not backed up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSpec>,
    /// Resources of the sidecar. Default: requests of 50m CPU and 128Mi memory. What is given replaces
    /// the default as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// When and how deltas are folded into a new full snapshot, outside etcd. Members are not restarted
    /// by a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_compaction: Option<SnapshotCompactionSpec>,
    /// When a full snapshot is taken, in UTC. Default: every hour. One is taken besides when backups start
    /// and when the chain of deltas is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_snapshot_schedule: Option<Schedule>,
    /// Which old snapshots are deleted. Default: `LimitBased`. The newest chain that can be restored is
    /// never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_policy: Option<GarbageCollectionPolicy>,
    /// How many full snapshots `LimitBased` keeps. Default: 7.
    #[serde(
        rename = "maxBackupsLimitBasedGC",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub max_backups_limit_based_gc: Option<i32>,
    /// How often old snapshots are looked for. Default: `1m`. It must be longer than
    /// `deltaSnapshotPeriod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_period: Option<DurationString>,
    /// How often a delta snapshot is taken: the most that can be lost with all members. Default: `20s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_period: Option<DurationString>,
    /// How many bytes of changes are held back before a delta snapshot is taken early. Default: `100Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_memory_limit: Option<Quantity>,
    /// How long deltas are kept that a newer full snapshot has made superfluous: the time within which
    /// any moment can be restored. Default: they go with the next collection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_retention_period: Option<DurationString>,
    /// Whether and how snapshots are compressed. Snapshots that exist stay as they are, and are read
    /// whatever this says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSpec>,
    /// Accepted, and without an effect: the sidecar serves no profiles. Changing it restarts no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_profiling: Option<bool>,
    /// How long one full snapshot may take. Default: `15m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_timeout: Option<DurationString>,
    /// How the sidecars find out whose member leads; only that one takes snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElectionSpec>,
}

/// Which old snapshots are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GarbageCollectionPolicy {
    /// Keeps the snapshots of the last hours, then one an hour, one a day, one a week.
    Exponential,
    /// Keeps a number of full snapshots.
    LimitBased,
}

/// How snapshots are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CompressionPolicy {
    /// gzip.
    Gzip,
    /// LZW.
    Lzw,
    /// zlib.
    Zlib,
}

/// Whether and how snapshots are compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompressionSpec {
    /// Whether snapshots are compressed. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How snapshots are compressed. Default: `gzip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CompressionPolicy>,
}

/// How the sidecars find out whose member leads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderElectionSpec {
    /// How often a sidecar asks. Default: `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reelection_period: Option<DurationString>,
    /// How long it waits for the answer. Default: `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_connection_timeout: Option<DurationString>,
}

/// When and how deltas are folded into a new full snapshot, by a Job that never touches etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCompactionSpec {
    /// Resources of the Job. Default: requests of 600m CPU and 3Gi memory. What is given replaces the
    /// default as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// How many changes may pile up since the last full snapshot before a Job starts. Default: that of
    /// the controller (1,000,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_threshold: Option<i64>,
    /// At how many changes a Job is given up on and etcd itself is asked for a full snapshot. Default:
    /// that of the controller (3,000,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_full_snapshot_threshold: Option<i64>,
}
