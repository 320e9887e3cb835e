//! `spec.mainstay`: what this system can do beyond etcd-druid.
//!
//! Everything of ours in the spec is below this one field, so no field etcd-druid may grow can collide
//! with it, and a resource without it means to both systems the same.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scalar::CronSchedule;

/// Annotation of an Etcd that approves the recovery its `RecoveryRequired` condition describes. Its value
/// is the identifier in `status.mainstay.recovery.id`: an approval is for one incident, and never
/// outlives it.
pub const APPROVE_RECOVERY: &str = "etcd-mainstay.io/approve-recovery";

/// What etcd-mainstay can do beyond etcd-druid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MainstaySpec {
    /// What may be done about lost data without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryPolicy>,
    /// When deltas are folded into a new full snapshot, besides the number of changes in
    /// `spec.backup.snapshotCompaction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<CompactionTriggers>,
    /// Rehearsals of a restore: a Job restores a backup into a scratch volume, without an etcd, and compares
    /// it with what the cluster held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_drill: Option<RestoreDrill>,
    /// What happens to volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StoragePolicy>,
}

/// What may be done about lost data without asking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoveryPolicy {
    /// What the controller does once loss is proven, by the verdict of a member's own check or by the
    /// absence of its volume; silence proves nothing. Default: `Approve`. A lost minority is replaced
    /// from the other members in every mode. A change takes effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<RecoveryMode>,
}

/// Who decides on a recovery that may lose data.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
pub enum RecoveryMode {
    /// The controller: it restores a lost single member and a lost quorum by itself.
    Automatic,
    /// The controller for a single member, whose only other copy is the backup. A person for a lost
    /// quorum: the controller says what it would do and waits for the annotation
    /// `etcd-mainstay.io/approve-recovery`.
    #[default]
    Approve,
    /// A person, always: nothing is restored but by an `EtcdOpsTask`.
    Manual,
}

/// When deltas are folded into a new full snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactionTriggers {
    /// How many bytes of deltas may pile up since the last full snapshot before a Job starts: a bound on
    /// what a restore has to read. Default: that of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_threshold: Option<Quantity>,
    /// When a Job starts whatever has piled up. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<CronSchedule>,
}

/// Rehearsals of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreDrill {
    /// When to rehearse. Default: never. The newest backup is tried, now and then an older one; the condition
    /// `LastRestoreDrillSucceeded` tells the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<CronSchedule>,
}

/// What happens to volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePolicy {
    /// What a raised `spec.storageCapacity` does to volumes that exist. Default: `Expand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<VolumeGrowth>,
}

/// What a raised `storageCapacity` does to volumes that exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeGrowth {
    /// They are expanded, without stopping a member. A storage class that cannot expand is reported in
    /// the condition `DataVolumesReady`.
    #[default]
    Expand,
    /// They stay; only volumes of new members have the new size.
    Keep,
}
