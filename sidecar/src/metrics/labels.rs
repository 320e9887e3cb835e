//! The values labels take. All of them are known before the first scrape, so every series starts at zero
//! and none can multiply.

use mainstay_archive::name::Kind;
use mainstay_store::Class;

use crate::state::Standing;

/// Both kinds of snapshots.
pub(super) const KINDS: [Kind; 2] = [Kind::Full, Kind::Delta];

/// The word of a kind in labels: the one of its file names, as existing dashboards expect.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Full => "Full",
        Kind::Delta => "Incr",
    }
}

/// The word of an outcome.
pub(super) fn outcome(succeeded: bool) -> &'static str {
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
    pub fn word(self) -> &'static str {
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
pub enum LeaseKind {
    /// The heartbeat of the member.
    Member,
    /// The revision of the newest full snapshot.
    FullSnapshot,
    /// The revision of the newest delta.
    DeltaSnapshot,
}

impl LeaseKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Member, Self::FullSnapshot, Self::DeltaSnapshot];

    /// One word, the label.
    pub fn word(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::FullSnapshot => "full-snapshot",
            Self::DeltaSnapshot => "delta-snapshot",
        }
    }
}

/// What garbage collection removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collected {
    /// A full snapshot.
    Full,
    /// A delta.
    Delta,
    /// A part an upload left behind.
    Chunk,
}

impl Collected {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Delta, Self::Chunk];

    /// One word, the label.
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => kind(Kind::Full),
            Self::Delta => kind(Kind::Delta),
            Self::Chunk => "Chunk",
        }
    }
}

impl From<Kind> for Collected {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Full => Self::Full,
            Kind::Delta => Self::Delta,
        }
    }
}

/// Every class of store errors.
const STORE_CLASSES: [Class; 6] = [
    Class::Transient,
    Class::NotFound,
    Class::Denied,
    Class::Exists,
    Class::Corrupt,
    Class::Invalid,
];

/// What can keep the snapshotter from its work, as [`crate::state::Trouble`] classifies it. A word that is not
/// here is counted too; it only has no zero before its first time.
pub const FAILURES: [&str; 9] = [
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
pub const ALARMS: [&str; 2] = ["CORRUPT", "NOSPACE"];

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
pub(super) const ANSWERS: [&str; 3] = ["2xx", "4xx", "5xx"];

/// The class of an answer.
pub(super) fn answer(status: u16) -> &'static str {
    match status {
        ..400 => "2xx",
        400..500 => "4xx",
        500.. => "5xx",
    }
}

/// Sets of one label.
pub(super) fn each<const N: usize>(words: [&'static str; N]) -> Vec<[&'static str; 1]> {
    words.into_iter().map(|word| [word]).collect()
}

/// Every pair of a word and an outcome.
pub(super) fn with_outcome(
    words: impl IntoIterator<Item = &'static str>,
) -> Vec<[&'static str; 2]> {
    pairs(words, ["true", "false"])
}

/// Every pair.
pub(super) fn pairs<const N: usize>(
    first: impl IntoIterator<Item = &'static str>,
    second: [&'static str; N],
) -> Vec<[&'static str; 2]> {
    let both = |a| second.into_iter().map(move |b| [a, b]);
    first.into_iter().flat_map(both).collect()
}

/// Words of both kinds.
pub(super) fn kinds() -> [&'static str; 2] {
    KINDS.map(kind)
}

/// Words of all standings.
pub(super) fn standings() -> [&'static str; 4] {
    Standing::ALL.map(Standing::word)
}

/// Words of all classes of store errors.
pub(super) fn store_classes() -> [&'static str; 6] {
    STORE_CLASSES.map(Class::name)
}
