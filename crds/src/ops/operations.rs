//! The operations of an ops task, one type each.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Take a snapshot now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnDemandSnapshot {
    /// Type of the snapshot.
    #[serde(rename = "type")]
    pub type_: SnapshotType,
    /// Mark a full snapshot as the last one of its cluster; copy tasks can wait for it. Default: false. Not
    /// allowed for delta snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_final: Option<bool>,
    /// Timeout of a delta snapshot in seconds. Default: 60.
    #[serde(default = "one_minute")]
    #[schemars(range(min = 10))]
    pub timeout_seconds_delta: i32,
    /// Timeout of a full snapshot in seconds. Default: 900.
    #[serde(default = "fifteen_minutes")]
    #[schemars(range(min = 120))]
    pub timeout_seconds_full: i32,
}

const fn one_minute() -> i32 {
    60
}

const fn fifteen_minutes() -> i32 {
    900
}

impl OnDemandSnapshot {
    /// A snapshot with the default timeouts.
    pub const fn new(type_: SnapshotType) -> Self {
        Self {
            type_,
            is_final: None,
            timeout_seconds_delta: one_minute(),
            timeout_seconds_full: fifteen_minutes(),
        }
    }

    /// Timeout of the requested type of snapshot, in seconds.
    pub const fn timeout_seconds(&self) -> i32 {
        match self.type_ {
            SnapshotType::Full => self.timeout_seconds_full,
            SnapshotType::Delta => self.timeout_seconds_delta,
        }
    }
}

/// Type of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotType {
    /// The whole database.
    Full,
    /// The changes since the last snapshot.
    Delta,
}

/// Restore the cluster to a state in its backup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// Restore up to and including this revision. The sidecar metrics `mainstay_restorable_oldest_revision` and
    /// `mainstay_restorable_newest_revision` show the available range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub to_revision: Option<i64>,
    /// Restore the newest revision that was current at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_time: Option<Time>,
    /// Restore this full snapshot, without the delta snapshots after it. The value is its object name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub from_full: Option<String>,
    /// Only check that the restore is possible and report what it would restore. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// Target of a restore.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RestoreTarget<'a> {
    /// The newest state in the backup.
    Newest,
    /// Up to and including a revision.
    Revision(i64),
    /// The revision that was current at a time.
    Time(&'a Time),
    /// A full snapshot without deltas, by its object name.
    Full(&'a str),
}

/// Why a restore has no single target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreTargetError {
    /// More than one target; only an API server without CEL stores such a task.
    #[error("at most one of toRevision, toTime and fromFull may be set")]
    Ambiguous,
}

impl Restore {
    /// The one target of the restore.
    pub fn target(&self) -> Result<RestoreTarget<'_>, RestoreTargetError> {
        match (self.to_revision, &self.to_time, &self.from_full) {
            (None, None, None) => Ok(RestoreTarget::Newest),
            (Some(revision), None, None) => Ok(RestoreTarget::Revision(revision)),
            (None, Some(time), None) => Ok(RestoreTarget::Time(time)),
            (None, None, Some(name)) => Ok(RestoreTarget::Full(name)),
            _ => Err(RestoreTargetError::Ambiguous),
        }
    }
}

/// Compact the backup: merge the delta snapshots into a new full snapshot. There are no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Compact {}

/// Defragment the database of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Defragment {
    /// Names of the members to defragment. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 20), extend("x-kubernetes-list-type" = "set"))]
    pub members: Option<Vec<String>>,
}

/// Verify the backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyBackup {
    /// Which chains of snapshots to verify. Default: `Newest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chains: Option<Chains>,
}

/// Which chains of snapshots to verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Chains {
    /// The newest full snapshot and its delta snapshots.
    #[default]
    Newest,
    /// Every full snapshot and its delta snapshots.
    All,
}

/// Recover a cluster that lost its quorum permanently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoverQuorum {
    /// Name of the member whose data the cluster is recovered from. Default: a surviving member whose data is
    /// at least as new as the backup, otherwise the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub from_member: Option<String>,
    /// Only report what would be done and which data would be lost. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// Transfer leadership to another member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveLeader {
    /// Name of the new leader. Default: the healthiest other member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub to: Option<String>,
}
