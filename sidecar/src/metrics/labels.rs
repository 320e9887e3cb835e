//! Label values. All of them are known before the first scrape, so every series starts at zero and the number of series
//! is bounded.

use mainstay_archive::name::SnapshotKind;
use mainstay_store::ErrorClass;

use crate::state::SidecarRole;

pub(super) const SNAPSHOT_KINDS: [SnapshotKind; 2] = [SnapshotKind::Full, SnapshotKind::Delta];

/// Label of a kind: as in file names, because dashboards of etcd-backup-restore expect it.
pub(super) fn kind_label(kind: SnapshotKind) -> &'static str {
    match kind {
        SnapshotKind::Full => "Full",
        SnapshotKind::Delta => "Incr",
    }
}

/// Label of an outcome.
pub(super) fn outcome_label(succeeded: bool) -> &'static str {
    if succeeded { "true" } else { "false" }
}

/// Cause of a gap in the captured revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GapCause {
    /// etcd compacted the revisions before they were captured.
    Compacted,
    /// The watch skipped the revisions.
    Lost,
    /// The store holds newer revisions than etcd: etcd lost data, or the backup belongs to another cluster.
    StoreAhead,
    /// The store holds other events than etcd for the same revisions.
    ForeignHistory,
}

impl GapCause {
    pub(crate) const ALL: [Self; 4] = [
        Self::Compacted,
        Self::Lost,
        Self::StoreAhead,
        Self::ForeignHistory,
    ];

    /// Label value.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Compacted => "compacted",
            Self::Lost => "lost",
            Self::StoreAhead => "store-ahead",
            Self::ForeignHistory => "foreign-history",
        }
    }
}

/// Kind of object that garbage collection deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GarbageLabel {
    Full,
    Delta,
    /// A part that an interrupted upload left behind.
    Chunk,
}

impl GarbageLabel {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Chunk];

    /// Label value.
    pub(crate) fn as_str(self) -> &'static str {
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

const STORE_CLASSES: [ErrorClass; 6] = [
    ErrorClass::Transient,
    ErrorClass::NotFound,
    ErrorClass::Denied,
    ErrorClass::Exists,
    ErrorClass::Corrupt,
    ErrorClass::Invalid,
];

/// Classes of [`crate::state::BackupFailure`]. A class that is missing here is counted as well; its series just does not
/// start at zero.
pub(crate) const FAILURE_CLASSES: [&str; 9] = [
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

/// Alarms of etcd.
pub(crate) const ALARM_KINDS: [&str; 2] = ["CORRUPT", "NOSPACE"];

/// Paths of the HTTP server; all others are counted as `other`.
pub(crate) const ROUTES: [&str; 8] = [
    "/healthz",
    "/metrics",
    "/readyz",
    "/snapshot/delta",
    "/snapshot/full",
    "/snapshot/latest",
    "/status",
    OTHER_ROUTE,
];

/// Label of unknown paths.
pub(crate) const OTHER_ROUTE: &str = "other";

/// Status classes of responses.
pub(super) const STATUS_CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// Status class of a response.
pub(super) fn status_class(status: u16) -> &'static str {
    match status {
        ..400 => "2xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}

/// Label sets of one label.
pub(super) fn single_labels<const N: usize>(values: [&'static str; N]) -> Vec<[&'static str; 1]> {
    values.into_iter().map(|value| [value]).collect()
}

/// Label sets of each value with both outcomes.
pub(super) fn pair_with_outcome(
    values: impl IntoIterator<Item = &'static str>,
) -> Vec<[&'static str; 2]> {
    pair_labels(values, ["true", "false"])
}

/// Label sets of each pair of values.
pub(super) fn pair_labels<const N: usize>(
    first: impl IntoIterator<Item = &'static str>,
    second: [&'static str; N],
) -> Vec<[&'static str; 2]> {
    let both = |a| second.into_iter().map(move |b| [a, b]);
    first.into_iter().flat_map(both).collect()
}

/// Labels of both kinds.
pub(super) fn kind_labels() -> [&'static str; 2] {
    SNAPSHOT_KINDS.map(kind_label)
}

/// Labels of all roles.
pub(super) fn role_labels() -> [&'static str; 4] {
    SidecarRole::ALL.map(SidecarRole::as_str)
}

/// Labels of all classes of store errors.
pub(super) fn store_class_labels() -> [&'static str; 6] {
    STORE_CLASSES.map(ErrorClass::name)
}
