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
pub enum Standing {
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

impl Standing {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Learner, Self::Follower, Self::Leader];

    /// One word, also the label of metrics.
    pub fn word(self) -> &'static str {
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
pub struct Stored {
    /// Its name: kind, revisions, time.
    pub name: SnapshotName,
    /// Whole object key.
    pub key: String,
    /// Size as stored.
    pub size: u64,
}

/// What its own member said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sighting {
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
    pub at: Timestamp,
}

/// Why no backup is taken although this sidecar leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// One word of a closed list, for metrics.
    pub class: &'static str,
    /// In words, with coordinates.
    pub text: String,
    /// Since when.
    pub since: Timestamp,
}

/// The deltas behind a full snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pile {
    /// The revision of the full snapshot.
    pub since: Revision,
    /// Their bytes.
    pub bytes: u64,
}

/// Everything known now.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What this sidecar is.
    pub standing: Standing,
    /// What its member said last; `None` when it has not answered yet.
    pub sighting: Option<Sighting>,
    /// Whether the last question was answered.
    pub etcd_answers: bool,
    /// Whether a store is configured.
    pub has_store: bool,
    /// The newest revision captured, while leading.
    pub captured: Option<Revision>,
    /// When the newest captured event arrived.
    pub captured_at: Option<Timestamp>,
    /// The newest full snapshot in the store.
    pub last_full: Option<Stored>,
    /// The newest delta in the store.
    pub last_delta: Option<Stored>,
    /// The deltas behind the newest full snapshot; `None` before the store was listed.
    pub piled_up: Option<Pile>,
    /// When the delta schedule last passed, with or without something to write.
    pub delta_checked_at: Option<Timestamp>,
    /// Whether a full snapshot is on its way.
    pub full_under_way: bool,
    /// What keeps backups from being taken.
    pub trouble: Option<Trouble>,
}

/// Where the state is written.
pub type Board = watch::Sender<State>;

/// Where it is read.
pub type View = watch::Receiver<State>;

/// Notes what keeps backups from being taken. The time stays that of the first trouble of its class.
pub fn trouble(board: &Board, class: &'static str, text: &str) {
    board.send_modify(|state| {
        let known = state.trouble.as_ref().filter(|known| known.class == class);
        let since = known.map_or_else(Timestamp::now, |known| known.since);
        state.trouble = Some(Trouble {
            class,
            text: text.to_owned(),
            since,
        });
    });
}

/// Backups are taken again.
pub fn trouble_over(board: &Board) {
    board.send_if_modified(|state| state.trouble.take().is_some());
}
