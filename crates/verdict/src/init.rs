//! What `mainstay-restorer init` found about its member and decided.

use serde::{Deserialize, Serialize};

/// What init found and decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitReport {
    /// The version of this document.
    pub version: u32,
    /// The member.
    pub member: String,
    /// What is to happen, and why.
    #[serde(flatten)]
    pub decision: InitDecision,
    /// The data directory.
    pub data: DataDirSummary,
    /// The cluster, as other members tell.
    pub cluster: ClusterSummary,
    /// The backup.
    pub backup: BackupSummary,
}

impl InitReport {
    /// The newest version there is.
    pub const VERSION: u32 = 1;
}

/// What is to happen to a member. etcd starts on the first three and on no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", content = "cause", rename_all = "camelCase")]
pub enum InitDecision {
    /// etcd begins a new cluster with the members of the configuration.
    Bootstrap,
    /// etcd goes on with the data it has.
    Start,
    /// etcd joins the running cluster, which has added this member and never seen it.
    Join,
    /// The data has to be restored from the backup first.
    RestoreRequired(RestoreCause),
    /// Somebody else has to do something first; then init decides anew.
    Wait(WaitCause),
    /// etcd must not start on this volume, and waiting will not change that.
    Refuse(RefuseCause),
}

/// Why data has to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestoreCause {
    /// The only member has lost its data.
    DataMissing,
    /// The data of the only member is damaged.
    DataCorrupt,
    /// The data of the only member is older than the backup.
    DataBehindBackup,
    /// The cluster is new and the backup is not empty: a former cluster of this name has left it.
    BackupExists,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitCause {
    /// The running cluster does not know this member: it has to be added as a learner.
    NotAdded,
    /// The running cluster knows this member with data, and here is none: it has to be removed and added again.
    DataLost,
    /// The configuration of a new cluster does not list this member.
    NotListed,
    /// There is a cluster, and none of its members answers.
    ClusterUnreachable,
    /// Whether there is a backup cannot be told. That is not an empty backup.
    StoreUnreachable,
}

/// Why etcd must not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefuseCause {
    /// The data is damaged, and is not to be had from the backup: there is none, or other members have it.
    DataCorrupt,
    /// Another process uses the data.
    DataInUse,
    /// The volume belongs to another namespace, or its data to another member.
    WrongVolume,
    /// The cluster has removed this member; its data is of no use any more.
    Removed,
    /// The data is of another cluster than the one that runs.
    OtherCluster,
    /// The only member of a cluster that existed has lost its data, and there is no backup. Whoever accepts the loss
    /// declares the cluster new.
    NothingToRestore,
}

/// The data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDirSummary {
    /// In one word.
    pub state: DataState,
    /// How thoroughly it was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerificationDepth>,
    /// The revision of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The highest revision etcd can reach on it, with what the log still holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_revision: Option<i64>,
    /// Whose it is, as etcd prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member_id: Option<String>,
    /// Of which cluster, as etcd prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
}

impl DataDirSummary {
    /// A state about which nothing more is known.
    pub const fn from_state(state: DataState) -> Self {
        Self {
            state,
            verified: None,
            revision: None,
            highest_revision: None,
            member_id: None,
            cluster_id: None,
        }
    }
}

/// A data directory in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataState {
    /// etcd can start on it.
    Sound,
    /// etcd could start on it, and the cluster has removed the member it belongs to.
    Removed,
    /// There is none.
    Missing,
    /// It is damaged.
    Corrupt,
    /// A process uses it.
    InUse,
    /// It belongs to somebody else: to another namespace, and was not looked at, or to another member.
    Foreign,
}

/// How thoroughly data was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VerificationDepth {
    /// Every page, row and record.
    Full,
    /// What has to be after an orderly stop that left a note.
    Quick,
}

/// The running cluster, as other members tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum ClusterSummary {
    /// No other member answers.
    Unreachable,
    /// One does.
    #[serde(rename_all = "camelCase")]
    Found {
        /// Its identity, as etcd prints it.
        cluster_id: String,
        /// Whether it has a leader.
        has_leader: bool,
        /// How many members it has, learners included.
        members: usize,
        /// What it knows about this member.
        mine: MemberRegistration,
    },
}

/// What a running cluster knows about this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MemberRegistration {
    /// Nothing.
    Absent,
    /// It was added, and never started.
    Added,
    /// It has started at least once.
    Started,
}

/// The backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum BackupSummary {
    /// No store is configured.
    Unconfigured,
    /// It did not matter.
    NotAsked,
    /// The store answers and holds nothing.
    Empty,
    /// The store holds snapshots.
    #[serde(rename_all = "camelCase")]
    Present {
        /// The newest revision their names promise.
        newest_revision: i64,
    },
    /// The store does not answer, or refuses.
    Unreachable,
}
