//! The report of `mainstay-restorer init`: what it observed about its member and what it decided.
//!
//! The JSON names of fields and variants are a contract between the restorer and the controller.

use serde::{Deserialize, Serialize};

/// The observed state of a member and the decision taken from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitReport {
    /// Version of this document, see [`InitReport::VERSION`].
    pub version: u32,
    /// Name of the etcd member.
    pub member: String,
    /// Decision and its cause, the JSON fields `decision` and `cause`.
    #[serde(flatten)]
    pub decision: InitDecision,
    /// Observed data directory of this member.
    pub data: DataDirSummary,
    /// Running cluster as reported by the other members.
    pub cluster: ClusterSummary,
    /// Observed backup in the store.
    pub backup: BackupSummary,
}

impl InitReport {
    /// Newest version of the document that this build writes and reads.
    pub const VERSION: u32 = 1;
}

/// Decision about a member. etcd starts only after `Bootstrap`, `Start` and `Join`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", content = "cause", rename_all = "camelCase")]
pub enum InitDecision {
    /// etcd bootstraps a new cluster with the members of the configuration.
    Bootstrap,
    /// etcd starts with the existing data directory.
    Start,
    /// etcd joins the running cluster, which lists this member as added and never started.
    Join,
    /// The data must be restored from the backup first.
    RestoreRequired(RestoreCause),
    /// The controller or an operator must act first; then init decides again.
    Wait(WaitCause),
    /// etcd must not start on this volume, and waiting does not change that.
    Refuse(RefuseCause),
}

/// Cause of [`InitDecision::RestoreRequired`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestoreCause {
    /// The data directory of the only member is missing.
    DataMissing,
    /// The data directory of the only member is corrupt.
    DataCorrupt,
    /// The data directory of the only member is older than the backup and has the same history.
    DataBehindBackup,
    /// The cluster is new and the backup is not empty: an earlier cluster of the same name wrote it.
    BackupExists,
}

/// Cause of [`InitDecision::Wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitCause {
    /// The running cluster does not list this member: it must be added as a learner.
    NotAdded,
    /// The running cluster lists this member as started, but its data directory is missing: the member must be removed
    /// and added again.
    DataLost,
    /// `initial-cluster` of a new cluster does not list this member.
    NotListed,
    /// The cluster exists, but no other member answers.
    ClusterUnreachable,
    /// The store could not be listed, so it is unknown whether a backup exists. This differs from an empty backup.
    StoreUnreachable,
}

/// Cause of [`InitDecision::Refuse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefuseCause {
    /// The data directory is corrupt and a restore is not the answer: no backup exists, or other members have the data.
    DataCorrupt,
    /// Another process uses the data directory.
    DataInUse,
    /// The volume belongs to another namespace, or its data to another member.
    WrongVolume,
    /// The cluster removed this member, so its data is useless.
    Removed,
    /// The data belongs to another cluster than the running one.
    OtherCluster,
    /// The backup has newer revisions of another history than the data. Both are kept; an operator decides which one is
    /// right.
    HistoryDiverged,
    /// The backup has newer revisions, and no common row proves that the data has the same history.
    HistoryUnknown,
    /// The data of the only member of an existing cluster is missing and there is no backup. To accept the loss, an
    /// operator sets `initial-cluster-state` to `new`.
    NothingToRestore,
}

/// Observed data directory of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDirSummary {
    /// Overall state.
    pub state: DataState,
    /// Depth of the verification; `None` if the directory has no readable content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerificationDepth>,
    /// Revision of the database; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Highest revision etcd can reach: the database plus the WAL entries not applied yet. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_revision: Option<i64>,
    /// Relation to the backup; `None` if it was not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<BackupRelation>,
    /// Member id in hexadecimal, as etcd prints it; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// Cluster id in hexadecimal, as etcd prints it; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

impl DataDirSummary {
    /// Returns a report of `state` with every other field unknown.
    pub const fn from_state(state: DataState) -> Self {
        Self {
            state,
            verified: None,
            revision: None,
            highest_revision: None,
            history: None,
            member_id: None,
            cluster_id: None,
        }
    }
}

/// Relation of the data to its backup, found by comparing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BackupRelation {
    /// The same history, and both end at the same revision.
    Equal,
    /// The same history, and the backup has more of it.
    Behind,
    /// The same history, and the data has more of it.
    Ahead,
    /// Two histories: both have a revision with different content.
    Diverged,
    /// No common row proves either.
    Unknown,
}

/// Overall state of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataState {
    /// etcd can start on it.
    Sound,
    /// etcd could start on it, but the cluster removed the member it belongs to.
    Removed,
    /// The directory is missing or empty.
    Missing,
    /// The directory is corrupt.
    Corrupt,
    /// Another process has the database open.
    InUse,
    /// The volume belongs to another namespace (then it was not verified), or the data to another member.
    Foreign,
}

/// Depth of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VerificationDepth {
    /// Every page, row and WAL record.
    Full,
    /// A few pages only, after a clean shutdown that left its marker.
    Quick,
}

/// Running cluster as reported by the other members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum ClusterSummary {
    /// No other member answers.
    Unreachable,
    /// At least one other member answers.
    #[serde(rename_all = "camelCase")]
    Found {
        /// Cluster id in hexadecimal, as etcd prints it.
        cluster_id: String,
        /// Whether the answering member has a leader. Without one its member list may be stale.
        has_leader: bool,
        /// Number of members, learners included.
        members: usize,
        /// Entry of this member in the member list.
        mine: MemberRegistration,
    },
}

/// Entry of this member in the member list of a running cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MemberRegistration {
    /// The list does not contain this member.
    Absent,
    /// The member was added and never started.
    Added,
    /// The member has started at least once.
    Started,
}

/// Observed backup of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum BackupSummary {
    /// No store is configured.
    Unconfigured,
    /// The store was not listed because the decision does not depend on it.
    NotAsked,
    /// The store answers and holds no snapshot.
    Empty,
    /// The store holds snapshots.
    #[serde(rename_all = "camelCase")]
    Present {
        /// Newest revision according to the names of the snapshots.
        newest_revision: i64,
    },
    /// The store does not answer or denies access.
    Unreachable,
}
