//! What an ops task can do, one type each.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Takes a snapshot now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OnDemandSnapshot {
    /// Which snapshot to take.
    #[serde(rename = "type")]
    pub type_: SnapshotType,
    /// Whether a full snapshot is marked as the last one of its cluster, which copies can wait for.
    /// Default: false. A delta cannot be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_final: Option<bool>,
    /// How many seconds a delta snapshot may take. Default: 60.
    #[serde(default = "one_minute")]
    #[schemars(range(min = 10))]
    pub timeout_seconds_delta: i32,
    /// How many seconds a full snapshot may take. Default: 900.
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
    /// A snapshot with the default time limits.
    pub const fn new(type_: SnapshotType) -> Self {
        Self {
            type_,
            is_final: None,
            timeout_seconds_delta: one_minute(),
            timeout_seconds_full: fifteen_minutes(),
        }
    }

    /// How many seconds the snapshot that is asked for may take.
    pub const fn timeout_seconds(&self) -> i32 {
        match self.type_ {
            SnapshotType::Full => self.timeout_seconds_full,
            SnapshotType::Delta => self.timeout_seconds_delta,
        }
    }
}

/// Which snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotType {
    /// All of the database.
    Full,
    /// What changed since the last snapshot.
    Delta,
}

/// Puts the cluster back to a state its backup holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// The last revision to have. The sidecar tells what there is: `mainstay_restorable_oldest_revision` and
    /// `mainstay_restorable_newest_revision` among its metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub to_revision: Option<i64>,
    /// The moment to have: the newest revision that was current then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_time: Option<Time>,
    /// The full snapshot to have, by the name of its object, without any delta after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub from_full: Option<String>,
    /// Whether only to check that it could be done and to tell what would be had. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// What a restore aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RestoreTarget<'a> {
    /// All there is.
    Newest,
    /// Up to and with a revision.
    Revision(i64),
    /// What was current at a moment.
    Time(&'a Time),
    /// A full snapshot alone, by the name of its object.
    Full(&'a str),
}

/// Why a restore aims at nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreTargetError {
    /// More than one target; only an API server without CEL lets that pass.
    #[error("more than one of toRevision, toTime and fromFull is given")]
    Ambiguous,
}

impl Restore {
    /// The one thing it aims at.
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

/// Folds the deltas of the backup into a new full snapshot. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Compact {}

/// Gives unused pages of the database back to the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Defragment {
    /// Names of the members to defragment. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 20), extend("x-kubernetes-list-type" = "set"))]
    pub members: Option<Vec<String>>,
}

/// Reads the backup and checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerifyBackup {
    /// How much of the backup to check. Default: `Newest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chains: Option<Chains>,
}

/// How much of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Chains {
    /// The newest full snapshot and its deltas.
    #[default]
    Newest,
    /// Every full snapshot and its deltas.
    All,
}

/// Recovers a cluster that has lost its quorum for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecoverQuorum {
    /// Name of the member whose data the cluster is made from. Default: the best copy there is, which is
    /// a surviving member that is at least as new as the backup, else the backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub from_member: Option<String>,
    /// Whether only to tell what would be done and what would be lost. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

/// Makes another member the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MoveLeader {
    /// Name of the member that is to lead. Default: the healthiest of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub to: Option<String>,
}
