//! `spec.mainstay`: features that etcd-druid does not have.
//!
//! All additions to the spec are below this one field. They cannot collide with a future field of etcd-druid, and an
//! Etcd without it means the same to both controllers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::CronSchedule;

/// Annotation of an Etcd that approves the recovery which its `RecoveryRequired` condition describes. Its value
/// is the identifier in `status.mainstay.recovery.id`, so an approval is valid for one incident only.
pub const APPROVE_RECOVERY: &str = "etcd-mainstay.io/approve-recovery";

/// Features of etcd-mainstay that etcd-druid does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MainstaySpec {
    /// Recovery from data loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryPolicy>,
    /// Additional triggers of backup compaction, besides the event thresholds in
    /// `spec.backup.snapshotCompaction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionTriggers>,
    /// Restore drills: a Job restores a backup into a scratch volume, without starting etcd, and compares the
    /// result with what the cluster contained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_drill: Option<RestoreDrill>,
    /// Handling of the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StoragePolicy>,
}

/// Recovery from data loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryPolicy {
    /// Whether the controller recovers from data loss by itself or waits for a user. It acts only when the loss
    /// is proven: the data check of a member reports it, or the volume of a member is missing. An unreachable
    /// member is no proof. Default: `Approve`. In every mode, the controller replaces a lost minority of
    /// members from the other members. A change takes effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<RecoveryMode>,
}

/// Who decides on a recovery that can lose data.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
pub enum RecoveryMode {
    /// The controller restores a lost single-member cluster and a lost quorum by itself.
    Automatic,
    /// The controller restores a single-member cluster by itself, because the backup is the only other copy.
    /// For a lost quorum it reports what it would do and waits for the annotation
    /// `etcd-mainstay.io/approve-recovery`.
    #[default]
    Approve,
    /// The controller restores nothing. A user creates an `EtcdOpsTask`.
    Manual,
}

/// Additional triggers of backup compaction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactionTriggers {
    /// Size of the delta snapshots since the last full snapshot that starts a compaction Job. It limits how
    /// much data a restore has to read. Default: the setting of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_threshold: Option<Quantity>,
    /// When a compaction Job starts, regardless of the thresholds. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<CronSchedule>,
}

/// Restore drills.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreDrill {
    /// When a restore drill runs. Default: never. Most drills restore the newest backup, some an older one. The
    /// condition `LastRestoreDrillSucceeded` reports the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<CronSchedule>,
}

/// Handling of the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePolicy {
    /// What happens to existing volumes when `spec.storageCapacity` is raised. Default: `Expand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<VolumeGrowth>,
}

/// What happens to existing volumes when `spec.storageCapacity` is raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeGrowth {
    /// Existing volumes are expanded without stopping a member. If the storage class does not support
    /// expansion, the condition `DataVolumesReady` reports it.
    #[default]
    Expand,
    /// Existing volumes keep their size; only volumes of new members get the new size.
    Keep,
}
