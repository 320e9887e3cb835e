//! The values labels take. All of them are known before the first scrape, so every series starts at zero
//! and none can multiply.

use mainstay_archive::name::SnapshotKind;
use mainstay_store::ErrorClass;

use crate::state::SidecarRole;

/// Both kinds of snapshots.
pub(super) const SNAPSHOT_KINDS: [SnapshotKind; 2] = [SnapshotKind::Full, SnapshotKind::Delta];

/// The word of a kind in labels: the one of its file names, as existing dashboards expect.
pub(super) fn kind_label(kind: SnapshotKind) -> &'static str {
    match kind {
        SnapshotKind::Full => "Full",
        SnapshotKind::Delta => "Incr",
    }
}

/// The word of an outcome.
pub(super) fn outcome_label(succeeded: bool) -> &'static str {
    if succeeded { "true" } else { "false" }
}

/// Why revisions are missing between what was captured and what came next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GapCause {
    /// etcd compacted them before they were captured.
    Compacted,
    /// The watch skipped them.
    Lost,
    /// The store holds newer revisions than etcd has: etcd lost data, or the backup is another cluster's.
    StoreAhead,
    /// The store holds other events than etcd, although it is not ahead of it.
    ForeignHistory,
}

impl GapCause {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Compacted,
        Self::Lost,
        Self::StoreAhead,
        Self::ForeignHistory,
    ];

    /// One word, the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compacted => "compacted",
            Self::Lost => "lost",
            Self::StoreAhead => "store-ahead",
            Self::ForeignHistory => "foreign-history",
        }
    }
}

/// A Kubernetes lease the sidecar keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseLabel {
    /// The heartbeat of the member.
    Member,
    /// The revision of the newest full snapshot.
    FullSnapshot,
    /// The revision of the newest delta.
    DeltaSnapshot,
}

impl LeaseLabel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Member, Self::FullSnapshot, Self::DeltaSnapshot];

    /// One word, the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::FullSnapshot => "full-snapshot",
            Self::DeltaSnapshot => "delta-snapshot",
        }
    }
}

/// What garbage collection removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GarbageLabel {
    /// A full snapshot.
    Full,
    /// A delta.
    Delta,
    /// A part an upload left behind.
    Chunk,
}

impl GarbageLabel {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Chunk];

    /// One word, the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => kind_label(SnapshotKind::Full),
            Self::Delta => kind_label(SnapshotKind::Delta),
            Self::Chunk => "Chunk",
        }
    }
}

impl From<SnapshotKind> for GarbageLabel {
    fn from(kind: SnapshotKind) -> Self {
        match kind {
            SnapshotKind::Full => Self::Full,
            SnapshotKind::Delta => Self::Delta,
        }
    }
}

/// Every class of store errors.
const STORE_CLASSES: [ErrorClass; 6] = [
    ErrorClass::Transient,
    ErrorClass::NotFound,
    ErrorClass::Denied,
    ErrorClass::Exists,
    ErrorClass::Corrupt,
    ErrorClass::Invalid,
];

/// What can keep the snapshotter from its work, as [`crate::state::BackupFailure`] classifies it. A word that is not
/// here is counted too; it only has no zero before its first time.
pub const FAILURE_CLASSES: [&str; 9] = [
    "etcd",
    "fenced",
    "foreign-history",
    "integrity",
    "internal",
    "interrupted",
    "store",
    "store-ahead",
    "timeout",
];

/// What etcd can be alarmed about.
pub const ALARM_KINDS: [&str; 2] = ["CORRUPT", "NOSPACE"];

/// The paths served over HTTP; everything else is `other`.
pub const ROUTES: [&str; 8] = [
    "/healthz",
    "/metrics",
    "/readyz",
    "/snapshot/delta",
    "/snapshot/full",
    "/snapshot/latest",
    "/status",
    OTHER_ROUTE,
];

/// Any path that is not served.
pub const OTHER_ROUTE: &str = "other";

/// Classes of answers that occur; a client cannot make others.
pub(super) const STATUS_CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// The class of an answer.
pub(super) fn status_class(status: u16) -> &'static str {
    match status {
        ..400 => "2xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}

/// Sets of one label.
pub(super) fn single_labels<const N: usize>(words: [&'static str; N]) -> Vec<[&'static str; 1]> {
    words.into_iter().map(|word| [word]).collect()
}

/// Every pair of a word and an outcome.
pub(super) fn pair_with_outcome(
    words: impl IntoIterator<Item = &'static str>,
) -> Vec<[&'static str; 2]> {
    pair_labels(words, ["true", "false"])
}

/// Every pair.
pub(super) fn pair_labels<const N: usize>(
    first: impl IntoIterator<Item = &'static str>,
    second: [&'static str; N],
) -> Vec<[&'static str; 2]> {
    let both = |a| second.into_iter().map(move |b| [a, b]);
    first.into_iter().flat_map(both).collect()
}

/// Words of both kinds.
pub(super) fn kind_labels() -> [&'static str; 2] {
    SNAPSHOT_KINDS.map(kind_label)
}

/// Words of all standings.
pub(super) fn role_labels() -> [&'static str; 4] {
    SidecarRole::ALL.map(SidecarRole::as_str)
}

/// Words of all classes of store errors.
pub(super) fn store_class_labels() -> [&'static str; 6] {
    STORE_CLASSES.map(ErrorClass::name)
}
