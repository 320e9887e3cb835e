//! What the sidecar knows about itself, in one place: written where it is found out, read by HTTP, leases
//! and metrics.

use jiff::Timestamp;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{ClusterId, MemberId, Revision};
use serde::Serialize;
use tokio::sync::watch;

/// What this sidecar is to the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SidecarRole {
    /// etcd does not answer, has no leader, or cannot confirm that it has one.
    #[default]
    Unknown,
    /// Its member does not vote yet.
    Learner,
    /// Another member leads.
    Follower,
    /// Its member leads: this sidecar takes the backups.
    Leader,
}

impl SidecarRole {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Learner, Self::Follower, Self::Leader];

    /// One word, also the label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Learner => "learner",
            Self::Follower => "follower",
            Self::Leader => "leader",
        }
    }
}

/// A snapshot that is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Its name: kind, revisions, time.
    pub name: SnapshotName,
    /// Whole object key.
    pub key: String,
    /// Size as stored.
    pub size: u64,
}

/// What its own member said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: MemberId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Who leads, as the member sees it.
    pub leader: Option<MemberId>,
    /// The raft term.
    pub term: u64,
    /// The member's newest revision.
    pub revision: Revision,
    /// Whether it is a learner.
    pub is_learner: bool,
    /// Bytes of its database file.
    pub db_bytes: u64,
    /// Bytes of it that are in use.
    pub db_bytes_in_use: u64,
    /// Its version.
    pub version: String,
    /// What it complains about.
    pub errors: Vec<String>,
    /// When it said so.
    pub observed_at: Timestamp,
}

/// Why no backup is taken although this sidecar leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFailure {
    /// One word of a closed list, for metrics.
    pub class: &'static str,
    /// In words, with coordinates.
    pub message: String,
    /// Since when.
    pub since: Timestamp,
}

/// The deltas behind a full snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltasSinceFull {
    /// The revision of the full snapshot.
    pub since: Revision,
    /// Their bytes.
    pub bytes: u64,
}

/// Everything known now.
#[derive(Clone, Debug, Default)]
pub struct SidecarState {
    /// What this sidecar is.
    pub role: SidecarRole,
    /// What its member said last; `None` when it has not answered yet.
    pub member_status: Option<MemberStatus>,
    /// Whether the last question was answered.
    pub is_etcd_reachable: bool,
    /// Whether a store is configured.
    pub has_store: bool,
    /// The newest revision captured, while leading.
    pub captured: Option<Revision>,
    /// When the newest captured event arrived.
    pub captured_at: Option<Timestamp>,
    /// The newest full snapshot in the store.
    pub last_full: Option<StoredSnapshot>,
    /// The newest delta in the store.
    pub last_delta: Option<StoredSnapshot>,
    /// The deltas behind the newest full snapshot; `None` before the store was listed.
    pub deltas_since_full: Option<DeltasSinceFull>,
    /// When the delta schedule last passed, with or without something to write.
    pub delta_checked_at: Option<Timestamp>,
    /// Whether a full snapshot is on its way.
    pub is_full_running: bool,
    /// What keeps backups from being taken.
    pub failure: Option<BackupFailure>,
}

/// Where the state is written.
pub type StateSender = watch::Sender<SidecarState>;

/// Where it is read.
pub type StateReceiver = watch::Receiver<SidecarState>;

/// Notes what keeps backups from being taken. The time stays that of the first trouble of its class.
pub fn record_failure(state_tx: &StateSender, class: &'static str, text: &str) {
    state_tx.send_modify(|state| {
        let known = state.failure.as_ref().filter(|known| known.class == class);
        let since = known.map_or_else(Timestamp::now, |known| known.since);
        state.failure = Some(BackupFailure {
            class,
            message: text.to_owned(),
            since,
        });
    });
}

/// Backups are taken again.
pub fn clear_failure(state_tx: &StateSender) {
    state_tx.send_if_modified(|state| state.failure.take().is_some());
}
