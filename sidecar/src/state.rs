//! Shared state of the sidecar: election, session and tail write it; HTTP, Leases and metrics read it.

use jiff::Timestamp;
use mainstay_archive::name::SnapshotName;
pub use mainstay_etcd::MemberStatus;
use mainstay_ids::Revision;
use serde::Serialize;
use tokio::sync::watch;

/// Role of this sidecar, which follows that of its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SidecarRole {
    /// etcd does not respond, has no leader, or has no quorum to confirm it.
    #[default]
    Unknown,
    /// The member is a learner.
    Learner,
    /// Another member leads etcd.
    Follower,
    /// The member leads etcd: this sidecar takes the backups.
    Leader,
}

impl SidecarRole {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Learner, Self::Follower, Self::Leader];

    /// Name in logs and label of metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Learner => "learner",
            Self::Follower => "follower",
            Self::Leader => "leader",
        }
    }
}

/// A snapshot in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// Kind, revisions and creation time.
    pub name: SnapshotName,
    /// Object key, with prefix.
    pub key: String,
    /// Bytes, as stored.
    pub size: u64,
}

/// What a session found out about the backup in the store: whether it continues this etcd's history. Retention deletes
/// nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackupHistory {
    /// Not compared yet, not comparable, or of another history.
    #[default]
    Unverified,
    /// Only this full snapshot, taken by this sidecar, and what follows it.
    OwnSince(SnapshotName),
    /// All of it.
    Matched,
}

/// Reason why no backup is taken although this sidecar leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFailure {
    /// One of a fixed list, used as a label of metrics.
    pub class: &'static str,
    /// Error text with coordinates.
    pub message: String,
    /// Time of the first failure of this class.
    pub since: Timestamp,
}

/// The deltas based on the latest full snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltasSinceFull {
    /// Revision of the full snapshot.
    pub(crate) since: Revision,
    /// Total size of the deltas in bytes, as stored.
    pub(crate) bytes: u64,
}

/// Current state.
#[derive(Clone, Debug, Default)]
pub struct SidecarState {
    pub role: SidecarRole,
    /// Last status of the member; `None` before the first response.
    pub member_status: Option<MemberStatus>,
    /// Whether etcd responded to the last request.
    pub is_etcd_reachable: bool,
    pub has_store: bool,
    /// Latest captured revision; only while leading.
    pub captured: Option<Revision>,
    /// When the latest captured event arrived.
    pub captured_at: Option<Timestamp>,
    /// Latest full snapshot in the store.
    pub last_full: Option<StoredSnapshot>,
    /// Latest delta snapshot in the store.
    pub last_delta: Option<StoredSnapshot>,
    /// Deltas since the latest full snapshot; `None` before the store was listed.
    pub deltas_since_full: Option<DeltasSinceFull>,
    /// Time of the last delta run, with or without events to store.
    pub delta_checked_at: Option<Timestamp>,
    /// Whether a full snapshot is being taken.
    pub is_full_running: bool,
    /// Current failure of backups.
    pub failure: Option<BackupFailure>,
    /// Relation of the backup to this etcd.
    pub history: BackupHistory,
}

/// Write side of the state.
pub type StateSender = watch::Sender<SidecarState>;

/// Read side of the state.
pub(crate) type StateReceiver = watch::Receiver<SidecarState>;

/// Records a failure of backups. `since` stays the time of the first failure of its class.
pub(crate) fn record_failure(state_tx: &StateSender, class: &'static str, text: &str) {
    state_tx.send_modify(|state| {
        let previous = state
            .failure
            .as_ref()
            .filter(|previous| previous.class == class);
        let since = previous.map_or_else(Timestamp::now, |previous| previous.since);
        state.failure = Some(BackupFailure {
            class,
            message: text.to_owned(),
            since,
        });
    });
}

/// Records that backups work again.
pub(crate) fn clear_failure(state_tx: &StateSender) {
    state_tx.send_if_modified(|state| state.failure.take().is_some());
}

/// Records that a session compared the backup with etcd. What an earlier session of this process could not verify stays
/// out of reach: snapshots of this etcd on top of it prove nothing about it.
pub(crate) fn record_history_match(state_tx: &StateSender, is_match: bool) {
    state_tx.send_if_modified(|state| {
        let next = match (&state.history, is_match) {
            (BackupHistory::OwnSince(_), true) => return false,
            (_, true) => BackupHistory::Matched,
            (_, false) => BackupHistory::Unverified,
        };
        let is_changed = state.history != next;
        state.history = next;
        is_changed
    });
}

/// Records a full snapshot that this sidecar stored: it belongs to this etcd, whatever is older.
pub(crate) fn record_own_full(state_tx: &StateSender, full: &SnapshotName) {
    state_tx.send_if_modified(|state| {
        let is_unverified = state.history == BackupHistory::Unverified;
        if is_unverified {
            state.history = BackupHistory::OwnSince(full.clone());
        }
        is_unverified
    });
}
