//! `spec.backup`: settings of the backup.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::{DurationString, Schedule};
use crate::store::StoreSpec;
use crate::tls::TlsConfig;

/// Settings of the backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupSpec {
    /// Port of the backup sidecar: on-demand snapshots, metrics and health. Default: 8080.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// TLS of the sidecar. Certificate secrets contain `tls.crt` and `tls.key` and can be renewed at any time
    /// without a restart. Default: plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Image of the sidecar. Default: the image that the controller is configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Object store for the snapshots. Default: none, which disables backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSpec>,
    /// Resources of the sidecar. Default: requests of 50m CPU and 128Mi memory. A given value replaces the
    /// whole default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Compaction of the backup: a Job merges the delta snapshots into a new full snapshot. A change restarts
    /// no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_compaction: Option<SnapshotCompactionSpec>,
    /// When full snapshots are taken, in UTC. Default: every hour. The sidecar also takes a full snapshot when
    /// it starts backing up and when the chain of delta snapshots is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_snapshot_schedule: Option<Schedule>,
    /// Which old snapshots are deleted. Default: `LimitBased`. The newest restorable chain of snapshots is
    /// never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_policy: Option<GarbageCollectionPolicy>,
    /// Number of full snapshots that the policy `LimitBased` keeps. Default: 7.
    #[serde(
        rename = "maxBackupsLimitBasedGC",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub max_backups_limit_based_gc: Option<i32>,
    /// Interval at which old snapshots are deleted. Default: `1m`. It must be longer than
    /// `deltaSnapshotPeriod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage_collection_period: Option<DurationString>,
    /// Interval at which delta snapshots are taken. If all members are lost, at most the changes of this
    /// interval are lost. Default: `20s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_period: Option<DurationString>,
    /// Size of the buffered changes at which a delta snapshot is taken before its interval ends. Default:
    /// `100Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_memory_limit: Option<Quantity>,
    /// How long delta snapshots are kept after a newer full snapshot covers them. Within this period,
    /// point-in-time restore to any revision is possible. Default: the next garbage collection deletes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta_snapshot_retention_period: Option<DurationString>,
    /// Compression of snapshots. A change affects new snapshots only; existing snapshots stay readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionSpec>,
    /// Accepted and ignored: the sidecar serves no profiles. A change restarts no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_profiling: Option<bool>,
    /// Timeout of one full snapshot. Default: `15m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_snapshot_timeout: Option<DurationString>,
    /// How each sidecar detects whether its member is the etcd leader; only the leader's sidecar takes
    /// snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElectionSpec>,
}

/// Which old snapshots are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GarbageCollectionPolicy {
    /// Keep the snapshots of the last hours, then one per hour, one per day and one per week.
    Exponential,
    /// Keep a number of full snapshots.
    LimitBased,
}

/// Compression algorithm of snapshots.
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

/// Compression of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompressionSpec {
    /// Compress snapshots. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Compression algorithm of snapshots. Default: `gzip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CompressionPolicy>,
}

/// How each sidecar detects whether its member is the etcd leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderElectionSpec {
    /// Interval at which a sidecar checks whether its member is the leader. Default: `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reelection_period: Option<DurationString>,
    /// Timeout of that check. Default: `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_connection_timeout: Option<DurationString>,
}

/// Compaction of the backup: a Job merges the delta snapshots into a new full snapshot. The Job does not
/// connect to etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotCompactionSpec {
    /// Resources of the compaction Job. Default: requests of 600m CPU and 3Gi memory. A given value replaces
    /// the whole default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Number of events since the last full snapshot that starts a compaction Job. Default: the setting of the
    /// controller (1,000,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_threshold: Option<i64>,
    /// Number of events since the last full snapshot above which the controller requests a full snapshot from
    /// the sidecar instead of starting a Job. Default: the setting of the controller (3,000,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_full_snapshot_threshold: Option<i64>,
}
